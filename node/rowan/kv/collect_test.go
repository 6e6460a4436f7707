package kv_test

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/worker"
)

// TestCollectSince: what came to a server before it was a replica of a shard does not count, and
// nothing counts of a shard that it does not have.
func TestCollectSince(t *testing.T) {
	b, _ := kvtest.New(t, 1, kv.Rowan, worker.New)
	b.End(b.Begin(kv.ProcInsert, "value"), kv.StatusOK)
	term := b.Server.Known.Last()
	at := b.Server.Opt.SinceAt(0, term.Find(kv.Hash(b.Key())))
	p, err := rdma.Rings(b.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		since uint64
		want  int
	}{{0, 0}, {term.Term, 1}, {term.Term + 1, 0}} {
		batch := b.Endpoint.Batch()
		batch.WriteWord(at, kv.Seal(c.since))
		err := rdma.Do(b.Endpoint, batch, time.Minute)
		batch.Release()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		err = kv.Collect(b.Endpoint, b.Server.Opt, p, 0, func(*kv.Collected) { n++ })
		if err != nil || n != c.want {
			t.Errorf("since term %d, in term %d: %d records, %v, want %d", c.since, term.Term, n, err, c.want)
		}
	}
}
