package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/random"
)

var (
	_ rdma.Fabric     = (*Sim)(nil)
	_ rdma.NodeKiller = (*Sim)(nil)
	_ rdma.Hoster     = (*Sim)(nil)
	_ rdma.Endpoint   = (*endpoint)(nil)
)

// Open returns an endpoint. Outside Run its verbs and calls execute at once, take no time and are
// never torn or reordered; its sleeps move the clock. Inside Run it belongs to the worker that
// opened it, and crashes with it. The error wraps ErrFull when no identity is left, and ErrClosed
// behind Close. A view is joined: that of this moment.
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

// open is Open for an endpoint without an owner yet. It takes no time.
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
	// The worker's generator and the network's are apart: see random.
	own := s.stream(name)
	e.own = own
	e.rand = rand.New(rand.NewPCG(s.opts.Seed, own))
	e.net.Seed(s.opts.Seed, random.Mix(own))
	s.clients[e.id] = e
	return e, nil
}

// identities are the clients that there are, and were.
//
// An identity is in use from open to its endpoint's close, or to Forget when its worker crashed or
// was fenced off. Then it waits in freed until all others have been used once, and nothing of its
// holder is in flight. So a late verb is never taken for one of the next holder.
type identities struct {
	*engine
	sched   *scheduler
	names   map[string]uint64 // how often a name was opened: only looked up, never ranged over
	clients []*endpoint       // by identity; nil where it is free
	// nextID is the highest identity that was ever given out.
	nextID int
	freed  []*endpoint // closed, the longest ago first; their identities wait to be used again
	// Lives are counted for all identities together, so that no two endpoints ever have the same
	// one.
	lives uint64 // endpoints opened so far
}

// stream derives a generator's second half of the seed from a name, so that a worker draws the same
// whichever other workers there are: FNV-1a over the name, mixed with how many workers of that name
// came before. The constant spreads numbers of workers of one name over all bits.
func (ids *identities) stream(name string) uint64 {
	n := ids.names[name]
	ids.names[name] = n + 1
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return random.Mix(h + n*0x9e3779b97f4a7c15)
}

// identify gives e a new identity as long as there are some, and then the one that was given back
// the longest ago and has nothing in flight. It reports whether there was one. Numbers begin with
// 1.
func (ids *identities) identify(e *endpoint) bool {
	if ids.nextID < ids.opts.Clients {
		ids.nextID++
		e.id = rdma.ClientID(ids.nextID)
		ids.clients = append(ids.clients, nil)
		return true
	}
	for i, old := range ids.freed {
		if old.inflight == 0 {
			e.id = old.id
			ids.freed = append(ids.freed[:i], ids.freed[i+1:]...)
			return true
		}
	}
	return false
}

// Revoke drops what a client has in flight; words of a torn WRITE that have landed stay. Called by
// a worker it takes a round trip, in the middle of which it takes effect. The client may go on
// running, and finds out at its next verb. An identity without a holder is no error. The holder is
// looked up before the round trip: a successor that comes meanwhile is not hit.
func (ids *identities) Revoke(c rdma.ClientID) error {
	if ids.sched.closing() {
		return fmt.Errorf("revoke client %d: %w", c, rdma.ErrClosed)
	}
	e := ids.holder(c)
	if e == nil {
		return nil
	}
	return ids.sched.control(func() { ids.fenceOff(e) })
}

// fenceOff drops what a client has in flight, and all that it posts later, for ever. It takes
// effect at this moment for all nodes: a simulation has no node that does not hear of it.
func (ids *identities) fenceOff(e *endpoint) {
	e.revoked = true
	ids.trace(Event{Kind: Revoke, Worker: e.name, Client: e.id})
}

// holder returns the present or last holder of an identity: one that was given back may still have
// verbs in flight.
func (ids *identities) holder(c rdma.ClientID) *endpoint {
	if int(c) < len(ids.clients) && ids.clients[c] != nil {
		return ids.clients[c]
	}
	for _, e := range ids.freed {
		if e.id == c {
			return e
		}
	}
	return nil
}

// RevokeLife drops what the holder that Clients described has in flight. It is looked up in the
// middle of the round trip. A holder that has left, and whose identity is free, is fenced off as
// well: its verbs may fly yet.
func (ids *identities) RevokeLife(c rdma.Client) error {
	return ids.sched.control(func() {
		if e := ids.holder(c.ID); e != nil && e.life == c.Life {
			ids.fenceOff(e)
		}
	})
}

// Clients lists the identities in use. A worker that crashed or was fenced off is not alive; one
// that returned is not listed. It takes no time. The list is in the order of identities, and the
// caller's.
func (ids *identities) Clients() []rdma.Client {
	var list []rdma.Client
	for _, e := range ids.clients {
		if e != nil {
			alive := !e.revoked && !e.crashed()
			list = append(list, rdma.Client{ID: e.id, Name: e.name, Life: e.life, Alive: alive,
				Held: !e.closed && !e.crashed()})
		}
	}
	return list
}

// Forget frees the identity of a client that crashed, or was fenced off and has returned, once
// nothing of it is left. An identity that has another holder by now, or none, is left alone without
// an error. Words that the client's verbs in flight write may still come: until they have, the
// identity is not given out.
func (ids *identities) Forget(c rdma.Client) (err error) {
	lost := ids.sched.control(func() {
		if int(c.ID) >= len(ids.clients) || ids.clients[c.ID] == nil || ids.clients[c.ID].life != c.Life {
			return
		}
		e := ids.clients[c.ID]
		if !e.crashed() && !e.closed {
			err = fmt.Errorf("forget client %d (%s): %w", c.ID, e.name, rdma.ErrHeld)
			return
		}
		// freed keeps the endpoint, in which verbs in flight are counted.
		ids.clients[c.ID] = nil
		ids.freed = append(ids.freed, e)
	})
	return errors.Join(err, lost)
}
