// Package memory is the registered memory of one simulated node: sparse pages, of which READs,
// WRITEs and atomics move words, whole or in pieces (Tear). A persistent one knows of each word
// what a loss of power would leave of it:
//
//	m := memory.NewPersistent(node, size, true)
//	m.LandsFrom(&conn)   // the next writes are durable once conn is flushed
//	m.Write(off, p)
//	m.LandsFrom(nil)
//	m.Flush(&conn)       // a READ of the same connection executed behind them
//	m.PowerOff(keep)     // keep says what is left of each word that was not durable
//	m.Start()
//
// It models no time; package sim calls it when a verb, or a piece of one, takes effect.
package memory

import (
	"encoding/binary"
	"sync"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/random"
)

const (
	pageBytes = 4 << 10
	dirPages  = 512 // 2 MiB a directory
)

// page is memory that was touched, with one bit a word that was ever changed by an atomic.
type page struct {
	data    [pageBytes]byte
	atomics [pageBytes / 8 / 64]uint64
	mixed   bool       // some bit of atomics is set
	pending *pageWords // what is not durable, of persistent memory
}

// pages keeps freed pages for the next simulation, zeroed: a run of some milliseconds would else
// spend most of its time in the allocator.
var pages = sync.Pool{New: func() any { return new(page) }}

// Memory is a node's registered memory; untouched pages read as zero. The range of each call lies
// within it: callers check that, as a NIC does. It is not safe for concurrent use.
type Memory struct {
	node int
	size uint64
	dirs []*[dirPages]*page
	pm   *persistence // nil: it does not survive a loss of power
}

// New returns size bytes of a node, all zero, that a loss of power erases.
func New(node int, size uint64) Memory {
	const span = pageBytes * dirPages
	return Memory{node: node, size: size, dirs: make([]*[dirPages]*page, (size+span-1)/span)}
}

// NewPersistent returns size bytes that survive a loss of power as far as they are durable. A READ
// flushes the WRITEs ahead of it if flushes is set; otherwise they are in caches that lose them.
func NewPersistent(node int, size uint64, flushes bool) Memory {
	m := New(node, size)
	m.pm = &persistence{flushes: flushes}
	return m
}

// Persistent reports whether a loss of power leaves what is durable.
func (m *Memory) Persistent() bool { return m.pm != nil }

// seen returns the page at off, or nil when nothing was ever written there.
func (m *Memory) seen(off uint64) *page {
	d := m.dirs[off/(pageBytes*dirPages)]
	if d == nil {
		return nil
	}
	return d[off/pageBytes%dirPages]
}

// page returns the page at off to be written.
func (m *Memory) page(off uint64) *page {
	d := &m.dirs[off/(pageBytes*dirPages)]
	if *d == nil {
		*d = new([dirPages]*page)
	}
	p := &(*d)[off/pageBytes%dirPages]
	if *p == nil {
		*p = pages.Get().(*page)
	}
	return *p
}

// Free gives the pages back. Afterwards m has no bytes.
func (m *Memory) Free() {
	for _, d := range m.dirs {
		if d == nil {
			continue
		}
		for _, p := range d {
			if p != nil {
				*p = page{}
				pages.Put(p)
			}
		}
	}
	m.dirs = nil
}

// Read copies the bytes at off into buf. What was read is durable, unless it is in caches that lose
// it.
func (m *Memory) Read(off uint64, buf []byte) {
	for len(buf) > 0 {
		at := off % pageBytes
		n := min(len(buf), int(pageBytes-at))
		if p := m.seen(off); p != nil {
			copy(buf[:n], p.data[at:])
			m.observed(p, at, n)
		} else {
			clear(buf[:n])
		}
		buf, off = buf[n:], off+uint64(n)
	}
}

// Write copies buf to off.
func (m *Memory) Write(off uint64, buf []byte) {
	if m.pm != nil {
		m.storeWords(off, buf)
		return
	}
	for len(buf) > 0 {
		n := copy(m.page(off).data[off%pageBytes:], buf)
		buf, off = buf[n:], off+uint64(n)
	}
}

// Atomic applies an atomic to the aligned word at off and returns the word before.
func (m *Memory) Atomic(off uint64, op *rdma.Op) uint64 {
	p := m.page(off)
	at := off % pageBytes
	p.mixed = true
	p.atomics[at/8/64] |= 1 << (at / 8 % 64)
	m.observed(p, at, 8)
	word := binary.LittleEndian.Uint64(p.data[at:])
	next := word
	switch op.Verb {
	case rdma.CompareSwap:
		if word == op.Expect {
			next = op.Value
		}
	case rdma.MaskedCompareSwap:
		if (word^op.Expect)&op.CompareMask == 0 {
			next = word&^op.SwapMask | op.Value&op.SwapMask
		}
	case rdma.FetchAdd:
		next = word + op.Value
	}
	binary.LittleEndian.PutUint64(p.data[at:], next)
	m.stored(p, at, word)
	return word
}

// ChangedByAtomics reports whether some word of n bytes at off was.
func (m *Memory) ChangedByAtomics(off uint64, n int) bool {
	for a, end := off&^7, off+uint64(n); a < end; a += 8 {
		p := m.seen(a)
		if p == nil || !p.mixed {
			a |= pageBytes - 8 // on to the next page
			continue
		}
		at := a % pageBytes / 8
		if p.atomics[at/64]&(1<<(at%64)) != 0 {
			return true
		}
	}
	return false
}

// Tear says how a READ or WRITE splits into pieces.
type Tear struct {
	Ways  uint8  // how many; 1: it stays whole
	Luck  uint64 // what decides about each word
	Words uint64 // that the verb touches
}

// piece returns the piece that the word at a byte offset belongs to: half of the tears put a
// boundary somewhere, as packets do, the others take words at random.
func (t *Tear) piece(word uint64) int {
	if t.Luck&1 == 0 {
		return int(random.Mix(t.Luck+word) % uint64(t.Ways))
	}
	if (word < t.Luck>>8%t.Words) == (t.Luck&2 == 0) {
		return 0
	}
	return 1
}

// CopyPiece moves one piece of op, and returns how many words that were. The piece is moved at
// once, and bytes outside the range are not touched.
func (m *Memory) CopyPiece(op *rdma.Op, t *Tear, piece int) (words int) {
	return m.CopyWords(op.Addr.Offset(), op.Buf, op.Verb == rdma.Read, t, piece)
}

// CopyWords is CopyPiece between buf and the memory at off.
func (m *Memory) CopyWords(off uint64, buf []byte, read bool, t *Tear, piece int) (words int) {
	move := m.Write
	if read {
		move = m.Read
	}
	start, end := off&^7, off+uint64(len(buf))
	if t.Ways < 2 {
		move(off, buf)
		return int(end-start+7) / 8
	}
	for a := start; a < end; a += 8 {
		if t.piece((a-start)/8) != piece {
			continue
		}
		// Neighboring words of the piece are moved together.
		from := max(a, off)
		for words++; a+8 < end && t.piece((a+8-start)/8) == piece; words++ {
			a += 8
		}
		move(from, buf[from-off:min(a+8, end)-off])
	}
	return words
}
