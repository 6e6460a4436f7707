package worker

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv/state"
)

// rings is the replication of Rowan-KV: each server has one log, and all other servers append to
// its ring.
type rings struct {
	w *Worker
	// By node; the urgent source is the second one. Senders are made when they are first needed.
	senders [][2]*rowan.Sender
	// No stamp of an entry of an earlier term exceeds it.
	above uint64
}

func newRings(w *Worker) *rings {
	return &rings{w: w, senders: make([][2]*rowan.Sender, w.s.Opt.Nodes)}
}

// turn raises the stamps, so that a stamp says in which term its entry was appended first. In the
// next term all entries up to that are at rest.
func (r *rings) turn(t *state.Term) {
	// Senders that are made later begin above it, too.
	r.above = t.Stamps()
	for _, both := range r.senders {
		for _, s := range both {
			if s != nil {
				s.Raise(r.above)
			}
		}
	}
}

func (r *rings) sender(a *appending) *rowan.Sender { return r.senders[a.node][a.urgent] }

// reserve uses the urgent source only if the other one has no leave.
func (r *rings) reserve(a *appending, n int, makesRoom bool) error {
	// DELs use the normal source as long as it has leave, so that the urgent one is left for when
	// PUTs find none.
	a.urgent = 0
	err := r.try(a, n)
	if makesRoom && (errors.Is(err, rdma.ErrFull) || errors.Is(err, rowan.ErrAsked)) {
		a.urgent = 1
		err = r.try(a, n)
	}
	return err
}

// try takes leave for one of the two sources. Errors other than rdma.ErrFull and fatal ones wrap
// errAway: the caller tries again.
func (r *rings) try(a *appending, n int) (err error) {
	w := r.w
	s := &r.senders[a.node][a.urgent]
	if *s == nil {
		// Later: Try asks for leave, so that no worker waits for a node that may be dead.
		*s, err = rowan.NewSender(w.ep, rowan.SenderOptions{
			Log: w.s.Opt.LogOf(a.node), Source: w.s.Opt.WorkerSource(w.s.Node, w.number, a.urgent == 1),
			Above: r.above, Later: true,
		})
		if err != nil {
			*s = nil
			return err
		}
	}
	// It does not wait: a question is in flight if there is not enough leave.
	err = (*s).Try(n)
	if err == nil || errors.Is(err, rdma.ErrFull) || state.Fatal(err) {
		return err
	}
	// The question may have been ended by a new view. It is asked again in that view.
	if _, e := w.ended(err); e != nil {
		return e
	}
	return fmt.Errorf("%w: %w", errAway, err)
}

func (r *rings) unreserve(a *appending, n int) { r.sender(a).Return(n) }

// add makes the append a chain of its own in the write's batch.
func (r *rings) add(b *rdma.Batch, o *op, a *appending, now time.Duration) error {
	b.Chain()
	// The write's batch owns the append until it is posted again by itself.
	a.batch, a.index, a.posted = b, b.Len(), now
	kind, record := r.w.encode(o)
	// The backup's network card chooses the place. The sender learns only that it landed.
	_, err := r.sender(a).Add(b, kind, record)
	return err
}

// goOn repeats an append that has failed, and takes the acknowledgment of one that is complete.
func (r *rings) goOn(o *op, a *appending, now time.Duration) (acked bool, err error) {
	switch {
	case a.batch == nil:
		if now >= a.again {
			if err := r.repeat(o, a, now); err != nil {
				return false, err
			}
		}
		if a.batch == nil {
			r.w.again(a.again)
		}
	// Its chain is complete, whatever the other chains of the batch are.
	case a.batch.Completed(a.index):
		// It must be called once for each op that completes, since it counts the leave as spent.
		err := r.sender(a).Acknowledged(a.batch.Op(a.index), a.posted)
		// A batch of its own is over. The write's own stays until the local WRITE was looked at.
		if a.batch != o.local {
			a.batch.Release()
		}
		if a.batch = nil; err == nil {
			return true, nil
		}
		// Each further try would fail alike, and the PUT would hang. So the server ends, and says
		// why.
		if state.Fatal(err) {
			return false, err
		}
		if _, err := r.w.ended(err); err != nil {
			return false, err
		}
		// The append may have landed all the same. Repeating it adds an equal record, of which the
		// index names one.
		a.again = now + state.RetryPause
		r.w.again(a.again)
	}
	return false, nil
}

// giveUp releases the batch. The append may still land at the dead node, where nothing counts any
// more.
func (r *rings) giveUp(o *op, a *appending) {
	if a.batch != nil && a.batch != o.local {
		a.batch.Release()
	}
	// An append that lands later counts for nothing: the node is no member.
	a.batch = nil
}

func (r *rings) step(time.Duration) error { return nil }

// repeat posts an append again if there is leave. It counts as making room: until it is done, no
// segment that follows it is committed, and so none is cleaned.
func (r *rings) repeat(o *op, a *appending, now time.Duration) error {
	a.again = now + state.RetryPause
	kind, record := r.w.encode(o)
	// It may come to use the other source than the first attempt.
	switch err := r.reserve(a, len(record), true); {
	case errors.Is(err, rdma.ErrFull), errors.Is(err, errAway):
		return nil
	case err != nil:
		return err
	}
	b := r.w.ep.Batch()
	if _, err := r.sender(a).Add(b, kind, record); err != nil {
		b.Release()
		return err
	}
	// The append owns this batch.
	a.batch, a.index, a.posted = b, 0, now
	return r.w.ep.Post(b.As("repeat"))
}
