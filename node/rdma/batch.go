package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Verb is a one-sided operation on pool memory.
type Verb uint8

// The verbs. Only 8 aligned bytes are atomic: any longer Read or Write may tear at any of its
// words, in any order.
const (
	Read              Verb = iota + 1 // pool memory -> Op.Buf
	Write                             // Op.Buf -> pool memory
	CompareSwap                       // 8 aligned bytes
	MaskedCompareSwap                 // compares and swaps only the bits of its masks; a capability
	FetchAdd                          // 8 aligned bytes
	Send                              // Op.Buf, and what Op.Spans gather -> a mailbox; a capability
	Append                            // Op.Buf -> a ring: a SEND, and a READ behind it; a capability
)

func (v Verb) String() string {
	switch v {
	case Read:
		return "READ"
	case Write:
		return "WRITE"
	case CompareSwap:
		return "CAS"
	case MaskedCompareSwap:
		return "MASKED_CAS"
	case FetchAdd:
		return "FAA"
	case Send:
		return "SEND"
	case Append:
		return "APPEND"
	}
	return fmt.Sprintf("VERB(%d)", uint8(v))
}

// Atomic reports whether v changes its word in one indivisible step.
func (v Verb) Atomic() bool { return v >= CompareSwap && v <= FetchAdd }

// Fetches reports whether v brings something back: later verbs may pass it, and fences wait for it.
func (v Verb) Fetches() bool { return v == Read || v == Append || v.Atomic() }

// Target names what a verb at a is about: a place in memory, a mailbox or a ring.
func (v Verb) Target(a Addr) string {
	switch v {
	case Send:
		return "to " + BoxAddr(a).String()
	case Append:
		return "to " + RingAddr(a).String()
	}
	return "at " + a.String()
}

// Op is one work request. It belongs to its Batch and stays where it is until Release. Result and
// Err are valid once its chain is complete.
type Op struct {
	Verb Verb
	// Fence starts the op, and what is posted behind it to the same node, only after the earlier
	// reads and atomics to that node have completed. The requester stalls: one doorbell, two
	// latencies.
	Fence bool
	done  bool
	chain int32
	Addr  Addr
	Buf   []byte // registered memory, from Batch.Alloc
	Spans []Span // of a SEND, behind Buf

	Expect, Value         uint64 // of an atomic: what is compared, and what is swapped in or added
	CompareMask, SwapMask uint64 // of a MaskedCompareSwap: the bits compared and the bits replaced

	Result uint64 // the word before an atomic
	Err    error
}

// Len returns how many bytes of pool memory op touches, or how long the message is that it sends.
func (op *Op) Len() int {
	if op.Verb.Atomic() {
		return 8
	}
	n := len(op.Buf)
	for _, s := range op.Spans {
		n += s.Len
	}
	return n
}

// Word returns the i-th word of a completed READ.
func (op *Op) Word(i int) uint64 { return binary.LittleEndian.Uint64(op.Buf[8*i:]) }

// Swapped reports whether a completed compare and swap took effect.
func (op *Op) Swapped() bool {
	if op.Verb == MaskedCompareSwap {
		return op.Err == nil && (op.Result^op.Expect)&op.CompareMask == 0
	}
	return op.Err == nil && op.Result == op.Expect
}

// After returns the word behind a completed CompareSwap.
func (op *Op) After() uint64 {
	if op.Swapped() {
		return op.Value
	}
	return op.Result
}

// Step names what a worker posts a batch or makes a call for, as the paper of its store has it.
// Traces show it, and faults can be set to it. "" is none.
type Step string

const opsInline = 16

// A Batch is one round trip's work: it is posted with one doorbell a node and waited for once. It
// owns its ops and their buffers; after Release they live until the last straggler lands. A Batch
// belongs to the worker of the Queue that made it, and is not safe for concurrent use.
type Batch struct {
	n       int // ops
	ops     [opsInline]Op
	more    []*[opsInline]Op
	chains  int32   // chains so far
	grouped bool    // Chain was called: ops join the last chain until the next call
	left    []int32 // incomplete ops by chain; only while chains are longer than one op or complete one by one
	pending int     // incomplete ops
	done    int     // complete chains

	mem  []byte   // what Alloc hands out next
	free []byte   // mem, from its beginning
	big  [][]byte // allocations that did not fit mem, live until Release
	span []Span   // of all SENDs

	step             Step
	posted, released bool
	waited           bool
	depart           uint64 // the queue's trip clock when it was posted
	trips            uint64 // latencies it takes: 1, and 1 for each fence that stalls on the node that stalls most
	base             *Base
}

// As names the step that the batch is posted for, until Release. It returns b, so that the name is
// an argument of the call that posts the batch: q.Post(b.As("commit")).
func (b *Batch) As(step Step) *Batch {
	b.step = step
	return b
}

// Step returns the step that the batch is posted for.
func (b *Batch) Step() Step { return b.step }

// Alloc returns n bytes of registered memory, 8-byte aligned and of undefined content, which live
// as long as the batch. Encode once, write to every replica.
func (b *Batch) Alloc(n int) []byte {
	pad := (n + 7) &^ 7
	if pad > len(b.mem) {
		return b.allocBig(pad)[:n:n]
	}
	p := b.mem[:n:n]
	b.mem = b.mem[pad:]
	return p
}

func (b *Batch) allocBig(n int) []byte {
	p := b.base.allocBig(n)
	b.big = append(b.big, p)
	return p
}

// Chain starts a chain: the ops added from here to the next call of Chain are all for one replica
// and complete together. Without any call each op is a chain of its own.
func (b *Batch) Chain() {
	b.grouped = true
	b.chains++
}

func (b *Batch) add(v Verb, a Addr, buf []byte) *Op {
	if b.posted {
		panic("rdma: op added to a batch after it was posted")
	}
	var op *Op
	if b.n < opsInline {
		op = &b.ops[b.n]
	} else {
		if b.n%opsInline == 0 && b.n/opsInline > len(b.more) {
			b.more = append(b.more, new([opsInline]Op))
		}
		op = &b.more[b.n/opsInline-1][b.n%opsInline]
	}
	b.n++
	if !b.grouped {
		b.chains++
	}
	op.Verb, op.Fence, op.done, op.chain = v, false, false, b.chains-1
	op.Addr, op.Buf, op.Spans = a, buf, nil
	op.Result, op.Err = 0, nil
	return op
}

// Read adds a READ of n bytes at a into a buffer of the batch.
func (b *Batch) Read(a Addr, n int) *Op { return b.add(Read, a, b.Alloc(n)) }

// ReadInto adds a READ of len(buf) bytes at a; buf is from Alloc.
func (b *Batch) ReadInto(a Addr, buf []byte) *Op { return b.add(Read, a, buf) }

// Write adds a WRITE of p at a; p is from Alloc and may be shared by several ops of the batch.
func (b *Batch) Write(a Addr, p []byte) *Op { return b.add(Write, a, p) }

// WriteCopy adds a WRITE of a copy of p at a.
func (b *Batch) WriteCopy(a Addr, p []byte) *Op {
	own := b.Alloc(len(p))
	copy(own, p)
	return b.Write(a, own)
}

// WriteWord adds a WRITE of one word at a.
func (b *Batch) WriteWord(a Addr, word uint64) *Op {
	p := b.Alloc(8)
	binary.LittleEndian.PutUint64(p, word)
	return b.Write(a, p)
}

// CompareSwap adds a CAS of the word at a: if it equals expect it becomes value. Op.Result is the
// word before.
func (b *Batch) CompareSwap(a Addr, expect, value uint64) *Op {
	op := b.add(CompareSwap, a, nil)
	op.Expect, op.Value = expect, value
	return op
}

// MaskedCompareSwap adds a CAS that compares only the bits of compareMask and replaces only those
// of swapMask. It is a capability: a fabric without it fails the op with an error wrapping
// ErrNotSupported.
func (b *Batch) MaskedCompareSwap(a Addr, expect, compareMask, value, swapMask uint64) *Op {
	op := b.add(MaskedCompareSwap, a, nil)
	op.Expect, op.Value = expect, value
	op.CompareMask, op.SwapMask = compareMask, swapMask
	return op
}

// FetchAdd adds an FAA of n to the word at a. Op.Result is the word before.
func (b *Batch) FetchAdd(a Addr, n uint64) *Op {
	op := b.add(FetchAdd, a, nil)
	op.Value = n
	return op
}

// Send adds a SEND of a message to a mailbox: head, which is from Alloc and may be empty, and
// behind it what the spans gather from the memory of the node that the worker runs beside. The
// worker has a mailbox: see Messenger; once it has closed that, a SEND ends in ErrClosed. The op
// completes when the message is in a buffer of the receiver, which need not have looked at it. When
// it ends in ErrBoxFull, ErrMessageSize or ErrNoBox the message was not delivered, and verbs behind
// it go on; when in anything else, it may have been. It stays behind the worker's earlier verbs to
// that node, as verbs do; later ones may pass it.
func (b *Batch) Send(to BoxAddr, head []byte, spans ...Span) *Op {
	if !b.base.sends {
		panic("rdma: SEND by a worker without a mailbox")
	}
	op := b.add(Send, Addr(to), head)
	first := len(b.span)
	b.span = append(b.span, spans...)
	op.Spans = b.span[first:len(b.span):len(b.span)]
	return op
}

// Append adds an APPEND of an entry to a ring: a SEND with a READ behind it that sees it into
// memory (Rowan 3.2.2), in one trip. p is from Alloc, and not longer than MaxMessage. The worker
// has rings: see Ringer. The op completes when the entry is in the memory of the ring's node, and
// as durable as that is. When it ends in ErrRingDry or ErrNoRing no block of it landed, or, of an
// entry of several, some did, and verbs behind it go on; when in anything else, any part may have
// landed, or may land yet. Later verbs may pass it, but no later entry does: see Ring.
func (b *Batch) Append(to RingAddr, p []byte) *Op {
	if !b.base.rings {
		panic("rdma: APPEND on a fabric without rings")
	}
	return b.add(Append, Addr(to), p)
}

// Len returns how many ops the batch holds.
func (b *Batch) Len() int { return b.n }

// Op returns the i-th op, in the order in which they were added.
func (b *Batch) Op(i int) *Op {
	if i < opsInline {
		return &b.ops[i]
	}
	return &b.more[i/opsInline-1][i%opsInline]
}

// Chains returns how many chains the batch holds.
func (b *Batch) Chains() int { return int(b.chains) }

// Done returns how many chains are complete. A complete chain may have failed: see Op.Err.
func (b *Batch) Done() int { return b.done }

// Finished reports whether nothing of the batch is in flight.
func (b *Batch) Finished() bool { return b.pending == 0 }

// Err returns the first error among the completed ops, in the order in which they were added.
func (b *Batch) Err() error {
	if b.pending > 0 {
		return b.errSoFar()
	}
	for i := range b.n {
		if err := b.Op(i).Err; err != nil {
			return err
		}
	}
	return nil
}

// HadNoEffect reports whether each of the ops first to end-1, which are complete, has failed
// without effect: see ErrNoEffect.
func (b *Batch) HadNoEffect(first, end int) bool {
	for i := first; i < end; i++ {
		if !errors.Is(b.Op(i).Err, ErrNoEffect) {
			return false
		}
	}
	return true
}

// errSoFar is Err while ops are in flight: their fields are their fabric's, which may fill them in
// at any moment.
func (b *Batch) errSoFar() error {
	for i := range b.n {
		if op := b.Op(i); op.done && op.Err != nil {
			return op.Err
		}
	}
	return nil
}

// Release gives the batch back to its queue. Its ops and buffers are the caller's no longer; they
// stay untouched until the last straggler has landed.
func (b *Batch) Release() {
	if b.released {
		panic("rdma: batch released twice")
	}
	b.released = true
	if b.pending == 0 {
		b.base.recycle(b)
	}
}

// The rest is for fabrics and for decorators of endpoints.

// ChainOf returns the chain that the i-th op belongs to, counting from 0.
func (b *Batch) ChainOf(i int) int { return int(b.Op(i).chain) }

// Stalled counts n more latencies that the batch takes: of an op that the fabric makes of several,
// one after the other.
func (b *Batch) Stalled(n uint64) { b.trips += n }

// Completed reports whether the i-th op of a posted batch is complete.
func (b *Batch) Completed(i int) bool { return b.posted && (b.pending == 0 || b.Op(i).done) }

// CompleteAll marks every op complete; for fabrics that execute a batch inside Post.
func (b *Batch) CompleteAll() {
	b.base.completed++
	b.pending, b.done = 0, int(b.chains)
}

// Complete marks the i-th op complete, and with it its chain when it was the last of it.
func (b *Batch) Complete(i int) {
	op := b.Op(i)
	if op.done || b.pending == 0 {
		panic(fmt.Sprintf("rdma: op %d (%s at %s) completed twice", i, op.Verb, op.Addr))
	}
	op.done = true
	b.base.completed++
	b.pending--
	b.left[op.chain]--
	if b.left[op.chain] == 0 {
		b.done++
	}
	if b.pending == 0 && b.released {
		b.base.recycle(b)
	}
}

// Track prepares the batch for completion op by op; fabrics that call Complete call it in Post.
func (b *Batch) Track() {
	b.left = b.left[:0]
	for range b.chains {
		b.left = append(b.left, 0)
	}
	for i := range b.n {
		b.left[b.Op(i).chain]++
	}
	for _, n := range b.left {
		if n == 0 {
			b.done++ // an empty chain has nothing to wait for
		}
	}
}
