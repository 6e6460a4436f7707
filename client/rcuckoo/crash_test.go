package rcuckoo

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/search"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// fullPool is a table of few rows, which is filled until paths are deep. Its locks lie in several
// words. Of one seed in two the values are in extents.
func fullPool(seed uint64) table.Params {
	p := table.Params{Shards: 1, Rows: 32, Entries: 4, KeyBytes: 8, InlineBytes: 16, ExtentBytes: 16, F: 2.3,
		RowsPerLock: 1, LockWords: 3, Tickets: 5, Clients: 16,
		Timeout: 400 * time.Millisecond}
	if seed%4 > 1 {
		p.InlineBytes, p.Slabs, p.SlabExtents = 8, 40, 8
	}
	return p
}

const impatient = 5 * time.Millisecond // a failure timer, far longer than operations take here

// deaf is a pool that does not know which clients died, so only the failure timers detect them.
type deaf struct{ *sim.Sim }

func (d deaf) Clients() []rdma.Client {
	list := d.Sim.Clients()
	for i := range list {
		list[i].Alive = true
	}
	return list
}

// tableRun is a table with deep paths, in virtual time, and workers that meet on one of them.
type tableRun struct {
	*sim.Sim
	seed      uint64
	pool      session.Pool
	recorders []*check.Recorder
	workers   []*sim.Worker
	errs      []error
	keys      [][]byte // of a path: the first one is not in the table yet, the others make room for it
	path      []search.Step
	stats     session.Stats // of all workers that have ended
}

// newTableRun fills a table to a part of its entries, and finds a key that has a path of many
// moves.
func newTableRun(t *testing.T, seed uint64, fill float64, moves int, faults ...sim.Fault) *tableRun {
	o := sim.Hostile(seed)
	p := fullPool(seed)
	l, err := table.New(p, 1)
	must(t, err)
	o.Memory, o.Clients, o.Faults, o.Handler = l.Bytes, p.Clients, faults, node.Serve
	d := &tableRun{Sim: sim.New(o), seed: seed}
	d.pool = deaf{d.Sim}
	must(t, Make(d.Sim, p))
	ep, err := d.Sim.Open("loader")
	must(t, err)
	s, err := Open(ep, session.Options{Pool: d.pool})
	must(t, err)
	r := check.NewRecorder(0, s, ep.Now)
	d.recorders = append(d.recorders, r)
	rng := rand.New(rand.NewPCG(seed, 7))
	name := func() []byte { return fmt.Appendf(nil, "%d", rng.IntN(1e7)) }
	for n := 0; float64(n) < fill*float64(p.Rows*p.Entries); {
		if err := r.Insert(name(), check.MakeValue(nil, 0, n+1, 16)); err == nil {
			n++
		} else if !errors.Is(err, client.ErrFull) && !errors.Is(err, client.ErrExists) {
			t.Fatal(err)
		}
	}
	rows := search.Neighbourhood{}
	must(t, table.EachRow(s.session.Table, ep, 0, s.session.Table.Leads[0], func(n uint32, r table.Row) {
		rows[n] = append(table.Row(nil),
			r...)
	}))
	for range 1000 {
		key := name()
		path, result := s.search.Find(rows, s.session.Table.Place(key), moves)
		if result != search.PathFound || len(path) <= max(len(d.path), 1) {
			continue
		}
		if _, err := r.Get(key); err == nil {
			continue
		}
		d.keys, d.path = append(d.keys[:0], key), append(d.path[:0], path...)
		for _, p := range path[1:] {
			d.keys = append(d.keys, append([]byte(nil), s.session.Table.Key(s.session.Table.Entry(rows[p.Row],
				p.Slot))...))
		}
	}
	must(t, s.Close())
	must(t, ep.Close())
	if len(d.path) == 0 && fill > 0.5 { // by chance no free slot is left that moves lead to
		must(t, d.Sim.Close())
		return newTableRun(t, seed, fill-0.05, moves, faults...)
	}
	return d
}

// enter starts a worker.
func (d *tableRun) enter(name string, f func(w int, r *check.Recorder, ep rdma.Endpoint)) *sim.Worker {
	w := len(d.recorders)
	d.recorders = append(d.recorders, nil)
	worker := d.Sim.Go(name, func(ep rdma.Endpoint) {
		s, err := Open(ep, session.Options{Pool: d.pool, Failure: impatient})
		if err != nil {
			d.errs = append(d.errs, fmt.Errorf("%s: %w", name, err))
			return
		}
		d.recorders[w] = check.NewRecorder(w, s, ep.Now)
		f(w, d.recorders[w], ep)
		d.stats.Repairs += s.session.Stats.Repairs
		d.stats.Fenced += s.session.Stats.Fenced
		d.stats.Rolled += s.session.Stats.Rolled
		d.stats.Divided += s.session.Stats.Divided
		if err := s.Close(); err != nil && !errors.Is(err, rdma.ErrRevoked) {
			d.errs = append(d.errs, fmt.Errorf("%s: %w", name, err))
		}
	})
	d.workers = append(d.workers, worker)
	return worker
}

// crowd has some workers at work on the keys of the path.
func (d *tableRun) crowd(n, ops int) {
	for i := range n {
		d.enter(fmt.Sprintf("worker %d", i), func(w int, r *check.Recorder, ep rdma.Endpoint) {
			rng := rand.New(rand.NewPCG(d.seed, uint64(w)))
			for j := range ops {
				key, value := d.keys[rng.IntN(len(d.keys))], check.MakeValue(nil, w, j+1, 16)
				switch rng.IntN(6) {
				case 0, 1, 2:
					r.Get(key)
				case 3, 4:
					r.Update(key, value)
				case 5:
					r.Delete(key)
					r.Insert(key, value)
				}
				ep.Sleep(time.Duration(rng.IntN(4000)))
			}
		})
	}
}

// end has one more worker change all keys, and checks the history.
func (d *tableRun) end() error {
	defer d.Sim.Close()
	err := d.Sim.Run()
	if err == nil {
		d.enter("last", func(w int, r *check.Recorder, ep rdma.Endpoint) {
			for i, key := range d.keys {
				r.Get(key)
				r.Update(key, check.MakeValue(nil, w, i+1, 16))
				r.Get(key)
			}
		})
		err = d.Sim.Run()
	}
	if err = errors.Join(append(d.errs, err)...); err != nil {
		return err
	}
	var h check.History
	for _, r := range d.recorders {
		if r != nil {
			h = append(h, r.History()...)
		}
	}
	for _, op := range h.With(check.Failed, check.TimedOut, check.Uncertain) {
		if w := op.Worker; w == 0 || d.harmed(w) {
			continue
		}
		return fmt.Errorf("worker %d was not to be harmed: %s", op.Worker, &op)
	}
	r, err := Check(d.Sim)
	if err == nil && len(r.Damage) > 0 {
		err = fmt.Errorf("damage: %q", r.Damage)
	}
	return errors.Join(err, check.Linearizable(h, check.Options{}))
}

// harmed reports whether a worker was fenced off, or stopped for as long as a failure timer.
func (d *tableRun) harmed(w int) bool {
	return d.workers[w-1].Crashed() || d.workers[w-1].Stalled() >= impatient
}

// crashSeeds are the seeds that are tried: n of them, or one in twenty of $FARKV_SEEDS, as each
// is many runs; see seeds.Few.
func crashSeeds(t *testing.T, n uint64) (chosen []uint64) {
	if teeth.UnderRace {
		t.Skip("one coroutine runs at a time, so the race detector finds nothing here: run without -race")
	}
	first, count := seeds.Chosen(t, n)
	switch {
	case os.Getenv("FARKV_SEEDS") != "":
		count = max(count/20, 1)
	case os.Getenv("FARKV_SEED") != "":
		count = 1
	}
	for seed := first; seed < first+count; seed++ {
		chosen = append(chosen, seed)
	}
	return chosen
}

// victim inserts the first key, and crashes after a verb.
func (d *tableRun) victim(k uint64) *sim.Worker {
	var victim *sim.Worker
	victim = d.enter("victim", func(w int, r *check.Recorder, ep rdma.Endpoint) {
		d.CrashAt(victim, victim.Sent()+k)
		r.Insert(d.keys[0], check.MakeValue(nil, w, 1, 16))
	})
	return victim
}

// everyPrefix lets the victim crash after each verb of its INSERT, which must take at least so
// many. The other workers repair what it leaves. They have only their failure timers to detect
// the crash.
func everyPrefix(t *testing.T, seeds []uint64, least uint64, stage func(seed uint64) *tableRun) (sum session.Stats) {
	for _, seed := range seeds {
		for k := uint64(0); ; k++ {
			d := stage(seed)
			victim := d.victim(k)
			if k%2 == 0 {
				d.crowd(2, 6)
			}
			if err := d.end(); err != nil {
				t.Fatalf("seed %d, crash behind verb %d of an INSERT along %v: %v", seed, k, d.path, err)
			}
			sum.Repairs, sum.Rolled, sum.Divided = sum.Repairs+d.stats.Repairs, sum.Rolled+d.stats.Rolled,
				sum.Divided+d.stats.Divided
			if !victim.Crashed() {
				if k < least {
					t.Errorf("seed %d: an INSERT along %v takes %d verbs", seed, d.path, k)
				}
				break
			}
		}
	}
	if sum.Repairs == 0 || sum.Rolled == 0 {
		t.Errorf("%+v: too little was repaired to show anything", sum)
	}
	t.Logf("%+v", sum)
	return sum
}

// TestEveryPrefix runs everyPrefix with INSERTs that have deep paths.
func TestEveryPrefix(t *testing.T) {
	everyPrefix(t, crashSeeds(t, 4), 8, func(seed uint64) *tableRun {
		return newTableRun(t, seed, 0.9+float64(seed%2)*0.05, 1+int(seed%5))
	})
}

// TestRepairersCrash lets one client crash after some verb of an INSERT, and a client that
// repairs it after each of its own verbs.
func TestRepairersCrash(t *testing.T) {
	for _, seed := range crashSeeds(t, 3) {
		for k := uint64(3); k < 16; k += 4 {
			for j := uint64(0); ; j++ {
				d := newTableRun(t, seed, 0.95, 1+int(seed%4))
				d.victim(k)
				var second *sim.Worker
				begun := uint64(0)
				second = d.enter("second", func(w int, r *check.Recorder, ep rdma.Endpoint) {
					ep.Sleep(time.Millisecond)
					// During the failure timer it only waits: of these verbs only some are tried.
					begun = second.Sent()
					d.CrashAt(second, begun+j*j/4+j)
					r.Insert(d.keys[0], check.MakeValue(nil, w, 1, 16))
					for i, key := range d.keys[1:] {
						r.Update(key, check.MakeValue(nil, w, i+2, 16))
					}
				})
				if err := d.end(); err != nil {
					t.Fatalf(
						"seed %d, crash behind verb %d of an INSERT along %v, and verb %d of the next client: %v",
						seed, k, d.path, j*j/4+j, err)
				}
				if !second.Crashed() {
					break
				}
			}
		}
	}
}

// slow stops the victim for longer than a failure timer after each verb of its INSERT. Other
// workers fence it off by mistake. It does no harm when it goes on.
func slow(t *testing.T, seeds []uint64, stage func(seed uint64, stall sim.Fault) *tableRun) {
	fenced := 0
	for _, seed := range seeds {
		for k := uint64(1); ; k++ {
			d := stage(seed, sim.Fault{Kind: sim.StallFault, Client: "victim", Verb: k, For: 4 * impatient})
			victim := d.victim(1 << 40)
			d.crowd(2, 8)
			if err := d.end(); err != nil {
				t.Fatalf("seed %d, stopped behind verb %d of an INSERT along %v: %v", seed, k, d.path, err)
			}
			if victim.Stalled() == 0 {
				break
			}
			fenced += len(d.recorders[1].History().With(check.Failed, check.Uncertain))
		}
	}
	if fenced == 0 {
		t.Error("no client was fenced off")
	}
}

// TestSlow runs slow with INSERTs that have deep paths.
func TestSlow(t *testing.T) {
	slow(t, crashSeeds(t, 4), func(seed uint64, stall sim.Fault) *tableRun {
		return newTableRun(t, seed, 0.95, 1+int(seed%5), stall)
	})
}
