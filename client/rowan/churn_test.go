package rowan_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// churn inserts and deletes keys, always others, so many; some are there at a time, and some stay.
func churn(s client.Store, worker, keys, stay, window int) error {
	name := func(i int) []byte { return fmt.Appendf(nil, "key-%d-%d", worker, i) }
	for i := range keys {
		value := check.MakeValue(nil, worker, i+1, 20+i*7919%400)
		if i%50 == 0 {
			value = check.MakeValue(nil, worker, i+1, maxValue)
		}
		if err := s.Insert(name(i), value); err != nil {
			return fmt.Errorf("insert %d of %d: %w", i, keys, err)
		}
		if gone := i - window; gone >= stay {
			if err := s.Delete(name(gone)); err != nil {
				return fmt.Errorf("delete %d of %d: %w", gone, keys, err)
			}
		}
	}
	return nil
}

// TestChurn: of keys that come and go, many more than there is room for tombstones, nothing is left
// in the end.
func TestChurn(t *testing.T) {
	const stay, window, keys = 60, 10, 5000
	o := small(kv.Rowan)
	o.FullAfter = patience / 2
	room := o.Log.Segments * o.Log.SegmentBytes / rdma.Stride
	bounded := func(t *testing.T, c *cluster, live, keys int) {
		t.Helper()
		if keys < 2*room {
			t.Fatalf("%d keys, with room for %d tombstones", keys, room)
		}
		for n, srv := range c.running {
			stats := srv.Stats()
			t.Logf("server %d: %+v", n, stats)
			// Beside those that wait to be worth it, those that came while a quarter of the
			// segments was freed.
			if most := live + room/32 + room/8; stats.Items > most {
				t.Errorf("server %d has %d items, of %d keys that are there: want at most %d", n, stats.Items, live,
					most)
			}
		}
	}

	t.Run("virtual", func(t *testing.T) {
		if teeth.UnderRace {
			t.Skip("virtual time, in which one task runs at a time; run without -race")
		}
		c, err := newCluster(o)
		if err != nil {
			t.Fatal(err)
		}
		s, _ := c.simulate(sim.Options{Seed: 1, MTU: mtu, CountRings: true}, func(ep rdma.Endpoint) {
			store, err := c.open(ep, 100*time.Millisecond)
			if err == nil {
				err = churn(store, 0, keys, stay, window)
			}
			if err != nil {
				c.fail("%w", err)
			}
		})
		defer s.Close()
		if err := errors.Join(s.Run(), c.wrong); err != nil {
			t.Error(err)
		}
		bounded(t, c, stay+window, keys)
	})

	t.Run("mem", func(t *testing.T) {
		c := newReal(t, o, inMem)
		s, _, end := c.client()
		if err := churn(s, 0, keys, stay, window); err != nil {
			t.Error(err)
		}
		end()
		bounded(t, c.cluster, stay+window, keys)
	})
}
