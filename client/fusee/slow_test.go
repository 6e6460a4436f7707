package fusee

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// slowTimeout is that of clients of onSlowNode.
const slowTimeout = 20 * time.Millisecond

// onSlowNode runs a client's work with an object of a node that is so slow that it answers nothing
// in an operation's time.
func onSlowNode(t *testing.T, work func(c *Client, unit uint64)) {
	t.Helper()
	p := small(2, 1, 1)
	p.Timeout = slowTimeout
	l, err := newLayout(p, 2, 1<<40)
	must(t, err)
	const slow, begins = 1, time.Second
	f := sim.New(sim.Options{Nodes: 2, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve,
		Faults: sim.Faults{{Kind: sim.SlowFault, Node: slow, At: begins, For: time.Hour, Factor: 1e6}}})
	t.Cleanup(func() { f.Close() })
	must(t, Make(f, p))
	f.Go("worker", func(ep rdma.Endpoint) {
		c, err := Open(ep, thrifty(Options{}))
		if err != nil {
			t.Error(err)
			return
		}
		region := 0
		for c.space.Place[region][0].Node != slow {
			region++
		}
		ep.Sleep(begins + time.Millisecond - ep.Now())
		work(c, c.space.Object(node.Block{Region: region}, 0, c.classes.units[0]))
	})
	must(t, f.Run())
}

// An operation waits for frees on a slow node for a part of its time only: it needs nothing else
// of that node.
func TestSlowNodeHoldsFreesUp(t *testing.T) {
	onSlowNode(t, func(c *Client, unit uint64) {
		for range maxFlying * freeBatch {
			c.send(freed{unit: unit, tag: anyTag})
		}
		if c.reclaim.flying != maxFlying {
			t.Errorf("%d batches in flight, want %d", c.reclaim.flying, maxFlying)
		}
		start := c.ep.Now()
		for range freeBatch {
			c.send(freed{unit: unit, tag: anyTag})
		}
		if took := c.ep.Now() - start; took == 0 || took > slowTimeout/flushShare+time.Millisecond {
			t.Errorf("a full pipe of frees took %v of an operation's %v", took, slowTimeout)
		}
	})
}

// A block that gets another size class rests for as long as any client of the pool may remember its
// words, however short the timeout of the one that converts it. The operation that waits for this
// does not fail for it.
func TestConvertedBlockRests(t *testing.T) {
	// Of these classes a block has several objects, and some rest when the pool is full.
	for _, bytes := range []int{100, 290, 308} {
		t.Run(fmt.Sprint(bytes), func(t *testing.T) { convertedBlockRests(t, bytes) })
	}
}

func convertedBlockRests(t *testing.T, bytes int) {
	p := cramped(5)
	p.Timeout = 10 * time.Millisecond
	c, err := Open(open2(t, simPool(t, 1, p)), Options{Timeout: p.Timeout / 5})
	must(t, err)
	n := 0
	for ; c.Insert(key(n), make([]byte, bytes)) == nil; n++ {
	}
	for i := range n {
		must(t, c.Delete(key(i)))
	}
	emptied := c.ep.Now()
	for i := range 8 {
		must(t, c.Insert(key(n+i), make([]byte, 1000)))
		if rested := c.ep.Now() - emptied; c.Stats().Converted > 0 && rested < p.Timeout {
			t.Errorf("a block was used anew after %v, want %v at least", rested, p.Timeout)
		}
	}
	if c.Stats().Converted == 0 {
		t.Error("no block got another size class")
	}
}

// dawdler delays each batch, and counts them.
type dawdler struct {
	rdma.Endpoint
	each  time.Duration
	posts int
}

func (d *dawdler) Post(b *rdma.Batch) error {
	d.posts++
	d.Sleep(d.each)
	return d.Endpoint.Post(b)
}

// A client that has to read more of its blocks anew than an operation has time for does so in
// several operations.
func TestRejoinInParts(t *testing.T) {
	const victim, timeout = 1, 40 * time.Millisecond
	p := small(3, 2, 2)
	p.BlockBytes = 4 << 10
	f := simPool(t, 3, p)
	d := &dawdler{Endpoint: open2(t, f)}
	c, err := Open(d, Options{Timeout: timeout})
	must(t, err)
	for i := range 600 {
		must(t, c.Insert(key(i), make([]byte, 300)))
	}
	nextView(t, f, func() {
		must(t, f.Expel(f.View().Epoch, victim))
		_, err := f.SetMember(f.View().Epoch, victim, rdma.Member{}, rdma.Member{Gone: true})
		must(t, err)
	})
	d.each = timeout / 10
	tries := 1
	for ; tries < 100; tries++ {
		c.deadline = unset
		d.posts = 0
		_, err := c.settled(rdma.ErrStale)
		if most := int(timeout/d.each) + 5; d.posts > most {
			t.Errorf("try %d sent %d batches, want %d at most", tries, d.posts, most)
		}
		if err == nil {
			break
		}
		wantError(t, err, rdma.ErrTimeout)
	}
	if tries < 2 || tries == 100 {
		t.Errorf("%d blocks were read anew in %d tries", len(c.own), tries)
	}
	d.each = 0
	must(t, c.Update(key(0), nil))
}

// An operation that finds many rested objects of a slow node waits for that part of its time
// once, not for each batch of frees, and not beyond its deadline. The next operation waits again.
func TestManyFreesOfSlowNode(t *testing.T) {
	onSlowNode(t, func(c *Client, unit uint64) {
		const share, short = slowTimeout / flushShare, time.Millisecond
		for _, left := range []time.Duration{slowTimeout, slowTimeout, short} { // of an operation's time
			for range 10 * freeBatch {
				c.layTag(unit, 0, anyTag, 0)
			}
			c.ep.Sleep(c.reclaim.rest + time.Microsecond)
			c.start()
			start := c.ep.Now()
			c.reclaim.now, c.deadline = start, start+left
			c.tend(0)
			if took, want := c.ep.Now()-start, min(share, left); took < want || took > want+want/10 {
				t.Errorf("many frees took %v of the %v that the operation had left, want %v", took, left, want)
			}
		}
	})
}

// The time in which an operation writes its client's ceiling counts as the operation's.
func TestSlowCeilingCounts(t *testing.T) {
	const timeout = 40 * time.Millisecond
	d := &dawdler{Endpoint: open2(t, simPool(t, 2, small(2, 2, 2)))}
	c, err := Open(d, Options{Timeout: timeout})
	must(t, err)
	must(t, c.Insert(key(0), nil)) // it has a block from now on
	for _, each := range []time.Duration{timeout / 2, 2 * timeout} {
		c.numbers.tomb = c.numbers.tombLimit
		c.start()
		began := c.ep.Now()
		d.each, d.posts = each, 0
		err := c.begin(opUpdate, key(0), nil)
		d.each = 0
		if d.posts == 0 {
			t.Error("no ceiling was written: this test shows nothing")
		}
		if each > timeout {
			wantError(t, err, rdma.ErrTimeout)
		} else {
			must(t, err)
			c.recycle()
		}
		if want := began + timeout; c.deadline != want {
			t.Errorf("a ceiling that took %v: the deadline is %v behind the operation's beginning, want %v",
				each, c.deadline-began, timeout)
		}
	}
}
