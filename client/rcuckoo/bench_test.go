package rcuckoo

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// The floor of an operation is the cost of its batches alone, posted through the same endpoint to
// the same pool: benchKeys records, chosen at random. Chunks of floor and store alternate, so
// that one run gives a fair ratio on a noisy machine: "x-floor".
const (
	benchKeys = 100_000
)

// record is what an operation on a key reads and writes, as long as nothing moves.
type record struct {
	at place
	n  uint32 // its row
	r  ref
}

type bench struct {
	*Store
	records []record
	scratch []ref // extents that no row names
	value   []byte
	key     []byte // the current one
	rng     *rand.Rand
}

// pick draws a record and makes its key, as an application does before each operation.
func (x *bench) pick() int {
	i := x.rng.IntN(benchKeys)
	x.key = storetest.AppendKey(x.key[:0], i)
	return i
}

func newBench(b *testing.B, valueBytes int) *bench {
	p, memory, err := Size(Shape{Nodes: 1, Records: benchKeys, ValueBytes: valueBytes, Clients: 8})
	must(b, err)
	f, err := shm.NewMem(shm.Geometry{Nodes: 1, Memory: memory, Clients: 8}, node.Serve)
	must(b, err)
	b.Cleanup(func() { f.Close() })
	must(b, Make(f, p))
	x := &bench{Store: storeOn(b, f, Options{}), value: make([]byte, valueBytes), rng: rand.New(rand.NewPCG(1, 2))}
	for i := range benchKeys {
		must(b, x.Insert(storetest.AppendKey(x.key[:0], i), x.value))
	}
	rows := map[uint32]row{}
	must(b, x.eachRow(x.ep, 0, x.leads[0], func(n uint32, r row) { rows[n] = append(row(nil), r...) }))
	for i := range benchKeys {
		key := storetest.AppendKey(nil, i)
		e := record{at: x.place(key)}
		if e.n = e.at.first; x.find(rows[e.n], key) < 0 {
			e.n = e.at.second
		}
		if held := x.entry(rows[e.n], x.find(rows[e.n], key)); held.meta.extent() {
			e.r = x.ref(held)
		}
		x.records = append(x.records, e)
	}
	for range 64 {
		if !x.layout.extents() {
			break
		}
		r, err := takeNow(x.extents, 0, valueBytes)
		must(b, err)
		x.scratch = append(x.scratch, r)
	}
	for range benchKeys { // every page is touched
		e := x.pick()
		x.floorGet(&x.records[e])
		x.floorUpdate(&x.records[e])
	}
	return x
}

func (x *bench) finish(b *rdma.Batch) {
	if err := rdma.Do(x.ep, b, time.Second); err != nil {
		panic(err)
	}
}

// floorRows adds the READs of a key's rows.
func (x *bench) floorRows(b *rdma.Batch, e *record, fence bool) {
	from, to := min(e.at.first, e.at.second), max(e.at.first, e.at.second)
	if to-from <= 1 {
		b.Read(x.rowAt(x.leads[0], from), int(to-from+1)*x.rowBytes).Fence = fence
		return
	}
	b.Read(x.rowAt(x.leads[0], from), x.rowBytes).Fence = fence
	b.Read(x.rowAt(x.leads[0], to), x.rowBytes)
}

// floorGet is the batches of a GET that hits: its rows, and an extent.
func (x *bench) floorGet(e *record) {
	b := x.ep.Batch()
	x.floorRows(b, e, false)
	x.finish(b)
	b.Release()
	if e.r.stamp == 0 {
		return
	}
	b = x.ep.Batch()
	b.Read(x.extentAt(x.leads[0], e.r), extentHeader+storetest.KeyBytes+len(x.value))
	x.finish(b)
	b.Release()
}

// floorUpdate is the batches of an UPDATE with free locks in one word. It writes what is there
// already, or memory that nothing uses, and its CASes change nothing.
func (x *bench) floorUpdate(e *record) {
	b := x.ep.Batch()
	b.Chain()
	p := b.Alloc(intentWords + 16)
	le.PutUint64(p, idleBit)
	b.Write(x.intentAt(0, x.id+1), p)
	if len(x.scratch) > 0 {
		p := b.Alloc(extentHeader + storetest.KeyBytes + len(x.value))
		copy(p[extentHeader+storetest.KeyBytes:], x.value)
		b.Write(x.extentAt(x.leads[0], x.scratch[x.rng.IntN(len(x.scratch))]), p)
	}
	word, _ := x.lockOf(e.at.first)
	b.MaskedCompareSwap(x.lockAt(0, word), 0, 0, 0, 0)
	first := b.Len()
	x.floorRows(b, e, true)
	x.finish(b)
	w := x.ep.Batch()
	w.Chain()
	w.Write(x.redoAt(x.leads[0], x.id+1), w.Alloc(redoHeader+redoStep+x.entryBytes))
	out := w.Alloc(x.rowBytes)
	copy(out, b.Op(first).Buf) // of the first row
	w.Write(x.rowAt(x.leads[0], min(e.at.first, e.at.second)), out)
	if len(x.scratch) > 0 {
		w.CompareSwap(x.markAt(0, e.r.extent), 0, 0)
	}
	w.MaskedCompareSwap(x.lockAt(0, word), 0, 0, 0, 0)
	x.finish(w)
	b.Release()
	w.Release()
	d := x.ep.Batch()
	p = d.Alloc(8)
	le.PutUint64(p, idleBit)
	d.Write(x.intentAt(0, x.id+1), p)
	if err := x.ep.Post(d); err != nil {
		panic(err)
	}
	d.Release()
}

// benchValues are inline, and in extents as YCSB's.
var benchValues = []int{8, 1000}

func BenchmarkGet(b *testing.B) {
	for _, n := range benchValues {
		b.Run(fmt.Sprintf("%d B", n), func(b *testing.B) {
			x := newBench(b, n)
			storetest.Ratio(b,
				func(int) { x.floorGet(&x.records[x.pick()]) },
				func(int) {
					x.pick()
					if _, err := x.Get(x.key); err != nil {
						b.Fatal(err)
					}
				})
			x.common(b)
		})
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range benchValues {
		b.Run(fmt.Sprintf("%d B", n), func(b *testing.B) {
			x := newBench(b, n)
			storetest.Ratio(b,
				func(int) { x.floorUpdate(&x.records[x.pick()]) },
				func(i int) {
					le.PutUint64(x.value, uint64(i))
					x.pick()
					must(b, x.Update(x.key, x.value))
				})
			x.common(b)
		})
	}
}

// common checks that nothing but the common case was measured.
func (x *bench) common(b *testing.B) {
	if n := x.Stats(); n.Torn+n.Waits+n.Repairs > 0 {
		b.Errorf("%+v", n)
	}
}

func BenchmarkExtents(b *testing.B) {
	p := small()
	p.SlabExtents, p.ExtentBytes = 256, 1000
	l := lay(b, p, 1)
	f, err := shm.NewMem(shm.Geometry{Nodes: 1, Memory: l.bytes, Clients: 4}, node.Serve)
	must(b, err)
	defer f.Close()
	must(b, node.Commit(f, 0, 0, l.slabs.base))
	ep, err := f.Open("settler")
	must(b, err)
	defer ep.Close()
	x := openExtents(l, ep)
	key, value := []byte("user1234567890"), make([]byte, 1000)
	b.Run("take, write and mark 1 KB", func(b *testing.B) {
		for b.Loop() {
			r, err := takeNow(x, 0, len(value))
			if err != nil {
				b.Fatal(err)
			}
			batch := ep.Batch()
			l.addValue(batch, 0, r, key, value)
			l.addMark(batch, 0, r)
			err = rdma.Do(ep, batch, time.Second)
			batch.Release()
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	r, err := takeNow(x, 0, len(value))
	must(b, err)
	write(b, x, func(batch *rdma.Batch) { l.addValue(batch, 0, r, key, value) })
	b.Run("read 1 KB", func(b *testing.B) {
		for b.Loop() {
			batch := ep.Batch()
			read := l.addRead(batch, l.leads[0], r, key)
			err := rdma.Do(ep, batch, time.Second)
			if _, ok := l.valueOf(read.Buf, 0, r, key); !ok || err != nil {
				b.Fatal(ok, err)
			}
			batch.Release()
		}
	})
}
