package failover

import (
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/digest"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/worker"
	"github.com/farkv/farkv/node/rowan/shards"
)

// TestDiffered: a server of which the replica differed from others begins with nothing, and notes
// that durably.
func TestDiffered(t *testing.T) {
	b, _ := kvtest.New(t, 2, kv.Rowan, worker.New)
	s, before := b.Server, b.Server.Known.Last()
	const shard = 2
	if !before.Complete(shard) {
		t.Fatal("the server does not have the shard")
	}
	s.Shards[shard].Index().Insert(1, 64, nil)
	r, err := digest.NewInbound(s, b.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := newControl(s, b.Endpoint, r, b.Fabric)
	next := *before.Config
	next.Term, next.Shards = 2, slices.Clone(next.Shards)
	next.Shards[shard] = shards.Shard{Primary: 1, Source: shards.None, Copying: []int{0}}
	if err := c.Adopt(&next); err != nil {
		t.Fatal(err)
	}
	since, err := rdma.ReadWord(b.Endpoint, "read", s.Opt.SinceAt(0, shard), time.Minute)
	if err != nil || since != kv.Seal(2) {
		t.Errorf("the server notes %#x, %v", since, err)
	}
	if x, live := s.Shards[shard].Naming(1, 64); x == nil || live || s.Shards[shard].Takes(1) {
		t.Error("what it had before is live")
	}
	if other := s.Shards[shard-2]; !other.Takes(1) {
		t.Error("it lost another shard")
	}
	again := next
	again.Term = 3
	if err := c.Adopt(&again); err != nil {
		t.Fatal(err)
	}
	if !s.Shards[shard].Takes(2) {
		t.Error("it begins once more in the next term")
	}
}
