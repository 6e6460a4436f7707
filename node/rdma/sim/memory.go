package sim

import (
	"encoding/binary"
	"sync"

	"github.com/farkv/farkv/node/rdma"
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
	pending *pageWords // with Options.PMem: what is not durable
}

// pages keeps freed pages for the next simulation, zeroed: a run of some milliseconds would else
// spend most of its time in the allocator.
var pages = sync.Pool{New: func() any { return new(page) }}

// memory is a node's registered memory; untouched pages read as zero.
type memory struct {
	size uint64
	dirs []*[dirPages]*page
	pm   *persistence // nil: it does not survive a loss of power
}

func newMemory(size uint64) memory {
	const span = pageBytes * dirPages
	return memory{size: size, dirs: make([]*[dirPages]*page, (size+span-1)/span)}
}

// seen returns the page at off, or nil when nothing was ever written there.
func (m *memory) seen(off uint64) *page {
	d := m.dirs[off/(pageBytes*dirPages)]
	if d == nil {
		return nil
	}
	return d[off/pageBytes%dirPages]
}

// page returns the page at off to be written.
func (m *memory) page(off uint64) *page {
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

func (m *memory) free() {
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

func (m *memory) read(off uint64, buf []byte) {
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

func (m *memory) write(off uint64, buf []byte) {
	if m.pm != nil {
		m.storeWords(off, buf)
		return
	}
	for len(buf) > 0 {
		n := copy(m.page(off).data[off%pageBytes:], buf)
		buf, off = buf[n:], off+uint64(n)
	}
}

// atomic applies an atomic to the aligned word at off and returns the word before.
func (m *memory) atomic(off uint64, op *rdma.Op) uint64 {
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

// changedByAtomics reports whether some word of n bytes at off was.
func (m *memory) changedByAtomics(off uint64, n int) bool {
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

// tear says how a READ or WRITE splits into pieces.
type tear struct {
	ways  uint8
	luck  uint64
	words uint64
}

// piece returns the piece that the word at a byte offset belongs to: half of the tears put a
// boundary somewhere, as packets do, the others take words at random.
func (t *tear) piece(word uint64) int {
	if t.luck&1 == 0 {
		return int(mix(t.luck+word) % uint64(t.ways))
	}
	if (word < t.luck>>8%t.words) == (t.luck&2 == 0) {
		return 0
	}
	return 1
}

// copyPiece moves one piece of op, word by word, and returns how many words that were. Each is
// moved at once, and bytes outside the range are not touched.
func (m *memory) copyPiece(op *rdma.Op, t *tear, piece int) (words int) {
	return m.copyWords(op.Addr.Offset(), op.Buf, op.Verb == rdma.Read, t, piece)
}

// copyWords is copyPiece between buf and the memory at off.
func (m *memory) copyWords(off uint64, buf []byte, read bool, t *tear, piece int) (words int) {
	end := off + uint64(len(buf))
	word := uint64(0)
	for a := off &^ 7; a < end; a += 8 {
		if t.ways < 2 || t.piece(word) == piece {
			lo, hi := max(a, off), min(a+8, end)
			if read {
				m.read(lo, buf[lo-off:hi-off])
			} else {
				m.write(lo, buf[lo-off:hi-off])
			}
			words++
		}
		word++
	}
	return words
}
