package rdma

import (
	"fmt"
	"time"
)

// ReadOnly returns ep as an endpoint that may do nothing but READ: see Peeker.
func ReadOnly(ep Endpoint) Endpoint { return readOnly{ep, MaxOffset} }

// ReadOnlyBelow is ReadOnly for what lies below an offset of nodes: see Teller.
func ReadOnlyBelow(ep Endpoint, from uint64) Endpoint { return readOnly{ep, from} }

type readOnly struct {
	Endpoint
	below uint64 // offset, from which on everything is allowed
}

func (e readOnly) Post(b *Batch) error {
	for i := range b.Len() {
		if op := b.Op(i); op.Verb != Read && op.Addr.Offset() < e.below {
			return fmt.Errorf("%s at %s by an endpoint without an identity: %w", op.Verb, op.Addr, ErrAccess)
		}
	}
	return e.Endpoint.Post(b)
}

func (e readOnly) Call(node int, _ *Request, _ time.Duration) error {
	return &CallError{node, fmt.Errorf("by an endpoint without an identity: %w", ErrAccess)}
}

// Go is for workers: a task has an identity.
func (e readOnly) Go(name string, _ func(Endpoint)) error {
	return fmt.Errorf("start %s by an endpoint without an identity: %w", name, ErrAccess)
}

// Rings tells what the fabric promises of rings, which says how entries lie in memory.
func (e readOnly) Rings() (RingPromises, error) { return Rings(e.Endpoint) }

func (e readOnly) OpenRing(o RingOptions) (Ring, error) {
	return nil, fmt.Errorf("open %s by an endpoint without an identity: %w", RingAt(o.Node, o.Number), ErrAccess)
}
