package kv

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// TestForget: a server that is started anew clears what others told in earlier terms, and nothing
// else.
func TestForget(t *testing.T) {
	b, _ := newBench(t, 2, Rowan, newWorker)
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
	r, err := newInbound(s, b.ep)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := newControl(s, b.ep, r, b.f)
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
