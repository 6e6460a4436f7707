package chunks

import (
	"slices"
	"testing"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// items is how many a chunk has in these tests.
const items = 16

// holder is a client with heaps of three classes on two nodes. What a scan looks at is free.
type holder struct {
	Holdings
	arena *Arena
	heaps [2][3]Heap
}

func newHolder(t testing.TB, f rdma.Fabric, a *Arena) *holder {
	t.Helper()
	h := &holder{arena: a}
	h.Holdings = Holdings{Client: open(t, f).Client, Nodes: 2, Clients: 8, Claims: new(uint64)}
	h.Count = func(*Arena, int) int { return items }
	h.Scan = func(some []*Held) (found int, err error) {
		for _, c := range some {
			found += list(c, items)
		}
		return found, nil
	}
	return h
}

// list lists the first items of a chunk.
func list(c *Held, n int) int {
	for i := range n {
		c.List(i)
	}
	return n
}

// get takes a chunk that was never used, in which so many items are free.
func (h *holder) get(t testing.TB, n, class, free int) *Held {
	t.Helper()
	got, ok, err := h.Fresh(h.arena, n, class, int(h.arena.Count), 0, timeout)
	if must(t, err); !ok {
		t.Fatalf("node %d has no chunk left", n)
	}
	c := h.Add(&h.heaps[n][class], h.arena, got)
	list(c, free)
	return c
}

// left returns how many chunks of the pool a client may claim.
func (h *holder) left(t testing.TB) (n int) {
	t.Helper()
	for k := range 2 {
		all, err := h.Read(h.arena, k)
		must(t, err)
		for _, e := range all {
			if e == 0 || e.Owner() == node.Left {
				n++
			}
		}
	}
	return n
}

// TestShare: all workers together leave half of the pool, however many nodes and classes they use.
func TestShare(t *testing.T) {
	a := arena(48)
	f := pool(t, a)
	var all []*holder
	for range 8 {
		h := newHolder(t, f, a)
		for k := range 12 {
			h.get(t, k%2, k%3, items)
			if h.Trim(a); h.AtShare(a) != (k >= 5) {
				t.Errorf("with %d chunks: at its share: %t", k+1, h.AtShare(a))
			}
		}
		all = append(all, h)
	}
	if n := all[0].left(t); n != 48 {
		t.Errorf("%d of 96 chunks are left, want 48", n)
	}
	// Of chunks that were left a worker takes what it has room for, and always one. The scan finds
	// so little that it takes several.
	h := all[0]
	h.Count = func(*Arena, int) int { return 8 * items }
	h.Scan = func(some []*Held) (found int, err error) {
		for _, c := range some {
			found += list(c, 1)
		}
		return found, nil
	}
	for _, c := range []struct{ had, want int }{{6, 1}, {5, 1}, {2, 4}} {
		for len(h.all[a]) > c.had {
			first := h.all[a][0]
			must(t, h.leave(first.heap, func(c *Held) bool { return c == first }))
		}
		if got, err := h.ClaimLeft(&h.heaps[0][0], a, 0, 0, nil); err != nil || got != c.want {
			t.Errorf("with %d chunks it takes %d more, %v, want %d", c.had, got, err, c.want)
		}
	}
}

// TestTrim: what goes first is what is of least use to the worker. What the running operation needs
// stays, whatever the share.
func TestTrim(t *testing.T) {
	a := arena(48)
	h := newHolder(t, pool(t, a), a)
	var all []*Held
	for k := range 10 {
		all = append(all, h.get(t, k%2, k%3, items))
	}
	for i := range items {
		all[0].Take(i) // an operation has them
		all[5].Take(i)
		all[5].Release(i)
	}
	want := func(gone ...int) {
		t.Helper()
		h.Trim(a)
		for i, c := range all {
			held := h.Held(a, c.Node, c.Index) == c && slices.Contains(c.heap.Chunks, c)
			if c.Gone != slices.Contains(gone, i) || held == c.Gone {
				t.Errorf("chunk %d is gone: %t, and held: %t", i, c.Gone, held)
			}
		}
	}
	// A worker has six of these. Those of a node that does not answer are gone for it, too, and are
	// given back later.
	do := h.Do
	h.Do = func(step rdma.Step, b *rdma.Batch) error {
		if b.Op(0).Addr.Node() == 1 {
			return rdma.ErrNodeDown
		}
		return do(step, b)
	}
	want(1, 2, 3, 5)
	h.Do = do
	for _, c := range all {
		if !c.Gone && c.Taken == 0 {
			c.Take(1)
		}
	}
	for k := range 3 {
		all = append(all, h.get(t, 0, k%3, items))
	}
	want(1, 2, 3, 5, 10, 11)
	if n := h.left(t); n != 96-7-3 {
		t.Errorf("%d chunks are left, want all but 7 and the 3 of the node that did not answer", n)
	}
}

// TestGiveBack: a worker keeps some chunks in which it has little, for what becomes free there, but
// none when it has its share.
func TestGiveBack(t *testing.T) {
	a := arena(48)
	h := newHolder(t, pool(t, a), a)
	for k, want := range []int{1, 2, 3, 3, 3} {
		h.get(t, 0, 1, 1)
		if must(t, h.GiveBack(&h.heaps[0][1], a)); len(h.heaps[0][1].Chunks) != want {
			t.Errorf("%d chunks later it has %d, want %d", k+1, len(h.heaps[0][1].Chunks), want)
		}
	}
	for range 3 {
		h.get(t, 1, 2, items)
	}
	must(t, h.GiveBack(&h.heaps[0][1], a))
	must(t, h.GiveBack(&h.heaps[1][2], a))
	if few, many := len(h.heaps[0][1].Chunks), len(h.heaps[1][2].Chunks); few != 0 || many != 3 {
		t.Errorf("with its share it has %d chunks in which it has little, and %d others: want 0 and 3", few, many)
	}
}
