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

// Memory is handed out in chunks, as in package rtx. The word of a chunk in the
// table names the client that uses the chunk, and only that client puts pairs
// there. No block is freed: it is free when no slot of its key's buckets names
// it. So a crash leaves nothing but words with the client's number, and no verb
// says that a pair was replaced.
//
// A client scans chunks of its own when it has no block left: headers, and then
// the buckets of their keys. It also notes what it replaces in chunks of its own.
// It gives back a chunk in which it has nothing, for whichever client replaces
// what is there.

// chunk is a chunk that the worker has: the word in the table names it.
type chunk struct {
	chunks.Chunk
	// blocks has the state of each block, by its place in the chunk.
	blocks []blockState
	// memos has where the worker has put each block's pair.
	memos []memo
	// listed counts the blocks that are in a list.
	listed int
}

// memo is where the worker has put a block's pair, which stays in that slot of
// whatever subtable its key is in. So a scan needs to read no more than the slot.
type memo struct {
	hash  uint64
	slot  race.Slot
	tag   uint64
	known bool
}

// blockState is what the worker knows of a block.
type blockState uint8

const (
	// blockUsed: a slot may name it. Only a scan can tell.
	blockUsed blockState = iota
	// blockListed: it is free, and in a list of the worker.
	blockListed
	// blockTaken: an operation has it.
	blockTaken
)

// block is a block that holds no pair.
type block struct {
	chunk  *chunk
	i      int
	number uint64
	tag    uint64 // of its next use
	// ready is when its quarantine ends.
	ready time.Duration
}

// memory is what a worker has of the pool's memory, and knows about it.
type memory struct {
	*session
	directory *directory
	table     chunks.Client
	chunks    []*chunk
	// idle are chunks that were given back, for those that are claimed next.
	idle []*chunk
	// held finds a chunk by the address of its word in the table.
	held map[rdma.Addr]*chunk
	// skips is for how many refills the worker's own chunks are not scanned.
	skips int
	// lean is what skips was set to behind the last scan. It doubles while scans
	// find little.
	lean int
	// turn is the node that is asked next for a chunk, modulo the number of
	// nodes.
	turn int
	// empty says by node that no chunk is left that was never used.
	empty []bool
	// fresh has blocks that were never used. They need no quarantine.
	fresh []block
	// aged has blocks in the order in which their quarantine ends. Those before
	// first were taken.
	aged  []block
	first int
	// hints are words of chunks of other clients in which the worker has replaced
	// pairs, the latest last.
	hints []rdma.Addr
	// full is when the worker has looked everywhere for a block, in vain; 0:
	// never.
	full time.Duration
	// dense is the same for memory for a subtable that was given back.
	dense time.Duration
	// barren says by node that no memory for a subtable is left that was never used.
	barren []bool
	// spare is memory for subtables that the worker has, and that no entry names.
	spare []uint64
	stats memoryStats
	// left, some, looked, found and looks are of the call or scan that runs, kept for the
	// next one.
	left   []chunks.Chunk
	some   []chunks.Chunk
	looked []scanned
	found  []block
	looks  map[subtable]*rdma.Op

	// forgets, unless nil, makes a write forget which blocks are free, so that
	// tests see many scans.
	forgets func() bool
	// quarantine is for how long a block is not used again.
	quarantine time.Duration
	// keep and batch are keepChunks and claimAtOnce of this pool.
	keep, batch int
}

// memoryStats count chunks claimed, scans, and blocks that scans found.
type memoryStats struct{ Claims, Scans, Found uint64 }

const (
	// longestFlight is longer than any verb is in flight. No tag comes back
	// within it: that is what the quarantine of a block is for.
	longestFlight = time.Minute
	// mostQuarantine bounds the quarantine, for tests with narrow tags.
	mostQuarantine = 8 * time.Millisecond
	// keepChunks bounds the chunks that a client keeps though it has nothing in
	// them. A small pool has fewer.
	keepChunks = 4
	// enough: a scan that finds one in so many of its chunks' blocks is repeated
	// soon.
	enough = 8
	// claimAtOnce bounds the chunks that are claimed in a trip. A small pool has
	// fewer.
	claimAtOnce = 8
	// mostSkips bounds the refills for which a worker's own chunks are not
	// scanned.
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

// open forgets what the worker had. The chunks' words in the pool stay as they
// are.
func (m *memory) open() {
	all := int(m.pairs.Count) * m.nodes
	*m = memory{
		session: m.session, directory: m.directory, forgets: m.forgets, held: map[rdma.Addr]*chunk{},
		looks: map[subtable]*rdma.Op{}, empty: make([]bool, m.nodes), turn: int(m.id),
		barren: make([]bool, m.nodes),
		stats:  m.stats,
		table: chunks.Client{
			Endpoint: m.ep, ID: m.id, Do: m.trips.Do, Drop: m.trips.Drop,
			Steps: chunks.Steps{Read: stepReadTable, Claim: stepClaimChunk, Free: stepFreeChunk},
		},
		quarantine: min(longestFlight/time.Duration(m.maxTag+1), mostQuarantine),
		keep:       min(max(all/128, 1), keepChunks), batch: min(max(all/64, 1), claimAtOnce),
	}
}

// take takes a block for an operation, which gives it back by used, unused or
// settle. The error wraps client.ErrFull. Nothing of an earlier operation is in
// flight.
func (m *memory) take() (block, error) {
	if m.forgets != nil && m.forgets() {
		m.forget()
	}
	// The common case takes no verb.
	if b, ok := m.pop(); ok {
		return b, nil
	}
	for r := m.pace; ; {
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
			m.ep.Sleep(max(m.aged[m.first].ready-m.ep.Now(), m.quarantine/mostNaps+1))
		}
		if r.Tries == mostRefills || !r.Again() {
			return block{}, fmt.Errorf("no block of %d bytes is free: %w", m.blockBytes, client.ErrFull)
		}
		m.ep.Sleep(m.quarantine)
		m.full = 0
	}
}

const (
	// mostNaps bounds the sleeps for one block: the clock may run slow.
	mostNaps = 4
	// mostRefills bounds how often a worker looks everywhere, a quarantine later
	// each time: other clients may have had for a moment what is free, while they
	// looked.
	mostRefills = 4
)

// forget empties the worker's lists, for tests of scans.
func (m *memory) forget() {
	m.fresh, m.aged, m.first, m.skips = nil, nil, 0, 0
	for _, c := range m.chunks {
		clear(c.blocks)
		if m.forgets() {
			clear(c.memos)
		}
		c.listed = 0
	}
}

// pop takes the first block for which the quarantine is over, or a fresh one.
func (m *memory) pop() (block, bool) {
	if m.first < len(m.aged) {
		b, now := m.aged[m.first], m.ep.Now()
		if b.ready <= now || b.ready > now+m.quarantine { // the latter if the clock was set back
			m.aged[m.first] = block{}
			if m.first++; m.first == len(m.aged) {
				m.aged, m.first = m.aged[:0], 0
			}
			return b.taken(), true
		}
	}
	if n := len(m.fresh) - 1; n >= 0 {
		b := m.fresh[n]
		m.fresh = m.fresh[:n]
		return b.taken(), true
	}
	return block{}, false
}

// taken notes that an operation has the block.
func (b block) taken() block {
	b.chunk.listed--
	b.chunk.blocks[b.i] = blockTaken
	return b
}

// push lists a block that no slot names, and that goes into quarantine now.
func (m *memory) push(b block) {
	if m.first > 64 && 2*m.first > len(m.aged) {
		m.aged, m.first = m.aged[:copy(m.aged, m.aged[m.first:])], 0
	}
	b.ready = m.ep.Now() + m.quarantine
	b.chunk.blocks[b.i] = blockListed
	b.chunk.listed++
	m.aged = append(m.aged, b)
}

// unused gives a block back that an operation had taken, and that no slot has
// named. Scans may have seen what was written there, so its next use gets another
// tag.
func (m *memory) unused(b block) {
	b.tag++
	m.push(b)
}

// used notes that a slot names a block that the operation had taken, or may name
// it, for the key of a hash. slot says which one, unless it is noSlot's.
func (m *memory) used(b block, hash uint64, slot race.Slot) {
	b.chunk.blocks[b.i] = blockUsed
	b.chunk.memos[b.i] = memo{hash, slot, b.tag, slot != noSlot.slot}
}

// replaced notes that no slot names the block of a word any more. If the chunk is
// another client's, that client finds the block by a scan, or this one does when
// the chunk was given back.
func (m *memory) replaced(w word) {
	n, index, i := m.chunkOf(m.block(w))
	at := m.pairs.Word(n, index)
	// The block is in a chunk of the worker's, so it knows without a scan.
	if c := m.held[at]; c != nil {
		if c.blocks[i] == blockUsed {
			m.push(block{chunk: c, i: i, number: m.block(w), tag: m.tag(w) + 1})
		}
		return
	}
	// The chunk is another client's, or none's: it is worth a look when the
	// worker needs blocks.
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

// refill looks for free blocks: in chunks of the worker's own, and if these have
// few, in others. When it has looked everywhere in vain, it only scans the
// worker's own chunks for as long as fullFor.
func (m *memory) refill() error {
	if m.lately(m.full) {
		_, err := m.scan(m.chunks)
		return err
	}
	// Scans of the own chunks find less and less while the pool is full of live
	// pairs, so they are skipped more and more often.
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
	// Chunks in which the worker has nothing are of more use to the clients that
	// replace what is there.
	if err := m.giveBack(m.keep); err != nil {
		return err
	}
	if err := m.claim(); err != nil || m.listed() > 0 {
		return err
	}
	if _, err := m.scan(m.chunks); err != nil || m.listed() > 0 {
		return err
	}
	m.full = max(m.ep.Now(), 1)
	return nil
}

// perChunk returns how many blocks a chunk has.
func (m *memory) perChunk() int { return int(m.pairs.Bytes / m.blockBytes) }

// lately reports whether the worker has looked everywhere not long ago.
func (m *memory) lately(t time.Duration) bool {
	now := m.ep.Now()
	return t != 0 && now >= t && now-t < fullFor
}

// listed returns how many blocks are in the worker's lists.
func (m *memory) listed() (n int) {
	for _, c := range m.chunks {
		n += c.listed
	}
	return n
}

// giveBack gives back the chunks in which the worker has nothing, except for
// some, so that other clients find in them what becomes free. It keeps a chunk in
// which an operation has taken a block.
func (m *memory) giveBack(keep int) error {
	kept, left := m.chunks[:0], m.left[:0]
	spare := len(m.chunks) - keep
	for _, c := range m.chunks {
		if spare <= 0 || c.listed > 0 || slices.Contains(c.blocks, blockTaken) {
			kept = append(kept, c)
			continue
		}
		spare--
		// The chunk is gone whatever becomes of the CAS: a CAS that fails may
		// land yet. No list names a block of it, and no operation has one.
		delete(m.held, m.pairs.Word(c.Node, c.Index))
		left = append(left, c.Chunk)
		m.idle = append(m.idle, c)
	}
	clear(m.chunks[len(kept):])
	m.chunks, m.left = kept, left[:0]
	return m.table.Free(&m.pairs, left)
}

// claim takes a chunk that was never used, or else some that clients have given
// back, or lost, in which a scan finds something: first of those in which the
// worker has replaced pairs.
func (m *memory) claim() error {
	if fresh, err := m.claimFresh(); err != nil || fresh {
		return err
	}
	found, err := m.claimHints()
	if err != nil || found > 0 {
		return err
	}
	// The nodes are asked from a random one on, so that clients do not all look
	// at the same chunks.
	from := m.ep.Rand().IntN(m.nodes)
	for k := range m.nodes {
		if found, err := m.claimOn((from + k) % m.nodes); err != nil || found > 0 {
			return err
		}
	}
	return nil
}

// claimFresh asks the nodes in turn for a chunk that was never used. All of its
// blocks are free, with tag 1.
func (m *memory) claimFresh() (bool, error) {
	for range m.nodes {
		m.turn++
		n := m.turn % m.nodes
		if m.empty[n] {
			continue
		}
		got, ok, err := m.table.Fresh(&m.pairs, n, classPairs, int(m.pairs.Count), m.behind(n), m.trips.Left())
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

// add notes that the worker has a chunk.
func (m *memory) add(got chunks.Chunk) *chunk {
	var c *chunk
	if n := len(m.idle) - 1; n >= 0 {
		c, m.idle = m.idle[n], m.idle[:n]
		clear(c.blocks)
		clear(c.memos)
	} else {
		c = &chunk{blocks: make([]blockState, m.perChunk()), memos: make([]memo, m.perChunk())}
	}
	c.Chunk = got
	m.chunks = append(m.chunks, c)
	m.held[m.pairs.Word(c.Node, c.Index)] = c
	m.stats.Claims++
	return c
}

// claimHints takes those of the chunks that the worker remembers which were given
// back. It forgets them all.
func (m *memory) claimHints() (found int, err error) {
	hints := m.hints
	m.hints = m.hints[:0]
	b := m.ep.Batch()
	defer m.trips.Drop(b)
	for _, at := range hints {
		b.Read(at, 8)
	}
	if err := m.trips.Do(stepReadTable, b); err != nil {
		return 0, fmt.Errorf("read the tables of chunks: %w", err)
	}
	some := m.some[:0]
	for i, at := range hints {
		if e := node.Entry(b.Op(i).Word(0)); e.Owner() == node.Left {
			some = append(some, chunks.Chunk{Node: at.Node(), Index: int((at.Offset() - m.pairs.Table) / 8), Entry: e})
		}
	}
	m.some = some
	return m.claimLeft(some)
}

// claimOn takes chunks of a node that were given back, until some have free
// blocks.
func (m *memory) claimOn(n int) (found int, err error) {
	err = m.table.Left(&m.pairs, n, m.batch, nil, func(some []chunks.Chunk) (bool, error) {
		found, err = m.claimLeft(some)
		return found > 0, err
	})
	return found, err
}

// claimLeft takes chunks that were given back, and keeps those in which a scan
// finds something.
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

// settle notes what became of a block after its operation has failed. If the
// outcome is unknown, a scan finds out.
func (m *memory) settle(b block, err error) {
	if errors.Is(err, client.ErrUncertain) {
		m.used(b, 0, noSlot.slot)
		return
	}
	m.unused(b)
}
