package fusee

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// An operation waits for frees on a node that is slow for a part of its time only: it has nothing else to do with that node.
func TestSlowNodeHoldsFreesUp(t *testing.T) {
	p := small(2, 1, 1)
	p.Timeout = 20 * time.Millisecond
	l, err := newLayout(p, 2, 1<<40)
	must(t, err)
	const slow = 1
	begins := time.Second
	f := sim.New(sim.Options{Nodes: 2, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve,
		Faults: sim.Faults{{Kind: sim.SlowFault, Node: slow, At: begins, For: time.Hour, Factor: 1e6}}})
	t.Cleanup(func() { f.Close() })
	must(t, Make(f, p))
	f.Go("worker", func(ep rdma.Endpoint) {
		c, err := Open(ep, Options{})
		if err != nil {
			t.Error(err)
			return
		}
		region := 0
		for c.space.Place[region][0].Node != slow {
			region++
		}
		unit := c.space.Object(node.Block{Region: region}, 0, c.classes.units[0])
		ep.Sleep(begins + time.Millisecond - ep.Now())
		for range maxFlying * freeBatch {
			c.send(freed{unit: unit, tag: anyTag})
		}
		if c.reclaim.flying != maxFlying {
			t.Errorf("%d batches in flight, want %d", c.reclaim.flying, maxFlying)
		}
		start := ep.Now()
		for range freeBatch {
			c.send(freed{unit: unit, tag: anyTag})
		}
		if took := ep.Now() - start; took == 0 || took > p.Timeout/flushShare+time.Millisecond {
			t.Errorf("a full pipe of frees took %v of an operation's %v", took, p.Timeout)
		}
	})
	must(t, f.Run())
}

// A block that gets another size class rests for as long as any client of the pool may remember its words, however short the
// timeout of the one that converts it. The operation that waits for this does not fail for it.
func TestConvertedBlockRests(t *testing.T) {
	p := cramped(5)
	p.Timeout = 10 * time.Millisecond
	c, err := Open(open2(t, simPool(t, 1, p)), Options{Timeout: p.Timeout / 5})
	must(t, err)
	op := func(f func() error) error {
		converted, start := c.Stats().Converted, c.ep.Now()
		err := f()
		if rested := c.ep.Now() - start; c.Stats().Converted > converted && rested < p.Timeout {
			t.Errorf("a block was used anew after %v, want %v at least", rested, p.Timeout)
		}
		return err
	}
	n := 0
	for ; op(func() error { return c.Insert(key(n), make([]byte, 1000)) }) == nil; n++ {
	}
	for i := range n {
		must(t, op(func() error { return c.Delete(key(i)) }))
	}
	for i := range 20 {
		must(t, op(func() error { return c.Insert(key(n+i), make([]byte, 300)) }))
	}
	if c.Stats().Converted == 0 {
		t.Error("no block got another size class")
	}
}
