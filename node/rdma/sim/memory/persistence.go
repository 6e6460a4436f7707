package memory

import "encoding/binary"

// Writer is a connection, or a core, that writes. Its writes up to the stamp flushed are durable.
type Writer struct{ flushed uint64 }

// persistence is of memory that survives a loss of power.
type persistence struct {
	flushes bool    // a READ sees words to the media: they are not in caches that lose them
	from    *Writer // that the verb came by which lands now; nil: whatever is written is durable at once
	// stamp only grows. A writer's flushed says up to which one its writes are durable, so that a
	// flush costs nothing a word.
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

// pending are the writes of a word since its value was durable. writes are in the order in which
// they landed. One that is durable makes those before it so: the media have a later value of the
// same word.
type pending struct {
	durable uint64
	writes  []write
}

// write is a write of a word that is in memory, and in a buffer of the NIC, of PCIe or in a cache,
// too.
type write struct {
	from  *Writer
	stamp uint64
	value uint64
}

// mostWrites bounds the writes of a word that are not durable. The oldest reaches the media when
// there is one more, as any may at any time.
const mostWrites = 8

// LandsFrom says by which connection the next piece of a verb lands.
func (m *Memory) LandsFrom(c *Writer) {
	if m.pm != nil {
		m.pm.from = c
		m.pm.stamp++
	}
}

// Flush makes durable what has landed by a connection, since a READ sees WRITEs ahead of it out of
// the NIC's buffers and those of PCIe (Rowan 2.2).
func (m *Memory) Flush(c *Writer) {
	if m.pm != nil && m.pm.flushes {
		c.flushed = m.pm.stamp
	}
}

// Drain makes durable what has landed from w: it waited until its writes were persistent.
func (m *Memory) Drain(w *Writer) { w.flushed = m.pm.stamp }

// stored notes that the word at an offset of p was changed from what it was before.
func (m *Memory) stored(p *page, at, before uint64) {
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
func (m *Memory) storeWords(off uint64, buf []byte) {
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
func (m *Memory) observed(p *page, at uint64, n int) {
	if m.pm == nil || p.pending == nil || !m.pm.flushes && m.pm.from != nil {
		return
	}
	for k := at / 8; k <= (at+uint64(n)-1)/8; k++ {
		p.pending[k].writes = p.pending[k].writes[:0]
	}
}

// Forget erases everything.
func (m *Memory) Forget() {
	m.Free()
	m.dirs = New(m.node, m.size).dirs
}

// volatile calls f for the words that are not durable, in the order of their addresses.
func (m *Memory) volatile(f func(p *page, at int, w *pending)) {
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

// Unflushed counts the words that are not durable.
func (m *Memory) Unflushed() (n int) {
	m.volatile(func(*page, int, *pending) { n++ })
	return n
}

// PowerOff leaves of memory what survives. Of a word's writes the last one that survives is its
// value. Words survive independently of each other: a WRITE may be torn by the loss.
func (m *Memory) PowerOff(keep func(i, n, writes int) int) {
	i, n := 0, m.Unflushed()
	m.volatile(func(p *page, at int, w *pending) {
		value := w.durable
		if k := keep(i, n, len(w.writes)); k > 0 {
			value = w.writes[k-1].value
		}
		binary.LittleEndian.PutUint64(p.data[at:], value)
		i++
	})
}

// Start prepares the memory of a node that starts: what it finds is durable before it serves.
func (m *Memory) Start() {
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
