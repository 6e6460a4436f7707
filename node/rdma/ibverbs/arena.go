package ibverbs

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"
)

// A device touches registered memory only. A worker has two kinds:
//
//  - Blocks, which the memory of its batches is cut from. A batch is used again and again, so that
//    a few blocks last for the life of the worker, and what is in them is posted where it is.
//  - Stages, for all other bytes: long ones, which do not fit a batch's memory, and those that a
//    message gathers. They are copied into a stage before a WRITE or SEND is posted, and out of it
//    when a READ is taken.

// arena is a worker's registered memory. It is of the Go heap, which does not move: what was given
// out stays readable when the registration is gone. It belongs to one worker. Nothing in it is
// reachable by other processes: they are given no key.
type arena struct {
	a      adapter // nil once it is closed
	blocks []block
	// rest is lost when a new block begins: no later batch's memory is cut from it.
	rest []byte // of the last block, what is free
	// stages are the spare ones of each class, from smallStage. The last that was given back is
	// used first: it is the likeliest to be in the processor's caches.
	stages [bigStage - smallStage + 1][]stage
}

// block is registered memory that batches' memory is taken from, and never comes back to.
type block struct {
	p   []byte
	mem memory
}

// blockBytes is the size of a block: about thirty batches, of which a worker has a few.
const blockBytes = 256 << 10

// stage is registered memory for bytes that are not.
type stage struct {
	p   []byte
	mem memory
	// class is the logarithm of the size, from smallStage to bigStage.
	class int
}

const (
	// Less than a page would pin a whole one, too.
	smallStage = 12 // 2^12 bytes is the least that is registered
	bigStage   = 20 // 2^20 bytes is the most that one work request moves
	mostPart   = 1 << bigStage
)

// grow returns n bytes of registered memory, or others where the device takes no more: those are
// staged. Base.Batch calls it, once for each batch that the worker has at a time. Registering takes
// long, and may fail when the process has locked as much memory as it may: then each op of the
// batch is staged for itself, and it is that which fails if there is no memory for a stage, either.
func (m *arena) grow(n int) []byte {
	if m.a == nil {
		return make([]byte, n) // nothing of it will be posted
	}
	if n > len(m.rest) {
		p := make([]byte, max(blockBytes, n))
		mem, err := m.a.register(unsafe.Pointer(unsafe.SliceData(p)), uint64(len(p)), false)
		if err != nil {
			return p[:n:n]
		}
		m.blocks = append(m.blocks, block{p, mem})
		m.rest = p
	}
	p := m.rest[:n:n]
	m.rest = m.rest[n:]
	return p
}

// find returns the key of registered memory that p lies in. It is asked for each request that moves
// bytes which are not staged. A worker has one or two blocks, which it compares in turn.
func (m *arena) find(p []byte) (key uint32, ok bool) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	for i := range m.blocks {
		b := m.blocks[i].p
		from := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
		if at >= from && at+uintptr(len(p)) <= from+uintptr(len(b)) {
			key, _ := m.blocks[i].mem.keys()
			return key, true
		}
	}
	return 0, false
}

// stage returns registered memory of n bytes at least, n being mostPart at most. n is 1 at least:
// there is nothing to stage of a verb without bytes. The stage is the caller's until it gives it
// back. The error wraps rdma.ErrFull.
func (m *arena) stage(n int) (stage, error) {
	class := max(smallStage, bits.Len(uint(n-1)))
	free := &m.stages[class-smallStage]
	if k := len(*free); k > 0 {
		s := (*free)[k-1]
		*free = (*free)[:k-1]
		return s, nil
	}
	p := make([]byte, 1<<class)
	mem, err := m.a.register(unsafe.Pointer(unsafe.SliceData(p)), uint64(len(p)), false)
	if err != nil {
		return stage{}, fmt.Errorf("register %d bytes: %w", len(p), err)
	}
	return stage{p, mem, class}, nil
}

// give gives a stage back. What a worker had in flight at its most stays registered. Its request is
// over: no device reads or writes it. A stage that holds nothing is none: most flights have none.
func (m *arena) give(s stage) {
	if s.p != nil {
		free := &m.stages[s.class-smallStage]
		*free = append(*free, s)
	}
}

// close ends the registrations; no queue pair of the worker is there any more. Stages that flights
// hold have been given back: an endpoint that closes ends all its flights before.
func (m *arena) close() error {
	var errs []error
	for _, b := range m.blocks {
		errs = append(errs, b.mem.close())
	}
	for _, free := range m.stages {
		for _, s := range free {
			errs = append(errs, s.mem.close())
		}
	}
	*m = arena{}
	return errors.Join(errs...)
}
