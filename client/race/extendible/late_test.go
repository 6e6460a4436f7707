package extendible

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// cutOff is the endpoint of a worker that does not reach a node from a step on. Its CASes of words
// there are held up, and may land later.
type cutOff struct {
	rdma.Endpoint
	step rdma.Step
	node int // -1: it reaches all
	held []rdma.Op
}

func (e *cutOff) Post(b *rdma.Batch) error {
	if b.Step() == e.step {
		e.node, e.step = b.Op(0).Addr.Node(), ""
	}
	for i := range b.Len() {
		if op := b.Op(i); op.Addr.Node() == e.node && op.Verb == rdma.CompareSwap {
			e.held = append(e.held, *op)
			op.Expect = ^op.Expect // no word has that
		}
	}
	err := e.Endpoint.Post(b)
	for i := range b.Len() {
		if op := b.Op(i); op.Addr.Node() == e.node {
			op.Fail(rdma.ErrNodeDown)
		}
	}
	return err
}

// TestLateUpdate: the CAS of an UPDATE lands late, when its client has gone on. No other client has
// used the block for another pair, so the key has a value.
func TestLateUpdate(t *testing.T) {
	f := memPool(t, 2, RTX, Params{Groups: 64, PairBytes: 64, Depth: 8, Clients: 8, Timeout: time.Second})
	other := storeOn(t, f)
	ep, err := f.Open("worker") // with another number, so that its blocks lie on another node
	must(t, err)
	e := &cutOff{Endpoint: ep, node: -1}
	s, err := Open(e, Options{})
	must(t, err)
	must(t, s.Insert(key(1), []byte("old")))
	home := s.blockAt(s.op.block.number).Node()
	e.step = stepSwapSlot
	err = s.Update(key(1), []byte("new"))
	if !errors.Is(err, client.ErrUncertain) || len(e.held) != 1 || e.node == home {
		t.Fatalf("the UPDATE ends in %v, and has %d CASes in flight to node %d", err, len(e.held), e.node)
	}
	// This is what a write does before it takes a block, and when no block is left.
	if s.settle() == nil {
		s.memory.forgets = func() bool { return false }
		s.memory.forget()
		must(t, s.memory.giveBack(0))
	}
	_, err = other.memory.claimOn(home)
	must(t, err)
	const more = 30
	for i := range more {
		must(t, other.Insert(key(2+i), nil))
	}
	raw, err := f.Open("raw")
	must(t, err)
	b := raw.Batch()
	b.CompareSwap(e.held[0].Addr, e.held[0].Expect, e.held[0].Value)
	must(t, rdma.Do(raw, b, time.Second))
	e.node = -1
	must(t, s.settle())
	if v, err := other.Get(key(1)); err != nil || string(v) != "new" {
		t.Errorf("it has %q, %v", v, err)
	}
	must(t, errors.Join(s.Close(), other.Close()))
	sound(t, f, 1+more)
}
