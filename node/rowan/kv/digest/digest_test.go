package digest

import (
	"errors"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/worker"
)

// TestDamagedStays: what is digested replaces no damaged entry, whatever that says.
func TestDamagedStays(t *testing.T) {
	for word := range uint64(6) {
		b, _ := kvtest.New(t, 1, kv.Rowan, worker.New)
		for _, proc := range []uint16{kv.ProcInsert, kv.ProcUpdate, kv.ProcUpdate} {
			b.End(b.Begin(proc, "newest"), kv.StatusOK)
		}
		at := b.Damage(word, 1) // its version, too: 1 instead of 3
		key, term := b.Key(), b.Server.Known.Last()
		sh := b.Server.Shards[term.Find(kv.Hash(key))]
		c := New(b.Server, b.Endpoint, nil, nil)
		older := kv.Record{Order: kv.Order{Term: 1, Version: 2}, Shard: sh.Number, Key: key, Value: []byte("older")}
		data := make([]byte, kv.RecordSize(older.Key, older.Value))
		older.Put(data)
		seg := b.Server.Table.Left()[0]
		u := Segment{Segment: seg}
		e := &rowan.Entry{Kind: kv.Put, Stamp: term.Term << 32, Data: data, Blocks: []rdma.Addr{b.Server.At(at + 1024)},
			Segments: []int{seg.Index}}
		if err := errors.Join(c.Take(&u, e), c.Flush()); err != nil {
			t.Fatal(err)
		}
		if named := sh.Index().Lookup(kv.Hash(key), nil); !slices.Contains(named, at) {
			t.Errorf("word %d: %x are named, and not %x any more", word, named, at)
		}
		b.End(b.Begin(kv.ProcGet, ""), kv.StatusDamaged)
	}
}

// begun are inbound logs, of which one entry of a segment has not ended.
type begun struct {
	Inbound
	in rowan.Segment
}

func (b *begun) Begun(s rowan.Segment) bool { return s == b.in }

// TestOffered: cleaners get a segment when all entries with blocks there have ended, and are in
// segments that are committed.
func TestOffered(t *testing.T) {
	b, _ := kvtest.New(t, 1, kv.Rowan, worker.New)
	seg := rowan.Segment{Index: 3, Push: 7}
	in := &begun{in: seg}
	d := New(b.Server, b.Endpoint, in, nil)
	other := Segment{Segment: rowan.Segment{Index: 5}}
	e := rowan.Entry{Data: []byte("no record"), Blocks: make([]rdma.Addr, 2), Segments: []int{3, 5}}
	if err := d.Take(&other, &e); !errors.Is(err, rowan.ErrDamaged) {
		t.Fatal(err)
	}
	offered := func() bool {
		d.offer()
		_, _, ok := b.Server.Space.Pick(100)
		return ok
	}
	d.held = append(d.held, seg)
	if offered() {
		t.Error("a segment is offered with an entry that has not ended")
	}
	in.in = rowan.Segment{}
	if d.used = append(d.used, other); offered() {
		t.Error("a segment is offered with blocks of an entry that ends in one that is not committed")
	}
	if d.used, d.early = nil, append(d.early, other); offered() {
		t.Error("a segment is offered with blocks of an entry that ends in one that others still fill")
	}
	if d.early = nil; !offered() || len(d.held) > 0 {
		t.Error("a segment is not offered of which all entries are committed")
	}
}
