package exchange

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/worker"
)

// TestDamagedIsLeft: an index of a shard that the server has lost is emptied though an entry is
// damaged, and then nothing in its segment is live.
func TestDamagedIsLeft(t *testing.T) {
	for word := range uint64(6) {
		b, _ := kvtest.New(t, 1, kv.Rowan, worker.New)
		b.End(b.Begin(kv.ProcInsert, "a value of some length"), kv.StatusOK)
		at := b.Damage(word, 39) // how long it is, its stamp, its checksum, and so on
		term := b.Server.Known.Last()
		sh := b.Server.Shards[term.Find(kv.Hash(b.Key()))]
		x := &Exchanger{s: b.Server, ep: b.Endpoint, term: term}
		old := sh.Index()
		sh.Lose(term.Term)
		if err := x.empty(sh, old); err != nil {
			t.Fatal(err)
		}
		if seg := b.Server.SegmentOf(at); old.Len() != 0 || !b.Server.Space.IsDead(seg) {
			t.Errorf("word %d: %d items are left, and nothing is live: %v", word, old.Len(), b.Server.Space.IsDead(seg))
		}
	}
}

// TestDamagedEntry: wherever a bit of an entry flips, it is not sent to others, and no copy is
// complete without it.
func TestDamagedEntry(t *testing.T) {
	for word := range uint64(rowan.HeaderBytes/8 + kv.RecordBytes/8 + 3) {
		b, _ := kvtest.New(t, 1, kv.Rowan, worker.New)
		b.End(b.Begin(kv.ProcInsert, "a value of some length"), kv.StatusOK)
		at, term := b.Damage(word, 9), b.Server.Known.Last()
		shard := term.Find(kv.Hash(b.Key()))
		x := &Exchanger{s: b.Server, ep: b.Endpoint, term: term}
		if err := x.read(shard, at); !errors.Is(err, rowan.ErrDamaged) || len(x.entries) > 0 {
			t.Errorf("word %d: an exchanger reads it: %v", word, err)
		}
		c := &copying{shard: shard, node: 1}
		for range b.Server.Shards[c.shard].Index().Chains() {
			if err := x.copy(c); err != nil {
				t.Error(err)
			}
		}
		if c.held != term.Term {
			t.Error("a copy goes on without it")
		}
	}
}
