package sim

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/memory"
	"github.com/farkv/farkv/node/rdma/sim/random"
	"github.com/farkv/farkv/node/rdma/sim/receive"
)

var _ rdma.Ringer = (*endpoint)(nil)

// ring is a worker's. It ends with its worker: what has its place then, and has not landed, does
// not.
//
// An APPEND goes so: queueEntry puts the entry at the end of its connection's list. placeBlock
// gives each block of it a place, in turn with blocks of other connections. settle lets the pieces
// of a block land a while later. see executes the READ behind the entry when all of it is there,
// with persistent memory; then its sender is told. A crash in between leaves a place that is empty,
// or torn, among others that are whole: a ring does not say which.
type ring struct {
	s    *Sim
	e    *endpoint
	addr rdma.RingAddr
	// queue holds the buffers that were posted, and gives places to blocks.
	queue receive.Queue
	// A ring does not outlive its node's life.
	comebacks uint64 // of all nodes, when it was opened
	closed    bool
}

// rings are those of all workers.
type rings struct {
	*engine
	net *network
	// A ring that is over stays here until it is closed, or another one has its address. ringAt
	// does not return it.
	byAddr map[rdma.RingAddr]*ring // only looked up, never ranged over
}

// block is a part of an entry that has its place. It lands a while later, in two pieces when it
// tears.
type block struct {
	// The place is in flight from placeBlock to the last piece in settle, so that a buffer settles
	// only when nothing lands in it any more.
	place    receive.Place
	from, to int // of the entry
	tear     memory.Tear
	left     uint8 // pieces that have not landed
}

// Rings returns what the options promise of rings.
func (e *endpoint) Rings() (rdma.RingPromises, error) {
	return e.s.opts.ringPromises(), nil
}

// ringPromises returns what the options promise of rings.
func (o *Options) ringPromises() rdma.RingPromises {
	p := rdma.RingPromises{MTU: o.MTU, Counts: o.CountRings}
	if o.RingStreams {
		p.Streams = rdma.RingStreams(p.MTU)
	}
	return p
}

// OpenRing opens a ring. It has no buffers yet: Post gives it some. The error wraps ErrExists when
// a ring that is not over has the number, and ErrNodeDown when the node is dead.
func (e *endpoint) OpenRing(o rdma.RingOptions) (rdma.Ring, error) {
	if err := e.usable("open a ring"); err != nil {
		return nil, err
	}
	o, err := rdma.CheckRing(o, len(e.s.nodes))
	if err != nil {
		return nil, fmt.Errorf("client %d: %w", e.id, err)
	}
	addr := rdma.RingAt(o.Node, o.Number)
	if e.s.nodes[o.Node].dead {
		return nil, fmt.Errorf("client %d: open %s: %w", e.id, addr, rdma.ErrNodeDown)
	}
	r := &ring{s: e.s, e: e, addr: addr, queue: receive.New(o, e.s.opts.ringPromises()), comebacks: e.s.comebacks}
	if e.s.rings.ringAt(r.addr) != nil {
		return nil, fmt.Errorf("client %d: %s: %w", e.id, r.addr, rdma.ErrExists)
	}
	e.s.rings.byAddr[r.addr] = r
	return r, nil
}

// ringAt returns the ring at an address; nil: there is none, or its worker left, crashed or was
// fenced off.
func (rs *rings) ringAt(a rdma.RingAddr) *ring {
	if r := rs.byAddr[a]; r != nil && !r.over() {
		return r
	}
	return nil
}

// over reports whether nothing lands in r any more. Its worker left, crashed or was fenced off, or
// the node has died since it was opened. Pieces of blocks that have their places do not land then:
// a successor finds the buffers at rest.
func (r *ring) over() bool {
	return r.closed || r.e.closed || r.e.revoked || r.e.crashed() || r.s.nodes[r.addr.Node()].diedSince(r.comebacks)
}

// Addr returns where to append.
func (r *ring) Addr() rdma.RingAddr { return r.addr }

// Post adds buffers, which the ring fills from now on until it is over. The error wraps ErrClosed
// when it is.
func (r *ring) Post(buffers ...rdma.Span) error {
	if r.over() || r.s.closing() {
		return fmt.Errorf("post buffers to %s: %w", r.addr, rdma.ErrClosed)
	}
	return r.queue.Post(buffers, r.s.nodes[r.addr.Node()].memory.Size(), r.s.opts.MTU)
}

// Count is zero without Options.CountRings. It takes no time.
func (r *ring) Count() (c rdma.RingCount, err error) {
	if r.over() || r.s.closing() {
		return c, fmt.Errorf("count %s: %w", r.addr, rdma.ErrClosed)
	}
	if r.s.opts.CountRings {
		c = r.queue.Count()
	}
	return c, nil
}

// Close ends the ring, at once for all of its blocks.
func (r *ring) Close() error {
	r.closed = true
	if r.s.rings.byAddr[r.addr] == r {
		delete(r.s.rings.byAddr, r.addr)
	}
	return nil
}

// blocks returns how many blocks of the MTU an entry lands in. An entry has one byte at the least:
// refuse sees to that.
func blocks(op *rdma.Op, mtu int) int64 { return int64((len(op.Buf) + mtu - 1) / mtu) }

// entry draws over how long the blocks of an entry land, each once it has its place. Gaps, tears
// and times of all blocks are derived from one draw, luck.
func (e *endpoint) entry(f *flight) {
	o := &e.s.opts
	f.luck = e.net.Uint64()
	f.spread = 0
	if o.Tear || e.s.hw == nil {
		// On machines without Tear blocks land when PCIe has carried them.
		f.spread = int64(o.MaxLatency)
	}
	if e.net.Chance(o.DMAProb) {
		f.spread += e.net.UpTo(int64(o.DMAMax))
	}
	if o.PMem != nil && e.s.hw == nil {
		f.sees = int64(random.Mix(f.luck) % uint64(o.MaxLatency+1))
	}
}

// sendEntry puts an entry on its way that reaches its node at a time. It is of the random network.
// Its gap lets blocks of other connections come in between.
func (e *endpoint) sendEntry(f *flight, start int64) {
	s, c := e.s, &e.conns[f.node]
	e.entry(f)
	f.gap = int64(f.luck % uint64(s.opts.MaxLatency+1))
	// What is posted behind it lands no earlier than its first block comes, and may pass its READ.
	c.order = start
	c.reads = max(c.reads, start+(blocks(f.op, s.opts.MTU)-1)*f.gap+f.spread+f.sees+f.back)
	c.queueEntry(&s.engine, f, start)
}

// queueEntry lets an entry take its places from a time on, one block after the other, behind those
// that were posted before.
//
// The list is in posting order, and an entry leaves it when all its blocks have places, or it has
// failed.
func (c *conn) queueEntry(g *engine, f *flight, start int64) {
	if c.entry == nil {
		c.entry = f
	} else {
		c.lastEntry.behind = f
	}
	c.lastEntry = f
	f.left = 1
	g.at(start, event{kind: placing, f: f})
}

// incomingEntry decides when the blocks of an entry take their places: as its packets pass the
// node's port. The last block's place is taken when the NIC has served the entry as a whole; the
// gap between two is the time of a packet on the link. The answer is the READ's: it waits for PCIe
// once.
func (cs *cards) incomingEntry(f *flight) {
	h, n, c := cs.hw, &cs.pool.nodes[f.node], &f.ep.conns[f.node]
	if n.dead {
		c.queueEntry(cs.engine, f, max(cs.now(), c.order))
		return
	}
	t, queue, back := n.reach(f)
	slow := n.factor()
	f.gap = slow.of(h.onLink(h.Header+cs.opts.MTU)) / psPerNs
	rest := (blocks(f.op, cs.opts.MTU) - 1) * f.gap
	c.order = max(cs.now(), t-rest, c.order)
	f.back = queue + back + slow.of(h.pcie)
	c.queueEntry(cs.engine, f, c.order)
}

// placeBlock takes a place for a block of an entry, as it comes out of the network. Entries of one
// connection take all their places one after the other. Those of several connections take theirs in
// turn, as their packets arrive, so that blocks of an entry come to lie apart.
//
// A ring that is dry fails the entry with ErrRingDry; blocks that have places land all the same.
// Where a stream may get a buffer soon (ErrNotReady) the device tries again, and entries behind it
// on the connection wait.
func (rs *rings) placeBlock(f *flight, i int) {
	c := &f.ep.conns[f.node]
	// The entry ahead schedules it, when it leaves the list.
	if f.came = c.entry != f; f.came {
		return // it goes on behind the one ahead
	}
	if rs.net.held(f, event{kind: placing, f: f, piece: uint16(i)}) {
		return
	}
	f.left--
	if f.err == nil {
		f.err = rs.net.barred(f)
	}
	if f.err == nil {
		f.err = rs.takePlace(f, i)
	}
	if f.err == receive.ErrNotReady {
		// As it was before this try.
		f.err, f.left = nil, f.left+1
		rs.at(rs.now()+int64(receive.NotReadyPause), event{kind: placing, f: f, piece: uint16(i)})
		return
	}
	// This was the last block, or no more come.
	if f.err != nil || (i+1)*rs.opts.MTU >= len(f.op.Buf) {
		// An entry that has not come yet finds itself first when it does.
		if c.entry = f.behind; c.entry != nil && c.entry.came {
			rs.at(rs.now(), event{kind: placing, f: c.entry})
		}
	}
	// It failed, and no block of it is to land: settle sees to the others.
	if f.left == 0 {
		rs.at(rs.now()+rs.net.answer(f), event{kind: completion, f: f})
	}
}

// takePlace is placeBlock for an entry that may land. It counts as a verb of the node, as each of
// its blocks does, and may kill it: KillNodeAt.
func (rs *rings) takePlace(f *flight, i int) error {
	// A ring that was opened at the address meanwhile is not the one in which the entry began.
	r := rs.ringAt(rdma.RingAddr(f.op.Addr))
	if r == nil || i > 0 && r != f.ring {
		return rdma.ErrNoRing
	}
	f.ring = r
	b := block{from: i * rs.opts.MTU, to: min((i+1)*rs.opts.MTU, len(f.op.Buf))}
	p, err := r.queue.Place(len(f.op.Buf), b.to-b.from)
	if err != nil {
		return err
	}
	// With Tear three quarters of the blocks land in two pieces.
	b.place, b.tear, b.left = p, memory.Tear{Ways: 1}, 1
	if luck := random.Mix(f.luck + uint64(i)); rs.opts.Tear && luck&3 != 0 {
		b.tear, b.left = memory.Tear{Ways: 2, Luck: luck >> 2, Words: uint64(b.to-b.from+7) / 8}, 2
	}
	f.blocks = append(f.blocks, b)
	n := &rs.net.pool.nodes[f.node]
	// From the NIC over PCIe, and into the modules; what is late beyond that is drawn.
	at := rs.now()
	if rs.hw != nil {
		at = n.store.pass(rs.now(), n.factor().of(rs.hw.onPCIe(b.to-b.from)))
	}
	at = n.dma(at, p.Offset, b.to-b.from)
	f.back += n.shuffle(&f.ep.net)
	// Each piece, and the next block's place, is an event that settle or placeBlock counts down.
	for piece := range int(b.left) {
		late := int64(random.Mix(f.luck^uint64(2*i+piece)<<32) % uint64(f.spread+1))
		rs.at(at+late, event{kind: settling, f: f, piece: uint16(2*i + piece)})
		f.left++
	}
	if b.to < len(f.op.Buf) {
		f.left++
		rs.at(rs.now()+f.gap, event{kind: placing, f: f, piece: uint16(i + 1)})
	}
	if n.verbs++; n.killAt != 0 && n.verbs >= n.killAt && !n.dead {
		rs.net.pool.kill(n.id)
	}
	return nil
}

// settle lands a piece of a block, unless the node, the ring or the sender is gone. A block counts
// as landed also when it does not land: then nothing of it is in flight any more. The sender's own
// right is asked anew for each piece: of an entry whose sender is fenced off in between some pieces
// are there.
func (rs *rings) settle(f *flight, piece int) {
	f.left--
	b := &f.blocks[piece/2]
	if b.left--; b.left == 0 {
		b.place.Landed()
	}
	err := rs.net.barred(f)
	if err == nil && f.ring.over() {
		err = rdma.ErrNodeDown // its connections ended with the ring
	}
	if err == nil {
		n, c := &rs.net.pool.nodes[f.node], &f.ep.conns[f.node]
		n.memory.LandsFrom(&c.writes)
		// The buffer of the batch is read now: it belongs to the fabric until the verb is complete.
		words := n.memory.CopyWords(b.place.Offset, f.op.Buf[b.from:b.to], false, &b.tear, piece%2)
		n.memory.LandsFrom(nil)
		rs.net.traceOp(Land, f, words)
		rs.net.pool.stepped(n)
	} else if f.err == nil {
		f.err = err
	}
	switch {
	case f.left > 0:
	// Without persistent memory the READ changes nothing, and only its time counts.
	case f.err == nil && rs.opts.PMem != nil:
		rs.at(rs.now()+f.sees, event{kind: seeing, f: f})
	default:
		rs.at(rs.now()+rs.net.answer(f), event{kind: completion, f: f})
	}
}

// see executes the READ behind an entry all of which has landed: with persistent memory it makes a
// difference. It makes durable what has landed by the sender's connection, this entry and WRITEs
// ahead of it: its acknowledgement promises that.
func (rs *rings) see(f *flight) {
	if f.err = rs.net.barred(f); f.err == nil && f.ring.over() {
		f.err = rdma.ErrNodeDown
	}
	if n := &rs.net.pool.nodes[f.node]; f.err == nil {
		n.memory.Flush(&f.ep.conns[f.node].writes)
		rs.net.pool.stepped(n)
	}
	rs.at(rs.now()+rs.net.answer(f), event{kind: completion, f: f})
}

// appendNow lands an entry outside Run, where no time passes. Its words are durable at once. An
// entry that meets a dry ring may have some of its blocks landed.
func (rs *rings) appendNow(op *rdma.Op) error {
	r := rs.ringAt(rdma.RingAddr(op.Addr))
	for p := op.Buf; len(p) > 0; {
		if r == nil {
			return rdma.ErrNoRing
		}
		n := min(len(p), rs.opts.MTU)
		at, err := r.queue.Place(len(op.Buf), n)
		if err != nil {
			return err
		}
		node := &rs.net.pool.nodes[op.Addr.Node()]
		node.memory.Write(at.Offset, p[:n])
		node.dma(rs.now(), at.Offset, n)
		at.Landed()
		p = p[n:]
	}
	return nil
}
