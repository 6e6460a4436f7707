package sim

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

var _ rdma.Ringer = (*endpoint)(nil)

// ring is a worker's. It ends with its worker: what has its place then, and has not landed, does
// not.
type ring struct {
	s      *Sim
	e      *endpoint
	addr   rdma.RingAddr
	queue  queue
	life   uint64 // of its node
	closed bool
}

// block is a part of an entry that has its place. It lands a while later, in two pieces when it
// tears.
type block struct {
	place    place
	from, to int // of the entry
	tear     tear
	left     uint8 // pieces that have not landed
}

// Rings returns what the options promise of rings.
func (e *endpoint) Rings() (rdma.RingPromises, error) {
	return e.s.ringPromises(), nil
}

func (s *Sim) ringPromises() rdma.RingPromises {
	p := rdma.RingPromises{MTU: s.opts.MTU, Counts: s.opts.CountRings}
	if s.opts.RingStreams {
		p.Streams = rdma.RingStreams(p.MTU)
	}
	return p
}

// OpenRing opens a ring.
func (e *endpoint) OpenRing(o rdma.RingOptions) (rdma.Ring, error) {
	if err := e.usable("open a ring"); err != nil {
		return nil, err
	}
	o, err := rdma.CheckRing(o, len(e.s.nodes))
	if err != nil {
		return nil, fmt.Errorf("client %d: %w", e.id, err)
	}
	r := &ring{s: e.s, e: e, addr: rdma.RingAt(o.Node, o.Number), queue: newQueue(o, e.s.ringPromises()),
		life: e.s.nodes[o.Node].life}
	if e.s.ringAt(r.addr) != nil {
		return nil, fmt.Errorf("client %d: %s: %w", e.id, r.addr, rdma.ErrExists)
	}
	e.s.rings[r.addr] = r
	return r, nil
}

// ringAt returns the ring at an address; nil: there is none, or its worker left, crashed or was
// fenced off.
func (s *Sim) ringAt(a rdma.RingAddr) *ring {
	if r := s.rings[a]; r != nil && !r.over() {
		return r
	}
	return nil
}

// over reports whether nothing lands in r any more.
func (r *ring) over() bool {
	return r.closed || r.e.closed || r.e.revoked || r.e.crashed() || r.s.nodes[r.addr.Node()].life != r.life
}

func (r *ring) Addr() rdma.RingAddr { return r.addr }

func (r *ring) Post(buffers ...rdma.Span) error {
	if r.over() || r.s.closing() {
		return fmt.Errorf("post buffers to %s: %w", r.addr, rdma.ErrClosed)
	}
	return r.queue.Post(buffers, r.s.nodes[r.addr.Node()].memory.size, r.s.opts.MTU)
}

func (r *ring) Count() (c rdma.RingCount, err error) {
	if r.over() || r.s.closing() {
		return c, fmt.Errorf("count %s: %w", r.addr, rdma.ErrClosed)
	}
	if r.s.opts.CountRings {
		c = r.queue.Count()
	}
	return c, nil
}

func (r *ring) Close() error {
	r.closed = true
	if r.s.rings[r.addr] == r {
		delete(r.s.rings, r.addr)
	}
	return nil
}

// blocks returns how many blocks an entry lands in.
func (s *Sim) blocks(op *rdma.Op) int64 {
	return int64((len(op.Buf) + s.opts.MTU - 1) / s.opts.MTU)
}

// entry draws over how long the blocks of an entry land, each once it has its place.
func (e *endpoint) entry(f *flight) {
	o := &e.s.opts
	f.luck = e.net.Uint64()
	f.spread = 0
	if o.Tear || e.s.hw == nil {
		f.spread = int64(o.MaxLatency)
	}
	if e.net.chance(o.DMAProb) {
		f.spread += e.net.upTo(int64(o.DMAMax))
	}
	if o.PMem != nil && e.s.hw == nil {
		f.sees = int64(mix(f.luck) % uint64(o.MaxLatency+1))
	}
}

// sendEntry puts an entry on its way that reaches its node at a time.
func (e *endpoint) sendEntry(f *flight, start int64) {
	s, c := e.s, &e.conns[f.node]
	e.entry(f)
	f.gap = int64(f.luck % uint64(s.opts.MaxLatency+1))
	c.order = start
	c.reads = max(c.reads, start+(s.blocks(f.op)-1)*f.gap+f.spread+f.sees+f.back)
	s.comes(f, start)
}

// comes lets an entry take its places from a time on, one block after the other, behind those that
// were posted before.
func (s *Sim) comes(f *flight, start int64) {
	c := &f.ep.conns[f.node]
	if c.entry == nil {
		c.entry = f
	} else {
		c.lastEntry.behind = f
	}
	c.lastEntry = f
	f.left = 1
	s.at(start, event{kind: placing, f: f})
}

// incomingEntry decides when the blocks of an entry take their places: as its packets pass the
// node's port.
func (s *Sim) incomingEntry(f *flight) {
	h, n, c := s.hw, &s.nodes[f.node], &f.ep.conns[f.node]
	if n.dead {
		s.comes(f, max(s.now, c.order))
		return
	}
	t, queue, back := s.reach(f)
	slow := n.factor(s.now)
	f.gap = slow.of(h.onLink(h.Header+s.opts.MTU)) / psPerNs
	rest := (s.blocks(f.op) - 1) * f.gap
	c.order = max(s.now, t-rest, c.order)
	f.back = queue + back + slow.of(h.pcie)
	s.comes(f, c.order)
}

// placeBlock takes a place for a block of an entry, as it comes out of the network.
func (s *Sim) placeBlock(f *flight, i int) {
	c := &f.ep.conns[f.node]
	if f.came = c.entry != f; f.came {
		return // it goes on behind the one ahead
	}
	if s.held(f, event{kind: placing, f: f, piece: uint16(i)}) {
		return
	}
	f.left--
	if f.err == nil {
		f.err = s.barred(f)
	}
	if f.err == nil {
		f.err = s.takePlace(f, i)
	}
	if f.err == errNotReady {
		f.err, f.left = nil, f.left+1
		s.at(s.now+int64(notReadyPause), event{kind: placing, f: f, piece: uint16(i)})
		return
	}
	if f.err != nil || (i+1)*s.opts.MTU >= len(f.op.Buf) {
		if c.entry = f.behind; c.entry != nil && c.entry.came {
			s.at(s.now, event{kind: placing, f: c.entry})
		}
	}
	if f.left == 0 {
		s.at(s.now+s.answer(f), event{kind: completion, f: f})
	}
}

// takePlace is placeBlock for an entry that may land.
func (s *Sim) takePlace(f *flight, i int) error {
	r := s.ringAt(rdma.RingAddr(f.op.Addr))
	if r == nil || i > 0 && r != f.ring {
		return rdma.ErrNoRing
	}
	f.ring = r
	b := block{from: i * s.opts.MTU, to: min((i+1)*s.opts.MTU, len(f.op.Buf))}
	p, err := r.queue.place(len(f.op.Buf), b.to-b.from)
	if err != nil {
		return err
	}
	b.place, b.tear, b.left = p, tear{ways: 1}, 1
	if luck := mix(f.luck + uint64(i)); s.opts.Tear && luck&3 != 0 {
		b.tear, b.left = tear{ways: 2, luck: luck >> 2, words: uint64(b.to-b.from+7) / 8}, 2
	}
	f.blocks = append(f.blocks, b)
	n := &s.nodes[f.node]
	at := s.now
	if s.hw != nil {
		at = n.store.pass(s.now, n.factor(s.now).of(s.hw.onPCIe(b.to-b.from)))
	}
	at = s.dma(n, at, p.Offset, b.to-b.from)
	f.back += n.shuffle(&f.ep.net)
	for piece := range int(b.left) {
		late := int64(mix(f.luck^uint64(2*i+piece)<<32) % uint64(f.spread+1))
		s.at(at+late, event{kind: settling, f: f, piece: uint16(2*i + piece)})
		f.left++
	}
	if b.to < len(f.op.Buf) {
		f.left++
		s.at(s.now+f.gap, event{kind: placing, f: f, piece: uint16(i + 1)})
	}
	if n.verbs++; n.killAt != 0 && n.verbs >= n.killAt && !n.dead {
		s.kill(n.id)
	}
	return nil
}

// settle lands a piece of a block, unless the node, the ring or the sender is gone.
func (s *Sim) settle(f *flight, piece int) {
	f.left--
	b := &f.blocks[piece/2]
	if b.left--; b.left == 0 {
		b.place.landed()
	}
	err := s.barred(f)
	if err == nil && f.ring.over() {
		err = rdma.ErrNodeDown // its connections ended with the ring
	}
	if err == nil {
		n, c := &s.nodes[f.node], &f.ep.conns[f.node]
		n.memory.landsFrom(c)
		words := n.memory.copyWords(b.place.Offset, f.op.Buf[b.from:b.to], false, &b.tear, piece%2)
		n.memory.landsFrom(nil)
		s.traceOp(Land, f, words)
		s.stepped(n)
	} else if f.err == nil {
		f.err = err
	}
	switch {
	case f.left > 0:
	case f.err == nil && s.opts.PMem != nil:
		s.at(s.now+f.sees, event{kind: seeing, f: f})
	default:
		s.at(s.now+s.answer(f), event{kind: completion, f: f})
	}
}

// see executes the READ behind an entry all of which has landed: with persistent memory it makes a
// difference.
func (s *Sim) see(f *flight) {
	if f.err = s.barred(f); f.err == nil && f.ring.over() {
		f.err = rdma.ErrNodeDown
	}
	if n := &s.nodes[f.node]; f.err == nil {
		n.memory.flush(&f.ep.conns[f.node])
		s.stepped(n)
	}
	s.at(s.now+s.answer(f), event{kind: completion, f: f})
}

// appendNow lands an entry outside Run, where no time passes.
func (s *Sim) appendNow(op *rdma.Op) error {
	r := s.ringAt(rdma.RingAddr(op.Addr))
	for p := op.Buf; len(p) > 0; {
		if r == nil {
			return rdma.ErrNoRing
		}
		n := min(len(p), s.opts.MTU)
		at, err := r.queue.place(len(op.Buf), n)
		if err != nil {
			return err
		}
		node := &s.nodes[op.Addr.Node()]
		node.memory.write(at.Offset, p[:n])
		s.dma(node, s.now, at.Offset, n)
		at.landed()
		p = p[n:]
	}
	return nil
}
