package memnode

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
	"github.com/farkv/farkv/node/version"
)

// do executes a message of the connection c. A peer's connection can ask for a lease and nothing
// else. It may block for seconds, such as in a fence. Other connections do not wait for it. The
// error wraps rdma.ErrAccess for what the caller may not, and rdma.ErrNodeDown when the node has
// another pool or none, or is broken. The connection's purpose is checked first, then its token,
// then what it is about, and then whether the node has the pool.
func (n *Node) do(c *conn, m *control.Message) (r control.Reply, err error) {
	if c.purpose == transport.ForPeer {
		if m.Do != control.DoLease {
			return r, fmt.Errorf("a peer asks for %q: %w", m.Do, rdma.ErrAccess)
		}
		return r, c.pool.grant(c.peer)
	}
	readers := []string{control.DoInspect, control.DoAttached, control.DoBye}
	if c.readOnly && !slices.Contains(readers, m.Do) && (m.Do != control.DoRegistry || !reads(m.Ask)) {
		return r, fmt.Errorf("%s with a token that permits to read: %w", m.Do, rdma.ErrAccess)
	}
	if err := c.mayAct(n, m); err != nil {
		return r, err
	}
	switch m.Do {
	case control.DoInspect:
		info := n.Info()
		// The process that asks is not counted among those that use the node.
		if n.isAttached(m.Self) || n.isAttached(readerOf(m.Self)) {
			info.Processes--
		}
		r.Info = &info
		return r, nil
	case control.DoAdopt:
		if m.Record == nil {
			return r, fmt.Errorf("adopt without a record: %w", transport.ErrProtocol)
		}
		return r, n.adopt(c, m.Record)
	case control.DoSeal:
		return r, n.seal(c, m.Pool)
	case control.DoDrop:
		return r, n.drop(c, m.Pool, m.Force)
	case control.DoBye:
		n.bye(c.process)
		return r, nil
	}
	p := n.pool.Load()
	if p == nil || p.record.ID != m.Pool {
		return r, fmt.Errorf("%s: the node does not serve pool %s: %w", m.Do, m.Pool, rdma.ErrNodeDown)
	}
	if m.Do == control.DoFault {
		if m.Fault == nil {
			return r, fmt.Errorf("a fault is missing: %w", transport.ErrProtocol)
		}
		return r, p.suffer(m.Fault)
	}
	// A broken node takes part in nothing that it would have to remember. It can still be
	// inspected.
	if err := errors.Join(p.reachable(c), n.whyBroken()); err != nil {
		return r, err
	}
	switch m.Do {
	case control.DoRegistry:
		if m.Ask == nil {
			return r, fmt.Errorf("a question to the registry is missing: %w", transport.ErrProtocol)
		}
		if r.Answer, err = p.answer(m.Ask); err != nil || m.Ask.Kind != membership.KindPeekAll {
			return r, err
		}
		fallthrough // a process that lists clients needs to know which are alive
	case control.DoAttached:
		n.mu.Lock()
		defer n.mu.Unlock()
		r.Attached = n.attached()
		return r, nil
	case control.DoFence:
		return r, p.fenceOff(m.Epoch)
	case control.DoRevoke:
		return r, p.revoke(m.Client, m.Life)
	case control.DoExpel:
		return r, p.expel(m.Epoch, m.Node)
	}
	return r, fmt.Errorf("%q: this node does not know it: %w", m.Do, rdma.ErrNotSupported)
}

// mayAct returns an error unless a message is of the pool, and for the node of it, that the caller
// proved to want when it was let in. Only control.DoInspect and control.DoBye pass without that. So
// an attacker that passes on proofs of others, from the address of a node that died, cannot choose
// what they are good for. For control.DoAdopt the pool is the one that the record makes, and for
// others the node's own. A message about a pool that the node does not have passes here when the
// connection is about that pool, and is refused, or has no effect, in do.
func (c *conn) mayAct(n *Node, m *control.Message) error {
	id, index := m.Pool, c.index
	switch m.Do {
	case control.DoInspect, control.DoBye:
		return nil
	case control.DoAdopt:
		if m.Record != nil {
			id, index = m.Record.ID, m.Record.Index
		}
	default:
		if p := n.pool.Load(); p != nil && p.record.ID == id {
			index = p.record.Index
		}
	}
	if c.about == "" || id != c.about || index != c.index {
		return fmt.Errorf("%s of pool %s over a connection about node %d of pool %q: %w", m.Do, id, c.index,
			c.about, rdma.ErrAccess)
	}
	return nil
}

// bye lets a process go: its connections end by its own will. Its connections are still there. It
// counts as gone from now on, so that its clients need not wait for a grace. A process that
// connects again later counts as gone until its connections have ended, and it is forgotten: see
// leave.
func (n *Node) bye(process string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.processes[process]; p != nil {
		p.left = true
	}
}

// Info tells what the node is and does. It is what an inspection answers, and changes nothing. It
// may be asked at any time, also while the node has no lease, or is broken.
func (n *Node) Info() control.NodeInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := control.NodeInfo{
		Address: n.Addr(), Incarnation: n.incarnation.Load(), PID: transport.PID, Commit: version.Commit(),
		Memory: n.cfg.Memory &^ 4095, Processes: n.users(), Stats: n.stats.snapshot(len(n.conns)),
	}
	if n.cfg.Region != nil {
		s, why := n.cfg.Region.Survives()
		i.Survives, i.SurvivesBy = s.String(), why
	}
	if n.cfg.PMem != nil {
		i.PMem = n.cfg.PMem()
	}
	// It must not ask the node anything: mu is held.
	if tell := n.server.Load(); tell != nil {
		i.Server = (*tell)()
	}
	if n.cfg.Device != nil {
		i.Fabric = n.cfg.Device.Fabric()
	}
	if p := n.pool.Load(); p != nil {
		// The caller encodes it when mu is free.
		record := p.record
		i.Fault = p.suffers()
		i.Pool, i.Sealed, i.Epoch, i.Expelled = &record, p.creator == "", p.fence.Load(), p.expelled.Load()
		// What is left of the lease is told, since clocks differ.
		i.Lease = time.Duration(p.until.Load())
		if i.Lease != rdma.Forever {
			i.Lease = max(0, i.Lease-realtime.Boot())
		}
	}
	return i
}

// users counts the processes that are alive, but for those beside nodes. The caller holds mu. A
// process with connections for control alone counts, too.
func (n *Node) users() (users int) {
	for _, name := range n.attached() {
		if !control.IsBeside(name) {
			users++
		}
	}
	return users
}

// reads reports whether a question changes nothing. Such a question needs no note, and is for
// readers, too.
func reads(q *membership.Question) bool {
	return q != nil && (q.Kind == membership.KindPeek || q.Kind == membership.KindPeekAll)
}
