package main

import (
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/workloads/check"
)

// Where majorities decide, one of three memory nodes dies for good, and no operation of any client
// fails. How long the longest operation takes depends on the fabric and the machine: package swarm
// asserts it in virtual time.
func TestNoDowntime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ store, fabric string }{{"swarm", "tcp"}, {"swarm", "shm"}, {"dm-abd", "tcp"}} {
		t.Run(c.store+" on "+c.fabric, func(t *testing.T) {
			t.Parallel()
			if c.store != "swarm" {
				long(t)
			}
			s := newStage(t)
			pool, crash := "shm:proof", func() time.Duration {
				at := realtime.Now()
				s.farkv(nil, "crash", s.pool, "node", "1")
				return at
			}
			if c.fabric == "tcp" {
				for range 3 {
					s.node(nil, "127.0.0.1:0")
				}
				pool, crash = "tcp:"+strings.Join(s.at, ","), func() time.Duration { return s.kill(1) }
			}
			s.up(nil, pool, "--store", c.store)
			a, b := s.work(nil), s.work(nil)
			s.wait(500*time.Millisecond, a, b)
			died := crash()
			s.wait(time.Second, a, b)
			s.allWork(0, died, a, b)
			s.allWork(proofWorkers, died, a, b)
			a.leave()
			b.leave()
			h := s.judge(nil)
			for _, op := range h.With(unanswered...) {
				t.Errorf("at %v, %v behind the node's death: %v", op.Return, op.Return-died, &op)
			}
			t.Logf("%d operations, %d of them begun behind the node's death: none failed; the longest wait of a "+
				"worker was %v before it and %v behind it",
				len(h), len(calledBehind(h, died)), longestGap(endedBefore(h, died), 0), longestGap(h, died))
		})
	}
}

// TestServerDies: when one of four servers dies, others serve its keys. No answer is taken back.
// The only operations that may fail are writes that the dead server may have received, at most one
// of each worker. Operations that waited for the whole timeout of the pool do not count: see
// gaveUp.
func TestServerDies(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for range 4 {
		s.node(nil, "127.0.0.1:0")
	}
	s.up(nil, "tcp:"+strings.Join(s.at, ","), "--store", "rowan")
	a, b := s.work(nil), s.work(nil)
	s.wait(500*time.Millisecond, a, b)
	died := s.kill(1)
	s.gone(nil, 1, 0)
	s.wait(time.Second, a, b)
	s.allWork(0, died, a, b)
	s.allWork(proofWorkers, died, a, b)
	a.leave()
	b.leave()
	h := s.judge(nil)
	uncertain := map[int]bool{} // by worker
	for _, op := range h.With(unanswered...) {
		if gaveUp(t, &op) {
			continue
		}
		if op.Answer != check.Uncertain || uncertain[op.Worker] {
			t.Errorf("at %v, %v behind the node's death: %v", op.Return, op.Return-died, &op)
		}
		uncertain[op.Worker] = true
	}
	t.Logf("%d operations, %d of them begun behind the death, %d of unknown outcome; the longest wait of a worker "+
		"was %v before it and %v behind it",
		len(h), len(calledBehind(h, died)), len(uncertain), longestGap(endedBefore(h, died), 0), longestGap(h, died))
}
