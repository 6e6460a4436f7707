package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/consul/consultest"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/workloads/check"
)

// named puts a pool on three memory nodes and spares that are registered with a Consul agent.
func named(t *testing.T, spares int) (*stage, *consultest.Agent) {
	t.Helper()
	agent := consultest.Start(t, nil)
	s := newStage(t)
	s.own = 2 * proofWorkers
	for range 3 + spares {
		s.node(nil, "127.0.0.1:0", "--consul", agent.Address)
	}
	s.up(nil, "consul:"+agent.Address+"/proof", "--nodes", "3", "--spares", fmt.Sprint(spares), "--replicas", "2")
	return s, agent
}

// numbered tells which process serves node n: Consul lists them in an order of its own.
func (s *stage) numbered(n int) int {
	s.t.Helper()
	return slices.Index(s.at, s.status(nil).Nodes[n].Address)
}

// A memory node dies. Clients see a pause, but no error.
func TestNodeKilled(t *testing.T) {
	t.Parallel()
	s, _ := named(t, 1)
	a, b := s.work(nil), s.work(nil)
	s.wait(time.Second, a, b)
	killed := s.kill(s.numbered(1))
	s.gone(nil, 1, 1)
	filled := realtime.Now() - killed
	s.wait(time.Second, a, b)
	a.leave()
	b.leave()
	h := s.judge(nil)
	noneFails(t, h)
	t.Logf("%d operations; behind the death of a node the longest wait of a worker was %v; its spare was filled "+
		"within %v", len(h), longestGap(h, killed), filled.Round(time.Millisecond))
}

// The process of the master dies. Others work on, and one of them leads.
func TestMasterKilled(t *testing.T) {
	t.Parallel()
	s, _ := named(t, 0)
	a, b := s.work(nil), s.work(nil)
	f, err := fabrics.Open(s.pool)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var master int
	s.until("there is a master", func() bool { master = masterOf(f); return master != 0 })
	victim, other, first := a, b, proofWorkers
	if master == b.Process.Pid {
		victim, other, first = b, a, 0
	}
	killed := realtime.Now()
	victim.kill()
	s.until("another one leads", func() bool { return masterOf(f) == other.Process.Pid })
	elected := realtime.Now() - killed
	s.until("the clients of the dead one are recovered", func() bool {
		return !slices.ContainsFunc(f.Clients(), func(c rdma.Client) bool { return c.PID == victim.Process.Pid })
	})
	recovered := realtime.Now() - killed
	s.wait(time.Second, other)
	s.allWork(first, killed+recovered, other)
	other.leave()
	h := s.judge(nil)
	noneFails(t, of(h, first))
	t.Logf("%d operations; the next master was elected within %v and had recovered the dead one's clients within %v; "+
		"the longest wait of a worker was %v",
		len(h), elected.Round(time.Millisecond), recovered.Round(time.Millisecond), longestGap(of(h, first), killed))
}

// masterOf returns the process of a pool's master; 0: there is no master.
func masterOf(f rdma.Fabric) int {
	r, _, ok := f.(rdma.MasterReporter).Master()
	if !ok {
		return 0
	}
	for _, c := range f.Clients() {
		if c.ID == r.Owner {
			return c.PID
		}
	}
	return 0
}

// away is for how long TestAgentAway stops Consul's agent; FARKV_AGENT_AWAY is another time.
func away(t *testing.T) time.Duration {
	text := os.Getenv("FARKV_AGENT_AWAY")
	if text == "" {
		t.Log("the agent is away for 5s; FARKV_AGENT_AWAY=30s is the long version")
		return 5 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Consul's agent stops. Reads and writes go on. What a dead node holds has to wait for the agent,
// and is there again then. Afterwards all is as before: the next node that dies is replaced, too.
func TestAgentAway(t *testing.T) {
	t.Parallel()
	long(t)
	s, agent := named(t, 2)
	a, b := s.work(nil), s.work(nil)
	first, second := s.numbered(0), s.numbered(1)

	stopped := realtime.Now()
	agent.Pause()
	s.wait(away(t), a, b)
	killed := s.kill(first)
	noneFails(t, endedBefore(s.history(), killed))
	t.Logf("while the agent was away, for %v, the longest wait of a worker was %v",
		(killed - stopped).Round(time.Millisecond), longestGap(within(s.history(), stopped, killed), stopped))

	s.wait(4*time.Second, a, b)
	back := realtime.Now()
	agent.Resume()
	s.gone(nil, 0, 1)
	filled := realtime.Now()
	h := within(s.history(), killed, filled)
	allSay(t, h)
	t.Logf("a node died without the agent: %d operations of %d failed until it was back, %v later; the spare was "+
		"filled %v behind that",
		len(h.With(unanswered...)), len(h), (back - killed).Round(time.Millisecond),
		(filled - back).Round(time.Millisecond))

	s.wait(time.Second, a, b)
	again := s.kill(second)
	s.gone(nil, 1, 2)
	took := realtime.Now() - again
	s.wait(time.Second, a, b)
	s.allWork(0, again+took, a, b)
	s.allWork(proofWorkers, again+took, a, b)
	a.leave()
	b.leave()
	all := s.judge(nil)
	noneFails(t, calledBehind(all, filled))
	t.Logf("%d operations; behind the next death the longest wait of a worker was %v; the spare was filled within %v",
		len(all), longestGap(calledBehind(all, again-time.Second), again), took.Round(time.Millisecond))
}

// A pool on memory nodes alone: its clients are killed at any moment, and two of its nodes.
func TestKilledOverTCP(t *testing.T) {
	t.Parallel()
	killedOver(t, "tcp")
}

// TestKilledOverRDMA does the same on a device. A device serves memory while the node's process
// stands still, and carries out verbs in flight after the client's process has ended.
func TestKilledOverRDMA(t *testing.T) {
	if *device == "" {
		t.Skip("there is a device where -rdma says so")
	}
	killedOver(t, "rdma")
}

func killedOver(t *testing.T, fabric string) {
	const round = 10
	n := round
	if os.Getenv("FARKV_KILLS") != "" {
		n = kills(t)
	} else {
		if os.Getenv("FARKV_LONG") != "1" {
			n = 4
		}
		t.Logf("%d clients are killed; FARKV_KILLS is another number, of which each %d have a pool of their own",
			n, round)
	}
	for ; n > 0; n -= round {
		t.Run("", func(t *testing.T) { killedRound(t, fabric, min(n, round)) })
	}
}

func killedRound(t *testing.T, fabric string, clients int) {
	s := newStage(t)
	for range 5 {
		s.node(nil, "127.0.0.1:0", "--fabric", fabric)
	}
	s.up(nil, fabric+":"+strings.Join(s.at, ","), "--nodes", "3", "--spares", "2", "--replicas", "2")
	witness := s.work(nil)
	victims, mended, dead := []*process{s.work(nil), s.work(nil)}, true, 0
	for i := range clients {
		time.Sleep(time.Duration(rand.Int64N(int64(300 * time.Millisecond))))
		witness.alive()
		v := rand.IntN(len(victims))
		victims[v].kill()
		victims[v] = s.work(nil)
		if !mended {
			state := s.status(nil)
			mended = state != nil && state.Nodes[dead-1].Gone && !state.View.Busy &&
				state.Nodes[2+dead].Replaces != nil
		}
		// two at once would take both replicas of something
		if mended && (i >= clients/4 && dead == 0 || i >= clients*2/3 && dead == 1) {
			s.kill(dead)
			dead, mended = dead+1, false
		}
	}
	s.gone(nil, max(dead-1, 0), dead)
	for _, p := range append(victims, witness) {
		p.leave()
	}
	h := s.judge(nil)
	allSay(t, h)
	t.Logf("%d operations, %d of unknown outcome or without effect; %d nodes died; the longest wait of the one that "+
		"went on was %v", len(h), len(h.With(append(unanswered, check.Pending)...)), dead, longestGap(of(h, 0), 0))
}
