package tcp

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/node/version"
)

// message is what connections for control carry, and reply the answer to it. They are rare, so that
// they are JSON.
type message struct {
	Do     string               `json:"do"`
	Pool   string               `json:"pool,omitempty"`
	Record *Record              `json:"record,omitempty"`
	Force  bool                 `json:"force,omitempty"`
	Ask    *membership.Question `json:"ask,omitempty"`
	Epoch  uint64               `json:"epoch,omitempty"`
	Node   int                  `json:"node,omitempty"`
	Client rdma.ClientID        `json:"client,omitempty"`
	Life   uint64               `json:"life,omitempty"`
	Fault  *Fault               `json:"fault,omitempty"`
	// of an inspection: the process that asks, which is not to be counted
	Self string `json:"self,omitempty"`
}

// What a message may ask for.
const (
	doInspect  = "inspect"  // what the node is
	doAdopt    = "adopt"    // see Node.adopt
	doSeal     = "seal"     // see Node.seal
	doDrop     = "drop"     // see Node.drop
	doBoard    = "board"    // a question to the pool's board; a list is answered with the processes that are alive
	doFence    = "fence"    // see rdma.Control.Fence
	doRevoke   = "revoke"   // see rdma.Fabric.Revoke
	doExpel    = "expel"    // see pool.expel
	doAttached = "attached" // the processes that are alive
	doBye      = "bye"      // the process ends: it does not wait to be found dead
	doLease    = "lease"    // a peer asks for a lease
	doFault    = "fault"    // see Fault
)

type reply struct {
	Text     string             `json:"text,omitempty"` // of the error
	Info     *NodeInfo          `json:"info,omitempty"`
	Answer   *membership.Answer `json:"answer,omitempty"`
	Attached []string           `json:"attached,omitempty"`
}

// NodeInfo is what a node tells of itself.
type NodeInfo struct {
	Address     string        `json:"address"`
	Incarnation uint64        `json:"incarnation"` // another one remembers nothing of this
	PID         int           `json:"pid"`
	Commit      string        `json:"commit,omitempty"` // that the program was built from: see version.Commit
	Memory      uint64        `json:"memory"`           // bytes that it offers
	Fabric      string        `json:"fabric,omitempty"` // that its device's verbs go over; "": it has none
	Pool        *Record       `json:"pool,omitempty"`   // nil: none
	Sealed      bool          `json:"sealed,omitempty"` // the pool may be opened
	Epoch       uint64        `json:"epoch,omitempty"`  // that was fenced last
	Expelled    bool          `json:"expelled,omitempty"`
	Lease       time.Duration `json:"lease,omitempty"` // for which it may serve yet; maximal when it needs none
	Fault       *Fault        `json:"fault,omitempty"` // that it suffers, on purpose
	Processes   int           `json:"processes"`       // of clients
	Stats       NodeStats     `json:"stats"`
	// Survives is what its memory outlives, and SurvivesBy how: see pmem.Survival.
	Survives   string `json:"survives,omitempty"`
	SurvivesBy string `json:"survives_by,omitempty"`
	// Server is the one of a store beside the node; nil: there is none, or it has not begun yet.
	Server *Server `json:"server,omitempty"`
	// PMem are counters of the machine's persistent memory; nil: nothing is known of it.
	PMem *telemetry.PMem `json:"pmem,omitempty"`
}

// Server is what a node tells of a store's server beside it.
type Server struct {
	Store   string `json:"store"`
	Problem string `json:"problem,omitempty"` // why it does not serve; "": it does
	// Waits says that it does not serve yet all that the pool's configuration has it serve.
	Waits bool `json:"waits,omitempty"`
	// Counts are what it has, and has done, as it names that.
	Counts []telemetry.Counter `json:"counts,omitempty"`
}

// do executes a message of the connection c.
func (n *Node) do(c *conn, m *message) (r reply, err error) {
	if c.purpose == forPeer {
		if m.Do != doLease {
			return r, fmt.Errorf("a peer asks for %q: %w", m.Do, rdma.ErrAccess)
		}
		return r, c.pool.grant(c.peer)
	}
	readers := []string{doInspect, doAttached, doBye}
	if c.readOnly && !slices.Contains(readers, m.Do) && (m.Do != doBoard || !reads(m.Ask)) {
		return r, fmt.Errorf("%s with a token that permits to read: %w", m.Do, rdma.ErrAccess)
	}
	if err := c.mayAct(n, m); err != nil {
		return r, err
	}
	switch m.Do {
	case doInspect:
		info := n.Info()
		if n.isAttached(m.Self) || n.isAttached(readerOf(m.Self)) {
			info.Processes--
		}
		r.Info = &info
		return r, nil
	case doAdopt:
		if m.Record == nil {
			return r, fmt.Errorf("adopt without a record: %w", ErrProtocol)
		}
		return r, n.adopt(c, m.Record)
	case doSeal:
		return r, n.seal(c, m.Pool)
	case doDrop:
		return r, n.drop(c, m.Pool, m.Force)
	case doBye:
		n.bye(c.process)
		return r, nil
	}
	p := n.pool.Load()
	if p == nil || p.record.ID != m.Pool {
		return r, fmt.Errorf("%s: the node does not serve pool %s: %w", m.Do, m.Pool, rdma.ErrNodeDown)
	}
	if m.Do == doFault {
		if m.Fault == nil {
			return r, fmt.Errorf("a fault is missing: %w", ErrProtocol)
		}
		return r, p.suffer(m.Fault)
	}
	if err := errors.Join(p.reachable(c), n.whyBroken()); err != nil {
		return r, err
	}
	switch m.Do {
	case doBoard:
		if m.Ask == nil {
			return r, fmt.Errorf("a question to the board is missing: %w", ErrProtocol)
		}
		if r.Answer, err = p.answer(m.Ask); err != nil || m.Ask.Kind != membership.KindPeekAll {
			return r, err
		}
		fallthrough // a process that lists clients needs to know which are alive
	case doAttached:
		n.mu.Lock()
		defer n.mu.Unlock()
		r.Attached = n.attached()
		return r, nil
	case doFence:
		return r, p.fenceOff(m.Epoch)
	case doRevoke:
		return r, p.revoke(m.Client, m.Life)
	case doExpel:
		return r, p.expel(m.Epoch, m.Node)
	}
	return r, fmt.Errorf("%q: this node does not know it: %w", m.Do, rdma.ErrNotSupported)
}

// mayAct returns an error unless a message is of the pool, and for the node of it, that the caller
// proved to want when it was let in. Only doInspect and doBye pass without that. So an attacker
// that passes on proofs of others, from the address of a node that died, cannot choose what they
// are good for.
func (c *conn) mayAct(n *Node, m *message) error {
	id, index := m.Pool, c.index
	switch m.Do {
	case doInspect, doBye:
		return nil
	case doAdopt:
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

// bye lets a process go: its connections end by its own will.
func (n *Node) bye(process string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.processes[process]; p != nil {
		p.left = true
	}
}

// Info tells what the node is and does.
func (n *Node) Info() NodeInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := NodeInfo{
		Address: n.Addr(), Incarnation: n.incarnation.Load(), PID: pid, Commit: version.Commit(),
		Memory: n.cfg.Memory &^ 4095, Processes: n.users(), Stats: n.stats.snapshot(len(n.conns)),
	}
	if n.cfg.Region != nil {
		s, why := n.cfg.Region.Survives()
		i.Survives, i.SurvivesBy = s.String(), why
	}
	if n.cfg.PMem != nil {
		i.PMem = n.cfg.PMem()
	}
	if tell := n.server.Load(); tell != nil {
		i.Server = (*tell)()
	}
	if n.cfg.Device != nil {
		i.Fabric = n.cfg.Device.Fabric()
	}
	if p := n.pool.Load(); p != nil {
		record := p.record
		i.Fault = p.suffers()
		i.Pool, i.Sealed, i.Epoch, i.Expelled = &record, p.creator == "", p.fence.Load(), p.expelled.Load()
		i.Lease = time.Duration(p.until.Load())
		if i.Lease != rdma.Forever {
			i.Lease = max(0, i.Lease-realtime.Boot())
		}
	}
	return i
}

// users counts the processes that are alive, but for those beside nodes. The caller holds mu.
func (n *Node) users() (users int) {
	for _, name := range n.attached() {
		if !isBeside(name) {
			users++
		}
	}
	return users
}

// reads reports whether a question changes nothing.
func reads(q *membership.Question) bool {
	return q != nil && (q.Kind == membership.KindPeek || q.Kind == membership.KindPeekAll)
}
