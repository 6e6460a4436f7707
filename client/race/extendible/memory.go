package extendible

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Memory is handed out by the chunk, as rTX's is: a chunk's word in its table names the client that
// uses it, and only that one puts pairs there. No block is freed: it is free when no slot of its
// key's buckets names it. So a crash leaves nothing but words with the client's number, and no verb
// says that a pair was replaced.
//
// A client scans chunks of its own when it has no block left: headers, and then the buckets of the
// keys that these have. What it replaces itself it knows without. A chunk in which it has nothing
// it gives back, for whichever client replaces what is there.

// chunk is one that the worker has.
type chunk struct {
	chunks.Chunk
	blocks []blockState // by place
	memos  []memo       // by place
	listed int          // of them those in a list
	gone   bool         // it was given back; lists may still name it
}

// memo is where the worker has put a block's pair, which stays in that slot of whatever subtable.
// So a scan needs to read no more than the slot.
type memo struct {
	hash  uint64
	slot  race.Slot
	tag   uint64
	known bool
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
	table  chunks.Client
	chunks []*chunk
	held   map[rdma.Addr]*chunk // by address of the word in the table
	skips  int                  // refills for which they are not scanned
	lean   int                  // as many behind the last scan: they double while scans find little
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

	quarantine  time.Duration
	keep, batch int // keepChunks and claimAtOnce of this pool
}

type memoryStats struct{ Claims, Scans, Found uint64 }

const (
	// longestFlight is longer than any verb is in flight. Within it no tag comes back: that is what
	// the quarantine of a block is for, in which it is not used again. mostQuarantine bounds it, for
	// tests with narrow tags.
	longestFlight  = time.Minute
	mostQuarantine = 8 * time.Millisecond
	// keepChunks is how many chunks a client keeps in which it has nothing, at most: fewer in a small
	// pool.
	keepChunks = 4
	// enough is the share of its chunks' blocks that a scan has to find to be soon repeated: one of so
	// many.
	enough = 8
	// claimAtOnce is how many chunks are claimed in a trip, at most: fewer in a small pool.
	claimAtOnce = 8
	// mostSkips bounds for how many refills a worker's own chunks are not scanned.
	mostSkips = 64
	// mostHints bounds the chunks that a worker remembers.
	mostHints = 64
	// fullFor is for how long a worker that has looked everywhere does not do so again.
	fullFor = 10 * time.Millisecond
)

// The classes of chunks, in the tables' words.
const (
	classSubtable = 1
	classPairs    = 2
)

func (m *memory) open(s *Store) {
	all := int(s.pairs.Count) * s.nodes
	*m = memory{
		layout: s.layout, s: s, held: map[rdma.Addr]*chunk{}, empty: make([]bool, s.nodes), turn: int(s.id),
		stats: m.stats,
		table: chunks.Client{
			Endpoint: s.ep, ID: s.id, Steps: chunks.Steps{Read: stepReadTable, Claim: stepClaimChunk,
				Free: stepFreeChunk},
			Do: s.do, Drop: s.drop,
		},
		quarantine: min(longestFlight/time.Duration(s.maxTag+1), mostQuarantine),
		keep:       min(max(all/128, 1), keepChunks), batch: min(max(all/64, 1), claimAtOnce),
	}
}

// take takes a block for an operation. The error wraps client.ErrFull. Nothing of an earlier
// operation is in flight.
func (m *memory) take() (block, error) {
	if m.s.forgets != nil && m.s.forgets() {
		m.forget()
	}
	if b, ok := m.pop(); ok {
		return b, nil
	}
	for r := m.s.pace; ; {
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
		if r.Tries == mostRefills || !r.Again() {
			return block{}, fmt.Errorf("no block of %d bytes is free: %w", m.blockBytes, client.ErrFull)
		}
		m.s.ep.Sleep(m.quarantine)
		m.full = 0
	}
}

const (
	// mostNaps bounds the sleeps for one block: a clock may run slow.
	mostNaps = 4
	// mostRefills bounds how often a worker looks everywhere, a quarantine later each time: others may
	// have had for a moment what is free, while they looked.
	mostRefills = 4
)

// forget empties the worker's lists, for tests of scans.
func (m *memory) forget() {
	m.fresh, m.aged, m.first, m.skips = nil, nil, 0, 0
	for _, c := range m.chunks {
		clear(c.blocks) // used, as far as it knows
		if m.s.forgets() {
			clear(c.memos)
		}
		c.listed = 0
	}
}

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

// unused gives a block back that an operation had taken, and that no slot has named. What was
// written there may be seen by scans, so its next use has another tag.
func (m *memory) unused(b block) {
	b.tag++
	m.push(b)
}

// used notes that a slot names a block that the operation had taken, or may; slot: where, unless
// that is noSlot's.
func (m *memory) used(b block, slot race.Slot) {
	b.chunk.blocks[b.i] = blockUsed
	b.chunk.memos[b.i] = memo{m.s.op.hash, slot, b.tag, slot != noSlot.slot}
}

// replaced notes that no slot names the block of a word any more. Of another client's chunk that
// one finds out, or this one when the chunk is given back.
func (m *memory) replaced(w word) {
	n, index, i := m.chunkOf(m.block(w))
	at := m.pairs.Word(n, index)
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

// refill looks for free blocks: in chunks of the worker's own, and where these have few, in others.
func (m *memory) refill() error {
	if m.lately(m.full) {
		_, err := m.scan(m.chunks)
		return err
	}
	if m.skips--; m.skips < 0 {
		found, err := m.scan(m.chunks)
		if err != nil {
			return err
		}
		if found*enough >= m.perChunk()*len(m.chunks) {
			m.lean = 0
		} else {
			m.lean = min(2*m.lean+1, mostSkips)
		}
		if m.skips = m.lean; found > 0 {
			return nil
		}
	}
	if err := m.giveBack(m.keep); err != nil {
		return err
	}
	if err := m.claim(); err != nil || m.listed() > 0 {
		return err
	}
	if _, err := m.scan(m.chunks); err != nil || m.listed() > 0 {
		return err
	}
	m.full = max(m.s.ep.Now(), 1)
	return nil
}

func (m *memory) perChunk() int { return int(m.pairs.Bytes / m.blockBytes) }

// lately reports whether the worker has looked everywhere not long ago.
func (m *memory) lately(t time.Duration) bool {
	now := m.s.ep.Now()
	return t != 0 && now >= t && now-t < fullFor
}

// listed returns how many blocks are in the worker's lists.
func (m *memory) listed() (n int) {
	for _, c := range m.chunks {
		n += c.listed
	}
	return n
}

// giveBack gives back the chunks in which the worker has nothing, but for some, so that others find
// in them what will be free. One in which an operation has taken a block it keeps.
func (m *memory) giveBack(keep int) error {
	var left []chunks.Chunk
	kept := m.chunks[:0]
	spare := len(m.chunks) - keep
	for _, c := range m.chunks {
		if spare <= 0 || c.listed > 0 || slices.Contains(c.blocks, blockTaken) {
			kept = append(kept, c)
			continue
		}
		spare--
		c.gone = true // whatever becomes of the CAS: it may land
		delete(m.held, m.pairs.Word(c.Node, c.Index))
		left = append(left, c.Chunk)
	}
	clear(m.chunks[len(kept):])
	m.chunks = kept
	return m.table.Free(&m.pairs, left)
}

// claim takes a chunk that was never used, or else some that clients have given back, or lost, in
// which a scan finds something: first of those in which the worker has replaced pairs.
func (m *memory) claim() error {
	if fresh, err := m.claimFresh(); err != nil || fresh {
		return err
	}
	found, err := m.claimHints()
	if err != nil || found > 0 {
		return err
	}
	from := m.s.ep.Rand().IntN(m.nodes) // so that clients do not all look at the same ones
	for k := range m.nodes {
		if found, err := m.claimOn((from + k) % m.nodes); err != nil || found > 0 {
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
		got, ok, err := m.table.Fresh(&m.pairs, n, classPairs, int(m.pairs.Count), m.behind(n), m.s.left())
		if err != nil {
			return false, err
		}
		if !ok {
			m.empty[n] = true
			continue
		}
		c := m.add(got)
		for i := len(c.blocks) - 1; i >= 0; i-- {
			c.blocks[i] = blockListed
			m.fresh = append(m.fresh, block{chunk: c, i: i, number: m.blockOf(n, c.Index, i), tag: 1})
		}
		c.listed = len(c.blocks)
		return true, nil
	}
	return false, nil
}

// behind is the index behind the worker's last chunk on a node.
func (m *memory) behind(n int) uint64 {
	for _, c := range slices.Backward(m.chunks) {
		if c.Node == n {
			return uint64(c.Index) + 1
		}
	}
	return 0
}

func (m *memory) add(got chunks.Chunk) *chunk {
	c := &chunk{Chunk: got, blocks: make([]blockState, m.perChunk()), memos: make([]memo, m.perChunk())}
	m.chunks = append(m.chunks, c)
	m.held[m.pairs.Word(c.Node, c.Index)] = c
	m.stats.Claims++
	return c
}

// claimHints takes those of the chunks that the worker remembers which were given back. It forgets
// them all.
func (m *memory) claimHints() (found int, err error) {
	hints := m.hints
	m.hints = m.hints[:0]
	b := m.s.ep.Batch()
	defer m.s.drop(b)
	for _, at := range hints {
		b.Read(at, 8)
	}
	if err := m.s.do(stepReadTable, b); err != nil {
		return 0, fmt.Errorf("read the tables of chunks: %w", err)
	}
	var some []chunks.Chunk
	for i, at := range hints {
		if e := node.Entry(b.Op(i).Word(0)); e.Owner() == node.Left {
			some = append(some, chunks.Chunk{Node: at.Node(), Index: int((at.Offset() - m.pairs.Table) / 8), Entry: e})
		}
	}
	return m.claimLeft(some)
}

// claimOn takes chunks of a node that were given back, until some have free blocks.
func (m *memory) claimOn(n int) (found int, err error) {
	err = m.table.Left(&m.pairs, n, m.batch, nil, func(some []chunks.Chunk) (bool, error) {
		found, err = m.claimLeft(some)
		return found > 0, err
	})
	return found, err
}

// claimLeft takes chunks that were given back, and keeps those in which a scan finds something.
func (m *memory) claimLeft(some []chunks.Chunk) (found int, err error) {
	got, err := m.table.Claim(&m.pairs, some)
	if err != nil {
		return 0, err
	}
	had := len(m.chunks)
	for _, c := range got {
		m.add(c)
	}
	if found, err = m.scan(m.chunks[had:]); err != nil {
		return found, err
	}
	return found, m.giveBack(had)
}

// takeSubtable takes memory for a subtable, on a node if there is some, or else on another: what an
// earlier rehash had taken in vain, or what was never used. The error wraps client.ErrFull.
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
		got, ok, err := m.table.Fresh(&m.subtables, n, classSubtable, int(m.subtables.Count), 0, m.s.left())
		if err != nil {
			return 0, err
		}
		if ok {
			return m.place(n, got.Index), nil
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
	return 0, fmt.Errorf("no memory for one more subtable of %d bytes: %w", m.subtables.Bytes, client.ErrFull)
}

// claimSubtable takes memory that a client had taken for a subtable which it has not made; 0: there
// is none on that node.
func (m *memory) claimSubtable(n int) (place uint64, err error) {
	err = m.table.Left(&m.subtables, n, 1, nil, func(some []chunks.Chunk) (bool, error) {
		got, err := m.table.Claim(&m.subtables, some)
		if err != nil || len(got) == 0 {
			return false, err
		}
		mine := m.place(n, got[0].Index)
		named, err := m.s.named(mine)
		switch {
		case err != nil:
			return false, err
		case named:
			return false, m.table.Free(&m.subtables, got)
		}
		place = mine
		return true, nil
	})
	return place, err
}

// settle notes what became of a block whose operation has failed.
func (m *memory) settle(b block, err error) {
	if errors.Is(err, client.ErrUncertain) {
		m.used(b, noSlot.slot) // a scan finds out
		return
	}
	m.unused(b)
}
