package directory

import (
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
)

// TestWalkTrips: a walk over settled buckets takes a trip for each walkBatch of them, and one more
// for each value that does not lie in place; and so does the reading of the words.
func TestWalkTrips(t *testing.T) {
	f, a := pool(t, Shape{Nodes: 3, Replicas: 3, Buckets: 2*walkBatch + 1}, 300)
	x, y := worker(t, f, a, Options{}), worker(t, f, a, Options{})
	for n := range a.Buckets {
		must(t, put(x, n<<57, n))
	}
	x.begin(0)
	b := x.ep.Batch()
	b.WriteCopy(x.at[0].Add(wordBytes), make([]byte, BufferBytes))
	must(t, rdma.Do(x.ep, b, time.Second))
	b.Release()
	for name, of := range map[string]struct {
		want uint64
		walk func() error
	}{
		"walk": {4, func() error { return y.Walk(func(*Found) error { return nil }) }},
		"words": {3, func() error {
			return y.Words(func(Held) {}, func(int) bool { return false })
		}},
	} {
		if n := trace.Trips(y.ep, func() { must(t, of.walk()) }); n.Trips != of.want {
			t.Errorf("%s of %d buckets took %d trips, want %d (%+v)", name, a.Buckets, n.Trips, of.want, n)
		}
	}
}

// TestNodeDiesUnderAWalk: a walk learns in the middle of what one trip has read that a node is
// dead. What that trip has read of the node before is right.
func TestNodeDiesUnderAWalk(t *testing.T) {
	f, a := pool(t, Shape{Nodes: 4, Replicas: 3, Buckets: walkBatch}, 300)
	x, y := worker(t, f, a, Options{}), worker(t, f, a, Options{})
	for n := range a.Buckets {
		must(t, put(x, n<<59, n))
	}
	half := func(c *Client, bucket uint64) {
		c.begin(bucket)
		for r := range c.Replicas {
			b := c.ep.Batch()
			w := Word(peek(t, c, r))
			b.CompareSwap(c.at[r], uint64(w), uint64(promise(w.round()+1, w.pointer())))
			must(t, rdma.Do(c.ep, b, time.Second))
			b.Release()
		}
	}
	walk := func(c *Client, then func(bucket uint64)) (entries int, held []Held) {
		must(t, c.Walk(func(w *Found) error {
			then(w.Bucket)
			if entries += len(w.Entries); w.Bucket != 2 {
				held = append(held, w.Held...)
			}
			return nil
		}))
		return entries, held
	}
	half(x, 2)
	dead := x.at[1].Node()
	entries, held := walk(x, func(uint64) {})
	half(x, 2)
	e, h := walk(y, func(bucket uint64) {
		if bucket == 1 {
			must(t, f.KillNode(dead))
		}
	})
	if e != entries || e != walkBatch || !slices.Equal(h, held) {
		t.Errorf("%d entries and %v are known, want %d and %v", e, h, entries, held)
	}
}

// peek reads the word of a replica of the bucket at work.
func peek(t *testing.T, c *Client, r int) uint64 {
	t.Helper()
	b := c.ep.Batch()
	defer b.Release()
	b.Read(c.at[r], wordBytes)
	must(t, rdma.Do(c.ep, b, time.Second))
	return b.Op(0).Word(0)
}
