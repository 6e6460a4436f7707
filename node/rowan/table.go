package rowan

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/farkv/farkv/node/rdma"
)

// state is what a segment is in (section 4.2.1).
type state uint8

const (
	free      state = iota // nothing in it is needed; it may be taken
	using                  // it was taken, and entries may land
	used                   // nothing can land in it any more
	committed              // and all of its entries are on all replicas
	states
)

// Owner is what has a segment: the log that receives from others, or a log of a worker's own.
type Owner uint16

// Control is the owner of segments in which others' entries land. Those of own logs are the caller's to choose, above
// it.
const Control Owner = 0

// The state's word in the table has the state in its lowest byte, the owner in two bytes above it, and above that the
// number of the segment's use, from 1: its push. Segments are used in its order.
func stateWord(st state, owner Owner, push uint64) uint64 {
	return push<<24 | uint64(owner)<<8 | uint64(st)
}

// segment is one, as its owner knows it.
type segment struct {
	state  state
	owner  Owner
	push   uint64
	floors []uint64  // by key: what is not above it, in here, is of an earlier use
	digest bool      // it was digested by this receiver, in its last use
	ends   []Segment // in which entries end that have blocks in here
}

// Table is the segments of a node's memory, which its logs share: the one that receives from others, and those of its
// workers. It is safe for concurrent use by those that have segments, each for its own.
//
// A segment's push is a number that no other use of any segment of the node has. It is durable before anything is
// written there, and survives a crash.
type Table struct {
	o        Options
	p        rdma.RingPromises
	segments []segment // each is its owner's

	mu     sync.Mutex
	spare  []int // free ones, the one that is taken next first
	pushes uint64
}

// OpenTable reads a table, which is all zero before its first use. The logs of it have ended, or were fenced off:
// nothing of theirs may land any more. The worker runs beside the node.
func OpenTable(ep rdma.Endpoint, o Options) (*Table, error) {
	p, err := rdma.Rings(ep)
	if err != nil {
		return nil, err
	}
	return ReadTable(ep, o, p)
}

// ReadTable is OpenTable for a look at a table, by a worker of a fabric that promises p of rings: the worker need not
// have any, nor run beside the node.
func ReadTable(ep rdma.Endpoint, o Options, p rdma.RingPromises) (*Table, error) {
	o = o.withDefaults()
	if err := o.check(p); err != nil {
		return nil, err
	}
	t := &Table{o: o, p: p, segments: make([]segment, o.Segments)}
	bytes := make([]byte, uint64(o.Segments)*o.record())
	if err := read(ep, bytes, o.recordAt(0)); err != nil {
		return nil, err
	}
	for i := range t.segments {
		record := bytes[uint64(i)*o.record():]
		word := binary.LittleEndian.Uint64(record)
		s := segment{state: state(word), owner: Owner(word >> 8), push: word >> 24, floors: make([]uint64, o.keys())}
		if s.state >= states || s.state != free && s.push == 0 {
			return nil, fmt.Errorf("segment %d of the table at %s has state %#x: %w", i, o.recordAt(0), word, ErrDamaged)
		}
		for k := range s.floors {
			s.floors[k] = binary.LittleEndian.Uint64(record[8+8*k:])
		}
		t.pushes = max(t.pushes, s.push)
		t.segments[i] = s
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

// Held returns the segments that are not free: all in which there is an entry, or may come to be one.
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

// persist posts WRITEs to the node with a READ behind them, which sees them into its memory, and waits.
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

// Left returns the segments of own logs that are not free, in the order of their pushes: behind OpenTable what earlier
// workers left. They are the caller's, which scans them.
func (t *Table) Left() (all []Segment) {
	for _, i := range t.inPushOrder(func(s *segment) bool { return s.state != free && s.owner != Control }) {
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

// Commit notes durably that nothing lands in segments any more, and all of their entries are on all replicas.
func (t *Table) Commit(ep rdma.Endpoint, list []Segment) error {
	var all []int
	for _, s := range list {
		if t.own(s, "commit").state != committed {
			all = append(all, s.Index)
		}
	}
	return t.setStates(ep, "mark committed", all, committed)
}

// Release frees segments of own logs: none of their entries is needed, in other words all that are were copied, durably,
// and nothing reads them any more. Those of Control are given back by Receiver.Free.
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
func (t *Table) At(a rdma.Addr) int { return t.o.indexOf(a) }

// Begin returns the address of a segment.
func (t *Table) Begin(s Segment) rdma.Addr { return t.o.segmentAt(s.Index) }

// End returns the address behind the segment in which an address is.
func (t *Table) End(a rdma.Addr) rdma.Addr { return t.o.segmentAt(t.o.indexOf(a) + 1) }

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
