package fusee

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// TestUnsteadyViews: clients share a small pool in virtual time while views follow each other; what
// is in flight then has landed or not, op by op. When all have left nothing is lost. $FARKV_SEEDS
// and $FARKV_SEED choose the seeds.
func TestUnsteadyViews(t *testing.T) {
	changed := 0
	seeds.Each(t, 60, func(seed uint64) error {
		n, err := unsteady(seed)
		changed += n
		return err
	})
	if changed == 0 {
		t.Error("no client noticed that the view changed: this test shows nothing")
	}
}

func unsteady(seed uint64) (noticed int, err error) {
	p := layout.Params{IndexReplicas: 1, DataReplicas: 1 + int(seed%3), Subtables: 1, Groups: 16,
		Regions: 3, RegionBytes: 48 << 10,
		BlockBytes: 4 << 10, Clients: 16, Timeout: 20 * time.Millisecond, TagBits: 13}
	l, err := layout.New(p, 3, 1<<40)
	if err != nil {
		return 0, err
	}
	o := sim.Hostile(seed)
	o.Nodes, o.Memory, o.Clients, o.Handler = 3, l.Bytes, p.Clients, node.Serve
	s := sim.New(o)
	defer s.Close()
	if err := session.Make(s, p); err != nil {
		return 0, err
	}
	const workers, records = 3, 30
	errs := make([]error, workers+1)
	ready, over := 0, 0
	for w := range workers {
		s.Go(fmt.Sprintf("worker %d", w), func(ep rdma.Endpoint) {
			errs[w] = unsteadyWorker(ep, w, workers, records, &ready, &noticed)
			over++
		})
	}
	s.Go("views", func(ep rdma.Endpoint) {
		for over < workers && errs[workers] == nil {
			ep.Sleep(time.Duration(50+ep.Rand().IntN(1500)) * time.Microsecond)
			if ready < workers {
				continue
			}
			epoch := s.View().Epoch
			busy := rdma.State{Epoch: epoch + 1, Busy: true}
			_, err := s.Advance(rdma.State{Epoch: epoch}, busy)
			err = errors.Join(err, s.Fence(busy.Epoch), mendNow(ep))
			_, e := s.Advance(busy, rdma.State{Epoch: busy.Epoch})
			errs[workers] = errors.Join(err, e)
			ep.Sleep(time.Duration(ep.Rand().IntN(5)) * 3 * time.Millisecond)
		}
	})
	if err := errors.Join(s.Run(), errors.Join(errs...)); err != nil {
		return noticed, err
	}
	r, err := Check(s)
	for _, d := range append(r.Damage, r.Waiting...) {
		if unharmed.MatchString(d) {
			return noticed, errors.New(d)
		}
	}
	return noticed, err
}

// unsteadyWorker loads its share of the records, then overwrites all, in sizes that need adopted,
// shed and converted blocks.
func unsteadyWorker(ep rdma.Endpoint, w, workers, records int, ready, noticed *int) error {
	c, err := Open(ep, thrifty(Options{}))
	if err != nil {
		return err
	}
	for i := w; i < records; i += workers {
		if err := c.Insert(key(i), make([]byte, 300)); err != nil {
			return err
		}
	}
	*ready++
	for *ready < workers {
		ep.Sleep(100 * time.Microsecond)
	}
	do := func(op func() error) error {
		var err error
		for range 100 {
			if err = op(); !errors.Is(err, rdma.ErrStale) {
				return err
			}
			c.s.Deadline = session.Unset
			if _, err := c.views.settled(err); err != nil {
				return fmt.Errorf("rejoin: %w", err)
			}
		}
		return fmt.Errorf("the views never rest: %w", err)
	}
	for n := range 150 {
		i, size := ep.Rand().IntN(records), []int{100, 300, 700}[ep.Rand().IntN(3)]
		err := do(func() error { return c.Update(key(i), make([]byte, size)) })
		if err != nil && !errors.Is(err, client.ErrFull) && !errors.Is(err, rdma.ErrTimeout) {
			return fmt.Errorf("update %d: %w", n, err)
		}
		if n%40 == 39 { // as when the pool is tight
			class := ep.Rand().IntN(len(c.mem.Holdings.Slabs))
			if s := &c.mem.Holdings.Slabs[class]; len(s.Blocks) > 1 {
				if err := c.mem.EndScan(); err == nil && len(c.mem.Parting) == 0 {
					c.mem.Part(s.Split(s.Blocks[0]))
					if err := do(c.mem.LeaveParting); err != nil {
						return fmt.Errorf("leave: %w", err)
					}
				}
			}
		}
	}
	*noticed += int(c.s.View.Epoch)
	return do(c.Close)
}
