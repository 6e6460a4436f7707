package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

var (
	_ rdma.Fabric     = (*Sim)(nil)
	_ rdma.NodeKiller = (*Sim)(nil)
	_ rdma.Hoster     = (*Sim)(nil)
	_ rdma.Endpoint   = (*endpoint)(nil)
)

// Nodes returns the number of memory nodes.
func (s *Sim) Nodes() int { return len(s.nodes) }

// Size returns the bytes of registered memory of each node.
func (s *Sim) Size() uint64 { return s.opts.Memory }

// Open returns an endpoint. Outside Run its verbs and calls execute at once, take no time and are
// never torn or reordered; its sleeps move the clock. Inside Run it belongs to the worker that
// opened it, and crashes with it.
func (s *Sim) Open(name string) (rdma.Endpoint, error) {
	e, err := s.open(name)
	if err != nil {
		return nil, err
	}
	if w := s.current; w != nil {
		e.owner = w
		w.eps = append(w.eps, e)
	}
	return e, nil
}

func (s *Sim) open(name string) (*endpoint, error) {
	if s.closed {
		return nil, fmt.Errorf("open %q: %w", name, rdma.ErrClosed)
	}
	e := &endpoint{s: s, name: name, conns: make([]conn, len(s.nodes))}
	if !s.identify(e) {
		return nil, fmt.Errorf("open %q: all %d identities are in use: %w", name, s.opts.Clients, rdma.ErrFull)
	}
	e.Init(nil)
	e.Appending()
	s.lives++
	e.joined, e.life = s.view.Epoch, s.lives
	own := s.stream(name)
	e.own = own
	e.rand = rand.New(rand.NewPCG(s.opts.Seed, own))
	e.net.Seed(s.opts.Seed, mix(own))
	s.clients[e.id] = e
	return e, nil
}

// identify gives e a new identity as long as there are some, and then the one that was given back
// the longest ago and has nothing in flight.
func (s *Sim) identify(e *endpoint) bool {
	if s.nextID < s.opts.Clients {
		s.nextID++
		e.id = rdma.ClientID(s.nextID)
		s.clients = append(s.clients, nil)
		return true
	}
	for i, old := range s.freed {
		if old.inflight == 0 {
			e.id = old.id
			s.freed = append(s.freed[:i], s.freed[i+1:]...)
			return true
		}
	}
	return false
}

// Revoke drops what a client has in flight; words of a torn WRITE that have landed stay. Called by
// a worker it takes a round trip, in the middle of which it takes effect.
func (s *Sim) Revoke(c rdma.ClientID) error {
	if s.closing() {
		return fmt.Errorf("revoke client %d: %w", c, rdma.ErrClosed)
	}
	e := s.holder(c)
	if e == nil {
		return nil
	}
	return s.control(func() { s.fenceOff(e) })
}

func (s *Sim) fenceOff(e *endpoint) {
	e.revoked = true
	s.trace(Event{Kind: Revoke, Worker: e.name, Client: e.id})
}

// holder returns the present or last holder of an identity: one that was given back may still have
// verbs in flight.
func (s *Sim) holder(c rdma.ClientID) *endpoint {
	if int(c) < len(s.clients) && s.clients[c] != nil {
		return s.clients[c]
	}
	for _, e := range s.freed {
		if e.id == c {
			return e
		}
	}
	return nil
}

// RevokeLife drops what the holder that Clients described has in flight.
func (s *Sim) RevokeLife(c rdma.Client) error {
	return s.control(func() {
		if e := s.holder(c.ID); e != nil && e.life == c.Life {
			s.fenceOff(e)
		}
	})
}

// pause lets the current worker, if any, wait for one way of a message.
func (s *Sim) pause() {
	if w := s.current; w != nil && !s.closed {
		s.arm(w, s.now+w.ep.latency())
		w.park()
	}
}

// Clients lists the identities in use. A worker that crashed or was fenced off is not alive; one
// that returned is not listed.
func (s *Sim) Clients() []rdma.Client {
	var list []rdma.Client
	for _, e := range s.clients {
		if e != nil {
			alive := !e.revoked && !e.crashed()
			list = append(list, rdma.Client{ID: e.id, Name: e.name, Life: e.life, Alive: alive,
				Held: !e.closed && !e.crashed()})
		}
	}
	return list
}

// Forget frees the identity of a client that crashed, or was fenced off and has returned, once
// nothing of it is left.
func (s *Sim) Forget(c rdma.Client) (err error) {
	lost := s.control(func() {
		if int(c.ID) >= len(s.clients) || s.clients[c.ID] == nil || s.clients[c.ID].life != c.Life {
			return
		}
		e := s.clients[c.ID]
		if !e.crashed() && !e.closed {
			err = fmt.Errorf("forget client %d (%s): %w", c.ID, e.name, rdma.ErrHeld)
			return
		}
		s.clients[c.ID] = nil
		s.freed = append(s.freed, e)
	})
	return errors.Join(err, lost)
}

// KillNode kills a memory node now: verbs to it that have not landed never will.
func (s *Sim) KillNode(node int) error {
	if node < 0 || node >= len(s.nodes) {
		return fmt.Errorf("kill node %d of %d: %w", node, len(s.nodes), rdma.ErrAccess)
	}
	s.kill(node)
	return nil
}

// KillNodeAfter kills a memory node at a time from now.
func (s *Sim) KillNodeAfter(node int, d time.Duration) {
	s.at(s.now+int64(d), event{kind: nodeDeath, node: int32(node)})
}

// KillNodeAt kills a memory node behind the k-th verb that lands on it in a Run, counting from 1.
func (s *Sim) KillNodeAt(node int, k uint64) { s.nodes[node].killAt = k }

// Landed returns how many verbs have taken effect on a node in Runs: enumerating its crashes runs k
// from 1 to this.
func (s *Sim) Landed(node int) uint64 { return s.nodes[node].verbs }

func (s *Sim) kill(node int) {
	if n := &s.nodes[node]; !n.dead {
		n.dead = true
		if n.verbs >= n.killAt {
			n.killAt = 0
		}
		n.life++
		s.trace(Event{Kind: Kill, Worker: fmt.Sprintf("node %d", node)})
		for _, w := range s.workers {
			switch {
			case w.root != w || w.home != n:
			case s.current != nil && s.current.root == w:
				s.CrashAt(w, w.sent) // at its next verb
			default:
				s.crash(w)
			}
		}
	}
}
