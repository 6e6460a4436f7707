package rcuckoo

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
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
	at table.Place
	n  uint32 // its row
	r  table.Ref
}

type bench struct {
	*Store
	records []record
	scratch []table.Ref // extents that no row names
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
	p, memory, err := table.Size(table.Shape{Nodes: 1, Records: benchKeys, ValueBytes: valueBytes, Clients: 8})
	must(b, err)
	f, err := shm.NewMem(shm.Geometry{Nodes: 1, Memory: memory, Clients: 8}, node.Serve)
	must(b, err)
	b.Cleanup(func() { f.Close() })
	must(b, Make(f, p))
	x := &bench{Store: storeOn(b, f, session.Options{}), value: make([]byte, valueBytes),
		rng: rand.New(rand.NewPCG(1, 2))}
	for i := range benchKeys {
		must(b, x.Insert(storetest.AppendKey(x.key[:0], i), x.value))
	}
	rows := map[uint32]table.Row{}
	must(b, table.EachRow(x.session.Table, x.session.EP, 0, x.session.Table.Leads[0], func(n uint32, r table.Row) {
		rows[n] = append(table.Row(nil),
			r...)
	}))
	for i := range benchKeys {
		key := storetest.AppendKey(nil, i)
		e := record{at: x.session.Table.Place(key)}
		if e.n = e.at.First; x.session.Table.Find(rows[e.n], key) < 0 {
			e.n = e.at.Second
		}
		if held := x.session.Table.Entry(rows[e.n], x.session.Table.Find(rows[e.n], key)); held.Meta.Extent() {
			e.r = x.session.Table.Ref(held)
		}
		x.records = append(x.records, e)
	}
	for range 64 {
		if !x.session.Table.HasExtents() {
			break
		}
		r, err := x.extents.Take(0, 0, valueBytes, x.session.EP.Now()+time.Second)
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
	if err := rdma.Do(x.session.EP, b, time.Second); err != nil {
		panic(err)
	}
}

// floorRows adds the READs of a key's rows.
func (x *bench) floorRows(b *rdma.Batch, e *record, fence bool) {
	from, to := min(e.at.First, e.at.Second), max(e.at.First, e.at.Second)
	if to-from <= 1 {
		b.Read(x.session.Table.RowAt(x.session.Table.Leads[0], from),
			int(to-from+1)*x.session.Table.RowBytes).Fence = fence
		return
	}
	b.Read(x.session.Table.RowAt(x.session.Table.Leads[0], from), x.session.Table.RowBytes).Fence = fence
	b.Read(x.session.Table.RowAt(x.session.Table.Leads[0], to), x.session.Table.RowBytes)
}

// floorGet is the batches of a GET that hits: its rows, and an extent.
func (x *bench) floorGet(e *record) {
	b := x.session.EP.Batch()
	x.floorRows(b, e, false)
	x.finish(b)
	b.Release()
	if e.r.Stamp == 0 {
		return
	}
	b = x.session.EP.Batch()
	b.Read(x.session.Table.ExtentAt(x.session.Table.Leads[0], e.r), table.ExtentHeader+storetest.KeyBytes+len(x.value))
	x.finish(b)
	b.Release()
}

// floorUpdate is the batches of an UPDATE with free locks in one word. It writes what is there
// already, or memory that nothing uses, and its CASes change nothing.
func (x *bench) floorUpdate(e *record) {
	b := x.session.EP.Batch()
	b.Chain()
	p := b.Alloc(table.IntentWords + 16)
	le.PutUint64(p, table.IdleBit)
	b.Write(x.session.Table.IntentAt(0, x.session.ID+1), p)
	if len(x.scratch) > 0 {
		p := b.Alloc(table.ExtentHeader + storetest.KeyBytes + len(x.value))
		copy(p[table.ExtentHeader+storetest.KeyBytes:], x.value)
		b.Write(x.session.Table.ExtentAt(x.session.Table.Leads[0], x.scratch[x.rng.IntN(len(x.scratch))]), p)
	}
	word, _ := x.session.Table.LockOf(e.at.First)
	b.MaskedCompareSwap(x.session.Table.LockAt(0, word), 0, 0, 0, 0)
	first := b.Len()
	x.floorRows(b, e, true)
	x.finish(b)
	w := x.session.EP.Batch()
	w.Chain()
	w.Write(x.session.Table.RedoAt(x.session.Table.Leads[0], x.session.ID+1),
		w.Alloc(table.RedoHeader+table.RedoStepBytes+x.session.Table.EntryBytes))
	out := w.Alloc(x.session.Table.RowBytes)
	copy(out, b.Op(first).Buf) // of the first row
	w.Write(x.session.Table.RowAt(x.session.Table.Leads[0], min(e.at.First, e.at.Second)), out)
	if len(x.scratch) > 0 {
		w.CompareSwap(x.session.Table.MarkAt(0, e.r.Extent), 0, 0)
	}
	w.MaskedCompareSwap(x.session.Table.LockAt(0, word), 0, 0, 0, 0)
	x.finish(w)
	b.Release()
	w.Release()
	d := x.session.EP.Batch()
	p = d.Alloc(8)
	le.PutUint64(p, table.IdleBit)
	d.Write(x.session.Table.IntentAt(0, x.session.ID+1), p)
	if err := x.session.EP.Post(d); err != nil {
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
