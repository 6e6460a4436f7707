package server

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/clean"
	"github.com/farkv/farkv/node/rowan/kv/exchange"
	"github.com/farkv/farkv/node/rowan/kv/failover"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/kv/worker"
)

// Server is the Rowan-KV server beside one memory node. What its tasks share is in s.
type Server struct {
	s       *state.Server
	configs rdma.Configs
}

// Open returns the server beside a node. It does nothing before Run. It serves by the
// configurations in the registers, from when it is a member. If an earlier server has left
// something in its memory it goes on from that: see package failover. The worker runs beside the
// node.
func Open(ep rdma.Endpoint, configs rdma.Configs, o kv.Options, node int) (*Server, error) {
	s, err := state.New(ep, o, node)
	if err != nil {
		return nil, err
	}
	return &Server{s: s, configs: configs}, nil
}

// Run serves until Stop, or until a task fails. In that case it tells the manager why before it
// returns: see package failover. The caller's task is the receiver; Run starts the others beside
// it, and returns when all have ended.
func (s *Server) Run(ep rdma.Endpoint) error {
	ep, tasks := s.s.Member(ep), &s.s.Tasks
	tasks.End("receiver", failover.Run(s.s, ep, s.configs, s.startOthers))
	// The other tasks find out that the server stops.
	for !tasks.Ended() {
		ep.Sleep(s.s.Opt.StepEvery)
	}
	return tasks.Failed()
}

// startOthers starts all tasks but the receiver.
func (s *Server) startOthers(ep rdma.Endpoint) {
	start := func(name string, f func(ep rdma.Endpoint) error) { s.s.Tasks.Start(ep, name, f) }
	for w := range s.s.Opt.Workers {
		start(fmt.Sprintf("worker %d", w), func(ep rdma.Endpoint) error { return worker.Run(s.s, ep, w) })
	}
	for c := range s.s.Opt.Cleaners {
		start(fmt.Sprintf("cleaner %d", c), func(ep rdma.Endpoint) error { return clean.Run(s.s, ep, c) })
	}
	start("exchanger", func(ep rdma.Endpoint) error { return exchange.Run(s.s, ep) })
}

// Stop ends the server. Requests in progress get no answer, so their outcome is unknown to the
// clients. Any goroutine may call it.
func (s *Server) Stop() { s.s.Tasks.Quit() }

// Ready reports whether the server serves all shards of which it is the primary, in a committed
// term. Any goroutine may call it.
func (s *Server) Ready() bool {
	t := s.s.Known.Last()
	if t == nil || !t.Committed {
		return false
	}
	for i, sh := range s.s.Shards {
		if t.Leads(i) && (!sh.Serving() || t.Compare) {
			return false
		}
	}
	return true
}

// Named returns the addresses of the blocks of the entries that the server's index names for a key,
// if it serves the key's shard. Tests use it to damage them.
func (s *Server) Named(key []byte) []rdma.Addr { return s.s.Named(key) }

// Stats returns the server's counts. Those of different shards are not of one instant. Any
// goroutine may call it.
func (s *Server) Stats() state.Stats { return s.s.Stats() }
