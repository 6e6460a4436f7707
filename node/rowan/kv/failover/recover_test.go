package failover

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/digest"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/worker"
)

// TestForget: a server that is started anew clears what others told in earlier terms, and nothing
// else.
func TestForget(t *testing.T) {
	b, _ := kvtest.New(t, 2, kv.Rowan, worker.New)
	s, o := b.Server, b.Server.Opt
	if err := s.Table.Log(b.Endpoint, 1).Reserve(100, 0); err != nil { // the memory was used
		t.Fatal(err)
	}
	words := b.Endpoint.Batch()
	defer words.Release()
	words.WriteWord(o.TermAt(0), kv.Seal(5))
	for i := range o.Shards {
		words.WriteWord(o.CommitAt(0, i), kv.Seal(7))
		words.WriteWord(o.CopiedAt(0, i), 6<<32)
		words.WriteWord(o.SinceAt(0, i), kv.Seal(1))
	}
	for n := range o.Nodes {
		words.WriteWord(o.GaveAt(0, n), 6)
	}
	if err := rdma.Do(b.Endpoint, words.As("write"), time.Minute); err != nil {
		t.Fatal(err)
	}
	r, err := digest.NewInbound(s, b.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := newControl(s, b.Endpoint, r, b.Fabric)
	if err := c.recover(); err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		what string
		at   rdma.Addr
		want uint64
	}{
		{"the term", o.TermAt(0), kv.Seal(5)},
		{"CommitVer", o.CommitAt(0, o.Shards-1), kv.Seal(7)},
		{"the first copy", o.CopiedAt(0, 0), 0},
		{"the last copy", o.CopiedAt(0, o.Shards-1), 0},
		{"since when", o.SinceAt(0, 0), kv.Seal(1)},
		{"since when, of the last", o.SinceAt(0, o.Shards-1), kv.Seal(1)},
		{"the first gift", o.GaveAt(0, 0), 0},
		{"the last gift", o.GaveAt(0, o.Nodes-1), 0},
	} {
		if word, err := rdma.ReadWord(b.Endpoint, "read", v.at, time.Minute); err != nil || word != v.want {
			t.Errorf("%s: %#x, want %#x, %v", v.what, word, v.want, err)
		}
	}
}
