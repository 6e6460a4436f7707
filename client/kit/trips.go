package kit

import (
	"errors"

	"github.com/farkv/farkv/node/rdma"
)

// Trips carry out the batches of a worker's operations, each within the operation's Budget. They
// keep what a wait gave up. They belong to the worker and are not safe for concurrent use.
type Trips struct {
	Budget
	// Sent: the last batch of Do was posted. If the wait for it failed, its verbs may still take
	// effect.
	Sent bool
	// InFlight are batches that are not waited for, or that a wait gave up. Until they are complete
	// their verbs may land at any time, and their buffers are in use.
	InFlight []*rdma.Batch

	ep   rdma.Endpoint
	over error
}

// NewTrips returns those of an endpoint's worker. over is the error of a batch for which no time is
// left; it wraps rdma.ErrTimeout.
func NewTrips(ep rdma.Endpoint, b Budget, over error) Trips {
	return Trips{Budget: b, ep: ep, over: over}
}

// Do posts a batch as a step of the protocol, and waits for all of it as long as there is time.
// With no time left it posts nothing. An error of one verb is the batch's error. The batch stays
// the caller's, which hands it to Drop.
func (t *Trips) Do(step rdma.Step, b *rdma.Batch) error {
	t.Sent = false
	left := t.Next()
	if left == 0 {
		return t.over
	}
	if b.Len() == 0 {
		return nil
	}
	if err := t.ep.Post(b.As(step)); err != nil {
		return err
	}
	t.Sent = true
	t.Posted(b)
	if err := t.ep.Wait(b, rdma.All, left); err != nil {
		return err
	}
	return b.Err()
}

// DoWhereLeft is Do for what is decided. Nodes that are gone for good, as the pool's view says,
// need nothing done any more: what they had is lost. For other nodes that are down the error
// remains, since they may come back with what they have.
func (t *Trips) DoWhereLeft(step rdma.Step, b *rdma.Batch, m *Member) error {
	err := t.Do(step, b)
	if !errors.Is(err, rdma.ErrNodeDown) || !b.Finished() || m.Join() != nil {
		return err
	}
	for i := range b.Len() {
		if op := b.Op(i); op.Err != nil && !m.Gone(op.Addr.Node()) {
			return err
		}
	}
	return nil
}

// Swap is a CAS of one word, in a batch of its own. It returns the word before, and whether it was
// swapped. After an error the CAS may take effect yet.
func (t *Trips) Swap(step rdma.Step, at rdma.Addr, old, new uint64) (before uint64, ok bool, err error) {
	b := t.ep.Batch()
	defer t.Drop(b)
	op := b.CompareSwap(at, old, new)
	if err := t.Do(step, b); err != nil {
		return 0, false, err
	}
	return op.Result, op.Swapped(), nil
}

// Drop releases a batch, or keeps it until nothing of it is in flight. The caller must not use the
// batch or its buffers any more.
func (t *Trips) Drop(b *rdma.Batch) {
	if b.Finished() {
		b.Release()
		return
	}
	t.InFlight = append(t.InFlight, b)
}

// Finish waits until nothing of a batch is in flight, for a moment also when no time is left. What
// became of the verbs is in the batch, which stays the caller's.
func (t *Trips) Finish(b *rdma.Batch) error {
	if err := t.ep.Wait(b, rdma.All, max(t.Left(), 1)); err != nil && !b.Finished() {
		return err
	}
	return nil
}

// Land waits for all verbs that are in flight, the last ones first. It hands each batch to landed,
// unless that is nil, before it releases the batch.
func (t *Trips) Land(landed func(b *rdma.Batch)) error {
	for n := len(t.InFlight); n > 0; n = len(t.InFlight) {
		b := t.InFlight[n-1]
		if err := t.Finish(b); err != nil {
			return err
		}
		t.InFlight = t.InFlight[:n-1]
		if landed != nil {
			landed(b)
		}
		b.Release()
	}
	return nil
}
