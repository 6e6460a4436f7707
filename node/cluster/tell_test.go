package cluster_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestTell: a keeper tells all that it did in its order, in the view that it has joined, whatever
// fails meanwhile, and some of it while it goes on.
func TestTell(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			var told []cluster.Event
			w, calls, early := begin(t, sim.Hostile(seed), 0), 0, 0
			w.tell = func(ep rdma.Endpoint, v *rdma.View, did []cluster.Event, within time.Duration) error {
				if calls++; calls%3 == 1 {
					return errors.New("it failed")
				}
				if within <= 0 || within > lease || len(did) == 0 || len(v.Members) != holders+spares {
					t.Errorf("%d events in %+v, within %v", len(did), v, within)
				}
				if _, err := read(ep, rdma.At(0, ledger)); errors.Is(err, rdma.ErrStale) {
					return err // another master has fenced the epoch off meanwhile
				} else if err != nil {
					t.Errorf("the endpoint that tells: %v", err)
				}
				if told = append(told, did...); w.s.Now() < limit {
					early += len(did)
				}
				return nil
			}
			w.keepers = append(w.keepers, w.s.Go("keeper", w.keep))
			w.s.KillNodeAfter(1, time.Millisecond)
			w.end()
			w.whole(1)
			if len(w.events) < 5 || !slices.Equal(told, w.events) || early < len(told)-1 {
				t.Errorf("%d events are told, %d of them in time:\n%+v\nof\n%+v", len(told), early, told, w.events)
			}
			for _, e := range told {
				if e.Tenure == 0 {
					t.Errorf("%v has no tenure", e)
				}
			}
		})
	}
}

// TestTellRoutine: neither an epoch without a sweep is told, nor an election of a moment. An
// election is told, in its place, when the tenure lasts or something happens in it.
func TestTellRoutine(t *testing.T) {
	for _, c := range []struct {
		leads         time.Duration
		asked, fences int // sweeps, and epochs without
		want          []cluster.What
	}{
		{lease / 2, 0, 1, nil},
		{2 * lease, 0, 1, []cluster.What{cluster.Elected}},
		{lease / 2, 1, 0, []cluster.What{cluster.Elected, cluster.Mended, cluster.Swept}},
	} {
		w := &world{t: t, s: sim.New(sim.Options{Seed: 1, Memory: 1 << 16, Limit: time.Second}), done: map[string]int{}}
		w.f = w.s
		var logged, told []cluster.What
		asked, fences := c.asked, c.fences
		w.s.Go("keeper", func(ep rdma.Endpoint) {
			recoverer := func(ep rdma.Endpoint) (cluster.Recoverer, error) {
				return &majority{&fake{w, ep}, &asked, &fences}, nil
			}
			err := cluster.Keep(ep, w.s, recoverer, cluster.Options{
				Lease: lease, Stop: func() bool { return w.s.Now() > c.leads },
				Log: func(e cluster.Event) { logged = append(logged, e.What) },
				Tell: func(_ rdma.Endpoint, _ *rdma.View, did []cluster.Event, _ time.Duration) error {
					for _, e := range did {
						told = append(told, e.What)
					}
					return nil
				},
			})
			if err != nil {
				t.Error(err)
			}
		})
		w.end()
		if !slices.Equal(told, c.want) || logged[0] != cluster.Elected || c.fences > 0 && logged[1] != cluster.Fenced {
			t.Errorf("of %v, in %v, told are %v, want %v", logged, c.leads, told, c.want)
		}
	}
}

// TestTellFailure: what fails again and again is told once a minute, and no more waits than is
// bounded.
func TestTellFailure(t *testing.T) {
	s := sim.New(sim.Options{Seed: 1, Limit: time.Hour})
	defer s.Close()
	s.Go("keeper", func(ep rdma.Endpoint) {
		told, logged, longest := 0, 0, 0
		recoverer := func(rdma.Endpoint) (cluster.Recoverer, error) { return nil, errors.New("there is no recoverer") }
		err := cluster.Keep(ep, s, recoverer, cluster.Options{
			Lease: time.Second, Stop: func() bool { return s.Now() > 10*time.Minute },
			Log: func(cluster.Event) { logged++ },
			Tell: func(_ rdma.Endpoint, _ *rdma.View, did []cluster.Event, _ time.Duration) error {
				if longest = max(longest, len(did)); s.Now() < 5*time.Minute {
					return errors.New("not yet")
				}
				told += len(did)
				return nil
			},
		})
		if err != nil || logged < 60 || told < 10 || told > 14 || longest > cluster.MostUntold {
			t.Errorf("%d events of %d are told, %d at a time (%v)", told, logged, longest, err)
		}
	})
	if err := s.Run(); err != nil {
		t.Error(err)
	}
}
