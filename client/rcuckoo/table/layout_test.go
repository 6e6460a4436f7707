package table

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"pgregory.net/rapid"
)

// TestAreas: no two parts of a pool share a byte, words that atomics change are aligned, and all
// parts end within the size of a node.
func TestAreas(t *testing.T) {
	alone(t)
	rapid.Check(t, func(r *rapid.T) {
		p, nodes := drawParams(r), rapid.IntRange(1, 5).Draw(r, "nodes")
		l, err := New(p, nodes)
		if err != nil {
			r.Fatal(err)
		}
		type span struct{ from, to rdma.Addr }
		spans := []span{}
		for n := range nodes {
			spans = append(spans, span{rdma.At(n, 0), rdma.At(n, node.HeaderBytes)},
				span{rdma.At(n, l.Bytes), rdma.At(n, l.Bytes)})
		}
		add := func(n int, each uint64, at func(i int) rdma.Addr) {
			for i := range n {
				spans = append(spans, span{at(i), at(i).Add(each)})
			}
		}
		for s := range p.Shards {
			add(p.LockWords, 8, func(i int) rdma.Addr { return l.LockAt(s, i) })
			add(p.LockWords, 8, func(i int) rdma.Addr { return l.LeaseAt(s, i) })
			add(1, 8, func(int) rdma.Addr { return l.At(l.Areas.Counts, s, 0) })
			add(p.Clients, l.ClaimsBytes(), func(i int) rdma.Addr { return l.ClaimsAt(s, rdma.ClientID(i+1), 0) })
			add(p.Clients, IntentBytes, func(i int) rdma.Addr { return l.IntentAt(s, rdma.ClientID(i+1)) })
			add(p.Clients, l.RedoBytes, func(i int) rdma.Addr { return l.RedoAt(l.Leads[s], rdma.ClientID(i+1)) })
			add(min(p.Levels, 1), growthBytes, func(int) rdma.Addr { return l.GrowthAt(s) })
			add(p.Rows<<p.Levels, uint64(l.RowBytes), func(i int) rdma.Addr { return l.RowAt(l.Leads[s], uint32(i)) })
			add(p.Slabs, l.SlabBytes, func(i int) rdma.Addr { return l.At(l.Areas.Slabs, s, uint64(i)*l.SlabBytes) })
			add(p.Tickets, queueBytes, func(i int) rdma.Addr { return l.At(l.Areas.Queues, s, uint64(i)*queueBytes) })
		}
		slices.SortFunc(spans, func(a, b span) int {
			return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
		})
		for i, s := range spans[1:] {
			if s.from < spans[i].to || s.from%8 != 0 {
				r.Fatalf("%+v on %d nodes: something lies at %v, behind what ends at %v", p, nodes, s.from, spans[i].to)
			}
		}
		for i, s := range spans[1:] { // a node's last is its end
			if s.from.Node() != spans[i].from.Node() && spans[i].from.Offset() != l.Bytes {
				r.Fatalf("%+v on %d nodes: %v lies behind the end, %d", p, nodes, spans[i].from, l.Bytes)
			}
		}
	})
}

// TestLocks: rows of one lock have one bit, which is never the repair bit. As long as there are
// enough bits, different locks have different ones.
func TestLocks(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := drawParams(r)
		l, err := New(p, 1)
		if err != nil {
			r.Fatal(err)
		}
		type bit struct {
			word int
			bit  uint
		}
		of := map[bit]uint32{}
		for n := range uint32(p.Rows) {
			word, b := l.LockOf(n)
			far := n + uint32(p.Rows)*rapid.Uint32Max(1<<p.Levels-1).Draw(r, "segment")
			if w, c := l.LockOf(far); w != word || c != b {
				r.Fatalf("row %d has bit %d of word %d, and row %d of the same number bit %d of word %d", n, b, word,
					far, c, w)
			}
			if from, to := l.LockedWith(far); far < from || far >= to || l.Segment(from) != l.Segment(far) ||
				l.Segment(to-1) != l.Segment(far) {
				r.Fatalf("row %d, of %d rows a segment, is locked with %d to %d", far, p.Rows, from, to)
			}
			if word >= p.LockWords || b >= lockBits {
				r.Fatalf("row %d has bit %d of word %d", n, b, word)
			}
			from, to := l.LockedWith(n)
			if n < from || n >= to || int(to) > p.Rows || int(to-from) > p.RowsPerLock || int(from)%p.RowsPerLock != 0 {
				r.Fatalf("row %d is locked with %d to %d", n, from, to)
			}
			if other, ok := of[bit{word, b}]; ok && other != from && l.lockings <= lockBits*p.LockWords {
				r.Fatalf("rows %d and %d share a bit of %d words, which %d locks need not", from, other, p.LockWords,
					l.lockings)
			}
			of[bit{word, b}] = from
		}
		if len(of) != min(l.lockings, lockBits*p.LockWords) {
			r.Fatalf("%d locks use %d bits of %d words", l.lockings, len(of), p.LockWords)
		}
	})
}

func TestBadParams(t *testing.T) {
	if _, err := New(small(), 2); err != nil {
		t.Fatal(err)
	}
	for i, change := range []func(*Params){
		func(p *Params) { p.Shards = 0 }, func(p *Params) { p.Rows = 0 }, func(p *Params) { p.Rows = 1 << 32 },
		func(p *Params) { p.Entries = 0 }, func(p *Params) { p.Entries = maxEntries + 1 },
		func(p *Params) { p.KeyBytes = 0 },
		func(p *Params) { p.KeyBytes = 64 }, func(p *Params) { p.InlineBytes = 256 },
		func(p *Params) { p.InlineBytes = -1 },
		func(p *Params) { p.ExtentBytes = 1 << 24 }, func(p *Params) { p.ExtentBytes = -1 },
		func(p *Params) { p.F = 0.9 },
		func(p *Params) { p.F = math.NaN() }, func(p *Params) { p.F = math.Inf(1) },
		func(p *Params) { p.RowsPerLock = 0 },
		func(p *Params) { p.LockWords = 0 }, func(p *Params) { p.Slabs = 0 }, func(p *Params) { p.SlabExtents = -1 },
		func(p *Params) { p.Slabs, p.SlabExtents = 1<<21, 1<<21 }, func(p *Params) { p.Clients = 0 },
		func(p *Params) { p.Clients = 1 << 16 },
		func(p *Params) { p.Levels = -1 }, func(p *Params) { p.Levels = 17 },
		func(p *Params) { p.Rows, p.Levels = 1<<20, 13 },
		func(p *Params) { p.Timeout = 0 },
		func(p *Params) { p.Rows, p.KeyBytes, p.Entries, p.Shards = maxRows, 63, 64, 1<<16 },
	} {
		p := small()
		change(&p)
		if _, err := New(p, 2); !errors.Is(err, ErrParams) {
			t.Errorf("change %d is taken: %v", i, err)
		}
	}
	if _, err := New(small(), 0); !errors.Is(err, ErrParams) {
		t.Errorf("no nodes: %v", err)
	}
}

// TestSize: the records of a shape fit its pool, defaults are the paper's numbers, and the
// paper's table has the size that the paper states.
func TestSize(t *testing.T) {
	p, bytes, err := Size(Shape{Nodes: 2, Records: 100_000, ValueBytes: 1000, Clients: 20})
	must(t, err)
	if p.Shards != 2 || p.Entries != 8 || p.F != 2.3 || p.RowsPerLock != 16 || p.KeyBytes != 24 || p.InlineBytes != 8 {
		t.Errorf("%+v", p)
	}
	if all := p.Shards * p.Rows * p.Entries; all < 125_000 || all > 135_000 {
		t.Errorf("%d entries for 100,000 records", all)
	}
	if all := p.Shards * p.Slabs * p.SlabExtents; all < 125_000 || all > 165_000 {
		t.Errorf("%d extents for 100,000 records of 20 clients", all)
	}
	if least := uint64(125_000 * 1000 / 2); bytes < least || bytes > 2*least {
		t.Errorf("%d bytes a node", bytes)
	}
	// 100 M entries with keys and values of 4 bytes (section 5.3): rows have 8 entries of 8
	// bytes, and the locks fit a NIC.
	p, bytes, err = Size(Shape{Nodes: 1, Records: 80_000_000, KeyBytes: 4, ValueBytes: 4, InlineBytes: new(4),
		Clients: 320})
	must(t, err)
	l := lay(t, p, 1)
	if l.EntryBytes != 8 || l.RowBytes != 8*8+16+8+8 || p.Slabs != 0 || p.LockWords*8 > deviceBytes ||
		p.LockWords*lockBits < l.lockings {
		t.Errorf("%+v: entries of %d bytes, rows of %d", p, l.EntryBytes, l.RowBytes)
	}
	if bytes < 12_500_000*96 || bytes > 12_600_000*96 {
		t.Errorf("%d bytes", bytes)
	}
	// Locks of a larger table share bits (section 3.4.2).
	p, _, err = Size(Shape{Nodes: 1, Records: 1 << 33, KeyBytes: 4, ValueBytes: 4, Clients: 1})
	must(t, err)
	if p.LockWords*8 != deviceBytes {
		t.Errorf("%d lock words", p.LockWords)
	}
	// Rows and locks as Figure 5 varies them: 512 rows, a lock each, of which one CAS takes four.
	p, _, err = Size(Shape{Nodes: 1, Rows: 512, RowsPerLock: 1, LockBits: 4, Clients: 8})
	must(t, err)
	if p.Rows != 512 || p.LockWords != 512/4 {
		t.Errorf("%d rows, %d lock words", p.Rows, p.LockWords)
	}
	l = lay(t, p, 1)
	if word, bit := l.LockOf(511); word != 127 || bit != 3 {
		t.Errorf("the last row's lock is bit %d of word %d", bit, word)
	}
	if at, n, err := Device(p, 1); err != nil || at != l.LockAt(0, 0).Offset() || at+n != l.LockAt(0, 127).Offset()+8 {
		t.Errorf("%d bytes from %d on are the device's, %v", n, at, err)
	}
	for _, bad := range []Shape{{Nodes: 1, Clients: 1, LockBits: 64}, {Nodes: 1, Clients: 1, LockBits: -1},
		{Nodes: 1, Clients: 1, Rows: -1}, {}, {Nodes: 1}, {Nodes: 1, Clients: 1, Records: 1 << 50},
		{Nodes: 1, Clients: 1, KeyBytes: 100},
		{Nodes: 1, Clients: 1, Shards: -1}, {Nodes: 1, Clients: 1, Entries: -8},
		{Nodes: 1, Clients: 1, RowsPerLock: -1},
		{Nodes: 1, Clients: 1, Records: 1000, RowsPerLock: 157}, {Nodes: 1, Clients: 1, Rows: 100, RowsPerLock: 101},
		{Nodes: 1, Clients: 1, LockWords: -1}, {Nodes: 1, Clients: 1, ValueBytes: -1},
		{Nodes: 1, Clients: 1, ValueBytes: 1 << 24}} {
		if _, _, err := Size(bad); !errors.Is(err, ErrParams) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A lock covers at most a shard's rows. With few records, a shard has as many spare rows as with
// the default.
func TestRowsPerLock(t *testing.T) {
	for _, s := range []Shape{
		{Records: 1000, RowsPerLock: 156}, {Rows: 100, RowsPerLock: 100}, {Rows: 4, RowsPerLock: DefaultLocked},
		{RowsPerLock: DefaultLocked},
	} {
		s.Nodes, s.Clients = 1, 1
		if _, _, err := Size(s); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// TestLocksOfSmallTables: a table of few rows has nearly as many locks as a word has bits, and not
// one for 16 rows. The locks of a larger one are the paper's.
func TestLocksOfSmallTables(t *testing.T) {
	for _, c := range []struct {
		shape       Shape
		rows, words int
	}{
		{Shape{Records: 100}, 1, 1},
		{Shape{Records: 700}, 3, 1},
		{Shape{Records: 700, LockBits: 8}, 16, 2},
		{Shape{Records: 1 << 20}, DefaultLocked, 163},
		{Shape{Records: 700, RowsPerLock: DefaultLocked}, DefaultLocked, 1},
	} {
		c.shape.Nodes, c.shape.Clients = 1, 1
		p, _, err := Size(c.shape)
		must(t, err)
		if p.RowsPerLock != c.rows || p.LockWords != c.words {
			t.Errorf("%+v: %d rows of %d a lock, %d lock words; want %d a lock, %d words", c.shape, p.Rows,
				p.RowsPerLock, p.LockWords, c.rows, c.words)
		}
	}
}

// FuzzParams: each header of a pool leads to a layout with parts that fit, or to an error.
func FuzzParams(f *testing.F) {
	f.Add(1, 100, 8, 24, 8, 1000, 2.3, 16, 2, 10, 8, 3, 1, 0)
	f.Add(2, 100, 8, 24, 8, 1000, 2.3, 16, 2, 10, 8, 3, 1, 9)
	f.Add(1<<16, 1<<40, 64, 63, 255, 1<<24-1, 1e6, 1, 1<<40, 1<<20, 1<<20, 60000, 70, 1<<40)
	f.Fuzz(func(t *testing.T, shards, rows, entries, key, inline, extent int, factor float64, perLock, words, slabs,
		each, clients, nodes, levels int) {
		p := Params{Shards: shards, Rows: rows, Entries: entries, KeyBytes: key, InlineBytes: inline,
			ExtentBytes: extent, F: factor,
			RowsPerLock: perLock, LockWords: words, Slabs: slabs, SlabExtents: each, Levels: levels, Clients: clients,
			Timeout: time.Second}
		l, err := New(p, nodes)
		if err != nil {
			if !errors.Is(err, ErrParams) {
				t.Fatal(err)
			}
			return
		}
		last := shards - 1
		word, _ := l.LockOf(uint32(rows - 1))
		for _, end := range []uint64{l.LockAt(last, word).Offset() + 8,
			l.RedoAt(l.Leads[last], rdma.ClientID(clients)).Offset() + l.RedoBytes,
			l.RowAt(l.Leads[last], uint32(l.AllRows()-1)).Offset() + uint64(l.RowBytes), l.Areas.Slabs.Of(l.PerNode)} {
			if end > l.Bytes || end < node.HeaderBytes {
				t.Fatalf("%+v: something ends at %d of %d", p, end, l.Bytes)
			}
		}
		if a := l.Place([]byte("user1")); int(a.First) >= rows || int(a.Second) >= rows || a.Shard >= shards {
			t.Fatalf("%+v: a key's place is %+v", p, a)
		}
	})
}

func drawParams(r *rapid.T) Params {
	n := func(name string, from, to int) int { return rapid.IntRange(from, to).Draw(r, name) }
	p := Params{Shards: n("shards", 1, 9), Rows: n("rows", 1, 5000), Entries: n("entries", 1, maxEntries),
		KeyBytes:    n("key bytes", 1, maxKeyBytes),
		InlineBytes: n("inline bytes", 0, maxInline), F: rapid.Float64Range(1, 20).Draw(r, "f"),
		RowsPerLock: n("rows a lock", 1, 70),
		LockWords:   n("lock words", 1, 9), Tickets: n("queues", 0, 9), Levels: max(n("levels", -3, 3), 0),
		Clients: n("clients", 1, 50), Timeout: time.Second}
	if rapid.Bool().Draw(r, "extents") {
		p.ExtentBytes, p.Slabs, p.SlabExtents = n("extent bytes", 0, 2000), n("slabs", 1, 40),
			n("extents a slab", 1, 40)
		p.Classes = n("classes", 0, classesFor(extentBytes(p)))
	}
	return p
}
