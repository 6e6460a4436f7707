package worker

import (
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// TestDamagedEntry: wherever a bit of an entry flips, nothing is answered by it, and nothing is
// decided by it. It is told once, in the term.
func TestDamagedEntry(t *testing.T) {
	for word := range uint64(rowan.HeaderBytes/8 + kv.RecordBytes/8 + 3) {
		b := newWorkerBench(t, 1, kv.Rowan)
		b.End(b.Begin(kv.ProcInsert, "a value of some length"), kv.StatusOK)
		at := b.Damage(word, 9)
		for _, proc := range []uint16{kv.ProcGet, kv.ProcInsert, kv.ProcUpdate, kv.ProcDelete} {
			b.End(b.Begin(proc, ""), kv.StatusDamaged)
		}
		term := b.Server.Known.Last()
		want := []cm.Damage{{Shard: term.Find(kv.Hash(b.Key())), Offset: at}}
		if got := b.Server.Damage.In(term.Term); !slices.Equal(got, want) {
			t.Errorf("word %d: %+v is told, want %+v", word, got, want)
		}
		if b.Server.Damage.In(term.Term+1) != nil {
			t.Error("it is told in the next term")
		}
	}
}
