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
		e := &rowan.Entry{Kind: kv.Put, Stamp: term.Term << 32, Data: data, Blocks: []rdma.Addr{b.Server.At(at + 1024)}}
		if err := errors.Join(c.Take(&u, e), c.Flush()); err != nil {
			t.Fatal(err)
		}
		if named := sh.Index().Lookup(kv.Hash(key), nil); !slices.Contains(named, at) {
			t.Errorf("word %d: %x are named, and not %x any more", word, named, at)
		}
		b.End(b.Begin(kv.ProcGet, ""), kv.StatusDamaged)
	}
}
