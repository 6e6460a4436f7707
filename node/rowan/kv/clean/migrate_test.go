package clean

import (
	"fmt"
	"testing"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/kv/worker"
)

// TestArriving: what a server knows of a shard that migrates to it, and from it.
func TestArriving(t *testing.T) {
	b, _ := kvtest.New(t, 2, kv.Rowan, worker.New)
	moved, _ := b.Migrate(1)
	target, source := state.NewTerm(moved, 0), state.NewTerm(moved, 1)
	if others := fmt.Sprint(target.Others[1], source.Others[1]); others != "[1] []" {
		t.Errorf("writes of target and source go to %s", others)
	}
	if to := fmt.Sprint(target.CopiesTo(1), source.CopiesTo(1)); to != "[] [0]" {
		t.Errorf("target and source copy to %s", to)
	}
	b.Adopt(moved)
	if b.Server.MayDrop(1) || !b.Server.MayDrop(0) {
		t.Error("tombstones of a shard are dropped while it migrates to the server, or others are not")
	}
	moved.Shards[1].Copying = []int{2}
	if to := fmt.Sprint(target.CopiesTo(1), source.CopiesTo(1)); to != "[] [2 0]" {
		t.Errorf("target and source copy to %s", to)
	}
	ended, err := moved.Migrated(1)
	if err != nil {
		t.Fatal(err)
	}
	if to := fmt.Sprint(state.NewTerm(ended, 0).CopiesTo(1), state.NewTerm(ended, 1).CopiesTo(1)); to != "[2] []" {
		t.Errorf("target and source copy to %s in the end", to)
	}
}
