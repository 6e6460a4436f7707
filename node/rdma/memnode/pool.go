package memnode

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// pool is the part of a pool that this node has.
//
// A node that the others go on without must not answer. So it executes verbs only while it holds
// leases of a majority. It sends an answer only if it still does, or does again, after the
// execution. Nodes that gave up on it give it none any more, and the process that expelled it
// waited for a lease to run out. So an answer of it was true when it was made. Its life: adopt
// makes it for a process that is about to make a pool, seal lets others open it, and drop, an
// expulsion or the death of that process before seal ends it. A node with a Region that starts
// again makes the same pool anew: see Node.recall. A pool that has ended is referred to by
// connections that were let in for it, and executes nothing for them any more.
type pool struct {
	// record never changes. record.Index is this node's number in the pool.
	record control.Record
	node   *Node
	memory *memory
	region Registration // with the nodes' devices; nil for witnesses, and without devices
	// key and readKey are what requests must name: see session.barred. They are drawn anew each
	// time that the node has the pool, also when it comes back, and are told in the Welcome of a
	// connection. So a request that was made for an earlier life of the node is refused. They are
	// never 0. readKey is good for READs over connections with the read token.
	key     uint64
	readKey uint64
	creator string // the process that is about to make it; "" once it is sealed. Under Node.mu
	// fence is the epoch that was fenced last. It only grows. It is raised before what is being
	// executed is drained, and is durable before the fence is answered: see fenceOff.
	fence atomic.Uint64
	// Lives of an identity only grow, and so does what is here: a later life is not affected by the
	// revocation of an earlier one. By client, from 1; index 0 stays 0. A client of which nothing
	// was revoked is at 0, which is no life.
	revoked []atomic.Uint64 // the last life of each client that was fenced off
	// until is ServingLease.Until, so that goroutines that execute verbs need not lock mu. It may
	// be stale once expelled is set, which is why await looks at expelled first.
	until atomic.Int64 // the node serves; on realtime.Boot
	// expelled is never reset: a node that was expelled does not serve this pool again.
	expelled atomic.Bool
	gone     chan struct{} // closed when the node gives the pool up, or was expelled
	once     sync.Once
	returned atomic.Bool // it is of an earlier life of the node, and has not served since
	// boxes and rings have locks of their own, which are taken under session.executing: see Node.
	boxes  boxes
	rings  nodeRings
	parts  parts
	noting sync.Mutex            // held while fences and revocations become durable, in the order in which they grow
	fault  atomic.Pointer[fault] // that an administrator wants; nil: none

	mu sync.Mutex // held for moments only: leases wait for nothing else
	// serving is under mu. What it promised of other nodes is durable before the promise is
	// answered.
	serving *membership.ServingLease
	// disowners is under mu, and only grows.
	disowners  map[int]bool // peers that grant this node no lease, for good
	registryMu sync.Mutex   // held while a question to the registry is answered, which may be a long list
	// acceptor is under registryMu. A list is copied under it, and may take long: it is not under
	// mu, or peers would wait for their leases.
	acceptor *membership.Acceptor
}

// newPool returns a pool in which nothing was fenced, revoked or promised. The node holds no lease
// yet, unless it is the pool's only node. It starts nothing: keepLease does. Keys are odd, and so
// never 0.
func newPool(n *Node, r control.Record, creator string) *pool {
	p := &pool{
		boxes:  boxes{at: map[int]*box{}, senders: map[uint64]*outlet{}},
		rings:  nodeRings{at: map[uint64]*nodeRing{}},
		record: r, node: n, memory: n.memory, creator: creator, gone: make(chan struct{}),
		revoked: make([]atomic.Uint64, r.Clients+1), disowners: map[int]bool{},
		serving:  membership.NewServingLease(r.Index, len(r.Addresses), r.Voters(), r.Lease),
		acceptor: membership.NewAcceptor(membership.LimitsFor(r.Nodes, r.Clients)),
	}
	var b [16]byte
	rand.Read(b[:]) // never fails
	p.key, p.readKey = binary.LittleEndian.Uint64(b[:])|1, binary.LittleEndian.Uint64(b[8:])|1
	p.until.Store(int64(p.serving.Until()))
	return p
}

// registered returns how many bytes of the node's memory verbs may touch. It bounds each verb, ring
// buffer and gather. A witness of a pool may have less memory than the pool's nodes, and executes
// no verb.
func (p *pool) registered() uint64 { return min(p.record.Memory, p.memory.size) }

// model counts a verb on n bytes as modules of persistent memory would. off was checked. What is
// behind the store's bytes is telemetry, of which no module is modelled. An atomic counts as both:
// the word is read and written.
func (p *pool) model(verb rdma.Verb, off uint64, n int) {
	m := p.node.cfg.Modules
	if m == nil || off >= p.record.Memory-p.record.Telemetry {
		return
	}
	if verb == rdma.Read || verb.Atomic() {
		m.Read(off, uint64(n))
	}
	if verb != rdma.Read {
		m.DMA(off, uint64(n))
	}
}

// end gives the pool up: goroutines that wait for a lease wait no more. It does not wait for them,
// and may be called twice.
func (p *pool) end() { p.once.Do(func() { close(p.gone) }) }

// awaitLease bounds the wait of a connection for the node's lease: a client takes the node for dead
// earlier.
const awaitLease = 2 * transport.DeadAfter

// await waits until the node may serve. The error wraps rdma.ErrNodeDown when it never will again,
// or not for so long that the caller has given up: connections that wait take the places of others.
// It is called twice for each frame: before the frame is executed, while session.executing is free,
// so that a fence waits for no lease; and before the answer is sent. The second call is what
// counts. If the node holds a lease then, no Expel of it has returned yet: a majority that promised
// to grant it none grants it none later, and the process that expels it waits for those that were
// granted before. So a lease that ran out in between does no harm, if the node has one again.
func (p *pool) await() error {
	began := time.Duration(0)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		if p.expelled.Load() {
			return fmt.Errorf("node %d was expelled: %w", p.record.Index, rdma.ErrNodeDown)
		}
		if int64(realtime.Boot()) < p.until.Load() {
			return nil
		}
		switch now := realtime.Now(); {
		case began == 0:
			began = now
		case now-began > awaitLease:
			return fmt.Errorf("node %d has had no lease for %v: %w", p.record.Index, awaitLease, rdma.ErrNodeDown)
		}
		select {
		case <-p.gone:
			return fmt.Errorf("node %d has given up its pool: %w", p.record.Index, rdma.ErrNodeDown)
		case <-time.After(pause):
		}
	}
}

// adopt makes the node a part of a pool that is about to be made, with empty memory. It belongs to
// the maker until it is sealed: when the maker goes before, the node is as it was. Nothing of it is
// durable before seal. A node that crashes in between comes back in no pool, and its memory is
// cleared before the next pool has it. The error wraps rdma.ErrHeld while the node has a pool that
// is sealed or of which the maker lives, rdma.ErrFull when the memory or the region's table is too
// small, rdma.ErrNotSupported when the pool's verbs go over devices that the node has none of, and
// rdma.ErrAccess for a record that there cannot be. An error behind reset leaves the node in no
// pool.
func (n *Node) adopt(c *conn, r *control.Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	// What is wrong with the record itself is found before the node gives up what it has.
	if err := r.Check(n.memory.size); err != nil {
		return err
	}
	if p := n.pool.Load(); p != nil {
		switch {
		case p.record.ID == r.ID && p.creator == c.process:
			return nil // asked again, since the answer was lost
		case p.creator == "" || p.creator != c.process && n.alive(p.creator):
			return fmt.Errorf("the node has pool %s: %w", p.record.ID, rdma.ErrHeld)
		}
	}
	// The maker of the pool that the node has now is gone, or makes another one. renew is for
	// memory that is not clean yet: an earlier reset could not replace it, or a crash came before.
	if err := errors.Join(n.reset(), n.renew()); err != nil {
		return err
	}
	if err := n.remembers(r); err != nil {
		return err
	}
	p := newPool(n, *r, c.process)
	if err := p.register(); err != nil {
		return err
	}
	// From here on connections are let in for the pool. Verbs wait in await for its first lease.
	n.pool.Store(p)
	n.log.Info("adopted by a pool", "pool", r.ID, "index", r.Index, "nodes", len(r.Addresses), "bytes", r.Memory)
	p.keepLease()
	return nil
}

// seal makes the pool one that others may open. All content was written before the first node is
// sealed. A maker that crashes between two nodes leaves some that are sealed, which others may
// open, and some that give the pool up, which count as dead. It may be asked again, when the answer
// was lost: then there is no creator any more. The error wraps rdma.ErrAccess when the node has
// another pool or one of another maker, and rdma.ErrNodeDown when the note could not be made
// durable: the node is broken then.
func (n *Node) seal(c *conn, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pool.Load()
	if p == nil || p.record.ID != id || p.creator != c.process && p.creator != "" {
		return fmt.Errorf("the node is not about to have pool %s: %w", id, rdma.ErrAccess)
	}
	// The note comes first: a node that crashes behind it comes back sealed, though it has not
	// answered.
	if err := n.note(notePool, p.record); err != nil {
		return err
	}
	p.creator = ""
	transport.Wake(n.changed)
	return nil
}

// register lets the node's device serve the pool's memory, if its verbs go over devices. The error
// wraps rdma.ErrNotSupported when the node has another device or none. Witnesses have no memory
// that verbs go to.
func (p *pool) register() error {
	want, d := p.record.Fabric, p.node.cfg.Device
	switch {
	case want == "" || p.record.Index >= p.record.Nodes:
		return nil
	case d == nil || d.Fabric() != want:
		return fmt.Errorf("the pool's verbs go over %s, which this node was not started for (hint: --fabric %s): %w",
			want, want, rdma.ErrNotSupported)
	}
	region, err := d.Register(p.memory.base, p.record.Memory)
	p.region = region
	return err
}

// unregister takes the memory away from the device, which serves no worker any more. All
// connections of workers to the memory have ended before. After an error the device may still write
// there. The caller holds Node.mu, or is Close behind its wait.
func (p *pool) unregister() error {
	if p.region == nil {
		return nil
	}
	return p.region.Close()
}

// abandoned waits whether the maker of a pool that is not sealed comes back, and gives the pool up
// if not. A maker of which the connection broke has time to connect again, and counts as alive
// meanwhile: see Node.grace. It runs in a goroutine of its own, once for each connection that the
// maker loses. It blocks for a lease and an eighth, which is longer than Node.grace, so that the
// maker is found gone behind it if it did not come back. A pool that was sealed or replaced
// meanwhile is left alone.
func (n *Node) abandoned(p *pool) {
	n.mu.Lock()
	soon := !n.alive(p.creator) // it said that it goes
	n.mu.Unlock()
	if !soon {
		select {
		case <-n.stop:
			return
		case <-time.After(p.record.Lease + p.record.Lease/8):
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pool.Load() == p && p.creator != "" && !n.alive(p.creator) {
		if err := n.reset(); err != nil {
			n.log.Error("give up a pool that was not made", "pool", p.record.ID, "error", err)
		}
	}
}

// drop gives the node's pool up. It refuses while others than the caller use it, unless forced. It
// may be asked again: a node that does not have the pool any more has dropped it. A node that
// crashes before its table is reset comes back in the pool. The error wraps rdma.ErrHeld while
// another process has a connection for verbs, or is that of reset: then the node is in no pool all
// the same.
func (n *Node) drop(c *conn, id string, force bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pool.Load()
	if p == nil || p.record.ID != id {
		return nil
	}
	for other := range n.conns {
		if other.purpose == transport.ForVerbs && other.process != c.process && !force {
			return fmt.Errorf("the pool has clients: %w", rdma.ErrHeld)
		}
	}
	return n.reset()
}

// reset empties the node. Nothing that was sent to its pool is executed any more. The caller holds
// mu. The pool is taken away first, so that no connection is let in for it. Then the connections
// are ended, which waits for what they execute: only then is the memory's to be cleared. The table
// forgets the pool before the memory is cleared. A crash between the two leaves a node that is in
// no pool, and that clears its memory before it has another one. It blocks with mu held for as long
// as the pool's connections take to execute what they have begun. After an error the node is in no
// pool, and used stays true.
func (n *Node) reset() error {
	p := n.pool.Load()
	if p == nil {
		return nil
	}
	// Connections that wait for a lease under this pool give up, so that ending them below does not
	// take long.
	p.end()
	n.pool.Store(nil)
	transport.Wake(n.changed)
	// Nothing that holds session.executing waits for mu, which is held here.
	for c := range n.conns {
		if c.pool == p {
			c.end()
		}
	}
	// From here on the memory is not clean, whatever fails below.
	n.used = true
	n.log.Info("left a pool", "pool", p.record.ID)
	if err := p.unregister(); err != nil { // what a device may still write to stays mapped
		return err
	}
	if err := n.forget(); err != nil {
		return err
	}
	return n.renew()
}

// renew replaces memory that held a pool by memory that is all zero. Where there is none now, the
// next pool tries again: none is made on what an earlier one left. The caller holds mu. The old
// mapping is unmapped last. No pool has it any more, and its sessions have been drained. A Region
// is cleared in its place, durably, since its mapping is the process's for good.
func (n *Node) renew() error {
	if !n.used {
		return nil
	}
	if r := n.cfg.Region; r != nil {
		err := r.Clear()
		n.used = err != nil
		return err
	}
	fresh, err := n.newMemory()
	if err != nil {
		return err
	}
	old := n.memory
	n.memory, n.used = fresh, false
	return old.close()
}

// fenceOff drops what was posted in epochs before, and drains what is being executed. The order is
// what makes a fence safe. The epoch is raised first: a session that begins to execute from then on
// sees it. A session that had begun before is waited for. What it executed under the old epoch has
// landed when drain returns, and behind that nothing of an older epoch does. The epoch is durable
// last, before the answer: a node that crashes earlier has not answered the fence, and the master
// has to fence it again, or to expel it. A fence needs no lease. It blocks for what all connections
// are executing, and, with devices, for the processes that have mailboxes: see part. The error is
// that of the note, and means that the node is broken. It may be asked again with the same epoch or
// an earlier one: the epoch stays, and all is drained once more.
func (p *pool) fenceOff(epoch uint64) error {
	for old := p.fence.Load(); old < epoch && !p.fence.CompareAndSwap(old, epoch); old = p.fence.Load() {
	}
	p.drain()
	p.part(0, 0)
	return p.noteNumber(noteFence, &p.fence)
}

// revoke drops what a client posts, and drains what is being executed. The order is as in fenceOff.
// A life that was revoked before is drained and noted again: the first call may not have been
// answered. The error wraps rdma.ErrAccess for a client that the pool cannot have.
func (p *pool) revoke(c rdma.ClientID, life uint64) error {
	if c < 1 || int(c) >= len(p.revoked) {
		return fmt.Errorf("the pool has clients 1 to %d: %w", len(p.revoked)-1, rdma.ErrAccess)
	}
	r := &p.revoked[c]
	for old := r.Load(); old < life && !r.CompareAndSwap(old, life); old = r.Load() {
	}
	p.drain()
	p.part(c, life)
	return p.noteNumber(noteRevoked+strconv.Itoa(int(c)), r)
}

// drain returns once all verbs that are being executed are over. Connections that are made
// meanwhile need not be waited for: they see the fence that drain is for. Connections that have
// ended and not left yet are among them: what they execute is waited for, too.
func (p *pool) drain() {
	for _, c := range p.conns() {
		c.session.drain(false)
	}
}

// conns lists the pool's connections for verbs. It locks Node.mu for a moment, so that the caller
// must not hold it, and drains them without it.
func (p *pool) conns() (all []*conn) {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	for c := range p.node.conns {
		if c.pool == p && c.purpose == transport.ForVerbs {
			all = append(all, c)
		}
	}
	return all
}

// expel records that a node is to have no leases any more. A node that is told so of itself serves
// no client from then on. The promise is made before it is durable, and is durable before it is
// answered. A crash in between loses the promise, and it does not count, since it was not answered.
// An order of an epoch that has been fenced past is one of a master that was deposed: the error
// wraps rdma.ErrStale. It wraps rdma.ErrAccess for a node that the pool does not have, and for
// epoch 0. The same order may come twice.
func (p *pool) expel(epoch uint64, node int) error {
	if node < 0 || node >= len(p.record.Addresses) {
		return fmt.Errorf("the pool has %d nodes: %w", len(p.record.Addresses), rdma.ErrAccess)
	}
	if epoch < p.fence.Load() {
		return fmt.Errorf("expel node %d in epoch %d: here is epoch %d: %w", node, epoch, p.fence.Load(), rdma.ErrStale)
	}
	p.mu.Lock()
	ok := p.serving.Expel(node, epoch)
	p.mu.Unlock()
	if !ok {
		return fmt.Errorf("expel node %d in epoch %d: %w", node, epoch, rdma.ErrAccess)
	}
	if err := p.node.note(noteExpelled+strconv.Itoa(node), epoch); err != nil {
		return err
	}
	// The answer tells the caller that this node serves no more, so that no lease of it has to be
	// waited for.
	if node == p.record.Index {
		p.retire()
		p.node.log.Warn("expelled from the pool", "pool", p.record.ID, "epoch", epoch)
	}
	return nil
}

// retire ends the service of an expelled node. The flag comes first: await and admit look at it, so
// that nothing begins behind it. What is being executed is drained before the caller answers: from
// then on the node changes nothing. It may run twice at a time, when an order and the peers' word
// come together. Behind the flag no connection is admitted, so that the lists below have all.
func (p *pool) retire() {
	p.expelled.Store(true)
	p.until.Store(0)
	p.end() // it asks its peers for nothing any more
	transport.Wake(p.node.changed)
	p.drain()
	for _, c := range p.conns() {
		c.end()
	}
	// A node that came back has served no client in this life. One that has served keeps what it
	// holds until it is started anew or dropped.
	if p.returned.Load() {
		p.node.group.Go(p.replace)
	}
}

// disowned notes that a peer grants no lease any more, since the node was expelled. A node that was
// cut off then is not told otherwise. Such a promise holds for good: once the voters that did not
// make it are no majority the node never serves again. Fewer prove nothing, since a master may have
// died in the midst of an expulsion. Only voters are asked for leases, and so are in the map. The
// node itself, if it is a voter, is among those that did not promise. The caller is a goroutine
// that asks a peer, and holds no lock.
func (p *pool) disowned(peer int) {
	p.mu.Lock()
	p.disowners[peer] = true
	n := p.record.Voters()
	over := n-len(p.disowners) <= n/2 && p.expelled.CompareAndSwap(false, true)
	p.mu.Unlock()
	if over {
		p.retire()
		p.node.log.Warn("expelled from the pool, as its peers say", "pool", p.record.ID)
	}
}
