package shards_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rowan/shards"
)

// TestDamaged leaves out replicas in which records are damaged, as long as another one is complete.
func TestDamaged(t *testing.T) {
	replicas := func(nodes ...int) (l []shards.Replica) {
		for _, n := range nodes {
			l = append(l, shards.Replica{Shard: 0, Node: n})
		}
		return l
	}
	for _, v := range []struct {
		what    string
		shard   shards.Shard
		damaged []shards.Replica
		left    string
		primary int
		copying string
	}{
		{"the primary", shards.Shard{Primary: 0, Source: shards.None, Backups: []int{1, 2}}, replicas(0), "[0]", 1,
			"[0]"},
		{"a backup", shards.Shard{Primary: 0, Source: shards.None, Backups: []int{1, 2}}, replicas(2), "[2]", 0, "[2]"},
		{"two", shards.Shard{Primary: 0, Source: shards.None, Backups: []int{1, 2}}, replicas(0, 1), "[0 1]", 2,
			"[0 1]"},
		{"all", shards.Shard{Primary: 0, Source: shards.None, Backups: []int{1, 2}}, replicas(0, 1, 2), "[0 1]", 2,
			"[0 1]"},
		{"one that copies", shards.Shard{Primary: 0, Source: shards.None, Backups: []int{1}, Copying: []int{2}},
			replicas(2), "[]", 0,
			"[2]"},
		{"the only complete one", shards.Shard{Primary: 0, Source: shards.None, Copying: []int{1, 2}}, replicas(0),
			"[]", 0, "[1 2]"},
		{"a target", shards.Shard{Primary: 3, Source: 0, Backups: []int{1, 2}}, replicas(3), "[3]", 0, "[]"},
		{"its source", shards.Shard{Primary: 3, Source: 0, Backups: []int{1, 2}}, replicas(0), "[0]", 1, "[3]"},
		{"a target with no backup", shards.Shard{Primary: 3, Source: 0, Copying: []int{1, 2}}, replicas(3), "[3]", 0,
			"[1 2]"},
		{"its source with no backup", shards.Shard{Primary: 3, Source: 0, Copying: []int{1, 2}}, replicas(0), "[]", 3,
			"[1 2]"},
		{"none", shards.Shard{Primary: 0, Source: shards.None, Backups: []int{1, 2}}, replicas(3), "[]", 0, "[]"},
	} {
		c, err := shards.New([]int{0, 1, 2, 3}, 1, 3)
		if err != nil {
			t.Fatal(err)
		}
		c.Shards[0] = v.shard
		next, left, err := c.Commit().Damaged(v.damaged)
		if err != nil {
			t.Fatalf("%s: %v", v.what, err)
		}
		nodes := []int{}
		for _, r := range left {
			nodes = append(nodes, r.Node)
		}
		s := &next.Shards[0]
		slices.Sort(s.Copying)
		if fmt.Sprint(nodes) != v.left || s.Primary != v.primary || fmt.Sprint(s.Copying) != v.copying ||
			next.Check() != nil ||
			next.Committed || next.Term != c.Term+1 {
			t.Errorf("%s: %v are left out, %+v, %v", v.what, nodes, s, next.Check())
		}
	}
	c, err := shards.New([]int{0, 1}, 1, 2)
	if err == nil {
		_, _, err = c.Commit().Damaged([]shards.Replica{{Shard: 2, Node: 0}})
	}
	if !errors.Is(err, shards.ErrRefused) {
		t.Errorf("a shard that is none: %v", err)
	}
}
