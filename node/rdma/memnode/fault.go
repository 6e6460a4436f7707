package memnode

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// fault is a Fault that lasts. pool.fault has it from suffer until heal. What waits for its end
// keeps it, and waits for over.
type fault struct {
	control.Fault
	until time.Duration // on realtime.Now
	over  chan struct{} // closed at its end
	once  sync.Once
}

// suffer begins or ends a fault. One fault lasts at a time. It ends by its own timer, whatever
// became of the administrator. A node that is started anew has none. A fault with For of 0 ends the
// one of the same ID, and does nothing when that is over. The same message heard twice fails with
// rdma.ErrHeld the second time: control.Break asks once. The error of a fault that there cannot be
// is mayBreak's.
func (p *pool) suffer(f *control.Fault) error {
	if err := p.mayBreak(f); err != nil {
		return err
	}
	if f.For == 0 {
		if now := p.fault.Load(); now != nil && now.ID == f.ID {
			p.heal(now)
		}
		return nil
	}
	next := &fault{Fault: *f, until: realtime.Now() + f.For, over: make(chan struct{})}
	if !p.fault.CompareAndSwap(nil, next) {
		return fmt.Errorf("the node is broken on purpose already: %w", rdma.ErrHeld)
	}
	p.node.log.Warn("broken on purpose", "pool", p.record.ID, "how", f.String(), "for", f.For)
	// The timer outlives the pool. What it does behind the end of that has no effect on another
	// pool.
	time.AfterFunc(f.For, func() { p.heal(next) })
	return nil
}

// mayBreak returns why a node does not suffer a fault: rdma.ErrNotSupported for one of another
// version, or one that a device would go past, and rdma.ErrAccess for one that is out of bounds,
// breaks nothing, or cuts the node off from itself.
func (p *pool) mayBreak(f *control.Fault) error {
	outside := func(n int) bool { return n < 0 || n >= len(p.record.Addresses) || n == p.record.Index }
	switch {
	case f.Version != control.FaultVersion:
		return fmt.Errorf("a fault of version %d: this node knows version %d: %w", f.Version, control.FaultVersion,
			rdma.ErrNotSupported)
	case f.ID == "" || f.For < 0 || f.For > control.MaxFault:
		return fmt.Errorf("a fault for %v: want up to %v: %w", f.For, control.MaxFault, rdma.ErrAccess)
	case f.For == 0:
		return nil
	case f.Slow < 0 || f.Slow > control.MaxSlow:
		return fmt.Errorf("verbs that take %v longer: want up to %v: %w", f.Slow, control.MaxSlow, rdma.ErrAccess)
	case slices.ContainsFunc(f.Peers, outside):
		return fmt.Errorf("node %d cut off from %s: %w", p.record.Index, control.NodesText(f.Peers), rdma.ErrAccess)
	case f.Slow == 0 && !f.Clients && len(f.Peers) == 0:
		return fmt.Errorf("a fault that breaks nothing: %w", rdma.ErrAccess)
	case f.Slow > 0 && p.region != nil:
		return fmt.Errorf("verbs go through the device, past the node's process: %w", rdma.ErrNotSupported)
	}
	return nil
}

// heal ends a fault. Its own timer and an administrator may both end it: what waits is woken once.
// The swap comes first: what is woken finds no fault.
func (p *pool) heal(f *fault) {
	f.once.Do(func() {
		p.fault.CompareAndSwap(f, nil)
		close(f.over)
		p.node.log.Info("broken on purpose no more", "pool", p.record.ID, "how", f.String())
	})
}

// suffers returns the fault that lasts; nil: there is none. For is what is left of it, as an
// inspection shows it.
func (p *pool) suffers() *control.Fault {
	f := p.fault.Load()
	if f == nil {
		return nil
	}
	now := f.Fault
	now.For = max(f.until-realtime.Now(), 0)
	return &now
}

// cuts reports whether nothing passes between the node and a caller. Administrators come through,
// for inspections and to end the fault: see Node.do. A peer is cut off by its number, and clients
// all together, for verbs and for control. Connections that are open stay so: what comes over them
// is held back, as by a network that does not forward.
func (f *fault) cuts(by transport.Purpose, peer int, admin bool) bool {
	if by == transport.ForPeer {
		return slices.Contains(f.Peers, peer)
	}
	return f.Clients && !admin
}

// cutFrom reports whether the node exchanges no leases with a peer. It is for the side that asks:
// see askPeer. What the peer asks is held back by delay. So neither gets a lease of the other.
func (p *pool) cutFrom(peer int) bool {
	f := p.fault.Load()
	return f != nil && slices.Contains(f.Peers, peer)
}

// errCut is why a connection is not let in. It ends without a word, as one does that a network
// swallows.
var errCut = fmt.Errorf("the node is cut off on purpose: %w", os.ErrDeadlineExceeded)

// delay holds back what came over a connection, for as long as a fault says. Nothing is locked
// meanwhile, so that fences wait for nothing; what is executed behind it is checked then. The error
// is errEnded once the node closes. A connection of a process beside the node is slowed down, and
// not cut off: no network is between the two. A connection for control has no pool of its own, and
// suffers what the node's pool does.
func (c *conn) delay() error {
	p := c.pool
	if p == nil {
		p = c.node.pool.Load()
	}
	if p == nil {
		return nil
	}
	f := p.fault.Load()
	if f == nil {
		return nil
	}
	if f.Slow > 0 && c.purpose == transport.ForVerbs {
		// At most control.MaxSlow, which is less than what a link takes for death.
		time.Sleep(f.Slow)
	}
	if control.IsBeside(c.process) || !f.cuts(c.purpose, c.peer, c.admin) {
		return nil
	}
	return p.waitOver(f, nil)
}

// waitOver waits for the end of a fault. It returns nil at the end of the fault or of the pool,
// errEnded when the node closes, and errCut when late fires; nil: it does not.
func (p *pool) waitOver(f *fault, late <-chan time.Time) error {
	select {
	case <-f.over:
		return nil
	case <-p.gone: // whatever comes is refused
		return nil
	case <-p.node.stop:
		return errEnded
	case <-late:
		return errCut
	}
}

// holdBack lets a caller wait that a fault cuts off. It waits for transport.GreetPatience at most,
// since the caller gives up by then. The error is errCut, which counts as a caller that said
// nothing in time. The caller has proved a token by now, and takes one of the places for
// connections that say nothing.
func (n *Node) holdBack(h *transport.Hello, admin bool) error {
	p := n.pool.Load()
	if p == nil {
		return nil
	}
	if f := p.fault.Load(); f != nil && f.cuts(h.Purpose, h.Peer, admin) {
		return p.waitOver(f, time.After(transport.GreetPatience))
	}
	return nil
}

// reachable returns an error when a fault keeps an administrator's message from the node until it
// is late. Its connection is let in, and its inspections are answered: see Node.do. What an
// administrator asks of the registry, or has fenced, waits here, as a client's does in delay.
func (p *pool) reachable(c *conn) error {
	f := p.fault.Load()
	if f == nil || !f.Clients || c.purpose != transport.ForControl {
		return nil
	}
	if err := p.waitOver(f, time.After(transport.GreetPatience)); err != nil {
		return fmt.Errorf("%w: %w", rdma.ErrNodeDown, err)
	}
	return nil
}
