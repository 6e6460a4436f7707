package kv

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Server is the Rowan-KV server beside one memory node. What its tasks share is in s.
type Server struct {
	s       *state
	configs rdma.Configs
}

// Open returns the server beside a node. It does nothing before Run. It serves by the
// configurations in the registers, from when it is a member. If an earlier server has left
// something in its memory it goes on from that: see recover. The worker runs beside the node.
func Open(ep rdma.Endpoint, configs rdma.Configs, o Options, node int) (*Server, error) {
	s, err := newState(ep, o, node)
	if err != nil {
		return nil, err
	}
	return &Server{s: s, configs: configs}, nil
}

// Run serves until Stop, or until a task fails. In that case it tells the manager why before it
// returns: see control.part. The caller's task is the receiver; Run starts the others beside it,
// and returns when all have ended.
func (s *Server) Run(ep rdma.Endpoint) error {
	ep, tasks := s.s.member(ep), &s.s.tasks
	tasks.end("receiver", receive(s.s, ep, s.configs, s.startOthers))
	// The other tasks find out that the server stops.
	for !tasks.ended() {
		ep.Sleep(s.s.o.StepEvery)
	}
	return tasks.failed()
}

// startOthers starts all tasks but the receiver.
func (s *Server) startOthers(ep rdma.Endpoint) {
	start := func(name string, f func(ep rdma.Endpoint) error) { s.s.tasks.start(ep, name, f) }
	for w := range s.s.o.Workers {
		start(fmt.Sprintf("worker %d", w), func(ep rdma.Endpoint) error { return work(s.s, ep, w) })
	}
	for c := range s.s.o.Cleaners {
		start(fmt.Sprintf("cleaner %d", c), func(ep rdma.Endpoint) error { return clean(s.s, ep, c) })
	}
	start("exchanger", func(ep rdma.Endpoint) error { return exchange(s.s, ep) })
}

// Stop ends the server. Requests in progress get no answer, so their outcome is unknown to the
// clients. Any goroutine may call it.
func (s *Server) Stop() { s.s.tasks.quit() }

// Ready reports whether the server serves all shards of which it is the primary, in a committed
// term. Any goroutine may call it.
func (s *Server) Ready() bool {
	t := s.s.known.last()
	if t == nil || !t.Committed {
		return false
	}
	for i, sh := range s.s.shards {
		if t.leads(i) && (!sh.serving() || t.Compare) {
			return false
		}
	}
	return true
}

// Named returns the addresses of the blocks of the entries that the server's index names for a key,
// if it serves the key's shard. Tests use it to damage them.
func (s *Server) Named(key []byte) []rdma.Addr { return s.s.named(key) }

// Stats returns the server's counts. Those of different shards are not of one instant. Any goroutine
// may call it.
func (s *Server) Stats() Stats { return s.s.stats() }
