package fusee

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// The floor of an operation is its batches alone, issued through the same endpoint on the same
// pool: 100,000 keys with pairs of 1 KB, chosen at random. A benchmark's chunks of floor and store
// alternate, so that one run gives an honest ratio on a noisy machine: "x-floor".
const (
	benchKeys  = 100_000
	benchValue = 1000
)

type bench struct {
	*Client
	fabric *shm.Fabric
	keys   [][]byte
	at     []entry // where each key was when the pool was loaded
	value  []byte
	key    []byte // the current one
	rng    *rand.Rand
}

// pick draws a record and makes its key, as an application does before it asks.
func (x *bench) pick() int {
	i := x.rng.IntN(benchKeys)
	x.key = storetest.AppendKey(x.key[:0], i)
	return i
}

func newBench(b *testing.B, replicas int) *bench {
	p, _, err := layout.Size(layout.Shape{Nodes: 3, Records: benchKeys, PairBytes: storetest.KeyBytes + benchValue,
		IndexReplicas: replicas, DataReplicas: replicas, Clients: 64})
	must(b, err)
	f := pool(b, 3, p)
	x := &bench{Client: worker(b, f, Options{CacheBytes: new(DefaultCache)}, nil), fabric: f,
		value: make([]byte, benchValue), rng: rand.New(rand.NewPCG(1, 2))}
	for i := range benchKeys {
		k := storetest.AppendKey(nil, i)
		must(b, x.Client.Insert(k, x.value))
		x.keys = append(x.keys, k)
	}
	for _, k := range x.keys {
		if _, err := x.Client.Get(k); err != nil {
			b.Fatal(err)
		}
		at, _, held, err := x.Client.find(k, race.Hash(k), false)
		must(b, err)
		held.Release()
		x.at = append(x.at, entry{word: at.word, at: uint32(at.slot)})
	}
	return x
}

// floorGet is the batch of a SEARCH that hits its cache.
func (x *bench) floorGet(e *entry) {
	b := x.s.Batch()
	b.Read(x.s.Index.Address(e.slot(), 0), 8)
	b.Read(x.s.Space.UnitAt(e.word.Unit(), 0), e.word.Units()*64)
	if err := x.s.Do("test", b); err != nil {
		panic(err)
	}
	b.Release()
}

// floorUpdate is the batches of an UPDATE that hits its cache and wins by rule 1, over places that
// hold no live data: the journal is that of an identity without a client.
func (x *bench) floorUpdate(e *entry, unit uint64) {
	bytes := layout.ObjectBytes(storetest.KeyBytes, benchValue)
	b := x.s.Batch()
	p := b.Alloc(bytes)
	copy(p[layout.HeaderBytes+storetest.KeyBytes:], x.value)
	for r := range x.s.DataReplicas {
		at := x.s.Space.UnitAt(unit, r)
		b.Write(at, p)
		b.WriteWord(x.s.Journal(x.s.ID+1, at.Node()), layout.Journaled(unit, 0))
	}
	b.Read(x.s.Index.Address(e.slot(), 0), 8)
	b.Read(x.s.Space.UnitAt(e.word.Unit(), 0), layout.HeaderBytes+storetest.KeyBytes)
	x.finish(b)
	if x.s.IndexReplicas > 1 {
		b = x.s.Batch()
		for r := 1; r < x.s.IndexReplicas; r++ {
			b.CompareSwap(x.s.Index.Address(e.slot(), r), 1, 1)
		}
		x.finish(b)
		b = x.s.Batch()
		old := b.Alloc(layout.CommitBytes)
		for r := range x.s.DataReplicas {
			b.Write(x.s.Space.UnitAt(unit, r).Add(uint64(bytes-layout.CommitBytes)), old)
		}
		x.finish(b)
	}
	b = x.s.Batch()
	b.CompareSwap(x.s.Index.Address(e.slot(), 0), 1, 1)
	x.finish(b)
}

func (x *bench) finish(b *rdma.Batch) {
	if err := x.s.Do("test", b); err != nil {
		panic(err)
	}
	b.Release()
}

func BenchmarkGetHit(b *testing.B) {
	x := newBench(b, 2)
	storetest.Ratio(b,
		func(int) { x.floorGet(&x.at[x.pick()]) },
		func(int) {
			x.pick()
			if _, err := x.Client.Get(x.key); err != nil {
				b.Fatal(err)
			}
		})
	hits := float64(x.s.Stats.Hits) / float64(x.s.Stats.Hits+x.s.Stats.Misses) * 100
	if b.ReportMetric(hits, "hit-%"); hits < 95 {
		b.Errorf("%.1f %% of all searches hit the cache: this is another operation's time", hits)
	}
}

func BenchmarkUpdateHit(b *testing.B) {
	for _, replicas := range []int{1, 2, 3} {
		b.Run(fmt.Sprintf("%d replicas", replicas), func(b *testing.B) {
			x := newBench(b, replicas)
			must(b, x.mem.NewBlock(0))
			var scratch []uint64 // places of blocks that this client owns and does not use
			class := int(x.s.Classes.Of[layout.UnitsFor(storetest.KeyBytes, benchValue)])
			for range 100 {
				must(b, x.mem.NewBlock(class))
			}
			s := &x.mem.Holdings.Slabs[class]
			for range 100 * x.s.Classes.Objects[class] {
				scratch = append(scratch, x.mem.Tables.UnitOf(s.Free.Pop()))
			}
			for i := range 2 * benchKeys { // every page is touched, and memory is used again
				x.floorUpdate(&x.at[i%len(x.at)], scratch[i%len(scratch)])
				must(b, x.Client.Update(x.keys[i%benchKeys], x.value))
			}
			storetest.Ratio(b,
				func(int) { x.floorUpdate(&x.at[x.pick()], scratch[x.rng.IntN(len(scratch))]) },
				func(i int) {
					binary.LittleEndian.PutUint64(x.value, uint64(i))
					x.pick()
					must(b, x.Client.Update(x.key, x.value))
				})
			b.ReportMetric(float64(len(s.Blocks)-100)*float64(x.s.BlockBytes)/
				(benchKeys*(storetest.KeyBytes+benchValue)), "B/user-B")
		})
	}
}

// BenchmarkUpdateOthers is two clients that update the same records in turn: most of what they
// replace is each other's, and goes back by marks and hints. Their caches are mostly out of date,
// so the floor is too low by a trip; what counts here is what frees cost, beside
// BenchmarkUpdateHit, and that they allocate nothing.
func BenchmarkUpdateOthers(b *testing.B) {
	x := newBench(b, 2)
	y := &bench{Client: worker(b, x.fabric, Options{CacheBytes: new(DefaultCache)}, nil),
		keys: x.keys, value: x.value, rng: x.rng}
	for i := range 4 * benchKeys {
		must(b, [2]*bench{x, y}[i%2].Client.Update(x.keys[x.rng.IntN(benchKeys)], x.value))
	}
	before := [2]session.Stats{x.s.Stats, y.s.Stats}
	class := int(x.s.Classes.Of[layout.UnitsFor(storetest.KeyBytes, benchValue)])
	must(b, x.mem.NewBlock(class))
	scratch := x.mem.Tables.UnitOf(x.mem.Holdings.Slabs[class].Free.Pop())
	storetest.Ratio(b,
		func(int) { x.floorUpdate(&x.at[x.pick()], scratch) },
		func(i int) {
			x.pick()
			must(b, [2]*bench{x, y}[i%2].Client.Update(x.key, x.value))
		})
	reclaimed := x.s.Stats.Reclaimed + y.s.Stats.Reclaimed - before[0].Reclaimed - before[1].Reclaimed
	b.ReportMetric(float64(reclaimed)/float64(b.N),
		"reclaimed/op")
}
