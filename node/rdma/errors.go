package rdma

import (
	"errors"
	"fmt"
)

// What callers branch on. Fabrics wrap these; an OpError says which verb failed where.
var (
	// ErrNodeDown ends a verb to a memory node that does not answer. The verb may or may not have
	// taken effect.
	ErrNodeDown = errors.New("memory node is down")
	// ErrAccess ends a verb outside registered memory, misaligned, or with a revoked right; nothing
	// was written. The connection to that node is down afterwards, as an RNIC's queue pair would
	// be.
	ErrAccess = errors.New("memory access refused")
	// ErrRevoked ends every verb of a client that the pool has fenced off. It is an ErrAccess.
	ErrRevoked = fmt.Errorf("client was fenced off: %w", ErrAccess)
	// ErrStale ends the verbs of a worker that has not joined the pool's view since it changed: see
	// Queue.Join.
	ErrStale = errors.New("the pool's view has changed")
	// ErrNoEffect is wrapped beside another error by the failure of a verb of which the fabric
	// knows that it has not taken effect and will not: it was not sent, or the node refused it.
	ErrNoEffect = errors.New("no effect")
	// ErrTimeout ends a wait; what was waited for stays in flight.
	ErrTimeout = errors.New("timed out")
	// ErrClosed ends the use of a closed endpoint or fabric.
	ErrClosed = errors.New("closed")
	// ErrNotSupported ends a request for a capability that the fabric does not have.
	ErrNotSupported = errors.New("not supported by this fabric")
	// ErrHeld ends an attempt to forget a client that is attached.
	ErrHeld = errors.New("client is attached")
	// ErrFull ends a request for pool memory, or for a place in the pool, when there is none left.
	ErrFull = errors.New("full")
	// ErrUnreachable is wrapped when the pool's view, or the list of its clients, can be neither
	// read nor changed now: too few of the processes that keep it answer. Verbs go on.
	ErrUnreachable = errors.New("the pool's registry is out of reach")
	// ErrMinority is wrapped when that is for want of a majority of the voters. It is an
	// ErrUnreachable.
	ErrMinority = fmt.Errorf("a majority of the voters is needed: %w", ErrUnreachable)
	// ErrBoxFull, ErrMessageSize and ErrNoBox end a SEND that delivered nothing: the mailbox has no
	// free buffer, its buffers are too short, or there is no mailbox of that number any more, or
	// yet. The connection stays up. A configuration that is too long is refused with
	// ErrMessageSize, too.
	ErrBoxFull     = errors.New("mailbox has no free buffer")
	ErrMessageSize = errors.New("message is too long")
	ErrNoBox       = errors.New("no such mailbox")
	// ErrRingDry and ErrNoRing end an APPEND: the ring has no buffer for it ("receiver not ready"),
	// or there is no ring of that number any more, or yet. The connection stays up.
	ErrRingDry = errors.New("ring has no buffer")
	ErrNoRing  = errors.New("no such ring")
	// ErrNoPool is wrapped when there is no such pool, ErrExists when there is one already.
	ErrNoPool = errors.New("no such pool")
	ErrExists = errors.New("pool exists")
	// ErrInUse ends an attempt to take away a pool that has clients.
	ErrInUse = errors.New("pool is in use")
)

// NoEffect returns err, which wraps ErrNoEffect then.
func NoEffect(err error) error { return &noEffect{err} }

type noEffect struct{ error }

func (e *noEffect) Unwrap() []error { return []error{e.error, ErrNoEffect} }

// OpError is the failure of one verb.
type OpError struct {
	Verb Verb
	Addr Addr
	Len  int // bytes
	Err  error
}

func (e *OpError) Error() string {
	return fmt.Sprintf("%s of %d bytes %s: %v", e.Verb, e.Len, e.Verb.Target(e.Addr), e.Err)
}

func (e *OpError) Unwrap() error { return e.Err }

// CallError is the failure of a two-sided call.
type CallError struct {
	Node int
	Err  error
}

func (e *CallError) Error() string { return fmt.Sprintf("call node %d: %v", e.Node, e.Err) }

func (e *CallError) Unwrap() error { return e.Err }

// FailedNode tells which node a verb or a call failed on; false: err is of neither.
func FailedNode(err error) (node int, ok bool) {
	var op *OpError
	var call *CallError
	switch {
	case errors.As(err, &op):
		return op.Addr.Node(), true
	case errors.As(err, &call):
		return call.Node, true
	}
	return 0, false
}

// Fail records why op failed, naming the verb and the place.
func (op *Op) Fail(err error) {
	op.Err = &OpError{Verb: op.Verb, Addr: op.Addr, Len: op.Len(), Err: err}
}
