package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Survivors decide what a loss of power leaves of one word if its last writes were not durable: the
// first of its writes, as many as it returns, from none to all. The word is the i-th of n such
// words of the node, in the order of their addresses.
type Survivors func(i, n, writes int) int

// AllSurvive leaves all writes, durable or not.
func AllSurvive(_, _, writes int) int { return writes }

// NoneSurvive leaves what is durable alone.
func NoneSurvive(int, int, int) int { return 0 }

// OneSurvives leaves what is durable, and the i-th word.
func OneSurvives(word int) Survivors {
	return func(i, _, writes int) int {
		if i == word {
			return writes
		}
		return 0
	}
}

// AnySurvive draws from a seed what is left of each word.
func AnySurvive(seed uint64) Survivors {
	r := rand.New(rand.NewPCG(seed, 0x706f776572))
	return func(_, _, writes int) int { return r.IntN(writes + 1) }
}

// persistence is of memory that survives a loss of power (Options.PMem).
type persistence struct {
	flushes bool   // a READ sees words to the media: they are not in caches that lose them
	from    *conn  // that the verb came by which lands now; nil: whatever is written is durable at once
	stamp   uint64 // of the piece of a verb that landed last
	tracked []*page
	limit   int          // of them
	spare   []*pageWords // of pages that were durable
}

// pageWords are the words of a page.
type pageWords [pageBytes / 8]pending

// track prepares a page of which words are written. Pages that are durable as a whole by now make
// room for it, once there are twice as many as were not the last time: most are behind a writer
// with READs.
func (d *persistence) track(p *page) {
	if len(d.tracked) >= max(d.limit, 64) {
		left := d.tracked[:0]
		for _, p := range d.tracked {
			if p.durable() {
				d.spare, p.pending = append(d.spare, p.pending), nil
			} else {
				left = append(left, p)
			}
		}
		clear(d.tracked[len(left):])
		d.tracked, d.limit = left, 2*len(left)
	}
	d.tracked = append(d.tracked, p)
	if n := len(d.spare); n > 0 {
		p.pending, d.spare = d.spare[n-1], d.spare[:n-1]
	} else {
		p.pending = new(pageWords)
	}
}

// durable reports whether all of a page is.
func (p *page) durable() bool {
	for k := range p.pending {
		if w := &p.pending[k]; len(w.writes) > 0 {
			if w.settle(); len(w.writes) > 0 {
				return false
			}
		}
	}
	return true
}

// power is what a node is to losses of power.
type power struct {
	life     uint64 // how often it has died
	steps    uint64 // see Steps
	expelled bool
	away     int      // the fault that took it away, and brings it back, counting from 1; 0: none
	returns  bool     // a fault has taken it away
	hosted   []hosted // what begins anew with it
}

// hosted is a worker that runs beside a node.
type hosted struct {
	name string
	f    func(ep rdma.Endpoint)
}

// outages are those to come.
type outages struct {
	allSteps  uint64 // of all nodes
	comebacks uint64
	powerCuts []powerCut
}

type powerCut struct {
	node int
	step uint64
	keep Survivors
}

// persist makes the memory of nodes persistent.
func (s *Sim) persist() {
	for i := range s.nodes {
		if o := s.opts.PMem; o != nil {
			s.nodes[i].memory.pm = &persistence{flushes: o.EADR || !o.DDIO}
		}
	}
}

// gone reports whether the node of a message has died since that was posted.
func (s *Sim) gone(f *flight) bool {
	n := &s.nodes[f.node]
	return n.dead || n.life != f.life
}

// pending are the writes of a word since its value was durable.
type pending struct {
	durable uint64
	writes  []write
}

// write is a write of a word that is in memory, and in a buffer of the NIC, of PCIe or in a cache,
// too.
type write struct {
	from  *conn
	stamp uint64
	value uint64
}

// mostWrites bounds the writes of a word that are not durable. The oldest reaches the media when
// there is one more, as any may at any time.
const mostWrites = 8

// landsFrom says by which connection the next piece of a verb lands.
func (m *memory) landsFrom(c *conn) {
	if m.pm != nil {
		m.pm.from = c
		m.pm.stamp++
	}
}

// flush makes durable what has landed by a connection, since a READ sees WRITEs ahead of it out of
// the NIC's buffers and those of PCIe (Rowan 2.2).
func (m *memory) flush(c *conn) {
	if m.pm != nil && m.pm.flushes {
		c.flushed = m.pm.stamp
	}
}

// stored notes that the word at an offset of p was changed from what it was before.
func (m *memory) stored(p *page, at, before uint64) {
	if m.pm == nil {
		return
	}
	if p.pending == nil {
		m.pm.track(p)
	}
	w := &p.pending[at/8]
	if m.pm.from == nil {
		w.writes = w.writes[:0]
		return
	}
	w.settle()
	if len(w.writes) == 0 {
		w.durable = before
	}
	if len(w.writes) == mostWrites {
		w.cut(1)
	}
	w.writes = append(w.writes, write{m.pm.from, m.pm.stamp, binary.LittleEndian.Uint64(p.data[at&^7:])})
}

// settle forgets the writes that are durable by now, and those before them.
func (w *pending) settle() {
	for i := len(w.writes) - 1; i >= 0; i-- {
		if w.writes[i].stamp <= w.writes[i].from.flushed {
			w.cut(i + 1)
			return
		}
	}
}

// cut makes the first n writes durable.
func (w *pending) cut(n int) {
	w.durable = w.writes[n-1].value
	w.writes = append(w.writes[:0], w.writes[n:]...)
}

// storeWords is write for memory of which words may be lost.
func (m *memory) storeWords(off uint64, buf []byte) {
	for len(buf) > 0 {
		p, at := m.page(off), off%pageBytes
		before := binary.LittleEndian.Uint64(p.data[at&^7:])
		n := copy(p.data[at:at&^7+8], buf)
		m.stored(p, at, before)
		buf, off = buf[n:], off+uint64(n)
	}
}

// observed makes n bytes at an offset of p durable, which are read: what was read is not in the NIC
// or on its way over PCIe any more.
func (m *memory) observed(p *page, at uint64, n int) {
	if m.pm == nil || p.pending == nil || !m.pm.flushes && m.pm.from != nil {
		return
	}
	for k := at / 8; k <= (at+uint64(n)-1)/8; k++ {
		p.pending[k].writes = p.pending[k].writes[:0]
	}
}

// volatile calls f for the words that are not durable, in the order of their addresses.
func (m *memory) volatile(f func(p *page, at int, w *pending)) {
	for _, d := range m.dirs {
		if d == nil {
			continue
		}
		for _, p := range d {
			if p == nil || p.pending == nil {
				continue
			}
			for k := range p.pending {
				if w := &p.pending[k]; len(w.writes) > 0 {
					if w.settle(); len(w.writes) > 0 {
						f(p, 8*k, w)
					}
				}
			}
		}
	}
}

// unflushed counts the words that are not durable.
func (m *memory) unflushed() (n int) {
	m.volatile(func(*page, int, *pending) { n++ })
	return n
}

// powerOff leaves of memory what survives.
func (m *memory) powerOff(keep Survivors) {
	i, n := 0, m.unflushed()
	m.volatile(func(p *page, at int, w *pending) {
		value := w.durable
		if k := keep(i, n, len(w.writes)); k > 0 {
			value = w.writes[k-1].value
		}
		binary.LittleEndian.PutUint64(p.data[at:], value)
		i++
	})
}

// start prepares the memory of a node that starts: what it finds is durable before it serves.
func (m *memory) start() {
	if m.pm != nil {
		*m.pm = persistence{flushes: m.pm.flushes, stamp: m.pm.stamp}
	}
	for _, d := range m.dirs {
		if d == nil {
			continue
		}
		for _, p := range d {
			if p != nil {
				p.pending, p.mixed = nil, false
				clear(p.atomics[:])
			}
		}
	}
}

// Unflushed returns how many words of a node were written and are not durable: each survives a loss
// of power, or not.
func (s *Sim) Unflushed(node int) int { return s.nodes[node].memory.unflushed() }

// Steps returns how many steps a node has made in Runs: pieces of verbs that landed there, READs
// behind APPENDs, and calls that were served. What may survive a loss of power changes with a step
// alone: enumerating them runs k from 1 to this. AnyNode is all nodes together.
func (s *Sim) Steps(node int) uint64 {
	if node == AnyNode {
		return s.allSteps
	}
	return s.nodes[node].steps
}

// CutPower kills a node, as KillNode does, and leaves of what was not durable what survives;
// AnyNode: of all at once. A node that is dead already keeps what it has.
func (s *Sim) CutPower(node int, keep Survivors) {
	for i := range s.nodes {
		if n := &s.nodes[i]; (node == AnyNode || node == i) && !n.dead {
			s.trace(Event{Kind: PowerCut, Worker: fmt.Sprintf("node %d", i)})
			n.memory.powerOff(keep)
			if n.pmem != nil {
				n.pmem.PowerOff()
			}
			s.kill(i)
		}
	}
}

// CutPowerAt cuts the power of a node behind its k-th step, counting from 1; AnyNode: of all,
// behind the k-th of all.
func (s *Sim) CutPowerAt(node int, k uint64, keep Survivors) {
	s.powerCuts = append(s.powerCuts, powerCut{node, k, keep})
}

// stepped counts a step of a node, and cuts the power behind it.
func (s *Sim) stepped(n *node) {
	n.steps++
	s.allSteps++
	for i := 0; i < len(s.powerCuts); i++ {
		if c := s.powerCuts[i]; s.Steps(c.node) == c.step {
			s.powerCuts = slices.Delete(s.powerCuts, i, i+1)
			s.CutPower(c.node, c.keep)
			i--
		}
	}
}

// Restart brings a dead node back. With Options.PMem its memory has what it had when the node was
// killed, or what survived the loss of power, and all of that is durable. Without, and in its NIC's
// memory, there is nothing. Workers that ran on it, rings and verbs of before are gone; those of
// Host begin anew. The view, fences and revocations are not in the node: they are as durable as
// those of nodes that remember (package tcp). A node that was expelled, or that the view has as
// gone, is a new one, which is empty and in no pool: it stays dead, and the error wraps
// rdma.ErrStale.
func (s *Sim) Restart(node int) error {
	if node < 0 || node >= len(s.nodes) {
		return fmt.Errorf("restart node %d of %d: %w", node, len(s.nodes), rdma.ErrAccess)
	}
	n := &s.nodes[node]
	if !n.dead {
		return fmt.Errorf("restart node %d, which is up: %w", node, rdma.ErrExists)
	}
	stale := n.expelled || s.view.Members[node].Gone
	if stale || n.memory.pm == nil {
		n.memory.free()
		n.memory.dirs = newMemory(n.memory.size).dirs
	}
	n.memory.start()
	if stale {
		return fmt.Errorf("restart node %d, which the pool went on without: %w", node, rdma.ErrStale)
	}
	for _, r := range s.opts.Device {
		if r.Node == node {
			n.memory.write(r.Offset, make([]byte, r.Bytes))
		}
	}
	n.dead, n.busy = false, 0
	s.comebacks++
	s.trace(Event{Kind: Restart, Worker: fmt.Sprintf("node %d", node)})
	for _, h := range n.hosted {
		if _, err := s.start(h.name, n, nil, nil, h.f); err != nil {
			return fmt.Errorf("start %s of node %d anew: %w", h.name, node, err)
		}
	}
	return nil
}

// Restarts returns how often nodes have come back.
func (s *Sim) Restarts() uint64 { return s.comebacks }

// takeAway takes the nodes of a fault away. One that is dead, or away already, is not hit.
func (s *Sim) takeAway(fault int) {
	f := &s.opts.Faults[fault]
	for i := range s.nodes {
		n := &s.nodes[i]
		if n.dead || f.Node != AnyNode && f.Node != i {
			continue
		}
		n.away, n.returns = fault+1, true
		if f.Kind == PowerFault {
			s.CutPower(i, AnySurvive(s.opts.Seed^mix(uint64(fault)<<16|uint64(i))))
		} else {
			s.kill(i)
		}
	}
}

// bringBack restarts the nodes that a fault took away, unless the pool went on without them.
func (s *Sim) bringBack(fault int) {
	for i := range s.nodes {
		if n := &s.nodes[i]; n.away == fault+1 {
			n.away = 0
			if err := s.Restart(i); err != nil && !errors.Is(err, rdma.ErrStale) {
				s.fail(err)
			}
		}
	}
}

// Returning is a pool as its keepers see it, if nodes come back from faults.
type Returning struct{ *Sim }

// returnGrace is for how long nodes that faults take away may fail verbs.
const returnGrace = time.Millisecond

// NodeGrace implements rdma.NodeGracer: one that a fault has taken away, which brings it back, has
// a moment.
func (r Returning) NodeGrace(node int) time.Duration {
	if n := &r.nodes[node]; n.returns && (!n.dead || n.away > 0) {
		return returnGrace
	}
	return 0
}

// MayExpel implements rdma.ExpelChecker: none while all nodes are dead or away.
func (r Returning) MayExpel() error {
	for i := range r.nodes {
		if !r.nodes[i].dead {
			return nil
		}
	}
	return fmt.Errorf("no node answers: %w", rdma.ErrMinority)
}

var (
	_ rdma.Fabric       = Returning{}
	_ rdma.NodeGracer   = Returning{}
	_ rdma.ExpelChecker = Returning{}
)
