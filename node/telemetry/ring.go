package telemetry

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
)

// A slot of the ring of events:
//
//	sequence  8 bytes  of the event on this node, from 1: its place is that modulo the slots
//	id        8 bytes  a hash of the event: the same on each node and in each attempt
//	length    8 bytes
//	checksum  8 bytes  over all of the above, and the content
//	content            of the given length: see appendEvent
//
// A writer takes a sequence by FAA on the ring's head, and then writes the slot. One that ends in
// between leaves a slot with an event of a turn before; one that is slower than all others for a
// whole turn may overwrite a newer event. Neither is taken for anything but what it is.
const (
	slotHead = 32
	slotSum  = 24
	slotMost = slotBytes - slotHead
)

// The steps of writing events.
const (
	StepTake   rdma.Step = "take event slots"
	StepAppend rdma.Step = "append events"
)

// MostEvents bounds what Append takes at a time.
const MostEvents = 32

// Append writes events, MostEvents at most, to the first two nodes of the view v that take them.
// The endpoint must have joined v. It waits for nodes for the given time, a few times at most. The
// error wraps ErrNowhere, and then the events may be appended again.
func (r *Region) Append(ep rdma.Endpoint, v *rdma.View, events []Event, within time.Duration) error {
	events = events[:min(len(events), MostEvents)]
	ids := make([]uint64, len(events))
	for i := range ids {
		ids[i] = max(xxhash.Sum64(appendEvent(nil, &events[i])), 1)
	}
	serving, copies := r.serving(v), 0
	why := error(ErrNowhere)
	for until := ep.Now() + within; len(serving) > 0 && copies < Copies && len(events) > 0 && ep.Now() <= until; {
		n := min(len(serving), Copies-copies)
		done, err := r.appendOn(ep, serving[:n], events, ids, within)
		serving, copies = serving[n:], copies+done
		if err != nil {
			why = errors.Join(ErrNowhere, err)
		}
	}
	if copies == 0 && len(events) > 0 {
		return fmt.Errorf("append events: %w", why)
	}
	return nil
}

// appendOn appends to nodes, and returns how many of them have all events, and why others have not.
func (r *Region) appendOn(ep rdma.Endpoint, nodes []int, events []Event, ids []uint64,
	within time.Duration) (done int, err error) {
	first := map[int]uint64{}
	var took []int
	onEach(ep, within, StepTake, nodes, func(b *rdma.Batch, n int) { b.FetchAdd(r.ringHead(n), uint64(len(events))) },
		func(b *rdma.Batch, n int) {
			first[n] = b.Op(0).Result + 1
			took = append(took, n)
		}, func(_ int, wrong error) { err = wrong })
	onEach(ep, within, StepAppend, took, func(b *rdma.Batch, n int) {
		for i := range events {
			seq := first[n] + uint64(i)
			b.WriteCopy(r.slot(n, int(seq%slots)), appendSlot(nil, seq, ids[i], &events[i]))
		}
	}, func(*rdma.Batch, int) { done++ }, func(_ int, wrong error) { err = wrong })
	return done, err
}

func appendSlot(dst []byte, seq, id uint64, e *Event) []byte {
	from := len(dst)
	dst = appendEvent(append(dst, make([]byte, slotHead)...), e)
	s := dst[from:]
	le := binary.LittleEndian
	le.PutUint64(s, seq)
	le.PutUint64(s[8:], id)
	le.PutUint64(s[16:], uint64(len(s)-slotHead))
	le.PutUint64(s[slotSum:], checksum(s, slotSum, slotHead))
	return dst
}

// parseSlot reads slot i; false: it is empty, or not whole.
func parseSlot(p []byte, i int) (seq, id uint64, e Event, ok bool) {
	le := binary.LittleEndian
	n := le.Uint64(p[16:])
	if n > slotMost {
		return 0, 0, Event{}, false
	}
	p = p[:slotHead+n]
	seq, id = le.Uint64(p), le.Uint64(p[8:])
	if seq == 0 || seq%slots != uint64(i) || le.Uint64(p[slotSum:]) != checksum(p, slotSum, slotHead) {
		return 0, 0, Event{}, false
	}
	e, err := decodeEvent(p[slotHead:])
	return seq, id, e, err == nil
}

// ring is what a reader knows of a node's ring.
type ring struct {
	head uint64
	open bool            // slots that were taken are not written yet
	ids  map[uint64]bool // of the events that were there
}

// Events returns the events that are kept and that the reader has not returned yet, oldest first,
// each once: at a first look all that are kept, some 256 a node. Where no node answers the error is
// why.
func (d *Reader) Events(ep rdma.Endpoint) ([]Event, error) {
	v, err := ep.Join()
	if err != nil {
		return nil, fmt.Errorf("look at events: %w", err)
	}
	answered := 0
	var changed []int
	heads := map[int]uint64{}
	onEach(ep, attend, StepLook, d.r.serving(&v), func(b *rdma.Batch, n int) { b.Read(d.r.ringHead(n), 8) },
		func(b *rdma.Batch, n int) {
			answered++
			heads[n] = binary.LittleEndian.Uint64(b.Op(0).Buf)
			if is := d.rings[n]; is == nil || is.open || is.head != heads[n] {
				changed = append(changed, n)
			}
		}, func(_ int, wrong error) { err = wrong })
	if answered == 0 {
		return nil, fmt.Errorf("look at events: %w", cmp.Or(err, ErrNowhere))
	}
	kept := map[uint64]Event{}
	rings := map[int]*ring{}
	onEach(ep, attend, StepLook, changed, func(b *rdma.Batch, n int) { b.Read(d.r.slot(n, 0), slots*slotBytes) },
		func(b *rdma.Batch, n int) { rings[n] = readRing(b.Op(0).Buf, heads[n], kept) }, nil)
	return d.fresh(rings, kept), nil
}

// readRing reads the slots of a ring, and adds its events to kept.
func readRing(p []byte, head uint64, kept map[uint64]Event) *ring {
	is := &ring{head: head, ids: map[uint64]bool{}}
	whole := uint64(0)
	for i := range slots {
		seq, id, e, ok := parseSlot(p[i*slotBytes:][:slotBytes], i)
		if !ok {
			continue
		}
		if seq+slots > head && seq <= head {
			whole++
		}
		is.ids[id], kept[id] = true, e
	}
	is.open = whole < min(head, slots)
	return is
}

// fresh returns those of kept that were in no ring before, and keeps the rings.
func (d *Reader) fresh(rings map[int]*ring, kept map[uint64]Event) (all []Event) {
	type event struct {
		id uint64
		Event
	}
	var found []event
	for id, e := range kept {
		known := false
		for _, was := range d.rings {
			known = known || was.ids[id]
		}
		if !known {
			found = append(found, event{id, e})
		}
	}
	slices.SortFunc(found, func(a, b event) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.id, b.id)) })
	maps.Copy(d.rings, rings)
	for _, e := range found {
		all = append(all, e.Event)
	}
	return all
}
