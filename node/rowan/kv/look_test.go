package kv

import (
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// TestDamagedEntry: wherever a bit of an entry flips, nothing is answered by it, and nothing is
// decided by it. It is told once, in the term.
func TestDamagedEntry(t *testing.T) {
	for word := range uint64(rowan.HeaderBytes/8 + recordBytes/8 + 3) {
		b := newWorkerBench(t, 1, Rowan)
		b.end(b.begin(ProcInsert, "a value of some length"), StatusOK)
		at := b.damage(word, 9)
		for _, proc := range []uint16{ProcGet, ProcInsert, ProcUpdate, ProcDelete} {
			b.end(b.begin(proc, ""), StatusDamaged)
		}
		term := b.s.known.last()
		want := []cm.Damage{{Shard: term.Find(Hash(b.key())), Offset: at}}
		if got := b.s.damage.in(term.Term); !slices.Equal(got, want) {
			t.Errorf("word %d: %+v is told, want %+v", word, got, want)
		}
		if b.s.damage.in(term.Term+1) != nil {
			t.Error("it is told in the next term")
		}
	}
}
