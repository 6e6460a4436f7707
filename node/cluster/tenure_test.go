package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// cutOff is a fabric on which a process is cut off from too many nodes for a time, so that it may
// expel none.
type cutOff struct {
	*sim.Sim
	until time.Duration
}

func (c *cutOff) MayExpel() error {
	if c.Now() < c.until {
		return fmt.Errorf("one node answers: %w", rdma.ErrUnreachable)
	}
	return nil
}

// TestTenures: a master that resigned since it was cut off, and is elected again, has a new
// recoverer: another master may have changed in between what the last one knew.
func TestTenures(t *testing.T) {
	w := begin(t, sim.Hostile(1), 0)
	w.f = &cutOff{w.s, 6 * time.Millisecond}
	w.s.KillNodeAfter(1, time.Millisecond)
	recoverers := 0
	w.keepers = append(w.keepers, w.s.Go("keeper", func(ep rdma.Endpoint) {
		make := func(ep rdma.Endpoint) (cluster.Recoverer, error) {
			recoverers++
			return w.recoverer(ep)
		}
		err := cluster.Keep(ep, w.f, make, cluster.Options{
			Lease: lease, Stop: func() bool { return w.s.Now() > limit },
			Log: func(e cluster.Event) { w.events = append(w.events, e) },
		})
		if err != nil {
			t.Error(err)
		}
	}))
	w.end()
	w.whole(1)
	elected := 0
	for _, e := range w.events {
		if e.What == cluster.Elected {
			elected++
		}
	}
	if elected < 2 || recoverers != elected {
		t.Errorf("%d recoverers in %d tenures", recoverers, elected)
	}
}
