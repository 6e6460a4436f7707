package measure

import (
	"errors"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// perfRing is the number of the rings that APPENDs go to, one at each node.
const perfRing = 1

// appends are the rings of a gauge, of which the worker itself is the receiver.
type appends struct {
	p     rdma.RingPromises
	rings []rdma.Ring // by node
	room  []int       // bytes, by node, that entries may take yet
}

// openRings opens the rings that APPENDs go to.
func (g *gauge) openRings() (end func() error, err error) {
	p, err := rdma.Rings(g.ep)
	if err != nil {
		return nil, err
	}
	g.appends = appends{p: p, rings: make([]rdma.Ring, g.nodes), room: make([]int, g.nodes)}
	return func() error {
		var errs []error
		for _, r := range g.rings {
			if r != nil {
				errs = append(errs, r.Close())
			}
		}
		return errors.Join(errs...)
	}, nil
}

// append adds an APPEND to a node's ring.
func (g *gauge) append(b *rdma.Batch, p []byte) {
	g.turn++
	node := g.turn % g.nodes
	taken := g.p.Taken(len(p))
	if g.room[node] < taken && g.failed == nil {
		g.failed = g.renew(node)
	}
	g.room[node] -= taken
	b.Append(rdma.RingAt(node, perfRing), p)
}

// renew opens a node's ring anew, with the same memory as often as there is place. What was
// appended before this batch has landed.
func (g *gauge) renew(node int) error {
	if r := g.rings[node]; r != nil {
		if err := r.Close(); err != nil {
			return err
		}
	}
	r, err := rdma.OpenRing(g.ep, rdma.RingOptions{Node: node, Number: perfRing})
	if err != nil {
		return err
	}
	buffer := rdma.Span{Addr: rdma.At(node, wordBytes), Len: int(g.size) - wordBytes}
	g.rings[node] = r
	// A buffer is full when a block does not fit its end. The last ones, two for each stream, are
	// for entries that the batch has already.
	g.room[node] = (rdma.MaxRingBuffers - 2*rdma.MaxStreams) * (buffer.Len - g.p.MTU + rdma.Stride)
	return r.Post(slices.Repeat([]rdma.Span{buffer}, rdma.MaxRingBuffers)...)
}

// strawman appends as Rowan's strawman does (section 3.2.1), n times at once: each takes its place
// by a FETCH AND ADD of the node's word, and then WRITEs there, with a READ behind it.
func (g *gauge) strawman(n, length int) error {
	b := g.ep.Batch()
	defer b.Release()
	taken := uint64(length+align-1) / align * align
	for range n {
		g.turn++
		b.FetchAdd(rdma.At(g.turn%g.nodes, 0), taken)
	}
	if err := rdma.Do(g.ep, b, perfPatience); err != nil {
		return err
	}
	w := g.ep.Batch()
	defer w.Release()
	places := (g.size-wordBytes-uint64(length))/align + 1
	for i := range n {
		op := b.Op(i)
		word := g.at(op.Addr)
		if op.Result != *word {
			return errAnswer
		}
		*word += taken
		at := rdma.At(op.Addr.Node(), wordBytes+op.Result/align%places*align)
		w.Chain()
		w.Write(at, g.part(w, i, length))
		w.Read(at, 8)
	}
	return rdma.Do(g.ep, w, perfPatience)
}
