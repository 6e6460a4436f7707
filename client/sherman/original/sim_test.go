package original

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// virtual skips a test of many runs in virtual time under the race detector, which finds nothing
// where one task runs at a time.
func virtual(t testing.TB) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
}

// play is a tree in virtual time, and workers that meet on it.
type play struct {
	*sim.Sim
	history []*check.Recorder
	errs    []error
	stats   Stats
}

func newPlay(seed uint64, nodes int, faults ...sim.Fault) (*play, error) {
	p := tiny(nodes, 200*time.Millisecond)
	o := sim.Hostile(seed)
	o.Nodes, o.Memory, o.Clients, o.Handler, o.Faults = nodes, memoryOf(p, nodes), p.Clients, node.Serve, faults
	d := &play{Sim: sim.New(o)}
	return d, Make(d.Sim, p)
}

// enter starts a worker, which does f and closes its store.
func (d *play) enter(name string, o Options, f func(s *Store, r *check.Recorder) error) *sim.Worker {
	n := len(d.history)
	d.history = append(d.history, nil)
	return d.Go(name, func(ep rdma.Endpoint) {
		s, err := Open(ep, o)
		if err == nil {
			d.history[n] = check.NewRecorder(n, s, ep.Now)
			err = f(s, d.history[n])
		}
		if err == nil {
			if err = s.Close(); errors.Is(err, rdma.ErrTimeout) { // behind a lock of a dead client
				err = d.RevokeLife(rdma.Client{ID: ep.Client(), Life: ep.Life()})
			}
			d.stats.Splits, d.stats.Hops, d.stats.Torn = d.stats.Splits+s.stats.Splits, d.stats.Hops+s.stats.Hops,
				d.stats.Torn+s.stats.Torn
		}
		if err != nil {
			d.errs = append(d.errs, fmt.Errorf("%s: %w", name, err))
		}
	})
}

// end recovers the dead, compares all answers with each other, and looks at the tree.
func (d *play) end() error {
	defer d.Close()
	if err := d.Run(); err != nil {
		return err
	}
	err := errors.Join(d.errs...)
	var h check.History
	for _, r := range d.history {
		if r != nil {
			h = append(append(h, r.History()...), r.Found()...)
		}
	}
	err = errors.Join(err, check.Linearizable(h, check.Options{}))
	d.Go("end", func(ep rdma.Endpoint) {
		m, e := NewRecoverer(ep)
		if e == nil {
			e = recoverAll(d.Sim, m)
		}
		err = errors.Join(err, e)
	})
	if e := d.Run(); e != nil {
		return errors.Join(err, e)
	}
	report, e := Check(d.Sim)
	if len(report.Damage)+len(report.Waiting)+len(report.Unchecked) > 0 {
		e = errors.Join(e, fmt.Errorf("check: damaged: %v, waiting: %v, unseen: %v", report.Damage, report.Waiting,
			report.Unchecked))
	}
	return errors.Join(err, e)
}

// recoverAll recovers all dead clients, as a master does.
func recoverAll(f rdma.Fabric, m *Recoverer) error {
	for _, c := range f.Clients() {
		if c.Alive || c.Held {
			continue
		}
		if err := errors.Join(f.RevokeLife(c), m.Recover(f.View(), c.ID), f.Forget(c)); err != nil {
			return err
		}
	}
	return nil
}

// unsure reports whether an operation of a history may end so.
func unsure(err error) bool {
	for _, e := range []error{client.ErrExists, client.ErrNotFound} {
		if errors.Is(err, e) {
			return true
		}
	}
	return err == nil || errors.Is(err, rdma.ErrTimeout) // of another client that died
}

// TestScans: scans beside clients that insert, update and delete, split and merge, and die, on a
// network that tears, reorders and delays.
func TestScans(t *testing.T) {
	virtual(t)
	var all Stats
	scans := 0
	count := seeds.Each(t, 100, func(seed uint64) error {
		rng := rand.New(rand.NewPCG(seed, 1))
		faults := []sim.Fault{{Kind: sim.CrashFault, Client: "writer 0", Verb: 200 + uint64(rng.IntN(600))}}
		d, err := newPlay(seed, 1+int(seed%3), faults...)
		if err != nil {
			return err
		}
		var keys []string
		for i := range 9 {
			keys = append(keys, fmt.Sprint("key", i))
		}
		for w := range 3 {
			rng := rand.New(rand.NewPCG(seed, uint64(10+w)))
			d.enter(fmt.Sprint("writer ", w), Options{}, func(s *Store, r *check.Recorder) error {
				for n := range 40 {
					key := []byte(keys[rng.IntN(len(keys))])
					value := check.MakeValue(nil, w, n+1, 8+rng.IntN(2)*20)
					kind := []check.Kind{check.Insert, check.Insert, check.Update, check.Delete}[rng.IntN(4)]
					if err := kind.Do(r, key, value); !unsure(err) {
						return err
					}
				}
				return nil
			})
		}
		for w := range 2 {
			rng := rand.New(rand.NewPCG(seed, uint64(20+w)))
			o := Options{}
			if w == 1 {
				o.CacheBytes = new(0)
			}
			d.enter(fmt.Sprint("scanner ", w), o, func(s *Store, r *check.Recorder) error {
				for range 25 {
					scans++
					if err := r.Scan(keys, fmt.Sprint("key", rng.IntN(5)), rng.IntN(12)); !unsure(err) {
						return err
					}
				}
				return nil
			})
		}
		err = d.end()
		all.Splits, all.Hops, all.Torn = all.Splits+d.stats.Splits, all.Hops+d.stats.Hops, all.Torn+d.stats.Torn
		return err
	})
	if all.Splits < 3*count || all.Hops < 3*count || all.Torn < count/4 {
		t.Errorf("in %d runs: %+v", count, all)
	}
	t.Logf("%d runs, %d scans, %+v", count, scans, all)
}
