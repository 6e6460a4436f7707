package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/workloads/check"
)

// Where majorities decide a client's process stands still for so long that its nodes cut it off,
// and goes on; then all nodes stand still. Operations wait within their timeout: none fails but
// those that were in flight, and those that reached their timeout.
func TestStopped(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"swarm", "dm-abd", "raw"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			if store != "swarm" {
				long(t)
			}
			s := newStage(t)
			s.own = 2 * proofWorkers // what becomes of a write can always be told, and RAW's writers do not meet
			for range 3 {
				s.node(nil, "127.0.0.1:0")
			}
			s.up(nil, "tcp:"+strings.Join(s.at, ","), "--store", store)
			a, b := s.work(nil), s.work(nil)
			s.wait(500*time.Millisecond, a, b)

			client := s.pause(4*time.Second, a)
			s.allWork(0, client.to+2*time.Second, a, b)
			s.allWork(proofWorkers, client.to+2*time.Second, a, b)
			nodes := s.pause(5*time.Second, s.nodes...)
			s.allWork(0, nodes.to+2*time.Second, a, b)
			s.allWork(proofWorkers, nodes.to+2*time.Second, a, b)
			a.leave()
			b.leave()
			h := s.history()
			if store != "raw" {
				h = s.judge(nil)
			}
			stopped := within(h, client.from, client.to+2*time.Second)
			wantFew(t, "the stop of a client", of(stopped, 0), 1)
			wantFew(t, "the stop of another client", of(stopped, proofWorkers), 0)
			stopped = within(h, nodes.from, nodes.to+2*time.Second)
			wantFew(t, "the stop of all nodes", stopped, 3) // 5 s in timeouts of 2
		})
	}
}

// pause stops processes for a while, and returns when.
func (s *stage) pause(d time.Duration, all ...*process) (g gap) {
	s.t.Helper()
	g.from = realtime.Now()
	for _, p := range all {
		if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
			s.t.Fatalf("stop %s: %v", p.name, err)
		}
	}
	time.Sleep(d)
	for _, p := range all {
		if err := p.Process.Signal(syscall.SIGCONT); err != nil {
			s.t.Fatalf("continue %s: %v", p.name, err)
		}
	}
	g.to = realtime.Now()
	return g
}

// wantFew wants no worker to have failed more often.
func wantFew(t *testing.T, what string, h check.History, most int) {
	t.Helper()
	failed := map[int]int{}
	for _, op := range h.With(unanswered...) {
		if failed[op.Worker]++; failed[op.Worker] > most {
			t.Errorf("%s: at %v, after %v: %v", what, op.Return, op.Return-op.Call, &op)
		}
	}
	t.Logf("%s: %d operations, and so many of each worker failed: %v", what, len(h), failed)
}
