package fusee

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node/rdma"
)

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
	emptied := c.s.Now()
	for i := range 8 {
		must(t, c.Insert(key(n+i), make([]byte, 1000)))
		if rested := c.s.Now() - emptied; c.Stats().Converted > 0 && rested < p.Timeout {
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
		c.s.Deadline = session.Unset
		d.posts = 0
		_, err := c.views.settled(rdma.ErrStale)
		if most := int(timeout/d.each) + 5; d.posts > most {
			t.Errorf("try %d sent %d batches, want %d at most", tries, d.posts, most)
		}
		if err == nil {
			break
		}
		wantError(t, err, rdma.ErrTimeout)
	}
	if tries < 2 || tries == 100 {
		t.Errorf("%d blocks were read anew in %d tries", len(ownBlocks(c)), tries)
	}
	d.each = 0
	must(t, c.Update(key(0), nil))
}

// The time in which an operation writes its client's ceiling counts as the operation's.
func TestSlowCeilingCounts(t *testing.T) {
	const timeout = 40 * time.Millisecond
	d := &dawdler{Endpoint: open2(t, simPool(t, 2, small(2, 2, 2)))}
	c, err := Open(d, Options{Timeout: timeout})
	must(t, err)
	must(t, c.Insert(key(0), nil)) // it has a block from now on
	for _, each := range []time.Duration{timeout / 2, 2 * timeout} {
		c.s.Numbers.Tomb = c.s.Numbers.TombLimit
		c.s.Start()
		began := c.s.Now()
		d.each, d.posts = each, 0
		err := c.begin(layout.OpUpdate, key(0), nil)
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
		if want := began + timeout; c.s.Deadline != want {
			t.Errorf("a ceiling that took %v: the deadline is %v behind the operation's beginning, want %v",
				each, c.s.Deadline-began, timeout)
		}
	}
}
