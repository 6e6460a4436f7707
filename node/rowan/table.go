package rowan

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
)

// state is the state of a segment (section 4.2.1). A segment goes free, using, used, committed, and
// free again; a used one may become free directly.
type state uint8

const (
	free      state = iota // nothing in it is needed; it may be taken
	using                  // it was taken, and entries may land there
	used                   // nothing can land there any more
	committed              // used, and all of its entries are on all replicas
)

// Owner is the log that a segment belongs to: the log that receives from other servers, or one of a
// worker.
type Owner uint16

// Control owns the segments in which entries of other servers land by a ring. The caller chooses
// the owners of own logs, above 0 and below firstRemote.
const Control Owner = 0

// The state word of a segment has the state in its lowest two bits, the owner in the 16 bits above,
// and then the push in 32 bits: the number of the use, from 1. Pushes are taken in ascending order.
// The rest is a checksum and a parity bit, so that a flip of any one bit is found. Otherwise a
// damaged word could make a segment look free, or make its entries look stale. Zero is the state of
// a segment that was never used.
const (
	ownerShift = 2
	pushShift  = 18
	sealShift  = 50
	maxPush    = 1<<(sealShift-pushShift) - 1
)

// stateWord encodes a state, with its checksum.
func stateWord(st state, owner Owner, push uint64) uint64 {
	word := push<<pushShift | uint64(owner)<<ownerShift | uint64(st)
	return word | sumOf(word)<<(sealShift+1) | uint64(bits.OnesCount64(word)&1)<<sealShift
}

// parseState decodes a state word. It reports false for a word that stateWord does not return.
func parseState(word uint64) (st state, owner Owner, push uint64, ok bool) {
	st, owner, push = state(word&(1<<ownerShift-1)), Owner(word>>ownerShift), word>>pushShift&maxPush
	return st, owner, push, word == 0 || push > 0 && word == stateWord(st, owner, push)
}

// sumOf returns the checksum of a state word without its checksum.
func sumOf(word uint64) uint64 {
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], word)
	return xxhash.Sum64(p[:])
}

// A segment's floors follow its state word, and a checksum of all floors follows them. All are zero
// until the receiver first writes them.

// putFloors writes floors and their checksum to p.
func putFloors(p []byte, floor func(key int) uint64, keys int) {
	for k := range keys {
		binary.LittleEndian.PutUint64(p[8*k:], floor(k))
	}
	binary.LittleEndian.PutUint64(p[8*keys:], xxhash.Sum64(p[:8*keys]))
}

// parseFloors decodes floors, and reports whether they are intact: never written, or as putFloors
// wrote them.
func parseFloors(p []byte, floors []uint64) (ok bool) {
	all := uint64(0)
	for k := range floors {
		floors[k] = binary.LittleEndian.Uint64(p[8*k:])
		all |= floors[k]
	}
	sum := binary.LittleEndian.Uint64(p[8*len(floors):])
	return all|sum == 0 || sum == xxhash.Sum64(p[:8*len(floors)])
}

// segment is the state of one segment. Its owner may read and change it without the table's lock;
// Peek reads floors and hidden under the lock.
type segment struct {
	state state
	owner Owner
	// Number of the last use; 0: it was never used.
	push uint64
	// By key. Blocks with a stamp up to it are of an earlier use of the segment.
	floors []uint64
	// None of its entries counts: the receiver was about to free it when the floors were torn by a
	// crash.
	hidden bool
	// It was digested in its current use.
	digest bool
}

// Table is the segments of a node's memory. The log that receives from other servers and the logs
// of the node's workers share it. It is safe for concurrent use, if each user changes only the
// segments that it owns.
//
// A push is the number of one use of one segment, and no other use of any segment of the node has
// it. It is durable before anything is written to the segment in that use, so a crash never leads
// to a push being given twice.
type Table struct {
	o Options
	p rdma.RingPromises
	// Address of the first segment.
	first rdma.Addr
	// Layout of the entries in segments of Control.
	received layout
	// By index.
	segments []segment

	// mu guards spare, pushes, and for Peek the floors. It is held over no wait.
	mu sync.Mutex
	// Free segments, in the order in which they are taken.
	spare []int
	// The last push that was given.
	pushes uint64
}

// OpenTable reads a table; its memory is all zero before the first use. All earlier users of it
// have ended or were fenced off, and nothing of theirs may land any more. The worker runs beside
// the node. The error wraps ErrDamaged if a record is damaged.
func OpenTable(ep rdma.Endpoint, o Options) (*Table, error) {
	p, err := rdma.Rings(ep)
	if err != nil {
		return nil, err
	}
	return ReadTable(ep, o, p)
}

// ReadTable is OpenTable for inspection, on a fabric that promises p of rings. The worker may run
// anywhere and needs no rings. While the table is in use the result is a snapshot that may be
// inconsistent.
func ReadTable(ep rdma.Endpoint, o Options, p rdma.RingPromises) (*Table, error) {
	o = o.withDefaults()
	if err := o.check(p); err != nil {
		return nil, err
	}
	t := &Table{
		o: o, p: p, first: o.segmentAt(0), received: newLayout(p, o.Secret, rdma.RingAt(o.Node, o.Ring)),
		segments: make([]segment, o.Segments),
	}
	bytes := make([]byte, uint64(o.Segments)*o.record())
	if err := read(ep, bytes, o.recordAt(0)); err != nil {
		return nil, err
	}
	for i := range t.segments {
		record := bytes[uint64(i)*o.record():]
		word := binary.LittleEndian.Uint64(record)
		s := segment{floors: make([]uint64, o.keys())}
		var ok bool
		if s.state, s.owner, s.push, ok = parseState(word); !ok {
			return nil, fmt.Errorf("segment %d of the table at %s has state %#x: %w", i, o.recordAt(0), word,
				ErrDamaged)
		}
		if !parseFloors(record[8:], s.floors) {
			// The receiver writes floors only when it needs nothing in the segment any more, before
			// it marks the segment as free. So a crash may tear them in a used segment of Control,
			// and nowhere else.
			if s.state == free || s.state == using || s.owner != Control {
				return nil, fmt.Errorf("floors of segment %d of the table at %s: %w", i, o.recordAt(0), ErrDamaged)
			}
			s.hidden = true
			clear(s.floors)
		}
		t.pushes = max(t.pushes, s.push)
		t.segments[i] = s
	}
	if err := t.verify(); err != nil {
		return nil, err
	}
	// The segment that was used longest ago is taken first.
	t.spare = t.inPushOrder(func(s *segment) bool { return s.state == free })
	return t, nil
}

// inPushOrder returns the segments for which holds is true, in the order of their pushes.
func (t *Table) inPushOrder(holds func(*segment) bool) (all []int) {
	for i := range t.segments {
		if holds(&t.segments[i]) {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b int) int {
		if t.segments[a].push < t.segments[b].push {
			return -1
		}
		return 1
	})
	return all
}

// Free returns the number of free segments.
func (t *Table) Free() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.spare)
}

// Pushes returns the last push that was taken: the number of uses of segments so far.
func (t *Table) Pushes() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pushes
}

// Freed returns a count that rises by one for each segment that is freed. Its absolute value means
// nothing.
func (t *Table) Freed() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pushes - uint64(len(t.segments)-len(t.spare))
}

// Held returns the segments that are not free: all in which an entry is, or may land.
func (t *Table) Held() (all []Segment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	spare := make([]bool, len(t.segments))
	for _, i := range t.spare {
		spare[i] = true
	}
	for i := range t.segments {
		if !spare[i] {
			all = append(all, Segment{i, t.segments[i].push})
		}
	}
	return all
}

// take takes up to n free segments for an owner, and leaves keep segments free. Only memory
// changes: the caller makes the state durable (setStates) before it writes to them. A crash before
// that leaves them free, and their pushes may be given again: nothing was written under them.
func (t *Table) take(owner Owner, n, keep int) []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n = min(n, len(t.spare)-keep)
	if n <= 0 {
		return nil
	}
	list := slices.Clone(t.spare[:n])
	t.spare = append(t.spare[:0], t.spare[n:]...)
	if t.pushes+uint64(n) > maxPush { // after 16 EiB of segments of 4 MiB
		panic(fmt.Sprintf("rowan: node %d has no number for another use of a segment", t.o.Node))
	}
	for _, i := range list {
		t.pushes++
		t.segments[i].owner, t.segments[i].push, t.segments[i].digest = owner, t.pushes, false
	}
	return list
}

// give adds segments to the free ones. Their state is durable, and nothing reads them.
func (t *Table) give(list []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spare = append(t.spare, list...)
}

// setStates changes the states of segments, in memory and durably. The caller owns them.
func (t *Table) setStates(ep rdma.Endpoint, step rdma.Step, list []int, st state) error {
	b := ep.Batch()
	defer b.Release()
	for _, i := range list {
		s := &t.segments[i]
		s.state = st
		b.WriteWord(t.o.recordAt(i), stateWord(st, s.owner, s.push))
	}
	return t.persist(ep, b, step)
}

// persist posts the WRITEs in a batch, with a READ behind them that makes them durable, and waits.
// The caller owns the batch. An empty batch takes no trip.
func (t *Table) persist(ep rdma.Endpoint, b *rdma.Batch, step rdma.Step) error {
	if b.Len() == 0 {
		return nil
	}
	b.Read(t.o.recordAt(0), 8)
	if err := rdma.Do(ep, b.As(step), patience); err != nil {
		return fmt.Errorf("%s of node %d: %w", step, t.o.Node, err)
	}
	return nil
}

// Left returns the segments of own logs that are not free, in the order of their pushes. After
// OpenTable these are what earlier workers left. The caller owns them, and scans them.
func (t *Table) Left() (all []Segment) {
	for _, i := range t.inPushOrder(func(s *segment) bool { return s.state != free && !s.owner.Received() }) {
		all = append(all, Segment{i, t.segments[i].push})
	}
	return all
}

// IsCommitted reports whether a segment that the caller owns is committed.
func (t *Table) IsCommitted(s Segment) bool { return t.own(s, "look at").state == committed }

// Owner returns the owner of a segment that the caller owns.
func (t *Table) Owner(s Segment) Owner { return t.own(s, "ask for the owner of").owner }

// own returns a segment that the caller owns. It panics if the segment is free or in another use:
// the caller has lost it.
func (t *Table) own(s Segment, do string) *segment {
	seg := &t.segments[s.Index]
	if seg.push != s.Push || seg.state == free {
		panic(fmt.Sprintf("rowan: %s segment %+v, which has push %d and state %d", do, s, seg.push, seg.state))
	}
	return seg
}

// Commit marks segments durably as committed: nothing lands there any more, and all of their
// entries are on all replicas.
func (t *Table) Commit(ep rdma.Endpoint, list []Segment) error {
	var all []int
	for _, s := range list {
		if t.own(s, "commit").state != committed {
			all = append(all, s.Index)
		}
	}
	return t.setStates(ep, "mark committed", all, committed)
}

// Release frees segments of own logs. The caller needs none of their entries: those that are live
// were copied, durably, and nothing reads the segments any more. Segments of Control are freed by
// Receiver.Free.
func (t *Table) Release(ep rdma.Endpoint, list []Segment) error {
	var all []int
	for _, s := range list {
		if t.own(s, "release").owner == Control {
			panic(fmt.Sprintf("rowan: release segment %+v, which is the receiver's", s))
		}
		all = append(all, s.Index)
	}
	if err := t.setStates(ep, "mark free", all, free); err != nil {
		return err
	}
	t.give(all)
	return nil
}

// SegmentBytes returns the length of a segment.
func (t *Table) SegmentBytes() int { return t.o.SegmentBytes }

// At returns the index of the segment that contains an address.
func (t *Table) At(a rdma.Addr) int {
	return int((a.Offset() - t.first.Offset()) / uint64(t.o.SegmentBytes))
}

// Begin returns the first address of a segment.
func (t *Table) Begin(s Segment) rdma.Addr { return t.o.segmentAt(s.Index) }

// End returns the address behind the segment that contains a.
func (t *Table) End(a rdma.Addr) rdma.Addr {
	return t.first.Add(uint64(t.At(a)+1) * uint64(t.o.SegmentBytes))
}

// Bounds of the READs of a segment: a longer READ would occupy the node's port for long, and a
// larger batch too much memory.
const (
	readBytes = 64 << 10
	readOps   = 16
)

// read fills p with the memory at a. The caller owns p.
func read(ep rdma.Endpoint, p []byte, a rdma.Addr) error {
	for len(p) > 0 {
		b := ep.Batch()
		for range readOps {
			n := min(len(p)-b.Len()*readBytes, readBytes)
			if n <= 0 {
				break
			}
			b.Read(a.Add(uint64(b.Len()*readBytes)), n)
		}
		err := rdma.Do(ep, b.As("read segment"), patience)
		for i := range b.Len() {
			n := copy(p, b.Op(i).Buf)
			p, a = p[n:], a.Add(uint64(n))
		}
		b.Release()
		if err != nil {
			return fmt.Errorf("read the log at %s: %w", a, err)
		}
	}
	return nil
}
