package swarm

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// The floor of an operation is its batches alone, issued through the same endpoint on the same
// pool: benchKeys objects with values of 1 KB on three nodes, chosen at random. Chunks of floor and
// register alternate, so that one run gives an honest ratio on a noisy machine: "x-floor".
const (
	benchKeys  = 20_000
	benchValue = 1000
	benchWords = 8
)

// ring hands buffers out again and again. No client reads what lies in them: the values are in
// place.
type ring struct{ *arena }

func (a ring) Allocate(node int, hash uint64) (uint16, rdma.Addr, error) {
	n := uint16((a.used[node][hash%segments].Add(1)-1)%a.limit) + 1
	return n, a.Resolve(node, hash, n), nil
}

type bench struct {
	*Client
	keys  []Register
	ring  ring
	value []byte
	rng   *rand.Rand
}

func newBench(b *testing.B) *bench {
	l, err := NewLayout(Shape{Replicas: 3, Words: benchWords, Locks: benchWords, Writers: benchWords,
		MaxValue: benchValue})
	must(b, err)
	a := newArena(l, 3, benchKeys, 1<<13)
	f, err := shm.NewMem(shm.Geometry{Nodes: 3, Memory: a.memory(), Clients: 8}, nil)
	must(b, err)
	b.Cleanup(func() { f.Close() })
	for n := range 3 {
		must(b, f.Commit(n, 0, f.Size()))
	}
	ep, err := f.Open("bench")
	must(b, err)
	x := &bench{ring: ring{a}, value: make([]byte, benchValue), rng: rand.New(rand.NewPCG(1, 2))}
	x.Client, err = Open(ep, l, x.ring, Options{})
	must(b, err)
	b.Cleanup(func() {
		x.Close()
		ep.Close()
	})
	for n := range benchKeys {
		k := NewRegister(a.object(n), 0)
		must(b, x.Write(&k, x.value))
		x.keys = append(x.keys, k)
	}
	for range benchKeys { // every page is touched, and memory is used again
		x.floorRead(&x.keys[x.pick()])
		must(b, x.Write(&x.keys[x.pick()], x.value))
	}
	return x
}

func (x *bench) pick() int { return x.rng.IntN(benchKeys) }

// each calls f for the replicas of a majority, in a chain each.
func (x *bench) each(b *rdma.Batch, k *Register, f func(r int)) {
	for j := range x.Majority() {
		b.Chain()
		f((k.InPlace + j) % x.Replicas)
	}
}

// floorRead is the batch of a READ in the common case.
func (x *bench) floorRead(k *Register) {
	b := x.ep.Batch()
	x.each(b, k, func(r int) {
		n := 8 * x.Words
		if r == k.InPlace {
			n = x.Bytes(true) - x.wordsAt()
		}
		b.Read(x.wordAt(k, r, 0), n)
	})
	if err := rdma.Do(x.ep, b, time.Second); err != nil {
		panic(err)
	}
	b.Release()
}

// floorWrite is the batches of a WRITE in the common case: the one that it waits for, and the one
// in the background. Its CASes fail, on another writer's word.
func (x *bench) floorWrite(k *Register) {
	b := x.ep.Batch()
	p := b.Alloc(bufferHeader + benchValue)
	copy(p[bufferHeader:], x.value)
	x.each(b, k, func(r int) {
		b.Read(x.wordAt(k, r, 0), 8*x.Words)
		_, at, _ := x.ring.Allocate(k.At[r].Node(), k.Hash)
		b.Write(at, p)
		b.CompareSwap(x.wordAt(k, r, 1), 1, 1)
	})
	if err := rdma.Do(x.ep, b, time.Second); err != nil {
		panic(err)
	}
	b.Release()
	b = x.ep.Batch()
	x.each(b, k, func(r int) {
		b.CompareSwap(x.wordAt(k, r, 1), 1, 1)
		if r == k.InPlace {
			p := b.Alloc(inPlaceHeader + benchValue)
			copy(p[inPlaceHeader:], x.value)
			b.Write(k.At[r].Add(uint64(x.dataAt())), p)
		}
	})
	if err := x.ep.Post(b); err != nil {
		panic(err)
	}
	b.Release()
}

func BenchmarkRead(b *testing.B) {
	x := newBench(b)
	storetest.Ratio(b,
		func(int) { x.floorRead(&x.keys[x.pick()]) },
		func(int) {
			if _, err := x.Read(&x.keys[x.pick()]); err != nil {
				b.Fatal(err)
			}
		})
	x.common(b)
}

func BenchmarkWrite(b *testing.B) {
	x := newBench(b)
	storetest.Ratio(b,
		func(int) { x.floorWrite(&x.keys[x.pick()]) },
		func(i int) {
			le.PutUint64(x.value, uint64(i))
			must(b, x.Write(&x.keys[x.pick()], x.value))
		})
	x.common(b)
}

// common checks that nothing but the common case was measured.
func (x *bench) common(b *testing.B) {
	if n := x.Stats(); n.Stale+n.Retries+n.Widened+n.WriteBacks+n.Fetches+n.Unmarked > 0 {
		b.Errorf("%+v", n)
	}
}
