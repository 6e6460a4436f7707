package kv

import (
	"errors"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// TestDamagedStays: what is digested replaces no damaged entry, whatever that says.
func TestDamagedStays(t *testing.T) {
	for word := range uint64(6) {
		b, _ := newBench(t, 1, Rowan, newWorker)
		for _, proc := range []uint16{ProcInsert, ProcUpdate, ProcUpdate} {
			b.end(b.begin(proc, "newest"), StatusOK)
		}
		at := b.damage(word, 1) // its version, too: 1 instead of 3
		key, term := b.key(), b.s.known.last()
		sh := b.s.shards[term.Find(Hash(key))]
		c := newDigester(b.s, b.ep, nil, nil)
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
