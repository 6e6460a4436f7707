package clean

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/worker"
)

// TestFreed: a segment is freed when all readers have passed the question, and not before.
func TestFreed(t *testing.T) {
	b, _ := kvtest.New(t, 1, kv.Rowan, worker.New)
	log := b.Server.Table.Log(b.Endpoint, 9)
	for range 2 {
		if err := log.Reserve(4000, 0); err != nil {
			t.Fatal(err)
		}
		batch := b.Endpoint.Batch()
		log.Add(batch, kv.Put, 1, make([]byte, 4000))
		if err := rdma.Do(b.Endpoint, batch, time.Minute); err != nil {
			t.Fatal(err)
		}
		batch.Release()
	}
	seg, ok := log.Full()
	if !ok {
		t.Fatal("no segment is full")
	}
	c := &cleaner{s: b.Server, ep: b.Endpoint, waiting: []leaving{{seg, b.Server.Quiet.Ask()}}}
	free := b.Server.Table.Free()
	for reader := range b.Server.Quiet.Passed {
		if err := c.free(); err != nil || b.Server.Table.Free() != free {
			t.Errorf("a segment is freed before reader %d has passed, %v", reader, err)
		}
		b.Server.Quiet.Pass(reader, b.Server.Quiet.Last())
	}
	if err := c.free(); err != nil || b.Server.Table.Free() != free+1 {
		t.Errorf("a segment is not freed: %v", err)
	}
}
