package kv

import (
	"fmt"
	"testing"
)

// TestArriving: what a server knows of a shard that migrates to it, and from it.
func TestArriving(t *testing.T) {
	b, _ := newBench(t, 2, Rowan, newWorker)
	moved, _ := b.migrate(1)
	target, source := newTerm(moved, 0), newTerm(moved, 1)
	if others := fmt.Sprint(target.others[1], source.others[1]); others != "[1] []" {
		t.Errorf("writes of target and source go to %s", others)
	}
	if to := fmt.Sprint(target.copiesTo(1), source.copiesTo(1)); to != "[] [0]" {
		t.Errorf("target and source copy to %s", to)
	}
	b.adopt(moved)
	if b.s.may(1) || !b.s.may(0) {
		t.Error("tombstones of a shard are dropped while it migrates to the server, or others are not")
	}
	moved.Shards[1].Copying = []int{2}
	if to := fmt.Sprint(target.copiesTo(1), source.copiesTo(1)); to != "[] [2 0]" {
		t.Errorf("target and source copy to %s", to)
	}
	ended, err := moved.Migrated(1)
	if err != nil {
		t.Fatal(err)
	}
	if to := fmt.Sprint(newTerm(ended, 0).copiesTo(1), newTerm(ended, 1).copiesTo(1)); to != "[2] []" {
		t.Errorf("target and source copy to %s in the end", to)
	}
}
