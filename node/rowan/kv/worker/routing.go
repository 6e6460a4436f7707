package worker

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/shards"
)

const (
	routeBytes = 8
	// routePatience bounds the wait for an answer. After it the source is asked again.
	routePatience = 20 * time.Millisecond
)

// routing is a question to the source of a migration.
//
// While a shard migrates to a server, its index names what was written in the migration, and what
// was copied so far. The source's index names all that was written before. So a key that the
// target's index does not name has what the source says, and nothing is lost if either of them
// dies: the question changes nothing.
type routing struct {
	call *rpc.Call // nil: none is in flight
	// When the source may be asked again.
	again time.Duration
}

// routed is what the source has of a key. Its value aliases the call, which the caller releases.
type routed struct {
	call *rpc.Call
	// Term of the record.
	term uint32
	// Kind of the record; 0: the source has none.
	kind uint8
}

func (r *routed) value() []byte { return r.call.Body[routeBytes:] }

// drop gives up a question.
func (r *routing) drop() {
	if r.call != nil {
		r.call.Release()
		r.call = nil
	}
}

// route asks the source of an op's shard, and reports whether its answer is there. A source that
// refuses is asked again: it has not reached this term yet, or this server is about to leave it.
func (w *Worker) route(r *routing, o *op, now time.Duration) (got routed, ok bool, err error) {
	if r.call == nil {
		if now < r.again {
			w.again(r.again)
			return got, false, nil
		}
		// The term is the op's: a source in another one refuses, so both agree which of them writes
		// the shard.
		q := kv.Request{Term: o.term, Key: o.key}
		// Start copies it.
		w.buf = q.Append(w.buf[:0])
		r.call, err = w.peer.Start(rdma.BoxAt(o.source, w.s.Opt.Boxes+1+w.number), kv.ProcRoute, routePatience, w.buf)
		if errors.Is(err, rpc.ErrWindow) {
			r.again, err = now+state.RetryPause, nil
			w.again(r.again)
		}
		return got, false, err
	}
	if !r.call.Over() {
		return got, false, nil
	}
	c := r.call
	switch {
	// From here on the caller owns the call, with the body that the answer aliases.
	case c.Err == nil && c.Status == kv.StatusNotFound:
		r.call = nil
		return routed{call: c}, true, nil
	case c.Err == nil && c.Status == kv.StatusOK && len(c.Body) >= routeBytes:
		r.call = nil
		word := binary.LittleEndian.Uint64(c.Body)
		return routed{c, uint32(word), uint8(word >> 32)}, true, nil
	}
	// No answer, or a refusal. Nothing was changed there, so it may be asked again.
	r.drop()
	r.again = now + state.RetryPause
	w.again(r.again)
	return got, false, nil
}

// missed continues a read of a key that the index does not name: in a migration the source may have
// it.
func (w *Worker) missed(o *op) error {
	if o.source == shards.None {
		return w.answer(o, kv.StatusNotFound)
	}
	// goOn continues it when the answer is there.
	o.routes = true
	return w.goOnRouting(o, w.ep.Now())
}

// goOnRouting continues a GET that the source is asked for.
//
// If the source has a record of an earlier term, the key had it when the index was looked up: no
// acknowledged write of the migration exists, since the target's index would name it. If the record
// is of the migration itself, the target wrote it: it is in flight, or in the index by now, so the
// index is looked up again.
func (w *Worker) goOnRouting(o *op, now time.Duration) error {
	refuse := func(status uint16) error {
		o.routing.drop()
		return w.answer(o, status)
	}
	switch {
	case o.term != w.term.Term:
		return refuse(kv.StatusTerm)
	// The source may be dead. The client asks again, in the next term if there is one.
	case now-o.since >= w.s.Opt.FullAfter:
		return refuse(kv.StatusWait)
	}
	got, ok, err := w.route(&o.routing, o, now)
	if !ok {
		return err
	}
	defer got.call.Release()
	switch {
	case got.kind != 0 && o.shard.Takes(uint64(got.term)):
		// By now the index names the write, or will when it is on all replicas.
		o.routes = false
		return w.lookUp(o)
	case got.kind != kv.Put:
		return w.answer(o, kv.StatusNotFound)
	}
	return w.end(o, o.r.Answer(kv.StatusOK, got.value()))
}

// answerRoute answers a question of the target with the newest record of the key.
func (w *Worker) answerRoute(o *op, kind uint8, order kv.Order, value []byte) error {
	w.buf = binary.LittleEndian.AppendUint64(w.buf[:0], uint64(order.Term)|uint64(kind)<<32)
	w.buf = append(w.buf, value...)
	return w.end(o, o.r.Answer(kv.StatusOK, w.buf))
}

// learnThere finds out whether a key exists that the index does not name, before the key's first
// write is decided. It reports false if that is not known yet. No other task writes the key.
func (w *Worker) learnThere(k *key, o *op, now time.Duration) (ok bool, err error) {
	got, ok, err := w.route(&k.routing, o, now)
	if !ok {
		return false, err
	}
	// It stays so: from now on only this worker writes the key.
	k.decided, k.there = true, got.kind == kv.Put
	got.call.Release()
	return true, nil
}
