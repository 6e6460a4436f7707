package fusee

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// TestLostItems kills a node of a pool without replicas. What the node held is lost, and
// operations say so at once. The rest goes on, for the clients that were there and for those that
// come.
func TestLostItems(t *testing.T) {
	p := small(4, 1, 1)
	p.Spares = 1 // nothing of what is lost may seem to be there again, and empty
	p.Subtables, p.Timeout = 6, 10*time.Millisecond
	f := simPool(t, 4, p)
	w := f.Go("worker", func(ep rdma.Endpoint) {
		c, err := Open(ep, thrifty(Options{}))
		if err != nil {
			t.Error(err)
			return
		}
		for i := range 100 {
			if err := c.Insert(key(i), key(i)); err != nil {
				t.Error(err)
			}
		}
		if err := f.KillNode(1); err != nil {
			t.Error(err)
		}
		lost := tryAll(t, c, 0)
		other, err := f.Open("fresh")
		if err != nil {
			t.Error(err)
			return
		}
		fresh, err := Open(other, Options{CacheBytes: new(0)})
		if err != nil {
			t.Error(err)
			return
		}
		if n := tryAll(t, fresh, 100); n != lost || n == 0 || n == 100 {
			t.Errorf("%d of 100 keys are lost, and then %d", lost, n)
		}
		if err := errors.Join(c.Close(), fresh.Close()); err != nil {
			t.Error(err)
		}
	})
	f.Go("keeper", func(ep rdma.Endpoint) {
		o := cluster.Options{Lease: time.Millisecond, Stop: w.Finished}
		if err := cluster.Keep(ep, f, recoverer, o); err != nil {
			t.Error(err)
		}
	})
	must(t, f.Run())
	r, err := Check(f)
	must(t, err)
	for _, d := range r.Damage {
		if !strings.Contains(d, "lost") {
			t.Error(d)
		}
	}
	if len(r.Damage) != 2 {
		t.Errorf("got %q, want what is lost of the index and of the pairs", r.Damage)
	}
}

// tryAll reads and overwrites all keys, and returns how many are lost.
func tryAll(t *testing.T, c *Client, from int) (lost int) {
	for i := range 100 {
		_, err := c.Get(key(i))
		if err == nil || errors.Is(err, client.ErrNotFound) {
			err = c.Update(key(i), fmt.Append(nil, from))
		}
		switch {
		case errors.Is(err, rdma.ErrNodeDown) && !errors.Is(err, rdma.ErrTimeout):
			lost++
		case err != nil && !errors.Is(err, client.ErrNotFound):
			t.Errorf("key %d: %v", i, err)
		}
	}
	return lost
}

// TestHintsOfLeftBlocks: the hints of free objects are lost with a node, and a block without an
// owner has no client that could find its free objects.
func TestHintsOfLeftBlocks(t *testing.T) {
	p := small(3, 2, 2)
	p.Regions, p.BlockBytes, p.RegionBytes, p.Timeout = 3, 4096, 9*4096, 20*time.Millisecond
	f := simPool(t, 3, p)
	fill := func(c *Client) (n int) {
		for c.Insert(key(n), make([]byte, 500)) == nil {
			n++
		}
		return n
	}
	c, leave := life(t, f, Options{})
	before := fill(c)
	for i := range before {
		must(t, c.Delete(key(i)))
	}
	leave()
	must(t, f.KillNode(0))
	ep := open2(t, f)
	_, err := cluster.Once(ep, f, recoverer, cluster.Options{Lease: time.Millisecond})
	must(t, err)
	successor, err := Open(open2(t, f), Options{})
	must(t, err)
	if after := fill(successor); after < before-before/20 {
		t.Errorf("%d pairs of %d fit after a node died", after, before)
	}
}
