package kv

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rowan"
)

// TestDamagedIsLeft: an index of a shard that the server has lost is emptied though an entry is
// damaged, and then nothing in its segment is live.
func TestDamagedIsLeft(t *testing.T) {
	for word := range uint64(6) {
		b, _ := newBench(t, 1, Rowan, newWorker)
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

// TestDamagedEntry: wherever a bit of an entry flips, it is not sent to others, and no copy is complete
// without it.
func TestDamagedEntryIsNotSent(t *testing.T) {
	for word := range uint64(rowan.HeaderBytes/8 + recordBytes/8 + 3) {
		b, _ := newBench(t, 1, Rowan, newWorker)
		b.end(b.begin(ProcInsert, "a value of some length"), StatusOK)
		at, term := b.damage(word, 9), b.s.known.last()
		shard := term.Find(Hash(b.key()))
		x := &exchanger{s: b.s, ep: b.ep, term: term}
		if err := x.read(shard, at); !errors.Is(err, rowan.ErrDamaged) || len(x.entries) > 0 {
			t.Errorf("word %d: an exchanger reads it: %v", word, err)
		}
		c := &copying{shard: shard, node: 1}
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
