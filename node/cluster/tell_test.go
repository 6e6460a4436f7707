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
