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

// state is what a segment is in (section 4.2.1).
type state uint8

const (
	free      state = iota // nothing in it is needed; it may be taken
	using                  // it was taken, and entries may land
	used                   // nothing can land in it any more
	committed              // and all of its entries are on all replicas
)

// Owner is what has a segment: the log that receives from others, or a log of a worker's own.
type Owner uint16

// Control is the owner of segments in which others' entries land. Those of own logs are the
// caller's to choose, above it.
const Control Owner = 0

// The state's word in the table has the state in its lowest two bits, the owner in 16 bits above
// it, then the number of the segment's use, from 1: its push, 32 bits. Segments are used in its
// order. The rest is a checksum, of which one bit is the parity, so that any one bit may flip: by a
// word that was damaged a segment would be taken for a free one, or its entries for those of
// another use. A word of zero is that of a segment that was never used.
const (
	ownerShift = 2
	pushShift  = 18
	sealShift  = 50
	maxPush    = 1<<(sealShift-pushShift) - 1
)

func stateWord(st state, owner Owner, push uint64) uint64 {
	word := push<<pushShift | uint64(owner)<<ownerShift | uint64(st)
	return word | sumOf(word)<<(sealShift+1) | uint64(bits.OnesCount64(word)&1)<<sealShift
}

// parseState returns what a state's word says; false: it is none.
func parseState(word uint64) (st state, owner Owner, push uint64, ok bool) {
	st, owner, push = state(word&(1<<ownerShift-1)), Owner(word>>ownerShift), word>>pushShift&maxPush
	return st, owner, push, word == 0 || push > 0 && word == stateWord(st, owner, push)
}

func sumOf(word uint64) uint64 {
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], word)
	return xxhash.Sum64(p[:])
}

// A segment's floors are behind its state, and a checksum of them behind these; zero until they are
// written first.

// putFloors writes floors and their checksum to p.
func putFloors(p []byte, floor func(key int) uint64, keys int) {
	for k := range keys {
		binary.LittleEndian.PutUint64(p[8*k:], floor(k))
	}
	binary.LittleEndian.PutUint64(p[8*keys:], xxhash.Sum64(p[:8*keys]))
}

// parseFloors reads floors, and reports whether all of them are as they were written.
func parseFloors(p []byte, floors []uint64) (ok bool) {
	all := uint64(0)
	for k := range floors {
		floors[k] = binary.LittleEndian.Uint64(p[8*k:])
		all |= floors[k]
	}
	sum := binary.LittleEndian.Uint64(p[8*len(floors):])
	return all|sum == 0 || sum == xxhash.Sum64(p[:8*len(floors)])
}

// segment is one, as its owner knows it.
type segment struct {
	state  state
	owner  Owner
	push   uint64
	floors []uint64  // by key: what is not above it, in here, is of an earlier use
	hidden bool      // none of what is in here is needed, or it is not known what is of an earlier use
	digest bool      // it was digested by this receiver, in its last use
	ends   []Segment // in which entries end that have blocks in here
}

// Table is the segments of a node's memory, which its logs share: the one that receives from
// others, and those of its workers. It is safe for concurrent use by those that have segments, each
// for its own.
//
// A segment's push is a number that no other use of any segment of the node has. It is durable
// before anything is written there, and survives a crash.
type Table struct {
	o        Options
	p        rdma.RingPromises
	first    rdma.Addr // of the segments
	received layout    // of entries in the receiver's
	segments []segment // each is its owner's

	mu     sync.Mutex
	spare  []int // free ones, the one that is taken next first
	pushes uint64
}

// OpenTable reads a table, which is all zero before its first use. The logs of it have ended, or
// were fenced off: nothing of theirs may land any more. The worker runs beside the node.
func OpenTable(ep rdma.Endpoint, o Options) (*Table, error) {
	p, err := rdma.Rings(ep)
	if err != nil {
		return nil, err
	}
	return ReadTable(ep, o, p)
}

// ReadTable is OpenTable for a look at a table, by a worker of a fabric that promises p of rings:
// the worker need not have any, nor run beside the node.
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
			return nil, fmt.Errorf("segment %d of the table at %s has state %#x: %w", i, o.recordAt(0), word, ErrDamaged)
		}
		if !parseFloors(record[8:], s.floors) {
			// The receiver writes them when nothing is needed any more, before the segment is free: a crash
			// may tear them.
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
	t.spare = t.inPushOrder(func(s *segment) bool { return s.state == free })
	return t, nil
}

// inPushOrder returns segments of which something holds, in the order of their pushes.
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

// Free returns how many segments are free.
func (t *Table) Free() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.spare)
}

// Pushes returns how many segments were taken so far: the push of the last.
func (t *Table) Pushes() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pushes
}

// Freed returns how many segments were freed so far, more or less: it rises by one with each.
func (t *Table) Freed() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pushes - uint64(len(t.segments)-len(t.spare))
}

// Held returns the segments that are not free: all in which there is an entry, or may come to be
// one.
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

// take takes up to n free segments for an owner, as long as some are kept free.
func (t *Table) take(owner Owner, n, keep int) []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n = min(n, len(t.spare)-keep)
	if n <= 0 {
		return nil
	}
	list := slices.Clone(t.spare[:n])
	t.spare = append(t.spare[:0], t.spare[n:]...)
	if t.pushes+uint64(n) > maxPush { // segments of 4 MiB were used for 16 EiB
		panic(fmt.Sprintf("rowan: node %d has no number for another use of a segment", t.o.Node))
	}
	for _, i := range list {
		t.pushes++
		t.segments[i].owner, t.segments[i].push, t.segments[i].digest = owner, t.pushes, false
	}
	return list
}

// give gives segments back that are free.
func (t *Table) give(list []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spare = append(t.spare, list...)
}

// setStates makes the states of segments durable.
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

// persist posts WRITEs to the node with a READ behind them, which sees them into its memory, and
// waits.
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

// Left returns the segments of own logs that are not free, in the order of their pushes: behind
// OpenTable what earlier workers left. They are the caller's, which scans them.
func (t *Table) Left() (all []Segment) {
	for _, i := range t.inPushOrder(func(s *segment) bool { return s.state != free && !s.owner.Received() }) {
		all = append(all, Segment{i, t.segments[i].push})
	}
	return all
}

// IsCommitted reports whether a segment that the caller has is committed.
func (t *Table) IsCommitted(s Segment) bool { return t.own(s, "look at").state == committed }

// Owner returns the owner of a segment that the caller has.
func (t *Table) Owner(s Segment) Owner { return t.own(s, "ask for the owner of").owner }

// own returns a segment of the caller's, which is not free.
func (t *Table) own(s Segment, do string) *segment {
	seg := &t.segments[s.Index]
	if seg.push != s.Push || seg.state == free {
		panic(fmt.Sprintf("rowan: %s segment %+v, which has push %d and state %d", do, s, seg.push, seg.state))
	}
	return seg
}

// Commit notes durably that nothing lands in segments any more, and all of their entries are on all
// replicas.
func (t *Table) Commit(ep rdma.Endpoint, list []Segment) error {
	var all []int
	for _, s := range list {
		if t.own(s, "commit").state != committed {
			all = append(all, s.Index)
		}
	}
	return t.setStates(ep, "mark committed", all, committed)
}

// Release frees segments of own logs: none of their entries is needed, in other words all that are
// were copied, durably, and nothing reads them any more. Those of Control are given back by
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

// SegmentBytes returns how long a segment is.
func (t *Table) SegmentBytes() int { return t.o.SegmentBytes }

// At returns the index of the segment in which an address is.
func (t *Table) At(a rdma.Addr) int {
	return int((a.Offset() - t.first.Offset()) / uint64(t.o.SegmentBytes))
}

// Begin returns the address of a segment.
func (t *Table) Begin(s Segment) rdma.Addr { return t.o.segmentAt(s.Index) }

// End returns the address behind the segment in which an address is.
func (t *Table) End(a rdma.Addr) rdma.Addr {
	return t.first.Add(uint64(t.At(a)+1) * uint64(t.o.SegmentBytes))
}

// A READ of more would take the node's port for long, and a batch of more too much memory.
const (
	readBytes = 64 << 10
	readOps   = 16
)

// read fills p from a on.
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
