package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/farkv/farkv/ops"
)

// TestRememberPool kills all nodes of a pool with --pmem while a program works with it, and that,
// and starts the nodes again: the pool is there, with the same members, and its history goes on
// with all writes that were answered.
func TestRememberPool(t *testing.T) {
	t.Parallel()
	for store, rounds := range map[string]int{"fusee": 10, "rowan": 100} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			rememberPool(t, store, rounds)
		})
	}
}

// rememberPool does so once, or so often if there is time.
func rememberPool(t *testing.T, store string, rounds int) {
	s := newStage(t)
	start := func(node int, listen string) {
		s.node(nil, listen, "--pmem", filepath.Join(s.folder, fmt.Sprint("pm", node)))
	}
	for node := range 3 {
		start(node, "127.0.0.1:0")
	}
	s.up(nil, "tcp:"+strings.Join(s.at, ","), "--store", store)
	view := func() string {
		var state ops.State
		if err := json.Unmarshal(s.farkv(nil, "status", s.pool, "-o", "json"), &state); err != nil {
			t.Fatal(err)
		}
		said := ""
		for _, n := range state.Nodes {
			said += fmt.Sprintf("%s up %v gone %v survives %s; ", n.Address, n.Up, n.Gone, n.Survives)
		}
		return said
	}
	was := view()
	if strings.Count(was, "survives the process") != 3 {
		t.Errorf("status says %s", was)
	}
	if os.Getenv("FARKV_LONG") != "1" {
		rounds = 1
	}
	for round := range rounds {
		work := s.work(nil)
		first := s.workers - proofWorkers
		s.until("it did enough to judge", func() bool {
			work.alive()
			i, err := os.Stat(historyOf(s.histories(), first))
			return err == nil && i.Size() > 15000
		})
		for _, n := range s.nodes[len(s.nodes)-3:] {
			n.kill()
		}
		work.kill()
		for node := range 3 {
			start(node, s.at[node])
		}
		s.until("the pool is back", func() bool {
			state := s.status(nil)
			return state != nil && state.Problem == ""
		})
		if is := view(); is != was {
			t.Errorf("round %d: the view was %s, and is %s", round, was, is)
		}
		s.farkv(nil, "recover", s.pool)
	}
	s.judge(nil)
}
