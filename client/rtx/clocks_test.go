package rtx

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// world is a pool in virtual time.
func world(t testing.TB, s Shape, o sim.Options) (*sim.Sim, *Layout) {
	t.Helper()
	s.Nodes = max(s.Nodes, 1)
	if s.Clients = 16; s.Memory == 0 {
		s.Memory = simMemory
	}
	if s.Sizes == nil {
		s.Sizes = []int{64}
	}
	l, err := NewLayout(s)
	must(t, err)
	o.Nodes, o.Memory, o.Clients, o.Handler = s.Nodes, s.Memory, s.Clients, node.Serve
	w := sim.New(o)
	t.Cleanup(func() { must(t, w.Close()) })
	return w, l
}

// enter starts a client and opens its worker.
func enter(t testing.TB, s *sim.Sim, l *Layout, o Options, name string, f func(w *Worker)) (*sim.Worker, *Worker) {
	t.Helper()
	var w *Worker
	c := s.Go(name, func(rdma.Endpoint) { f(w) })
	w, err := Open(c.Endpoint(), l, o)
	must(t, err)
	return c, w
}

// TestClocks: a client that stands still with a lock is not suspected before its
// lease is over. A dead client is not waited for longer than two leases. Both
// hold whatever the observer's clock shows, ahead or behind, and when it is set
// in the midst.
func TestClocks(t *testing.T) {
	virtual(t)
	const drift = 2 * time.Millisecond
	for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
		for _, logged := range []bool{false, true} {
			for _, share := range []time.Duration{5, 100} { // of ten parts of a lease
				for verb := uint64(1); verb < 60; verb += 4 {
					faults := sim.Faults{{Kind: sim.StallFault, Client: "holder", Verb: 4, For: share * drift / 10}}
					if by != 0 {
						faults = append(faults, sim.Fault{Kind: sim.StepFault, Client: "observer", Verb: verb, By: by},
							sim.Fault{Kind: sim.StepFault, Client: "observer", Verb: verb + 17, By: -by})
					}
					s, l := world(t, Shape{Roots: 2}, sim.Options{Seed: verb, Faults: faults, ClockOffset: time.Hour,
						Drift: 1e4})
					a, b := l.Root(0), l.Root(1)
					first, err := s.Open("first")
					must(t, err)
					must(t, set(open(t, first, l, Options{}), "old", a, b))
					o := Options{Drift: drift, Log: logged}
					enter(t, s, l, o, "holder", func(w *Worker) {
						must(t, w.Run(func(tx *Tx) error {
							return errors.Join(tx.Lock(a), tx.Write(a, []byte("new")))
						}))
					})
					what := fmt.Sprintf("a clock that is set by %v at verb %d, and a holder that stands still "+
						"for %v, with a log: %v", by, verb, share*drift/10, logged)
					enter(t, s, l, o, "observer", func(w *Worker) {
						for s.Now() < 10*time.Microsecond {
							w.ep.Sleep(time.Microsecond)
						}
						began := s.Now()
						must(t, set(w, "observer's", a))
						took, repairs := s.Now()-began, w.stats.Stolen+w.stats.Aborted+w.stats.Finished
						if share < 10 && repairs > 0 || took > 2*drift+drift/4 || took < drift/4 {
							t.Errorf("%s: it took %v, and %d repairs", what, took, repairs)
						}
						if share > 10 && repairs == 0 {
							t.Errorf("%s: nothing was repaired in %v", what, took)
						}
					})
					must(t, s.Run())
				}
			}
		}
	}
}

// TestBusyLock: a lock that is held at each look, but by another transaction each
// time, is not suspected.
func TestBusyLock(t *testing.T) {
	virtual(t)
	const drift = 200 * time.Microsecond
	count := seeds.Each(t, 60, func(seed uint64) error {
		s, l := world(t, Shape{Roots: 2}, sim.Options{Seed: seed})
		a, b := l.Root(0), l.Root(1)
		var repairs, commits uint64
		var failed error
		for n := range 5 {
			o := Options{Drift: drift, Log: n%2 == 0, Quarantine: 1}
			enter(t, s, l, o, fmt.Sprintf("client %d", n), func(w *Worker) {
				for s.Now() < 10*drift && failed == nil {
					failed = errors.Join(set(w, "data", a, b), set(w, "data", a))
				}
				repairs += w.stats.Stolen + w.stats.Aborted + w.stats.Finished
				commits += w.stats.Commits
			})
		}
		if err := errors.Join(s.Run(), failed); err != nil {
			return err
		}
		if repairs > 0 || commits < 100 {
			return fmt.Errorf("%d commits, and %d of living clients were repaired", commits, repairs)
		}
		return nil
	})
	t.Logf("%d runs", count)
}

// TestNoLivelock: transactions of which each reads what the others change come to an end, all of
// them.
func TestNoLivelock(t *testing.T) {
	virtual(t)
	seeds.Each(t, 60, func(seed uint64) error {
		s, l := world(t, Shape{Roots: 4, Nodes: 2}, sim.Options{Seed: seed})
		var failed error
		longest := time.Duration(0)
		for n := range 4 {
			enter(t, s, l, Options{Quarantine: 1}, fmt.Sprintf("client %d", n), func(w *Worker) {
				for range 25 {
					began := s.Now()
					err := w.Run(func(tx *Tx) error {
						for i := range 4 {
							if _, err := tx.Read(l.Root((n + i + 1) % 4)); err != nil && !errors.Is(err, ErrNoObject) {
								return err
							}
						}
						return errors.Join(tx.Write(l.Root(n), word(1)), tx.Write(l.Root((n+1)%4), word(2)))
					})
					failed = errors.Join(failed, err)
					longest = max(longest, s.Now()-began)
				}
			})
		}
		if err := errors.Join(s.Run(), failed); err != nil {
			return err
		}
		if longest > 8*time.Millisecond { // no lease was waited for
			return fmt.Errorf("a transaction took %v", longest)
		}
		return nil
	})
}

// TestRenew: a transaction that renews its lease in time is not suspected,
// however long it holds its lock. A transaction that does not is suspected. One
// of a client that dies is suspected a lease after its last renewal.
func TestRenew(t *testing.T) {
	virtual(t)
	const drift, works = 2 * time.Millisecond, 20 * time.Millisecond
	for _, test := range []struct {
		what         string
		renews, dies bool
		least, most  time.Duration // that another client waits
	}{
		{"renews", true, false, works, works + drift},
		{"does not renew", false, false, drift, 2 * drift},
		{"renews and dies", true, true, works/2 + drift/2, works/2 + 2*drift},
	} {
		s, l := world(t, Shape{Roots: 1}, sim.Options{Seed: 1})
		a := l.Root(0)
		first, err := s.Open("first")
		must(t, err)
		must(t, set(open(t, first, l, Options{}), "old", a))
		o := Options{Drift: drift}
		holder, _ := enter(t, s, l, o, "holder", func(w *Worker) {
			err := w.Run(func(tx *Tx) error {
				err := tx.Lock(a)
				for began := w.ep.Now(); err == nil && w.ep.Now()-began < works; w.ep.Sleep(drift / 4) {
					if test.renews {
						err = tx.Renew()
					}
				}
				return errors.Join(err, tx.Write(a, []byte("new")))
			})
			if !errors.Is(err, rdma.ErrClosed) { // which is what the dead are told in the end
				must(t, err)
			}
		})
		if test.dies {
			s.CrashAfter(holder, works/2)
		}
		enter(t, s, l, o, "observer", func(w *Worker) {
			w.ep.Sleep(50 * time.Microsecond)
			began := s.Now()
			must(t, set(w, "observer's", a))
			took, repairs := s.Now()-began, w.stats.Stolen+w.stats.Aborted
			if took < test.least || took > test.most || (repairs > 0) != (test.dies || !test.renews) {
				t.Errorf("a holder that %s: another client waited for %v, and repaired %d times", test.what, took,
					repairs)
			}
		})
		must(t, s.Run())
	}
}
