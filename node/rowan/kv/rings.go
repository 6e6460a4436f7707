package kv

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// rings is the replication of Rowan-KV: each server has one log, to whose ring all others append.
type rings struct {
	w       *worker
	senders [][2]*rowan.Sender // by node; the urgent one second
}

var _ inbound = (*rowan.Receiver)(nil)

func newRings(w *worker) (*rings, error) {
	s := w.s
	r := &rings{w: w, senders: make([][2]*rowan.Sender, s.o.Nodes)}
	for _, m := range s.config.Members {
		for i := range r.senders[m.Node] {
			if m.Node == s.node {
				continue
			}
			o := rowan.SenderOptions{
				Log: s.o.log(m.Node), Source: s.o.source(s.node, w.number, i == 1), Above: s.config.Term << 32,
			}
			var err error
			if r.senders[m.Node][i], err = rowan.NewSender(w.ep, o); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

func (r *rings) sender(a *appending) *rowan.Sender { return r.senders[a.node][a.urgent] }

func (r *rings) reserve(a *appending, n int, makesRoom bool) error {
	a.urgent = 0
	err := r.sender(a).Try(n)
	if errors.Is(err, rdma.ErrFull) && makesRoom {
		a.urgent = 1
		err = r.sender(a).Try(n)
	}
	return err
}

func (r *rings) unreserve(a *appending, n int) { r.sender(a).Return(n) }

func (r *rings) add(b *rdma.Batch, o *op, a *appending, now time.Duration) error {
	b.Chain()
	a.batch, a.index, a.posted = b, b.Len(), now
	kind, record := r.w.encode(o)
	_, err := r.sender(a).Add(b, kind, record)
	return err
}

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
	case a.batch.Completed(a.index):
		err := r.sender(a).Acknowledged(a.batch.Op(a.index), a.posted)
		if a.batch != o.local {
			a.batch.Release()
		}
		if a.batch = nil; err == nil {
			return true, nil
		}
		a.again = now + pause
		r.w.again(a.again)
	}
	return false, nil
}

func (r *rings) step(time.Duration) error { return nil }

// repeat posts an append again, if there is leave. It makes room: before, nothing that has its place behind it is
// committed, or cleaned.
func (r *rings) repeat(o *op, a *appending, now time.Duration) error {
	a.again = now + pause
	kind, record := r.w.encode(o)
	if err := r.reserve(a, len(record), true); errors.Is(err, rdma.ErrFull) {
		return nil
	} else if err != nil {
		return err
	}
	b := r.w.ep.Batch()
	if _, err := r.sender(a).Add(b, kind, record); err != nil {
		b.Release()
		return err
	}
	a.batch, a.index, a.posted = b, 0, now
	return r.w.ep.Post(b.As("repeat"))
}
