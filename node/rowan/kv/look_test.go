package kv

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// damage flips a bit of a word of the entry of the bench's key, and returns where that is.
func (b *bench) damage(word uint64, bit int) (at uint64) {
	b.t.Helper()
	all := b.s.Named(b.key())
	if len(all) != 1 {
		b.t.Fatalf("entries at %v", all)
	}
	was, err := rdma.ReadWord(b.ep, "read", all[0].Add(8*word), time.Minute)
	batch := b.ep.Batch()
	defer batch.Release()
	batch.WriteWord(all[0].Add(8*word), was^1<<bit)
	if err = errors.Join(err, rdma.Do(b.ep, batch, time.Minute)); err != nil {
		b.t.Fatal(err)
	}
	return all[0].Offset()
}

// TestDamagedEntry: wherever a bit of an entry flips, nothing is answered by it, and nothing is
// decided by it. It is told once, in the term.
func TestDamagedEntry(t *testing.T) {
	for word := range uint64(rowan.HeaderBytes/8 + recordBytes/8 + 3) {
		b := newBench(t, 1, Rowan)
		b.end(b.begin(ProcInsert, "a value of some length"), StatusOK)
		at := b.damage(word, 9)
		for _, proc := range []uint16{ProcGet, ProcInsert, ProcUpdate, ProcDelete} {
			b.end(b.begin(proc, ""), StatusDamaged)
		}
		term := b.s.known.last()
		want := []cm.Damage{{Shard: term.Find(Hash(b.key())), Offset: at}}
		if got := b.s.damages(term.Term); !slices.Equal(got, want) {
			t.Errorf("word %d: %+v is told, want %+v", word, got, want)
		}
		if b.s.damages(term.Term+1) != nil {
			t.Error("it is told in the next term")
		}
		x := &exchanger{s: b.s, ep: b.ep, term: term}
		if err := x.read(want[0].Shard, at); !errors.Is(err, rowan.ErrDamaged) || len(x.entries) > 0 {
			t.Errorf("word %d: an exchanger reads it: %v", word, err)
		}
		c := &copying{shard: want[0].Shard, node: 1}
		for range b.s.shards[c.shard].has().Chains() {
			if err := x.copy(c); err != nil {
				t.Error(err)
			}
		}
		if c.held != term.Term {
			t.Error("a copy goes on without it")
		}
	}
}

// TestDamagedIsLeft: an index of a shard that the server has lost is emptied though an entry is
// damaged, and then nothing in its segment is live.
func TestDamagedIsLeft(t *testing.T) {
	for word := range uint64(6) {
		b := newBench(t, 1, Rowan)
		b.end(b.begin(ProcInsert, "a value of some length"), StatusOK)
		at := b.damage(word, 39) // how long it is, its stamp, its checksum, and so on
		term := b.s.known.last()
		sh := b.s.shards[term.Find(Hash(b.key()))]
		x := &exchanger{s: b.s, ep: b.ep, term: term}
		old := sh.has()
		sh.lose(term.Term)
		if err := x.empty(sh, old); err != nil {
			t.Fatal(err)
		}
		if seg := b.s.segment(at); old.Len() != 0 || !b.s.space.isDead(seg) {
			t.Errorf("word %d: %d items are left, and nothing is live: %v", word, old.Len(), b.s.space.isDead(seg))
		}
	}
}

// TestDamagedStays: what is digested replaces no damaged entry, whatever that says.
func TestDamagedStays(t *testing.T) {
	for word := range uint64(6) {
		b := newBench(t, 1, Rowan)
		for _, proc := range []uint16{ProcInsert, ProcUpdate, ProcUpdate} {
			b.end(b.begin(proc, "newest"), StatusOK)
		}
		at := b.damage(word, 1) // its version, too: 1 instead of 3
		key, term := b.key(), b.s.known.last()
		sh := b.s.shards[term.Find(Hash(key))]
		c := &control{s: b.s, ep: b.ep, group: make([]fresh, 0, groupSize), reach: firstReach}
		older := record{order{1, 2}, sh.number, key, []byte("older")}
		data := make([]byte, recordSize(older.key, older.value))
		older.put(data)
		seg := b.s.table.Left()[0]
		u := usedSegment{Segment: seg}
		e := &rowan.Entry{Kind: kindPut, Stamp: term.Term << 32, Data: data, Blocks: []rdma.Addr{b.s.at(at + 1024)}}
		if err := errors.Join(c.take(&u, e), c.flush()); err != nil {
			t.Fatal(err)
		}
		if named := sh.has().Lookup(Hash(key), nil); !slices.Contains(named, at) {
			t.Errorf("word %d: %x are named, and not %x any more", word, named, at)
		}
		b.end(b.begin(ProcGet, ""), StatusDamaged)
	}
}
