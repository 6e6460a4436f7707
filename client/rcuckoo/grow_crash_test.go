package rcuckoo

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// smallGrowing is a table of three rows of two entries. Its locks lie in several words.
func smallGrowing(seed uint64) table.Params {
	p := fullPool(seed)
	p.Rows, p.Entries, p.LockBits, p.LockWords, p.Levels = 3, 2, 2, 2, 6
	return p
}

// newGrowth fills a table until the next INSERT, of the first of its keys, has to divide rows for
// the rounds-th time.
func newGrowth(t *testing.T, seed uint64, rounds int, faults ...sim.Fault) *tableRun {
	o := sim.Hostile(seed)
	p := smallGrowing(seed)
	l, err := table.New(p, 1)
	must(t, err)
	o.Memory, o.Clients, o.Faults, o.Handler = l.Bytes, p.Clients, faults, node.Serve
	name := func(i int) []byte { return fmt.Appendf(nil, "%d.%d", seed, i) }
	load := func(s *sim.Sim, r *check.Recorder, st *Store, most int) (n int) {
		rng := rand.New(rand.NewPCG(seed, 9))
		for round := 0; n < most; n++ {
			before := st.session.Stats.Searches
			must(t, r.Insert(name(n), check.MakeValue(nil, 0, n+1, 16)))
			if st.session.Stats.Searches > before {
				if round++; round == rounds {
					return n
				}
			}
			if n > 0 && rng.IntN(4) == 0 {
				must(t, r.Update(name(rng.IntN(n)), check.MakeValue(nil, 0, 1000+n, 16)))
			}
		}
		return n
	}
	loader := func(s *sim.Sim, most int) (*check.Recorder, int) {
		must(t, Make(s, p))
		ep, err := s.Open("loader")
		must(t, err)
		st, err := Open(ep, session.Options{Pool: deaf{s}})
		must(t, err)
		r := check.NewRecorder(0, st, ep.Now)
		n := load(s, r, st, most)
		must(t, errors.Join(st.Close(), ep.Close()))
		return r, n
	}
	dry := sim.New(o)
	_, n := loader(dry, 1000)
	must(t, dry.Close())
	d := &tableRun{Sim: sim.New(o), seed: seed}
	d.pool = deaf{d.Sim}
	r, _ := loader(d.Sim, n)
	d.recorders = append(d.recorders, r)
	for i := n; i >= 0; i-- { // the new one first, and all that may move
		d.keys = append(d.keys, name(i))
	}
	return d
}

// TestEveryPrefixGrowing runs everyPrefix with INSERTs that begin a level, divide rows, insert,
// and divide a share of other rows.
func TestEveryPrefixGrowing(t *testing.T) {
	sum := everyPrefix(t, crashSeeds(t, 6), 16, func(seed uint64) *tableRun {
		return newGrowth(t, seed, 1+int(seed%3))
	})
	if sum.Divided == 0 {
		t.Error("no row was divided")
	}
}

// TestRepairersCrashGrowing lets one client crash after some verb of such an INSERT, and a client
// that repairs it after each of its own verbs.
func TestRepairersCrashGrowing(t *testing.T) {
	for _, seed := range crashSeeds(t, 2) {
		for k := uint64(6); k < 34; k += 3 {
			for j := uint64(0); ; j++ {
				d := newGrowth(t, seed, 1+int(seed%3))
				victim := d.victim(k)
				var second *sim.Worker
				second = d.enter("second", func(w int, r *check.Recorder, ep rdma.Endpoint) {
					ep.Sleep(impatient / 5)
					d.CrashAt(second, second.Sent()+j*j/4+j)
					for i, key := range d.keys {
						r.Update(key, check.MakeValue(nil, w, i+2, 16))
					}
					r.Insert(d.keys[0], check.MakeValue(nil, w, 1, 16))
				})
				if err := d.end(); err != nil {
					t.Fatalf("seed %d, crash behind verb %d, and behind verb %d of the next client: %v", seed, k,
						j*j/4+j, err)
				}
				if !second.Crashed() {
					break
				}
				if !victim.Crashed() {
					break
				}
			}
		}
	}
}

// TestSlowGrowing runs slow with such INSERTs.
func TestSlowGrowing(t *testing.T) {
	slow(t, crashSeeds(t, 3), func(seed uint64, stall sim.Fault) *tableRun {
		return newGrowth(t, seed, 1+int(seed%3), stall)
	})
}

// TestReadWhileItGrows reads keys again and again while a table grows: no reader misses a key,
// and none finds one that is not there.
func TestReadWhileItGrows(t *testing.T) {
	for _, seed := range crashSeeds(t, 20) {
		d := newGrowth(t, seed, 1)
		done := false
		d.enter("grower", func(w int, r *check.Recorder, ep rdma.Endpoint) {
			for i := range 40 {
				key := fmt.Appendf(nil, "%d+%d", seed, i)
				if err := r.Insert(key, check.MakeValue(nil, w, i+1, 16)); err != nil &&
					!errors.Is(err, client.ErrFull) {
					d.errs = append(d.errs, err)
				}
			}
			done = true
		})
		for i := range 3 {
			d.enter(fmt.Sprint("reader ", i), func(w int, r *check.Recorder, ep rdma.Endpoint) {
				for n := i; !done; n++ {
					key := d.keys[1+n%(len(d.keys)-1)]
					if _, err := r.Get(key); err != nil {
						d.errs = append(d.errs, fmt.Errorf("get %q: %w", key, err))
					}
					if _, err := r.Get(d.keys[0]); !errors.Is(err, client.ErrNotFound) {
						d.errs = append(d.errs, fmt.Errorf("get %q: %w", d.keys[0], err))
					}
				}
			})
		}
		if err := d.end(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if d.stats.Divided < 6 {
			t.Errorf("seed %d: %d rows were divided", seed, d.stats.Divided)
		}
	}
}
