package kv

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// TestFreed: a segment is freed when all readers have passed the question, and not before.
func TestFreed(t *testing.T) {
	b, _ := newBench(t, 1, Rowan, newWorker)
	log := b.s.table.Log(b.ep, 9)
	for range 2 {
		if err := log.Reserve(4000, 0); err != nil {
			t.Fatal(err)
		}
		batch := b.ep.Batch()
		log.Add(batch, kindPut, 1, make([]byte, 4000))
		if err := rdma.Do(b.ep, batch, time.Minute); err != nil {
			t.Fatal(err)
		}
		batch.Release()
	}
	seg, ok := log.Full()
	if !ok {
		t.Fatal("no segment is full")
	}
	c := &cleaner{s: b.s, ep: b.ep, waiting: []leaving{{seg, b.s.quiet.ask()}}}
	free := b.s.table.Free()
	for reader := range b.s.quiet.passed {
		if err := c.free(); err != nil || b.s.table.Free() != free {
			t.Errorf("a segment is freed before reader %d has passed, %v", reader, err)
		}
		b.s.quiet.pass(reader, b.s.quiet.last())
	}
	if err := c.free(); err != nil || b.s.table.Free() != free+1 {
		t.Errorf("a segment is not freed: %v", err)
	}
}
