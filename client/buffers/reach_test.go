package buffers

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestPushFails: a bundle that a node may or may not have taken has no owner. One of which nothing
// was sent is the worker's still.
func TestPushFails(t *testing.T) {
	down := rdma.NoEffect(rdma.ErrNodeDown)
	for _, c := range []struct {
		write, cas error
		kept       bool
	}{{down, down, true}, {rdma.ErrNodeDown, rdma.ErrNodeDown, false}, {rdma.ErrNodeDown, down, false}} {
		s := &Space{Segments: 1, Buffers: 100, Bytes: 64}
		w := open(t, pool(t, s, 1), s)
		p, _, err := w.Allocate(0, 0)
		must(t, err)
		w.Give(0, 0, p)
		l := w.list(0, 0)
		n, want := l.len(), Stats{Fresh: uint64(l.len())}
		w.ep = fault.New(w.ep, fault.Fault{At: 1, Err: c.write}, fault.Fault{At: 2, Err: c.cas})
		must(t, w.push(l))
		if w.settle(l); !c.kept {
			n, want.Lost = 0, uint64(n)
		}
		if l.len() != n || w.Stats() != want {
			t.Errorf("%v and %v: %d buffers are the worker's, want %d: %+v", c.write, c.cas, l.len(), n, w.Stats())
		}
	}
}

// cutOff is an endpoint that a node is out of reach of until a time: nothing is sent to it.
type cutOff struct {
	rdma.Endpoint
	node  int
	until time.Duration
	tries int
}

func (e *cutOff) Post(b *rdma.Batch) error {
	if b.Op(0).Addr.Node() != e.node || e.Now() >= e.until {
		return e.Endpoint.Post(b)
	}
	e.tries++
	var faults []fault.Fault
	for i := range b.Len() {
		faults = append(faults, fault.Fault{At: uint64(i + 1), Err: rdma.NoEffect(rdma.ErrNodeDown)})
	}
	return fault.New(e.Endpoint, faults...).Post(b)
}

// TestCloseOutOfReach: a node that is out of reach for a moment takes back what a worker has when
// it closes. One that stays so is waited for for a part of the timeout, and asked a few times; the
// others take theirs.
func TestCloseOutOfReach(t *testing.T) {
	const segments, part = 3, timeout / turns
	s := &Space{Segments: segments, Buffers: 100, Bytes: 64}
	for _, away := range []time.Duration{part / 3, time.Hour} {
		f := sim.New(sim.Options{Nodes: 2, Memory: (s.Base + s.Size() + 4095) &^ 4095, Handler: node.Serve})
		f.Go("client", func(ep rdma.Endpoint) {
			e := &cutOff{Endpoint: ep, node: 1}
			w := s.Open(e, 2, timeout)
			for n := range 2 * segments {
				p, _, err := w.Allocate(n%2, uint64(n))
				must(t, err)
				w.Give(n%2, uint64(n), p)
			}
			began := f.Now()
			e.until = began + away
			must(t, w.Close())
			given, lost := uint64(2*segments*s.chunk()), uint64(0)
			if away > part {
				given, lost = given/2, given/2
			}
			if n := w.Stats(); n.Given != given || n.Lost != lost {
				t.Errorf("node 1 is away for %v: want %d given back and %d lost: %+v", away, given, lost, n)
			}
			if took := f.Now() - began; took > part+2*part/turns || e.tries > segments*(turns+2) {
				t.Errorf("node 1 is away for %v: it took %v and %d tries", away, took, e.tries)
			}
		})
		must(t, f.Run())
		f.Close()
	}
}
