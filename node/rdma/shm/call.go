package shm

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
)

// Call runs the node's procedure in the caller. It does not wait, and has no use for a limit in
// time. Any error is an rdma.CallError.
func (e *Endpoint) Call(node int, r *rdma.Request, _ time.Duration) error {
	err := e.call(node, r)
	if err != nil {
		return &rdma.CallError{Node: node, Err: err}
	}
	return nil
}

// The procedure runs between enter and leave, as verbs do: a fence waits for it. A crash inside
// leaves what it has done up to there, on which its compare-and-swap decides. It has run when
// call returns: no answer is lost. Errors wrap rdma.ErrClosed, rdma.ErrNotSupported without a
// handler, rdma.ErrAccess, rdma.ErrNodeDown, rdma.ErrRevoked or rdma.ErrStale, or are what the
// handler returned.
func (e *Endpoint) call(node int, r *rdma.Request) (err error) {
	switch {
	case e.closed || e.fabric.closing.Load():
		return fmt.Errorf("endpoint of client %d: %w", e.id, rdma.ErrClosed)
	case e.fabric.handler == nil:
		return fmt.Errorf("pool was opened without procedures: %w", rdma.ErrNotSupported)
	case uint(node) >= uint(len(e.lost)):
		return fmt.Errorf("pool has %d nodes: %w", len(e.lost), rdma.ErrAccess)
	case e.lost[node] != nil:
		return e.lost[node]
	}
	e.Called(node)
	if e.fabric.faults { // as guard, which would allocate; it ends behind leave
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if r := recover(); r != nil {
				err = e.fabric.fault(r)
			}
		}()
	}
	e.crashAt(r.Step)
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	if isDown(atomic.LoadUint64(&e.members[node])) {
		return rdma.ErrNodeDown
	}
	// The handler learns the caller from here, and not from what the caller has written.
	r.Client = e.id
	e.view = view{e.fabric, node, unsafe.Add(e.memory, uint64(node)*e.stride)}
	return e.fabric.handler(&e.view, r)
}

// view is a node's own view of its memory. Its procedures are our code: an offset out of range is
// a bug, and panics. One endpoint has one, which is used again for each call. memory is where
// that node's begins. Its atomics are those of the verbs, so that the two are atomic to each
// other.
type view struct {
	fabric *Fabric
	node   int
	memory unsafe.Pointer
}

func (v *view) Node() int    { return v.node }
func (v *view) Size() uint64 { return v.fabric.g.Memory }

// word returns where an aligned word of the store's memory is mapped. Words of telemetry are out
// of range.
func (v *view) word(off uint64) *uint64 {
	if off%8 != 0 || off >= v.fabric.g.Memory {
		panic(fmt.Sprintf("shm: node %d has no aligned word at %#x", v.node, off))
	}
	return (*uint64)(unsafe.Add(v.memory, off))
}

func (v *view) Load(off uint64) uint64 { return atomic.LoadUint64(v.word(off)) }

func (v *view) CompareSwap(off, expect, value uint64) uint64 {
	return memcopy.CompareSwap(v.word(off), expect, value)
}

func (v *view) FetchAdd(off, n uint64) uint64 { return atomic.AddUint64(v.word(off), n) - n }

// It may block in the kernel, between enter and leave: a fence waits for it.
func (v *view) Commit(off, n uint64) error { return v.fabric.Commit(v.node, off, n) }
