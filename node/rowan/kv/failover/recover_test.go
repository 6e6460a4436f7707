package failover

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/digest"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/worker"
)

// TestForget: a server that is started anew clears what others told in earlier terms, and nothing
// else. It goes on above the versions that it had published.
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
	for _, sh := range s.Shards {
		sh.Follow() // as one that is started anew
	}
	if err := c.recover(); err != nil {
		t.Fatal(err)
	}
	for i, sh := range s.Shards {
		if v, ok := sh.Next(); !ok || v != 8 {
			t.Errorf("the next version of shard %d is %d, %t", i, v, ok)
		}
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

// TestGivenAnew: a server that is started anew gives what its workers left, and nothing of what
// cleaners had copied, in segments that their logs have left and in those where they go on.
func TestGivenAnew(t *testing.T) {
	b, _ := kvtest.New(t, 2, kv.Rowan, worker.New)
	s, o := b.Server, b.Server.Opt
	words := b.Endpoint.Batch()
	defer words.Release()
	words.WriteWord(o.TermAt(0), kv.Seal(5))
	for i := range o.Shards {
		words.WriteWord(o.SinceAt(0, i), kv.Seal(1))
	}
	r := kv.Record{Shard: s.Known.Last().Find(kv.Hash(b.Key())), Key: b.Key(), Value: make([]byte, 900)}
	for i, records := range []int{1, 6} { // a worker's log has one, and a cleaner's has them in two segments
		log := s.Table.Log(b.Endpoint, rowan.Owner(1+i*o.Workers))
		for range records {
			r.Order = kv.Order{Term: 5, Version: r.Version + 1}
			data := make([]byte, kv.RecordSize(r.Key, r.Value))
			r.Put(data)
			if err := log.Reserve(len(data), 0); err != nil {
				t.Fatal(err)
			}
			log.Add(words, kv.Put, 5, data)
		}
	}
	if err := rdma.Do(b.Endpoint, words.As("write"), time.Minute); err != nil {
		t.Fatal(err)
	}
	ep, err := b.Fabric.Open("control")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	in, err := digest.NewInbound(s, ep)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	c := newControl(s, ep, in, b.Fabric)
	if c.peer, err = rpc.Open(ep, rpc.Options{Box: rdma.BoxOptions{Number: o.Boxes}}); err != nil {
		t.Fatal(err)
	}
	defer c.peer.Close()
	if err := c.recover(); err != nil {
		t.Fatal(err)
	}
	if left := s.Table.Left(); len(left) != 3 || len(s.Resumed) != 2 {
		t.Fatalf("%d segments are left, and %d logs go on", len(left), len(s.Resumed))
	}
	if given := c.d.Uncommitted(c.resumed); len(given) != 1 {
		t.Errorf("records %v are given, want the worker's alone", given)
	}
}
