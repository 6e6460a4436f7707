package extendible

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Memory is handed out by the chunk, as rTX's is: a chunk's word in its table names the client that uses it, and only
// that one puts pairs there. No block is freed: it is free when no slot of its key's buckets names it. So a crash leaves
// nothing but words with the client's number, and no verb says that a pair was replaced.
//
// A client scans chunks of its own when it has no block left: headers, and then the buckets of the keys that these
// have. What it replaces itself it knows without. A chunk in which it has nothing it gives back, for whichever client
// replaces what is there.

// chunk is one that the worker has.
type chunk struct {
	node, index int
	entry       node.Entry
	blocks      []blockState // by place
	listed      int          // of them those in a list
	skips       int          // refills for which it is not scanned
	lean        int          // skips behind the last scan: they double while scans find little
	gone        bool         // it was given back; lists may still name it
}

// blockState is what the worker knows of a block.
type blockState uint8

const (
	blockUsed   blockState = iota // as far as it knows
	blockListed                   // in a list
	blockTaken                    // by an operation
)

// block is one that holds no pair.
type block struct {
	chunk  *chunk
	i      int
	number uint64
	tag    uint64        // of its next use
	ready  time.Duration // until when it is in quarantine
}

// memory is what a worker has.
type memory struct {
	*layout
	s      *Store
	chunks []*chunk
	held   map[rdma.Addr]*chunk // by address of the word in the table
	next   int                  // chunk that is scanned next
	turn   int                  // node that is asked next
	empty  []bool               // by node: there is no chunk that was never used
	fresh  []block              // never used
	aged   []block              // in the order in which their quarantine ends
	first  int                  // of aged
	hints  []rdma.Addr          // chunks in which the worker has replaced pairs, the latest last
	full   time.Duration        // when the worker has looked everywhere for a block, in vain; 0: never
	dense  time.Duration        // and for a subtable's memory
	spare  []uint64             // subtables' memory that no entry names
	stats  memoryStats

	quarantine time.Duration
}

type memoryStats struct{ Claims, Scans, Found uint64 }

const (
	// longestFlight is longer than any verb is in flight. Within it no tag comes back: that is what the quarantine of a block
	// is for, in which it is not used again. mostQuarantine bounds it, for tests with narrow tags.
	longestFlight  = time.Minute
	mostQuarantine = 8 * time.Millisecond
	// keepChunks is how many chunks a client keeps of which it uses little.
	keepChunks = 4
	// enough is the share of a chunk that a scan has to find for the chunk to be kept: one of so many.
	enough = 8
	// mostTried is how many chunks are looked at for one in which there is enough, before a few blocks will do.
	mostTried = 8
	// mostSkips bounds for how many refills a chunk is not scanned.
	mostSkips = 64
	// mostHints bounds the chunks that a worker remembers.
	mostHints = 64
	// fullFor is for how long a worker that has looked everywhere does not do so again.
	fullFor = 10 * time.Millisecond
	// tableAtOnce is how many words of a table are read in a trip.
	tableAtOnce = 1 << 12
)

// The classes of chunks, in the tables' words.
const (
	classSubtable = 1
	classPairs    = 2
)

func (m *memory) open(s *Store) {
	*m = memory{layout: s.layout, s: s, held: map[rdma.Addr]*chunk{}, empty: make([]bool, s.nodes), turn: int(s.id), stats: m.stats,
		quarantine: min(longestFlight/time.Duration(s.maxTag+1), mostQuarantine)}
}

// take takes a block for an operation. The error wraps client.ErrFull. Nothing of an earlier operation is in flight.
func (m *memory) take() (block, error) {
	if b, ok := m.pop(); ok {
		return b, nil
	}
	if err := m.refill(); err != nil {
		return block{}, err
	}
	for range mostNaps {
		if b, ok := m.pop(); ok {
			return b, nil
		}
		if m.first == len(m.aged) {
			break
		}
		m.s.ep.Sleep(max(m.aged[m.first].ready-m.s.ep.Now(), m.quarantine/mostNaps+1))
	}
	return block{}, fmt.Errorf("no block of %d bytes is free: %w", m.blockBytes, client.ErrFull)
}

// mostNaps bounds the sleeps for one block: a clock may run slow.
const mostNaps = 4

// pop takes the first block of a list whose quarantine is over.
func (m *memory) pop() (block, bool) {
	now := m.s.ep.Now()
	for m.first < len(m.aged) {
		b := m.aged[m.first]
		if !b.chunk.gone && b.ready > now && b.ready <= now+m.quarantine { // else the clock was set back
			break
		}
		m.aged[m.first] = block{}
		m.first++
		if !b.chunk.gone {
			return b.taken(), true
		}
	}
	if m.first == len(m.aged) {
		m.aged, m.first = m.aged[:0], 0
	}
	for len(m.fresh) > 0 {
		b := m.fresh[len(m.fresh)-1]
		m.fresh = m.fresh[:len(m.fresh)-1]
		if !b.chunk.gone {
			return b.taken(), true
		}
	}
	return block{}, false
}

func (b block) taken() block {
	b.chunk.listed--
	b.chunk.blocks[b.i] = blockTaken
	return b
}

// push adds a block that no slot names to the list of those in quarantine.
func (m *memory) push(b block) {
	if b.chunk.gone {
		return
	}
	if m.first > 64 && 2*m.first > len(m.aged) {
		m.aged, m.first = m.aged[:copy(m.aged, m.aged[m.first:])], 0
	}
	b.ready = m.s.ep.Now() + m.quarantine
	b.chunk.blocks[b.i] = blockListed
	b.chunk.listed++
	m.aged = append(m.aged, b)
}

// unused gives a block back that an operation had taken, and that no slot has named. What was written there may be seen
// by scans, so its next use has another tag.
func (m *memory) unused(b block) {
	b.tag++
	m.push(b)
}

// used notes that a slot names a block that an operation had taken, or may.
func (m *memory) used(b block) { b.chunk.blocks[b.i] = blockUsed }

// replaced notes that no slot names the block of a word any more. Of another client's chunk that one finds out, or
// this one when the chunk is given back.
func (m *memory) replaced(w word) {
	n, index, i := m.chunkOf(m.block(w))
	at := m.pairs.entryAt(n, index)
	if c := m.held[at]; c != nil {
		if c.blocks[i] == blockUsed {
			m.push(block{chunk: c, i: i, number: m.block(w), tag: m.tag(w) + 1})
		}
		return
	}
	for _, h := range m.hints {
		if h == at {
			return
		}
	}
	if len(m.hints) == mostHints {
		m.hints = m.hints[:copy(m.hints, m.hints[1:])]
	}
	m.hints = append(m.hints, at)
}

// refill looks for free blocks: in chunks of the worker's own, and where these have few, in another one.
func (m *memory) refill() error {
	if m.lately(m.full) {
		return m.scanOwn(len(m.chunks))
	}
	if err := m.scanOwn(2); err != nil || m.listed() > 0 {
		return err
	}
	if len(m.chunks) >= keepChunks {
		if err := m.giveBack(); err != nil {
			return err
		}
	}
	if err := m.claim(); err != nil || m.listed() > 0 {
		return err
	}
	if err := m.scanOwn(len(m.chunks)); err != nil || m.listed() > 0 {
		return err
	}
	m.full = max(m.s.ep.Now(), 1)
	return nil
}

// lately reports whether the worker has looked everywhere not long ago.
func (m *memory) lately(t time.Duration) bool {
	now := m.s.ep.Now()
	return t != 0 && now >= t && now-t < fullFor
}

// scanOwn scans up to n chunks of the worker's, until it has found enough.
func (m *memory) scanOwn(n int) error {
	for tried := 0; tried < n && len(m.chunks) > 0; tried++ {
		m.next = (m.next + 1) % len(m.chunks)
		c := m.chunks[m.next]
		if c.skips > 0 && n < len(m.chunks) {
			c.skips--
			continue
		}
		found, err := m.scan(c)
		if err != nil {
			return err
		}
		c.lean = min(2*c.lean+1, mostSkips)
		if found*enough >= len(c.blocks) {
			c.lean = 0
			return nil
		}
		c.skips = c.lean
	}
	return nil
}

// listed returns how many blocks are in the worker's lists.
func (m *memory) listed() (n int) {
	for _, c := range m.chunks {
		n += c.listed
	}
	return n
}

// giveBack gives back the chunk in which the worker has least, so that others find in it what will be free. One in which
// an operation has taken a block it keeps.
func (m *memory) giveBack() error {
	least := -1
	for i, c := range m.chunks {
		if !c.takenAny() && (least < 0 || c.listed < m.chunks[least].listed) {
			least = i
		}
	}
	if least < 0 {
		return nil
	}
	c := m.chunks[least]
	c.gone = true // whatever becomes of the CAS: it may land
	delete(m.held, m.pairs.entryAt(c.node, c.index))
	m.chunks = append(m.chunks[:least], m.chunks[least+1:]...)
	m.next = 0
	return m.freeChunk(&m.pairs, c.node, c.index, c.entry)
}

func (c *chunk) takenAny() bool {
	for _, b := range c.blocks {
		if b == blockTaken {
			return true
		}
	}
	return false
}

// freeChunk takes a chunk from its client.
func (m *memory) freeChunk(a *arena, n, index int, e node.Entry) error {
	if _, err := m.s.swap(stepFreeChunk, a.entryAt(n, index), uint64(e), uint64(e.Next(node.Left, e.Class()))); err != nil {
		return fmt.Errorf("free chunk %d of node %d: %w", index, n, err)
	}
	return nil
}

// claim takes a chunk: one that was never used, or else one that its client has given back, or lost, in which a scan
// finds something: first of those in which the worker has replaced pairs.
func (m *memory) claim() error {
	if fresh, err := m.claimFresh(); err != nil || fresh {
		return err
	}
	hints := m.hints
	m.hints = m.hints[:0]
	for i := len(hints) - 1; i >= 0; i-- {
		if found, err := m.claimHint(hints[i]); err != nil || found > 0 {
			m.hints = hints[:i]
			return err
		}
	}
	from := m.s.ep.Rand().IntN(m.nodes) // so that clients do not all look at the same ones
	tried, found := 0, 0
	for k := range m.nodes {
		done, err := m.claimOn((from+k)%m.nodes, &tried, &found)
		if err != nil || done {
			return err
		}
	}
	return nil
}

// claimFresh asks the nodes in turn for a chunk that was never used.
func (m *memory) claimFresh() (bool, error) {
	for range m.nodes {
		m.turn++
		n := m.turn % m.nodes
		if m.empty[n] {
			continue
		}
		index, e, err := m.allocate(&m.pairs, n, classPairs)
		if errors.Is(err, client.ErrFull) {
			m.empty[n] = true
			continue
		}
		if err != nil {
			return false, err
		}
		c := m.add(n, index, e)
		for i := len(c.blocks) - 1; i >= 0; i-- {
			c.blocks[i] = blockListed
			m.fresh = append(m.fresh, block{chunk: c, i: i, number: m.blockOf(n, index, i), tag: 1})
		}
		c.listed = len(c.blocks)
		return true, nil
	}
	return false, nil
}

// allocate asks a node for a chunk that was never used.
func (m *memory) allocate(a *arena, n, class int) (index int, e node.Entry, err error) {
	r := rdma.Request{Step: stepClaimChunk, Proc: node.ProcAlloc}
	r.Arg = [6]uint64{a.table, a.chunks, a.first, a.chunk, uint64(class), 0}
	if err := m.s.ep.Call(n, &r, max(m.s.left(), 1)); err != nil {
		return 0, 0, fmt.Errorf("ask node %d for a chunk: %w", n, err)
	}
	return int(r.Ret[0]), node.Entry(r.Ret[1]), nil
}

func (m *memory) add(n, index int, e node.Entry) *chunk {
	c := &chunk{node: n, index: index, entry: e, blocks: make([]blockState, m.pairs.chunk/m.blockBytes)}
	m.chunks = append(m.chunks, c)
	m.held[m.pairs.entryAt(n, index)] = c
	m.stats.Claims++
	return c
}

// claimHint takes a chunk if it was given back.
func (m *memory) claimHint(at rdma.Addr) (found int, err error) {
	index := int((at.Offset() - m.pairs.table) / 8)
	entries, err := m.readEntries(&m.pairs, at.Node(), index, 1)
	if err != nil || entries[0].Owner() != node.Left {
		return 0, err
	}
	return m.claimLeft(at.Node(), index, entries[0])
}

// claimOn looks for chunks on a node that were given back. done: it has found enough, or has tried enough.
func (m *memory) claimOn(n int, tried, found *int) (done bool, err error) {
	windows := (int(m.pairs.chunks) + tableAtOnce - 1) / tableAtOnce
	from := m.s.ep.Rand().IntN(windows)
	for k := range windows {
		first := (from + k) % windows * tableAtOnce
		entries, err := m.readEntries(&m.pairs, n, first, tableAtOnce)
		if err != nil {
			return false, err
		}
		offset := m.s.ep.Rand().IntN(len(entries))
		for i := range entries {
			i := (offset + i) % len(entries)
			if entries[i].Owner() != node.Left {
				continue
			}
			here, err := m.claimLeft(n, first+i, entries[i])
			if err != nil {
				return false, err
			}
			*tried, *found = *tried+1, *found+here
			if here*enough >= int(m.pairs.chunk/m.blockBytes) || *tried >= mostTried && *found > 0 {
				return true, nil
			}
			if m.s.over() {
				return false, errTime
			}
		}
	}
	return false, nil
}

// claimLeft takes a chunk that its client has given back, and keeps it if a scan finds something.
func (m *memory) claimLeft(n, i int, e node.Entry) (found int, err error) {
	mine := e.Next(m.s.id, classPairs)
	ok, err := m.s.swap(stepClaimChunk, m.pairs.entryAt(n, i), uint64(e), uint64(mine))
	if err != nil {
		return 0, fmt.Errorf("claim chunk %d of node %d: %w", i, n, err)
	}
	if !ok {
		return 0, nil
	}
	found, err = m.scan(m.add(n, i, mine))
	if err != nil || found > 0 && len(m.chunks) <= 2*keepChunks {
		return found, err
	}
	return found, m.giveBack() // this one, or another in which there is less
}

// readEntries reads some words of a table.
func (m *memory) readEntries(a *arena, n, from, most int) (entries []node.Entry, err error) {
	b := m.s.ep.Batch()
	defer m.s.drop(b)
	op := b.Read(a.entryAt(n, from), 8*min(most, int(a.chunks)-from))
	if err := m.s.do(stepReadTable, b); err != nil {
		return nil, fmt.Errorf("read the table of node %d: %w", n, err)
	}
	for i := range len(op.Buf) / 8 {
		entries = append(entries, node.Entry(op.Word(i)))
	}
	return entries, nil
}

// readTable reads the words of all of an arena's chunks on a node.
func (m *memory) readTable(a *arena, n int) (entries []node.Entry, err error) {
	for from := 0; from < int(a.chunks); from += tableAtOnce {
		some, err := m.readEntries(a, n, from, tableAtOnce)
		if err != nil {
			return nil, err
		}
		entries = append(entries, some...)
	}
	return entries, nil
}

// takeSubtable takes memory for a subtable, on a node if there is some, or else on another: what an earlier rehash had
// taken in vain, or what was never used. The error wraps client.ErrFull.
func (m *memory) takeSubtable(home int) (uint64, error) {
	if n := len(m.spare); n > 0 {
		place := m.spare[n-1]
		m.spare = m.spare[:n-1]
		return place, nil
	}
	for k := range m.nodes {
		if m.lately(m.dense) {
			break
		}
		n := (home + k) % m.nodes
		index, _, err := m.allocate(&m.subtables, n, classSubtable)
		if err == nil {
			return m.place(n, index), nil
		}
		if !errors.Is(err, client.ErrFull) {
			return 0, err
		}
	}
	for n := range m.nodes {
		if m.lately(m.dense) {
			break
		}
		place, err := m.claimSubtable(n)
		if err != nil || place != 0 {
			return place, err
		}
	}
	if !m.lately(m.dense) {
		m.dense = max(m.s.ep.Now(), 1)
	}
	return 0, fmt.Errorf("no memory for one more subtable of %d bytes: %w", m.subtables.chunk, client.ErrFull)
}

// claimSubtable takes memory that a client had taken for a subtable which it has not made; 0: there is none on that
// node.
func (m *memory) claimSubtable(n int) (place uint64, err error) {
	entries, err := m.readTable(&m.subtables, n)
	if err != nil {
		return 0, err
	}
	for i, e := range entries {
		if e.Owner() != node.Left {
			continue
		}
		mine := e.Next(m.s.id, classSubtable)
		ok, err := m.s.swap(stepClaimChunk, m.subtables.entryAt(n, i), uint64(e), uint64(mine))
		if err != nil {
			return 0, fmt.Errorf("claim subtable %d of node %d: %w", i, n, err)
		}
		if !ok {
			continue
		}
		named, err := m.s.named(m.place(n, i))
		if err != nil {
			return 0, err
		}
		if !named {
			return m.place(n, i), nil
		}
		if err := m.freeChunk(&m.subtables, n, i, mine); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// settle notes what became of a block whose operation has failed.
func (m *memory) settle(b block, err error) {
	if errors.Is(err, client.ErrUncertain) {
		m.used(b) // a scan finds out
		return
	}
	m.unused(b)
}
