package directory

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// TestLayout: no two replicas of any buckets overlap, each bucket's are on nodes of their own, and
// all lie in what Bytes says.
func TestLayout(t *testing.T) {
	for _, s := range []Shape{
		{Nodes: 1, Replicas: 1, Buckets: 1}, {Nodes: 3, Replicas: 3, Buckets: 1000, Base: 4096},
		{Nodes: 5, Replicas: 3, Buckets: 977, Base: 8},
		{Nodes: 9, Replicas: 7, Buckets: 300}, {Nodes: 16, Replicas: 5, Buckets: 16*32 + 1},
	} {
		l, err := NewLayout(s)
		must(t, err)
		taken := make([]map[uint64]bool, s.Nodes)
		for n := range taken {
			taken[n] = map[uint64]bool{}
		}
		for bucket := range s.Buckets {
			var at [7]rdma.Addr
			l.place(bucket, at[:s.Replicas])
			nodes := map[int]bool{}
			for r, a := range at[:s.Replicas] {
				nodes[a.Node()] = true
				for w := a.Offset(); w < a.Offset()+stride(r); w += 8 {
					if taken[a.Node()][w] || w < s.Base || w >= s.Base+l.Bytes() {
						t.Fatalf("%+v: byte %d of node %d is taken, or not the directory's", s, w, a.Node())
					}
					taken[a.Node()][w] = true
				}
			}
			if len(nodes) != s.Replicas {
				t.Fatalf("%+v: bucket %d lies on %d nodes", s, bucket, len(nodes))
			}
		}
		used := uint64(0)
		for n := range taken {
			used += 8 * uint64(len(taken[n]))
		}
		if s.Buckets > 500 && used < l.Bytes()*uint64(s.Nodes)*7/10 {
			t.Errorf("%+v: %d bytes a node, of which %d of %d are used", s, l.Bytes(), used, l.Bytes()*uint64(s.Nodes))
		}
	}
	for _, s := range []Shape{
		{Nodes: 3, Replicas: 2, Buckets: 1}, {Nodes: 3, Replicas: 5, Buckets: 1},
		{Nodes: 9, Replicas: 9, Buckets: 1}, {Nodes: 3, Replicas: 3},
		{Nodes: 3, Replicas: 3, Buckets: maxBuckets + 1}, {Nodes: 3, Replicas: 3, Buckets: 1, Base: 4}, {},
	} {
		_, err := NewLayout(s)
		wantError(t, err, ErrShape)
	}
	if _, err := NewLayout(Shape{Nodes: 3, Replicas: 3, Buckets: maxBuckets}); err != nil {
		t.Error(err)
	}
}

// TestSize: buckets of a sized directory take their records, with little to spare.
func TestSize(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, records := range []uint64{0, 1, 16, 17, 1000, 100_000, 1_000_000} {
		n := Size(records)
		l, err := NewLayout(Shape{Nodes: 3, Replicas: 3, Buckets: n})
		must(t, err)
		load, most := make([]int, n), 0
		for range records {
			b := l.BucketOf(rng.Uint64())
			load[b]++
			most = max(most, load[b])
		}
		if most > Slots || n > 1+records/2 {
			t.Errorf("%d records get %d buckets, and one has %d entries", records, n, most)
		}
	}
	if n := Size(1e12); n < 1e11 || n > 2e12 {
		t.Errorf("a million million records get %d buckets", n)
	}
}

// TestWalk: it finds every entry and every buffer that a word names, and names the nodes that do
// not answer.
func TestWalk(t *testing.T) {
	f, a := pool(t, Shape{Nodes: 4, Replicas: 3, Buckets: 40}, 300)
	c := worker(t, f, a, Options{})
	rng := rand.New(rand.NewPCG(1, 2))
	want := map[Entry]bool{}
	for n := range uint64(100) {
		e := Entry{rng.Uint64(), n}
		must(t, put(c, e.Hash, e.Location))
		want[e] = true
	}
	walk := func(dead int) {
		found, held, buckets, silent := map[Entry]bool{}, map[string]bool{}, uint64(0), 0
		must(t, c.Walk(func(f *Found) error {
			if f.Bucket != buckets {
				t.Errorf("bucket %d comes behind %d others", f.Bucket, buckets)
			}
			buckets++
			for _, e := range f.Entries {
				found[e] = true
			}
			for _, h := range f.Held {
				held[fmt.Sprint(h.Node, h.Pointer)] = true
			}
			for _, n := range f.Silent {
				silent++
				if n != dead {
					t.Errorf("node %d is well, and taken for silent", n)
				}
			}
			for _, e := range f.Entries {
				if a.BucketOf(e.Hash) != f.Bucket {
					t.Errorf("an entry of bucket %d is taken for one of %d", a.BucketOf(e.Hash), f.Bucket)
				}
			}
			if n := len(f.Held) + len(f.Silent); n < 2 && len(f.Entries) > 0 {
				t.Errorf("of bucket %d's replicas %d are known", f.Bucket, n)
			}
			return nil
		}))
		if buckets != a.Buckets || len(found) != len(want) {
			t.Errorf("%d entries in %d buckets are known, want %d in %d", len(found), buckets, len(want), a.Buckets)
		}
		if silent > 0 != (dead >= 0) {
			t.Errorf("of %d replicas it is known that they are silent, and node %d is", silent, dead)
		}
		owned := 0
		for n := range a.owned {
			if n != dead {
				owned += len(a.owned[n])
			}
		}
		if len(held) != owned {
			t.Errorf("%d buffers are known, and %d in use", len(held), owned)
		}
	}
	walk(-1)
	must(t, f.KillNode(2))
	walk(2)
	wantError(t, c.Walk(func(*Found) error { return errNo }), errNo)
}
