package rowan

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// state is what a segment is in (section 4.2.1).
type state uint8

const (
	free  state = iota // nothing in it is needed; it may be pushed
	using              // it was pushed, and entries may land
	used               // nothing can land in it any more
	states
)

// The state's word in the table has the state in its lowest byte, and above it the number of the push, from 1: segments
// are used in its order.
func stateWord(st state, push uint64) uint64 { return push<<8 | uint64(st) }

// segment is one, as the receiver knows it.
type segment struct {
	state  state
	push   uint64
	floors []uint64  // by key: what is not above it, in here, is of an earlier use
	digest bool      // it was digested by this receiver, in its last use
	ends   []Segment // in which entries end that have blocks in here
}

// readTable reads what the table says.
func (r *Receiver) readTable() error {
	p := make([]byte, uint64(r.o.Segments)*r.o.record())
	if err := r.read(p, r.o.recordAt(0)); err != nil {
		return err
	}
	r.segments = make([]segment, r.o.Segments)
	for i := range r.segments {
		record := p[uint64(i)*r.o.record():]
		word := binary.LittleEndian.Uint64(record)
		s := segment{state: state(word), push: word >> 8, floors: make([]uint64, r.o.keys())}
		if s.state >= states || s.state != free && s.push == 0 {
			return fmt.Errorf("segment %d of the log at %s has state %#x: %w", i, r.o.recordAt(0), word, ErrDamaged)
		}
		for k := range s.floors {
			s.floors[k] = binary.LittleEndian.Uint64(record[8+8*k:])
			r.floors[k] = max(r.floors[k], s.floors[k])
		}
		r.pushes = max(r.pushes, s.push)
		r.segments[i] = s
	}
	return nil
}

// inPushOrder returns the segments of a state, in the order in which they were pushed.
func (r *Receiver) inPushOrder(has func(state) bool) (all []int) {
	for i := range r.segments {
		if has(r.segments[i].state) {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b int) int {
		if r.segments[a].push < r.segments[b].push {
			return -1
		}
		return 1
	})
	return all
}

// setStates makes the states of segments durable.
func (r *Receiver) setStates(step rdma.Step, list []int, st state) error {
	b := r.ep.Batch()
	defer b.Release()
	for _, i := range list {
		r.segments[i].state = st
		b.WriteWord(r.o.recordAt(i), stateWord(st, r.segments[i].push))
	}
	return r.persist(b, step)
}

// persist posts WRITEs to the node with a READ behind them, which sees them into its memory, and waits.
func (r *Receiver) persist(b *rdma.Batch, step rdma.Step) error {
	if b.Len() == 0 {
		return nil
	}
	b.Read(r.o.recordAt(0), 8)
	if err := rdma.Do(r.ep, b.As(step), patience); err != nil {
		return fmt.Errorf("%s of %s: %w", step, r.addr, err)
	}
	return nil
}

// A READ of more would take the node's port for long, and a batch of more too much memory.
const (
	readBytes = 64 << 10
	readOps   = 16
)

// read fills p from a on.
func (r *Receiver) read(p []byte, a rdma.Addr) error {
	for len(p) > 0 {
		b := r.ep.Batch()
		for range readOps {
			n := min(len(p)-b.Len()*readBytes, readBytes)
			if n <= 0 {
				break
			}
			b.Read(a.Add(uint64(b.Len()*readBytes)), n)
		}
		err := rdma.Do(r.ep, b.As("read segment"), patience)
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
