package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// Endpoint is one worker's way to the pool. Its verbs are executed inside Post. It is not safe
// for concurrent use, as every rdma.Queue. slot, members and memory point into the mapping, which
// stays until Close: see Fabric.users. One without an identity has a slot in this process's heap,
// which no fence reaches. Memory of node n is at memory + n*stride, and size bytes of it are
// registered.
type Endpoint struct {
	rdma.Base
	fabric *Fabric
	id     rdma.ClientID
	slot   *slot
	life   uint64 // which life of the slot this is
	// turn is this endpoint's copy of slot.busy, which no other process writes while its holder
	// lives.
	turn   uint64 // what slot.busy holds between two Posts
	joined uint64 // epoch
	// lost is never reset: as a queue pair in error, it ends with the endpoint.
	lost []error // by node: why the connection is down

	members []uint64
	memory  unsafe.Pointer // of node 0
	size    uint64
	stride  uint64
	own     uint64 // for barriers; in a cache line of this endpoint only
	waits   uint64
	rand    *rand.Rand
	sleeper realtime.Sleeper
	view    view
	box     *mailbox // nil: it has none
	luck    rand.PCG // see land
	closed  bool
}

var (
	_ rdma.Endpoint  = (*Endpoint)(nil)
	_ rdma.Messenger = (*Endpoint)(nil)
	_ rdma.Ringer    = (*Endpoint)(nil)
)

// Client returns the worker's identity.
func (e *Endpoint) Client() rdma.ClientID { return e.id }

// Life tells the worker from others that had its identity. It is one more than that of the last
// holder, and known from the slot's state at Open.
func (e *Endpoint) Life() uint64 { return e.life }

// Post executes the batch. Once the worker is fenced off each op fails with an error wrapping
// rdma.ErrRevoked, or, until it joins the new view, rdma.ErrStale. A batch is executed between
// enter and leave. A Revoke or a Fence that it has not seen there waits for all of it. A crash in
// the midst leaves the verbs up to there, in order, and perhaps a part of one; busy stays odd, and
// says nothing once the kernel has dropped the client's lock.
func (e *Endpoint) Post(b *rdma.Batch) error {
	if e.closed || e.fabric.closing.Load() {
		return fmt.Errorf("post %d verbs: endpoint of client %d: %w", b.Len(), e.id, rdma.ErrClosed)
	}
	e.Posted(b)
	at := entering
	// A mem: pool needs no guard: see guard.
	if !e.fabric.faults {
		e.run(b, &at)
	}
	// Each turn goes on behind the op that a fault has ended.
	for e.fabric.faults && at <= b.Len() {
		at = e.runGuarded(b, at)
	}
	b.CompleteAll()
	return nil
}

// entering is where run is before the first op.
const entering = -1

// run enters, executes the ops of b, and leaves. *at is entering, the op that is running, or the
// number of ops while it leaves; behind that it is done.
func (e *Endpoint) run(b *rdma.Batch, at *int) {
	if *at == entering {
		// Before enter, so that a crash on order looks as if the batch had not been posted.
		e.crashAt(b.Step())
		if err := e.enter(); err != nil {
			e.refuse(b, err)
			*at = b.Len() + 1
			return
		}
		*at = 0
	}
	e.execute(b, at)
	e.leave()
	*at++
}

// execute runs the ops of b from *at on; *at is the one that is running. Verbs of a batch run in
// the order in which they were posted, to different nodes, too, which is more than a fabric
// promises. A WRITE is copied word by word in ascending order, and other processes may see any
// part of it. What keeps one verb behind another on this processor is memcopy.Settle and
// memcopy.Next. On amd64 only a READ behind a WRITE needs a barrier, since a load may pass
// earlier stores: wrote says that there was one.
func (e *Endpoint) execute(b *rdma.Batch, at *int) {
	wrote := false
	for ; *at < b.Len(); *at++ {
		op := b.Op(*at)
		p := e.locate(op)
		if p == nil {
			continue
		}
		if wrote && op.Verb == rdma.Read {
			memcopy.Settle(&e.own)
			wrote = false
		} else {
			memcopy.Next(&e.own)
		}
		switch op.Verb {
		case rdma.Read:
			// The sum goes to a word that is the endpoint's own, or the compiler would drop the
			// loads.
			if len(op.Buf) > memcopy.Wide {
				e.own += memcopy.Touch(p, len(op.Buf))
			}
			memcopy.Load(op.Buf, p)
		case rdma.Write:
			memcopy.Store(p, op.Buf)
			wrote = true
		case rdma.CompareSwap:
			op.Result = memcopy.CompareSwap((*uint64)(p), op.Expect, op.Value)
		case rdma.MaskedCompareSwap:
			op.Result = memcopy.MaskedCompareSwap((*uint64)(p), op.Expect, op.CompareMask, op.Value, op.SwapMask)
		case rdma.FetchAdd:
			op.Result = atomic.AddUint64((*uint64)(p), op.Value) - op.Value
		}
	}
}

// runGuarded is run on a file: see guard. It stops at the op that a fault befalls, which fails,
// and returns where to go on; a WRITE may have reached the pages before. A fault on the way in
// fails all of them: the pool's first pages are always backed, so that its file was truncated.
// SetPanicOnFault is of the goroutine, and so is put back behind each turn. A panic that is no
// fault of the mapping goes on: see fault.
func (e *Endpoint) runGuarded(b *rdma.Batch, from int) (at int) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		switch {
		case at > b.Len():
		case at == entering:
			e.refuse(b, e.fabric.fault(recover()))
			at = b.Len() + 1
		case at == b.Len(): // leaving: the verbs have been executed
			_ = e.fabric.fault(recover())
			at++
		default:
			b.Op(at).Fail(e.fabric.fault(recover()))
			at++
		}
	}()
	at = from
	e.run(b, &at)
	return at
}

// enter announces that verbs are about to run and reports whether they may. The announcement is
// sequentially consistent: either Revoke or Fence sees it and waits, or it is seen here that they
// came first. It needs no lease: memory and processes are of one machine, and a process is gone
// only when the kernel says so. With an error busy is even again, and no verb was executed.
//
// Either the worker sees that it is fenced off, or it is waited for:
//
//	worker                            Revoke, Fence
//	busy becomes odd                  fence, or stale, is raised
//	looks at fence and stale          looks at busy
//	verbs, unless it is fenced off    odd: waits until it changes, or the lock is free
//	busy becomes even                 returns nil
func (e *Endpoint) enter() error {
	// The store first, and then the loads. With the loads first, a fence that is raised in
	// between would find busy even, and the verbs would run behind it.
	atomic.StoreUint64(&e.slot.busy, e.turn+1)
	if atomic.LoadUint64(&e.slot.fence) < e.life && atomic.LoadUint64(&e.slot.stale) <= e.joined {
		return nil
	}
	e.leave()
	return e.barred()
}

// barred says why no verb may run; nil when they may. A revocation is told before a stale epoch: a
// client that was fenced off must not join.
func (e *Endpoint) barred() error {
	switch {
	case atomic.LoadUint64(&e.slot.fence) >= e.life:
		return fmt.Errorf("client %d: %w", e.id, rdma.ErrRevoked)
	case atomic.LoadUint64(&e.slot.stale) > e.joined:
		return fmt.Errorf("client %d of epoch %d: %w", e.id, e.joined, rdma.ErrStale)
	}
	return nil
}

// All that the verbs stored is visible before busy is even again: what drain lets go on behind it
// sees that. turn grows by 2 with each entry, refused ones included: drain tells a later Post
// from the one that it waits for.
func (e *Endpoint) leave() {
	e.turn += 2
	memcopy.Release(&e.slot.busy, e.turn)
	runtime.KeepAlive(e) // and with it the mapping
}

// refuse fails all ops of a batch of which none is executed.
func (e *Endpoint) refuse(b *rdma.Batch, err error) {
	for i := range b.Len() {
		b.Op(i).Fail(err)
	}
}

// locate returns where op's memory is mapped, or nil when op has failed. A node that is marked
// dead while a batch runs fails the ops behind the mark: each op looks anew. One comparison finds
// the verbs that have no place in memory: SEND and APPEND follow FetchAdd, and 0 wraps around.
func (e *Endpoint) locate(op *rdma.Op) unsafe.Pointer {
	node, off, n := op.Addr.Node(), op.Addr.Offset(), uint64(op.Len())
	if node >= len(e.lost) || e.lost[node] != nil || isDown(atomic.LoadUint64(&e.members[node])) ||
		off > e.size || n > e.size-off || op.Verb-1 >= rdma.FetchAdd || op.Verb.Atomic() && off%8 != 0 {
		e.fail(op)
		return nil
	}
	return unsafe.Add(e.memory, uint64(node)*e.stride+off)
}

// fail records why op cannot run, or sends a message, or appends: a SEND and an APPEND are at no
// place in memory. A breach of the rules of access takes the connection to the node down, as it
// would a queue pair. The order of its cases is that of what is said: an op at a node of which
// the connection is down says why that is, also when it strays itself.
func (e *Endpoint) fail(op *rdma.Op) {
	node := op.Addr.Node()
	if node >= len(e.lost) {
		op.Fail(fmt.Errorf("pool has %d nodes: %w", len(e.lost), rdma.ErrAccess))
		return
	}
	if e.lost[node] != nil {
		op.Fail(e.lost[node])
		return
	}
	if isDown(atomic.LoadUint64(&e.members[node])) {
		op.Fail(fmt.Errorf("node %d: %w", node, rdma.ErrNodeDown))
		return
	}
	switch {
	case op.Verb == rdma.Send:
		e.send(op)
		return
	case op.Verb == rdma.Append:
		e.appends(op)
		return
	case op.Verb-1 >= rdma.FetchAdd:
		op.Fail(fmt.Errorf("unknown verb: %w", rdma.ErrNotSupported))
		return
	case op.Verb.Atomic() && op.Addr.Offset()%8 != 0:
		op.Fail(fmt.Errorf("not aligned to 8 bytes: %w", rdma.ErrAccess))
	default:
		op.Fail(fmt.Errorf("outside the node's %d bytes: %w", e.size, rdma.ErrAccess))
	}
	e.lost[node] = fmt.Errorf("connection to node %d is down since %w", node, op.Err)
}

// yieldEvery is how many waits pass until others have the processor. Workers that wait for a NIC
// let others run; these would go on for a scheduler's time slice of 10 ms, in which they are
// stopped in the middle of anything: with locks of a store, as likely as not, for which the next
// worker would wait until all others have had their slices. Verbs of such a span take longer than a
// switch by far, but less time than a switch that wakes an idle processor: workers that can each
// have a processor of their own do not yield.
const yieldEvery = 32

// workers is how many endpoints of this process, of all fabrics, are open.
var workers atomic.Int64

// crowded reports whether the process has more workers than processors.
func crowded() bool { return workers.Load() > int64(runtime.GOMAXPROCS(0)) }

// Wait returns at once: what was posted is complete. It never fails.
func (e *Endpoint) Wait(b *rdma.Batch, _ int, _ time.Duration) error {
	e.Waited(b)
	if e.waits++; e.waits%yieldEvery == 0 && crowded() {
		runtime.Gosched()
	}
	return nil
}

// Close gives the identity back, unless it was fenced off: then what it owned waits for recovery,
// and Forget. Rings end first, then the life, and then this use of the mapping: what others may
// still write to stays mapped. A second Close does nothing. A crash in the midst leaves a dead
// client, or a free slot.
func (e *Endpoint) Close() error {
	if e.closed {
		return nil
	}
	e.closed = true
	workers.Add(-1)
	if e.box != nil {
		_ = e.box.Close()
	}
	return errors.Join(e.fabric.endRings(e.id, e.life), e.fabric.leave(e), e.fabric.drop())
}
