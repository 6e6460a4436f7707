package kv

import (
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/shards"
)

// TestDiffered: a server of which the replica differed from others begins with nothing, and notes
// that durably.
func TestDiffered(t *testing.T) {
	b, _ := newBench(t, 2, Rowan, newWorker)
	s, before := b.s, b.s.known.last()
	const shard = 2
	if !before.complete(shard) {
		t.Fatal("the server does not have the shard")
	}
	s.shards[shard].has().Insert(1, 64, nil)
	r, err := newInbound(s, b.ep)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := newControl(s, b.ep, r, b.f)
	next := *before.Config
	next.Term, next.Shards = 2, slices.Clone(next.Shards)
	next.Shards[shard] = shards.Shard{Primary: 1, Source: shards.None, Copying: []int{0}}
	if err := c.Adopt(&next); err != nil {
		t.Fatal(err)
	}
	since, err := rdma.ReadWord(b.ep, "read", s.o.sinceAt(0, shard), time.Minute)
	if err != nil || since != seal(2) {
		t.Errorf("the server notes %#x, %v", since, err)
	}
	if x, live := s.shards[shard].naming(1, 64); x == nil || live || s.shards[shard].takes(1) {
		t.Error("what it had before is live")
	}
	if other := s.shards[shard-2]; !other.takes(1) {
		t.Error("it lost another shard")
	}
	again := next
	again.Term = 3
	if err := c.Adopt(&again); err != nil {
		t.Fatal(err)
	}
	if !s.shards[shard].takes(2) {
		t.Error("it begins once more in the next term")
	}
}
