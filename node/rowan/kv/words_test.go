package kv

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// TestSeal: a word says what was written, and none that differs from it in a bit says anything.
func TestSeal(t *testing.T) {
	for i := range uint64(5000) { // so many that some flips would go unseen without the parity
		n := i
		if i >= 2500 {
			n = 1<<48 - 5000 + i
		}
		word := seal(n)
		if got, ok := unseal(word); !ok || got != n {
			t.Errorf("%d is read as %d, %t", n, got, ok)
		}
		for bit := range 64 {
			if got, ok := unseal(word ^ 1<<bit); ok || got != 0 {
				t.Errorf("%d: bit %d flips, and it is %d", n, bit, got)
			}
		}
	}
}

// TestForget: a server that is started anew clears what others told in earlier terms, and nothing
// else.
func TestForget(t *testing.T) {
	b := newBench(t, 2, Rowan)
	s, o := b.s, b.s.o
	if err := s.table.Log(b.ep, 1).Reserve(100, 0); err != nil { // the memory was used
		t.Fatal(err)
	}
	words := b.ep.Batch()
	defer words.Release()
	words.WriteWord(o.termAt(0), seal(5))
	for i := range o.Shards {
		words.WriteWord(o.commitAt(0, i), seal(7))
		words.WriteWord(o.copiedAt(0, i), 6<<32)
		words.WriteWord(o.sinceAt(0, i), seal(1))
	}
	for n := range o.Nodes {
		words.WriteWord(o.gaveAt(0, n), 6)
	}
	if err := rdma.Do(b.ep, words.As("write"), time.Minute); err != nil {
		t.Fatal(err)
	}
	r, err := s.newInbound(b.ep)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := &control{s: s, ep: b.ep, r: r, group: make([]fresh, 0, groupSize)}
	c.cm = cm.NewServer(b.ep, s.configs, 0, c)
	if err := c.recover(); err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		what string
		at   rdma.Addr
		want uint64
	}{
		{"the term", o.termAt(0), seal(5)},
		{"CommitVer", o.commitAt(0, o.Shards-1), seal(7)},
		{"the first copy", o.copiedAt(0, 0), 0},
		{"the last copy", o.copiedAt(0, o.Shards-1), 0},
		{"since when", o.sinceAt(0, 0), seal(1)},
		{"since when, of the last", o.sinceAt(0, o.Shards-1), seal(1)},
		{"the first gift", o.gaveAt(0, 0), 0},
		{"the last gift", o.gaveAt(0, o.Nodes-1), 0},
	} {
		if word, err := rdma.ReadWord(b.ep, "read", v.at, time.Minute); err != nil || word != v.want {
			t.Errorf("%s: %#x, want %#x, %v", v.what, word, v.want, err)
		}
	}
}
