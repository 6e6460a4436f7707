package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/ops"
)

// TestPartitions cuts memory nodes n0 to n2 and clients c0 and c1, each a machine in a network of
// its own, off from each other. A client that reaches a majority of the nodes goes on without n0,
// which does not rejoin when the network is whole again. The history of all answers is right,
// including those of a client that reaches only n0.
func TestPartitions(t *testing.T) {
	t.Parallel()
	net := lan(t, "n0", "n1", "n2", "c0", "c1")
	for _, p := range []struct {
		name, cuts string
		long       bool
	}{
		{"clients from a node", "c0-n0 c1-n0", true},
		{"a node from all", "c0-n0 c1-n0 n0-n1 n0-n2", true},
		{"a node from its peers", "n0-n1 n0-n2", true},
		{"a node and a client from the rest", "n0-n1 n0-n2 n0-c1 c0-n1 c0-n2 c0-c1", false},
	} {
		t.Run(strings.ReplaceAll(p.name, " ", "-"), func(t *testing.T) {
			if p.long {
				long(t)
			}
			partition(t, net, strings.Fields(p.cuts))
		})
	}
}

func partition(t *testing.T, net map[string]*network, cuts []string) {
	s := networked(t, net)
	clients := []*process{s.work(net["c0"]), s.work(net["c1"])}
	s.wait(500*time.Millisecond, clients...)

	every := func(f func(a, b *network)) {
		for _, c := range cuts {
			a, b, _ := strings.Cut(c, "-")
			f(net[a], net[b])
		}
	}
	t.Cleanup(func() { every(heal) }) // the other tests have the same network
	parted := realtime.Now()
	every(cut)
	expelled := s.expelled(0, clients...)
	s.wait(time.Second, clients...)
	healed := realtime.Now()
	every(heal)
	for i := range clients {
		s.allWork(i*proofWorkers, healed+2*time.Second, clients...)
	}
	var state *ops.State
	s.until("node 0 is reached again", func() bool {
		state = s.status(net["c1"])
		return state != nil && !state.View.Busy && state.Nodes[0].Reachable
	})
	if !state.Nodes[0].Gone || state.Nodes[0].Lease > 0 {
		t.Errorf("a node that is gone, and has no lease: %+v", state)
	}
	h := s.history()
	for i, p := range clients {
		own := of(h, i*proofWorkers)
		t.Logf("c%d: the longest wait of a worker was %v; %d operations failed", i, longestGap(own, parted),
			len(own.With(unanswered...)))
		p.leave()
	}
	h = s.judge(net["c1"])
	allSay(t, h)
	t.Logf("%d operations; the node was expelled within %v", len(h), (expelled - parted).Round(time.Millisecond))
}

// networked puts a pool on three memory nodes of a network, which have a token, as all do that
// others reach.
func networked(t *testing.T, net map[string]*network) *stage {
	t.Helper()
	s := newStage(t)
	token := filepath.Join(s.folder, "token")
	if err := os.WriteFile(token, []byte("the token of these nodes and clients"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "FARKV_TOKEN_FILE="+token)
	for _, n := range []string{"n0", "n1", "n2"} {
		s.node(net[n], net[n].ip+":7070", "--token-file", token)
	}
	s.up(net["c1"], "tcp:"+strings.Join(s.at, ","), "--nodes", "3", "--replicas", "2")
	return s
}
