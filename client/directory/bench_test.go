package directory

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// The floor of an operation is its batches alone, issued through the same endpoint on the same
// pool: benchRecords entries on three nodes, looked up at random. Chunks of floor and directory
// alternate, so that one run gives an honest ratio on a noisy machine: "x-floor".
const (
	benchRecords = 50_000
)

// lean keeps no accounts: what is free is a queue for each node.
type lean struct {
	*arena
	queue [3]struct {
		free        [1 << 16]uint16
		first, last uint16
	}
}

func (a *lean) Allocate(node int, segment uint64) (uint16, rdma.Addr, error) {
	q := &a.queue[node]
	p := q.free[q.first]
	q.first++
	return p, a.Resolve(node, segment, p), nil
}

func (a *lean) Give(node int, _ uint64, pointer uint16) {
	q := &a.queue[node]
	q.free[q.last] = pointer
	q.last++
}

type bench struct {
	*Client
	hashes []uint64
	rng    *rand.Rand
}

func newBench(b *testing.B) *bench {
	const buffers = 1<<16 - 1
	f, arena := pool(b, Shape{Nodes: 3, Replicas: 3, Buckets: Size(benchRecords)}, buffers)
	a := &lean{arena: arena}
	for n := range a.queue {
		for p := range buffers {
			a.Give(n, 0, uint16(p+1))
		}
	}
	x := &bench{Client: worker(b, f, arena, Options{}), rng: rand.New(rand.NewPCG(1, 2))}
	x.alloc = a
	for n := range uint64(benchRecords) {
		x.hashes = append(x.hashes, x.rng.Uint64())
		must(b, put(x.Client, x.hashes[n], n))
	}
	for range benchRecords { // memory is used again
		x.floorLookup(x.pick())
	}
	return x
}

func (x *bench) pick() uint64 { return x.hashes[x.rng.IntN(len(x.hashes))] }

func (x *bench) do(name string, fill func(b *rdma.Batch)) {
	b := x.ep.Batch()
	fill(b)
	if err := rdma.Do(x.ep, b, time.Second); err != nil {
		panic(name + ": " + err.Error())
	}
	b.Release()
}

// floorLookup is the batch of a lookup in the common case.
func (x *bench) floorLookup(hash uint64) {
	x.place(x.BucketOf(hash), x.at[:])
	x.do("lookup", func(b *rdma.Batch) {
		b.Chain()
		b.Read(x.at[0], slotBytes)
		b.Chain()
		b.Read(x.at[1], wordBytes)
	})
}

// floorChange is the batches of a change in the common case; its CASes fail.
func (x *bench) floorChange(hash uint64) {
	x.floorLookup(hash)
	cas := func(b *rdma.Batch, r int) { b.CompareSwap(x.at[r], ^uint64(0), 0) }
	x.do("prepare", func(b *rdma.Batch) {
		for r := range 2 {
			b.Chain()
			cas(b, r)
		}
	})
	x.do("accept", func(b *rdma.Batch) {
		for r := range 2 {
			b.Chain()
			p := b.Alloc(headBytes + 3*entryBytes)
			b.Write(x.alloc.Resolve(x.at[r].Node(), 0, 0), p) // a buffer without an owner
			cas(b, r)
			if r == 0 {
				b.Write(x.alloc.Resolve(x.at[r].Node(), 0, 0), p)
			}
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	x := newBench(b)
	storetest.Ratio(b,
		func(int) { x.floorLookup(x.pick()) },
		func(int) {
			if found, err := x.Lookup(x.pick()); err != nil || len(found) != 1 {
				b.Fatal(found, err)
			}
		})
	x.common(b)
}

func BenchmarkChange(b *testing.B) {
	x := newBench(b)
	storetest.Ratio(b,
		func(int) { x.floorChange(x.pick()) },
		func(i int) {
			must(b, x.Change(x.pick(), uint64(i)<<16|1<<63, func(e []Entry) ([]Entry, error) {
				e[0].Location = uint64(i)
				return e, nil
			}))
		})
	x.common(b)
}

// common checks that nothing but the common case was measured.
func (x *bench) common(b *testing.B) {
	if n := x.Stats(); n != (Stats{}) {
		b.Errorf("%+v", n)
	}
}
