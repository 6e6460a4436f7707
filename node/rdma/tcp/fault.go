package tcp

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// Fault is what an administrator breaks at a memory node on purpose, for a time. The node ends it
// by itself, whatever became of the administrator. It does nothing that a slow machine or a network
// that is cut could not do: verbs are late, or wait until it is over. So what a pool outlives there
// it outlives here.
type Fault struct {
	Version int    `json:"version"`
	ID      string `json:"id"` // ends this fault and no other one
	// Slow is added to each batch of verbs that comes over a connection. Those that come meanwhile
	// wait their turn.
	Slow    time.Duration `json:"slow,omitempty"`
	Clients bool          `json:"clients,omitempty"` // no client reaches the node
	Peers   []int         `json:"peers,omitempty"`   // nodes of the pool with which it exchanges no leases
	For     time.Duration `json:"for"`               // what is left of it; 0 ends it
}

const (
	faultVersion = 1
	// MaxFault bounds how long a Fault lasts.
	MaxFault = 10 * time.Minute
	// MaxSlow bounds how much longer verbs take: with more the node counts as dead, which a cut
	// shows better.
	MaxSlow = deadAfter / 2
)

// String says what is broken.
func (f *Fault) String() string {
	var all []string
	if f.Slow > 0 {
		all = append(all, fmt.Sprintf("verbs take %v longer", f.Slow))
	}
	if f.Clients {
		all = append(all, "cut off from clients")
	}
	if len(f.Peers) > 0 {
		all = append(all, "cut off from "+nodesText(f.Peers))
	}
	return strings.Join(all, ", ")
}

func nodesText(all []int) string {
	word := "node "
	if len(all) > 1 {
		word = "nodes "
	}
	return word + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(all)), ", "), "[]")
}

// Break has a node of a pool suffer a fault, or ends that of the same ID. Errors wrap
// rdma.ErrAccess for a node or a fault that there cannot be, and without the full token,
// rdma.ErrHeld while another fault lasts, rdma.ErrNotSupported where the node, or what its verbs go
// over, does not know such faults, rdma.ErrNodeDown when it does not answer.
func Break(ctx context.Context, o Options, node int, f Fault) error {
	o.Security.Admin = true
	r, _, err := recordOf(o)
	if err != nil {
		return fmt.Errorf("break node %d: %w", node, err)
	}
	if node < 0 || node >= len(r.Addresses) {
		return fmt.Errorf("break node %d: the pool has nodes 0 to %d: %w", node, len(r.Addresses)-1, rdma.ErrAccess)
	}
	f.Version = faultVersion
	h := hello{Purpose: forControl, Process: newID(), PID: pid, Pool: r.ID, Node: node}
	if _, err := ask(ctx, r.Addresses[node], o.Security, h, &message{Do: doFault, Pool: r.ID, Fault: &f}); err != nil {
		return fmt.Errorf("break node %d: %w", node, err)
	}
	return nil
}

// fault is a Fault that lasts.
type fault struct {
	Fault
	until time.Duration // on realtime.Now
	over  chan struct{} // closed at its end
	once  sync.Once
}

// suffer begins or ends a fault.
func (p *pool) suffer(f *Fault) error {
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
	time.AfterFunc(f.For, func() { p.heal(next) })
	return nil
}

func (p *pool) mayBreak(f *Fault) error {
	outside := func(n int) bool { return n < 0 || n >= len(p.record.Addresses) || n == p.record.Index }
	switch {
	case f.Version != faultVersion:
		return fmt.Errorf("a fault of version %d: this node knows version %d: %w", f.Version, faultVersion,
			rdma.ErrNotSupported)
	case f.ID == "" || f.For < 0 || f.For > MaxFault:
		return fmt.Errorf("a fault for %v: want up to %v: %w", f.For, MaxFault, rdma.ErrAccess)
	case f.For == 0:
		return nil
	case f.Slow < 0 || f.Slow > MaxSlow:
		return fmt.Errorf("verbs that take %v longer: want up to %v: %w", f.Slow, MaxSlow, rdma.ErrAccess)
	case slices.ContainsFunc(f.Peers, outside):
		return fmt.Errorf("node %d cut off from %s: %w", p.record.Index, nodesText(f.Peers), rdma.ErrAccess)
	case f.Slow == 0 && !f.Clients && len(f.Peers) == 0:
		return fmt.Errorf("a fault that breaks nothing: %w", rdma.ErrAccess)
	case f.Slow > 0 && p.region != nil:
		return fmt.Errorf("verbs go through the device, past the node's process: %w", rdma.ErrNotSupported)
	}
	return nil
}

// heal ends a fault.
func (p *pool) heal(f *fault) {
	f.once.Do(func() {
		p.fault.CompareAndSwap(f, nil)
		close(f.over)
		p.node.log.Info("broken on purpose no more", "pool", p.record.ID, "how", f.String())
	})
}

// suffers returns the fault that lasts; nil: there is none.
func (p *pool) suffers() *Fault {
	f := p.fault.Load()
	if f == nil {
		return nil
	}
	now := f.Fault
	now.For = max(f.until-realtime.Now(), 0)
	return &now
}

// cuts reports whether nothing passes between the node and a caller. Administrators come through,
// for inspections and to end the fault: see Node.do.
func (f *fault) cuts(by purpose, peer int, admin bool) bool {
	if by == forPeer {
		return slices.Contains(f.Peers, peer)
	}
	return f.Clients && !admin
}

// cutFrom reports whether the node exchanges no leases with a peer.
func (p *pool) cutFrom(peer int) bool {
	f := p.fault.Load()
	return f != nil && slices.Contains(f.Peers, peer)
}

// errCut is why a connection is not let in. It ends without a word, as one does that a network
// swallows.
var errCut = fmt.Errorf("the node is cut off on purpose: %w", os.ErrDeadlineExceeded)

// delay holds back what came over a connection, for as long as a fault says. Nothing is locked
// meanwhile, so that fences wait for nothing; what is executed behind it is checked then.
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
	if f.Slow > 0 && c.purpose == forVerbs {
		time.Sleep(f.Slow)
	}
	if isBeside(c.process) || !f.cuts(c.purpose, c.peer, c.admin) {
		return nil
	}
	return p.waitOver(f, nil)
}

// waitOver waits for the end of a fault.
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

// holdBack lets a caller wait that a fault cuts off.
func (n *Node) holdBack(h *hello, admin bool) error {
	p := n.pool.Load()
	if p == nil {
		return nil
	}
	if f := p.fault.Load(); f != nil && f.cuts(h.Purpose, h.Peer, admin) {
		return p.waitOver(f, time.After(greetPatience))
	}
	return nil
}

// reachable returns an error when a fault keeps an administrator's message from the node until it
// is late.
func (p *pool) reachable(c *conn) error {
	f := p.fault.Load()
	if f == nil || !f.Clients || c.purpose != forControl {
		return nil
	}
	if err := p.waitOver(f, time.After(greetPatience)); err != nil {
		return fmt.Errorf("%w: %w", rdma.ErrNodeDown, err)
	}
	return nil
}
