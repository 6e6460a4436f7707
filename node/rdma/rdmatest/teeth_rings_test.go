package rdmatest_test

import (
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/sim"
)

// Rings returns what the worker's fabric promises.
func (s *saboteur) Rings() (rdma.RingPromises, error) { return rdma.Rings(s.Endpoint) }

// OpenRing opens a ring that breaks the worker's rule.
func (s *saboteur) OpenRing(o rdma.RingOptions) (rdma.Ring, error) {
	r, err := rdma.OpenRing(s.Endpoint, o)
	if s.ring != nil && err == nil {
		r = s.ring(r)
	}
	return r, err
}

// hasty says that a buffer is settled as soon as something lands in it.
type hasty struct{ rdma.Ring }

func (r hasty) Count() (rdma.RingCount, error) {
	c, err := r.Ring.Count()
	c.Settled = c.Begun
	return c, err
}

// appends changes the APPENDs that are posted.
func appends(f func(op *rdma.Op)) saboteur {
	return saboteur{before: func(_ *saboteur, b *rdma.Batch) { each(b, f, rdma.Append) }}
}

func ringRules() []rule {
	dropped := 0
	return []rule{
		{broken: "what was acknowledged is in the ring", seen: []string{"Rings", "RingBlocks"},
			worker: appends(func(op *rdma.Op) {
				if dropped++; dropped%5 == 0 {
					op.Verb, op.Addr, op.Buf = rdma.FetchAdd, rdma.At(1, 512), nil
				}
			})},
		{broken: "entries are whole", seen: []string{"Rings", "RingBlocks"}, worker: appends(func(op *rdma.Op) {
			if n := len(op.Buf); n > 40 {
				op.Buf = op.Buf[:n-8]
			}
		})},
		{broken: "blocks are in order", seen: []string{"RingBlocks"}, worker: appends(func(op *rdma.Op) {
			if p := op.Buf; len(p) > 512 {
				first := append([]byte(nil), p[:256]...)
				copy(p[copy(p, p[256:512]):], first)
			}
		})},
		{broken: "a ring has no more buffers than were posted", seen: []string{"DryRing"},
			worker: hides(rdma.ErrRingDry)},
		{broken: "settled buffers do not change", seen: []string{"RingCounts"},
			worker: saboteur{ring: func(r rdma.Ring) rdma.Ring { return hasty{r} }}},
		{broken: "entries for no ring are refused", seen: []string{"RingRefusals"}, worker: hides(rdma.ErrNoRing)},
		{broken: "appends of an epoch that is over are refused", seen: []string{"FencedAppends"},
			worker: saboteur{before: func(s *saboteur, _ *rdma.Batch) { s.Endpoint.Join() }}},
		{broken: "Revoke fences those that append off", seen: []string{"FencedAppends", "FencedRing"},
			fabric: func(s *sim.Sim) rdma.Fabric {
				a := unchanged(s)
				a.revoke = func(rdma.ClientID) error { return nil }
				return a
			}},
		{broken: "nodes die with what is appended there", seen: []string{"DeadRing"},
			harness: func(h *rdmatest.Harness) { h.KillNode = func(testing.TB, rdma.Fabric, int) {} }},
		{broken: "appends allocate nothing", seen: []string{"AppendAllocations"},
			worker: saboteur{after: func(*saboteur, *rdma.Batch) { sink = make([]byte, 64) }}},
	}
}
