package rdma_test

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/farkv/farkv/node/rdma"
)

func newBase() *rdma.Base {
	q := new(rdma.Base)
	q.Init(nil)
	return q
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s does not panic", what)
		}
	}()
	f()
}

func TestAllocIsAlignedAndDisjoint(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b := newBase().Batch()
		sizes := rapid.SliceOfN(rapid.IntRange(0, 6000), 1, 20).Draw(r, "sizes")
		var bufs [][]byte
		for i, n := range sizes {
			p := b.Alloc(n)
			if len(p) != n || cap(p) != n {
				r.Fatalf("Alloc(%d) has length %d, capacity %d", n, len(p), cap(p))
			}
			if n > 0 && uintptr(unsafe.Pointer(&p[0]))%8 != 0 {
				r.Fatalf("Alloc(%d) is misaligned", n)
			}
			for k := range p {
				p[k] = byte(i)
			}
			bufs = append(bufs, p)
		}
		for i, p := range bufs {
			for _, c := range p {
				if c != byte(i) {
					r.Fatalf("buffer %d was written through buffer %d", i, c)
				}
			}
		}
	})
}

func TestOpsStayWhereTheyAre(t *testing.T) {
	q := newBase()
	for range 3 { // again with what was recycled
		b := q.Batch()
		var ops []*rdma.Op
		for i := range 100 {
			ops = append(ops, b.FetchAdd(rdma.At(1, uint64(8*i)), uint64(i)))
		}
		for i, op := range ops {
			if b.Op(i) != op || op.Value != uint64(i) || op.Addr != rdma.At(1, uint64(8*i)) || op.Result != 0 {
				t.Fatalf("op %d is %+v at %p, was made at %p", i, b.Op(i), b.Op(i), op)
			}
			op.Result, op.Err = 7, errors.New("old")
		}
		if b.Len() != 100 || b.Chains() != 100 {
			t.Errorf("%d ops, %d chains", b.Len(), b.Chains())
		}
		b.Release()
		if q.Batch() != b {
			t.Error("a released batch is not used again")
		}
		b.Release()
	}
}

func TestChainsCompleteWithTheirLastOp(t *testing.T) {
	q := newBase()
	b := q.Batch()
	b.Chain()
	b.Read(rdma.At(0, 0), 8)
	b.Read(rdma.At(0, 8), 8)
	b.Chain() // empty
	b.Chain()
	b.Read(rdma.At(1, 0), 8)
	if b.ChainOf(1) != 0 || b.ChainOf(2) != 2 || b.Completed(0) {
		t.Errorf("op 1 is of chain %d, op 2 of %d, op 0 complete: %v", b.ChainOf(1), b.ChainOf(2), b.Completed(0))
	}
	q.Posted(b)
	b.Track()
	for i, want := range []struct{ op, done int }{{1, 1}, {2, 1}, {0, 2}} {
		if b.Finished() || b.Done() != want.done || b.Completed(want.op) {
			t.Errorf("step %d: %d chains are complete, want %d", i, b.Done(), want.done)
		}
		b.Complete(want.op)
		if !b.Completed(want.op) {
			t.Errorf("op %d is not complete", want.op)
		}
		if i == 0 {
			mustPanic(t, "completing an op twice", func() { b.Complete(want.op) })
		}
	}
	if !b.Finished() || b.Done() != 3 {
		t.Errorf("finished is %v, %d chains are complete", b.Finished(), b.Done())
	}
}

func TestReleasedBatchLivesUntilTheLastOp(t *testing.T) {
	q := newBase()
	b := q.Batch()
	b.Write(rdma.At(0, 0), b.Alloc(8))
	b.Write(rdma.At(1, 0), b.Alloc(8))
	q.Posted(b)
	b.Track()
	b.Complete(0)
	b.Release()
	if other := q.Batch(); other == b {
		t.Fatal("a batch in flight was handed out again")
	}
	mustPanic(t, "a second Release", b.Release)
	b.Complete(1)
	again := q.Batch()
	if again != b || again.Len() != 0 || again.Chains() != 0 || again.Done() != 0 || !again.Finished() {
		t.Errorf("after the last op: same batch: %v, %d ops, %d chains", again == b, again.Len(), again.Chains())
	}
}

func TestMisuse(t *testing.T) {
	q := newBase()
	b := q.Batch()
	b.Read(rdma.At(0, 0), 8)
	q.Posted(b)
	mustPanic(t, "posting twice", func() { q.Posted(b) })
	mustPanic(t, "adding to a posted batch", func() { b.Read(rdma.At(0, 0), 8) })
	mustPanic(t, "an address beyond the last", func() { rdma.At(0, rdma.MaxOffset) })
	mustPanic(t, "a node beyond the last", func() { rdma.At(rdma.MaxNodes, 0) })
	mustPanic(t, "an address that leaves its node", func() { rdma.At(3, rdma.MaxOffset-8).Add(8) })
}

func TestErrNamesTheFirstFailure(t *testing.T) {
	q := newBase()
	b := q.Batch()
	b.Read(rdma.At(2, 0x40), 24)
	b.CompareSwap(rdma.At(1, 8), 0, 1)
	q.Posted(b)
	if b.Err() != nil {
		t.Error(b.Err())
	}
	b.Op(1).Fail(rdma.ErrNodeDown)
	b.Op(0).Fail(rdma.ErrRevoked)
	b.CompleteAll()
	err := b.Err()
	if !errors.Is(err, rdma.ErrAccess) || !errors.Is(err, rdma.ErrRevoked) || errors.Is(err, rdma.ErrNodeDown) ||
		!strings.HasPrefix(err.Error(), "READ of 24 bytes at 2:0x40: client was fenced off") {
		t.Errorf("error is %v", err)
	}
	if b.Op(1).Swapped() {
		t.Error("a CAS that failed counts as swapped")
	}
}

// TestErrOfCompletedOps: what a fabric has noted of an op that is in flight is the fabric's yet.
func TestErrOfCompletedOps(t *testing.T) {
	q := newBase()
	b := q.Batch()
	for i := range 3 {
		b.Read(rdma.At(i, 0), 8)
	}
	q.Posted(b)
	b.Track()
	b.Op(0).Fail(rdma.ErrStale)
	b.Complete(1)
	if err := b.Err(); err != nil {
		t.Errorf("the failure of an op in flight is told: %v", err)
	}
	b.Op(2).Fail(rdma.ErrNodeDown)
	b.Complete(2)
	if err := b.Err(); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("the failure of a completed op is %v", err)
	}
	b.Complete(0)
	if err := b.Err(); !errors.Is(err, rdma.ErrStale) {
		t.Errorf("the first failure is %v", err)
	}
}

func TestTripsOfABatch(t *testing.T) {
	const r, w, c = rdma.Read, rdma.Write, rdma.CompareSwap
	type op struct {
		verb  rdma.Verb
		node  int
		fence bool
	}
	for _, x := range []struct {
		name  string
		ops   []op
		trips uint64
		bells uint64
	}{
		{"nothing", nil, 1, 0},
		{"ops of two nodes", []op{{r, 0, false}, {w, 1, false}, {c, 0, false}}, 1, 2},
		{"a fence behind a READ", []op{{r, 0, false}, {w, 0, true}}, 2, 1},
		{"a fence behind a WRITE", []op{{w, 0, false}, {c, 0, true}}, 1, 1},
		{"a fence behind another node's READ", []op{{r, 0, false}, {w, 1, true}}, 1, 2},
		{"fences side by side", []op{{r, 0, false}, {r, 1, false}, {c, 0, true}, {c, 1, true}}, 2, 2},
		{"fences in a row", []op{{r, 0, false}, {c, 0, true}, {w, 0, true}}, 3, 1},
		{"a fence that has been waited for", []op{{r, 0, false}, {w, 0, true}, {w, 0, true}}, 2, 1},
		{"more on one node than on the other", []op{{r, 0, false}, {c, 0, true}, {r, 1, false}, {c, 1, true},
			{r, 1, true}}, 3, 2},
		{"nodes beyond 256", []op{{r, 300, false}, {r, 301, false}}, 1, 2},
	} {
		q := newBase()
		b := q.Batch()
		for _, o := range x.ops {
			switch a := rdma.At(o.node, 0); o.verb {
			case r:
				b.Read(a, 8).Fence = o.fence
			case w:
				b.Write(a, b.Alloc(8)).Fence = o.fence
			default:
				b.CompareSwap(a, 0, 1).Fence = o.fence
			}
		}
		q.Posted(b)
		b.CompleteAll()
		q.Waited(b)
		q.Waited(b)
		if q.C.Trips != x.trips || q.C.Doorbells != x.bells || q.C.Verbs() != uint64(len(x.ops)) {
			t.Errorf("%s: %d trips, %d doorbells, %d verbs; want %d, %d, %d", x.name, q.C.Trips, q.C.Doorbells,
				q.C.Verbs(), x.trips, x.bells, len(x.ops))
		}
	}
}

// What is counted by node adds up to the totals, and each node's bell rings once a post.
func TestNodeCounters(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		q, verbs, bells := newBase(), map[int]uint64{}, map[int]uint64{}
		for range rapid.IntRange(1, 4).Draw(r, "posts") {
			b, rung := q.Batch(), map[int]bool{}
			for _, n := range rapid.SliceOfN(rapid.IntRange(0, 299), 1, 40).Draw(r, "nodes") {
				switch a := rdma.At(n, 0); n % 3 {
				case 0:
					b.Read(a, n)
				case 1:
					b.Write(a, b.Alloc(n))
				default:
					b.FetchAdd(a, 1)
				}
				if verbs[n]++; !rung[n] {
					rung[n] = true
					bells[n]++
				}
			}
			q.Posted(b)
			b.CompleteAll()
			b.Release()
		}
		q.Called(7)
		sum := rdma.Counters{Trips: q.C.Trips}
		for n, c := range q.NodeCounters() {
			if c.Reads+c.Writes+c.Atomics != verbs[n] || c.Doorbells != bells[n] || c.Calls > 0 != (n == 7) {
				r.Fatalf("node %d: %+v, want %d verbs, %d doorbells", n, c, verbs[n], bells[n])
			}
			sum = sum.Add(rdma.Counters{
				Doorbells: c.Doorbells, Reads: c.Reads, Writes: c.Writes, Atomics: c.Atomics, Calls: c.Calls,
				BytesRead: c.BytesRead, BytesWrote: c.BytesWrote,
			})
		}
		if sum != q.C {
			r.Fatalf("the nodes' are %+v, all are %+v", sum, q.C)
		}
	})
}

func TestCountersAddUp(t *testing.T) {
	a := rdma.Counters{Trips: 1, Doorbells: 2, Reads: 3, Writes: 4, Atomics: 5, Calls: 6, BytesRead: 7, BytesWrote: 8}
	if got := a.Add(a).Sub(a); got != a {
		t.Errorf("a+a-a is %+v", got)
	}
	if a.Verbs() != 12 {
		t.Errorf("%d verbs", a.Verbs())
	}
}
