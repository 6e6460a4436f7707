package memnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// What a node with a Region has durable before it answers, as records of the region's table. Leases
// are not among them: those that the node had it asks for anew, and of those that it granted an
// expulsion that comes later waits for the end. Each is JSON, under a key of its own, and is
// replaced as a whole: see pmem.Table. All notes of a pool go when the node leaves it: see forget.
const (
	noteNode     = "node"      // its incarnation
	notePool     = "pool"      // the Record of its pool, once it is sealed; without it the other notes mean nothing
	noteFence    = "fence"     // the epoch that was fenced last, the term at which the node was last a member
	noteRevoked  = "revoked/"  // by client, the last life that was fenced off
	noteExpelled = "expelled/" // by node, the epoch in which the node promised to grant it no lease any more
	noteRegistry = "board/"    // by key, what the acceptor promised
)

// TableBytes returns the size of the table of a node's Region beside so many bytes of memory: of at
// least 1,024 clients. The size is a multiple of 8,192, as pmem.Options.Table has to be. It is 128
// MiB at most.
func TableBytes(memory uint64) uint64 { return min(max(memory/32, 16<<20), 128<<20) &^ 8191 }

// note makes a note durable. A node that cannot is broken. Where the order of the notes of one key
// matters, its callers hold a lock from before they load the value: see noteNumber and pool.answer.
// It returns nil at once without a Region. It blocks for a flush of the medium otherwise.
func (n *Node) note(key string, v any) error {
	if n.cfg.Region == nil {
		return nil
	}
	p, err := json.Marshal(v)
	if err == nil {
		err = n.cfg.Region.Table().Put(key, p)
	}
	return n.breaks(err)
}

// breaks has a node serve no request any more when what is durable is unknown: an answer might tell
// of what a crash undoes. The node stays broken: after a failed flush what the medium holds cannot
// be known. A node that is started again reads what is there. It returns the error that it was
// given, in one that wraps rdma.ErrNodeDown; nil for nil. The first error stays the one that
// whyBroken tells.
func (n *Node) breaks(err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%w: the node does not know what is durable: %w", rdma.ErrNodeDown, err)
	if n.broken.CompareAndSwap(nil, &err) {
		n.log.Error("serves no more: start it again", "error", err.Error())
	}
	return err
}

// whyBroken returns why what is durable is unknown; nil: it is known.
func (n *Node) whyBroken() error {
	if err := n.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// fence returns when what was executed is durable. It covers what READs returned, too: a value that
// another connection wrote may not be durable yet, and must not be told before. Fences of several
// connections share a flush: see pmem.Region.Fence. The caller holds no session's executing, so
// that others execute meanwhile. The error wraps rdma.ErrNodeDown, and is for good.
func (n *Node) fence() error {
	if n.cfg.Region == nil {
		return nil
	}
	if err := n.whyBroken(); err != nil {
		return err
	}
	return n.breaks(n.cfg.Region.Fence())
}

// noteNumber notes a number that only grows. The number is loaded under noting. Of two calls at a
// time the one that notes last notes the higher number. So a note never goes back, and a crash
// never undoes what was answered. One whose number was noted by another call already costs a flush
// at most.
func (p *pool) noteNumber(key string, v *atomic.Uint64) error {
	p.noting.Lock()
	defer p.noting.Unlock()
	return p.node.note(key, v.Load())
}

// answer answers a question to the registry. What the acceptor promises is durable before. Only a
// question that may have changed the acceptor's state is noted. A crash before the note loses a
// promise that was not answered. A note that fails breaks the node, since its acceptor has promised
// what it would forget. It blocks with registryMu for a flush, so that questions are answered one
// behind another. Questions that only read cost none. An answer with a refusal, or with a ballot
// that was promised before, changed nothing. The error is that of the note, and wraps
// rdma.ErrNodeDown.
func (p *pool) answer(q *membership.Question) (*membership.Answer, error) {
	p.registryMu.Lock()
	defer p.registryMu.Unlock()
	a := p.acceptor.Answer(q)
	if p.node.cfg.Region == nil || reads(q) || a.Refusal != "" || a.Promised != (membership.Ballot{}) {
		return a, nil
	}
	promise, ok := p.acceptor.Promise(q.Key)
	if !ok {
		return a, nil
	}
	if err := p.node.note(noteRegistry+q.Key, promise); err != nil {
		return nil, err
	}
	return a, nil
}

// remembers returns why a node's table cannot hold all that the node would have to remember of a
// pool. The estimate: the acceptor's bound twice, for its JSON; a note for each client and node;
// and what else there is. The error wraps rdma.ErrFull. It is asked before the node is in the pool,
// since a note that has no room later breaks the node.
func (n *Node) remembers(r *control.Record) error {
	if n.cfg.Region == nil {
		return nil
	}
	const note = 96 // of a number, at most
	need := 2*membership.LimitsFor(r.Nodes, r.Clients).Bytes + note*(r.Clients+len(r.Addresses)) + 64<<10
	if room := n.cfg.Region.Table().Room(); uint64(need) > room {
		return fmt.Errorf("the node's persistent memory has a table of %d bytes, and %d clients need %d: %w", room,
			r.Clients, need, rdma.ErrFull)
	}
	return nil
}

// forget makes the node a new one, in one step. What its memory holds is cleared before another
// pool has it. The table is reset and the new incarnation noted by one record. A crash before
// leaves the node that it was, a crash behind it the new one. The caller holds Node.mu, or is
// recall. The incarnation changes at once, also without a Region, and so in each inspection:
// clients of the pool before find another node.
func (n *Node) forget() error {
	n.incarnation.Store(newIncarnation())
	if n.cfg.Region == nil {
		return nil
	}
	p, err := json.Marshal(n.incarnation.Load())
	if err == nil {
		err = n.cfg.Region.Table().Reset(noteNode, p)
	}
	return n.breaks(err)
}

// replace makes a node that came back, and was expelled meanwhile, a new and empty one. It runs in
// a goroutine of its own: the order that expelled the node is answered without it. The node has
// then no pool, and may be adopted.
func (p *pool) replace() {
	n := p.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.pool.Load() != p {
		return
	}
	n.log.Warn("the pool went on without this node: it is a new one now", "pool", p.record.ID)
	if err := n.reset(); err != nil {
		n.log.Error("give up a pool", "pool", p.record.ID, "error", err)
	}
}

// recall has a node come back as what its region says: the node that it was, or a new one, if it
// was in no pool, or was expelled. It runs before the node lets a connection in. All that was
// promised is restored before the first question is answered. Its leases are not: it asks for them
// anew, and holds verbs back until it has them. A note that is damaged is an error, as one that
// forget cannot write: the node does not start. A node that starts so has a new process, new keys
// and no connections. So nothing that was sent to it before can be executed.
func (n *Node) recall() error {
	if n.cfg.Region == nil {
		return nil
	}
	n.used = true // an adoption that was not sealed may have left something
	t := n.cfg.Region.Table()
	if t.Get(notePool) == nil {
		return n.forget()
	}
	var r control.Record
	var id uint64
	err := errors.Join(json.Unmarshal(t.Get(noteNode), &id), json.Unmarshal(t.Get(notePool), &r))
	if err == nil {
		err = r.Check(n.memory.size)
	}
	if err != nil {
		return fmt.Errorf("a note of the pool is damaged: %w", err)
	}
	n.incarnation.Store(id)
	// It was sealed, or there would be no note of it.
	p := newPool(n, r, "")
	if err := p.recall(); err != nil {
		return err
	}
	// It has promised to grant itself none: it was told of its expulsion. If it was not told, its
	// peers refuse it: see disowned.
	if !p.serving.Grant(r.Index) {
		n.log.Warn("was expelled from its pool: it is a new node now", "pool", r.ID)
		return n.forget()
	}
	// Until it has a lease it may learn that it was expelled meanwhile, and then becomes a new
	// node: see retire.
	p.returned.Store(true)
	n.pool.Store(p)
	_, was, _ := net.SplitHostPort(r.Addresses[r.Index])
	if _, is, _ := net.SplitHostPort(n.Addr()); is != was {
		n.log.Warn("listens at another port than its pool knows", "pool", r.ID, "address",
			r.Addresses[r.Index], "listens at", n.Addr())
	}
	n.log.Info("is back in its pool", "pool", r.ID, "index", r.Index, "epoch", p.fence.Load())
	p.keepLease()
	return nil
}

// recall restores what the node promised the pool. A note that cannot be read is an error: without
// it the node would break a promise. No other goroutine has the pool yet. Keys are kind/which, and
// those without a slash are of the node or the pool. A note of a kind that is not known is passed
// over.
func (p *pool) recall() error {
	t := p.node.cfg.Region.Table()
	number := func(key string) (v uint64, err error) {
		if err = json.Unmarshal(t.Get(key), &v); err != nil {
			err = fmt.Errorf("note %s is damaged: %w", key, err)
		}
		return v, err
	}
	for _, key := range t.Keys("") {
		var v uint64
		var err error
		switch kind, which, _ := strings.Cut(key, "/"); kind + "/" {
		case noteRegistry:
			var promise membership.Promise
			if err = json.Unmarshal(t.Get(key), &promise); err == nil {
				p.acceptor.Restore(promise)
			}
		case noteFence + "/":
			v, err = number(key)
			p.fence.Store(v)
		case noteRevoked, noteExpelled:
			// An Expel of a node that the pool does not have returns false, and so is found below.
			at, wrong := strconv.Atoi(which)
			v, err = number(key)
			switch {
			case err != nil:
			case wrong != nil || kind+"/" == noteRevoked && (at < 1 || at >= len(p.revoked)):
				err = fmt.Errorf("note %s is damaged", key)
			case kind+"/" == noteRevoked:
				p.revoked[at].Store(v)
			case !p.serving.Expel(at, v):
				err = fmt.Errorf("note %s is damaged", key)
			}
		}
		if err != nil {
			return err
		}
	}
	p.until.Store(int64(p.serving.Until()))
	return nil
}
