package memnode

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
	"github.com/farkv/farkv/node/rdma/transport"
)

// barred reports whether a request may not be executed. The caller holds session.executing, under
// which the answer stays true: a fence that comes meanwhile is answered only when the frame is
// over. So rights are checked once a frame, and no frame is cut in two by a fence. A revocation is
// told before a stale epoch, since a client that was fenced off must not join the next one. The
// cases in their order: the key is that of this life of the node's pool, and readers' keys are good
// over readers' connections only; the client is one that the pool may have; its life was not fenced
// off; the frame's epoch is not before the last fence; the life has not strayed over this
// connection. Client 0 is one without an identity, and is never revoked: revoked[0] stays 0.
func (s *session) barred(r *transport.Rights) transport.Status {
	p := s.pool
	switch {
	case r.Key != p.key && (r.Key != p.readKey || !s.readOnly):
		return transport.StatusAccess
	case int(r.Client) >= len(p.revoked):
		return transport.StatusAccess
	case r.Life <= p.revoked[r.Client].Load():
		return transport.StatusRevoked
	case r.Epoch < p.fence.Load():
		return transport.StatusStale
	case len(s.broken) > 0 && s.broken[r.Client] == r.Life:
		return transport.StatusAccess
	}
	return transport.StatusOK
}

// readsOnly reports whether a request may do nothing but READ, and tell: its sender has the read
// token alone, or no identity. Writes to telemetry are excepted: see tells.
func (s *session) readsOnly(r *transport.Rights) bool { return s.readOnly || r.Client == 0 }

// verbs executes one frame of verbs. A verb that strays takes its client's connection down, as it
// would a queue pair: nothing that the client sent behind it is executed. A frame that is barred
// has had no effect. One that breaks the protocol in its midst ends the connection: its verbs up to
// there have landed, and are never answered. The verbs are executed in their order, each one when
// it has been parsed: nothing of a frame is copied. Each verb has an answer of its own, at its
// place: 8 bytes with the status and the length, and behind a success the result. A verb that fails
// for another reason than access, such as a ring that is dry, lets those behind it go on. When the
// frame as a whole is refused there are no items in the answer.
func (s *session) verbs(h transport.Header, p []byte) error {
	if len(p) < transport.RightsBytes || h.Items < 1 || h.Items > transport.MaxItems {
		return fmt.Errorf("%d verbs in %d bytes: %w", h.Items, len(p), transport.ErrProtocol)
	}
	r := transport.ParseRights(p)
	s.credit(&r)
	s.out = append(s.out, make([]byte, transport.HeaderBytes)...)
	// from is where the body of the answer begins. It is an index, as session.out may move.
	from := len(s.out)
	st := s.barred(&r)
	if st == transport.StatusOK && s.pool.region != nil {
		st = transport.StatusNotSupported // a processor's atomics are not atomic with a device's
	}
	if st != transport.StatusOK {
		s.counters.failed(st, h.Items)
		s.answer(h, st, 0, from)
		return nil
	}
	p = p[transport.RightsBytes:]
	read, strayed := 0, false
	for range h.Items {
		q, rest, err := transport.ParseVerb(p)
		if err != nil {
			return err
		}
		p = rest
		if q.Verb == rdma.Read {
			// It bounds the answer, as the frame's length bounds what is written: see answerBytes.
			if read += q.N; read > transport.MaxData {
				return fmt.Errorf("verbs that read %d bytes: %w", read, transport.ErrProtocol)
			}
		}
		st := transport.StatusAccess
		if !strayed {
			st = s.run(&q, &r)
		}
		if st != transport.StatusOK {
			strayed = strayed || st == transport.StatusAccess
			s.counters.failed(st, 1)
			s.out = append(s.out, byte(st), 0, 0, 0, 0, 0, 0, 0)
		}
	}
	if len(p) > 0 {
		return fmt.Errorf("%d bytes behind the last verb: %w", len(p), transport.ErrProtocol)
	}
	if strayed {
		if s.broken == nil {
			s.broken = map[rdma.ClientID]uint64{}
		}
		// A later life of the same client posts over the same connection as one that has not
		// strayed.
		s.broken[r.Client] = r.Life
	}
	s.answer(h, transport.StatusOK, h.Items, from)
	return nil
}

// run executes one verb, unless its sender may not, and, when it succeeds, appends its answer. A
// sender without an identity, or with the read token, may READ all that is registered. Without the
// read token it may also write to telemetry.
func (s *session) run(q *transport.Request, r *transport.Rights) transport.Status {
	switch {
	case (q.Verb == rdma.Send || q.Verb == rdma.Append) && s.readsOnly(r):
		return transport.StatusAccess
	case q.Verb == rdma.Send:
		return s.deliver(q, r.Client)
	case q.Verb == rdma.Append:
		return s.append(q, r.Client)
	case q.Verb == rdma.Read || !s.readsOnly(r) || s.tells(q):
		return s.execute(q)
	}
	return transport.StatusAccess
}

// tells reports whether a verb is on telemetry, of a sender that may write that without an
// identity. Such a process tells of itself, and takes part in nothing that has to be fenced off.
// locate checks the end of what the verb touches.
func (s *session) tells(q *transport.Request) bool {
	return !s.readOnly && q.Off >= s.pool.record.Memory-s.pool.record.Telemetry
}

// execute executes one verb on memory and, when it succeeds, appends its answer. The copy is no
// atomic step. It moves aligned words in ascending order, and other connections may see any part of
// it. Each atomic is one of the processor's.
func (s *session) execute(q *transport.Request) (st transport.Status) {
	// p points into the mapping. The mapping outlives the call: the pool's memory is unmapped only
	// when its connections have been drained.
	p := s.locate(q)
	if p == nil {
		return transport.StatusAccess
	}
	// A page that the file system cannot back faults. What was copied up to there has landed,
	// though the answer says that the verb failed.
	if m := s.pool.memory; m.file != nil || m.region != nil {
		at := len(s.out)
		defer func() {
			if r := recover(); r != nil {
				s.out, st = s.out[:at], s.pool.memory.fault(r)
			}
		}()
	}
	le := binary.LittleEndian
	// The answer is begun before the verb has an effect. What panics below is only the access to
	// the memory, and the recovery cuts the answer off again.
	n := transport.ResultLen(q.Verb, q.N)
	s.out = append(s.out, 0, 0, 0, 0)
	s.out = le.AppendUint32(s.out, uint32(n))
	s.counters.did(q)
	s.pool.model(q.Verb, q.Off, q.N)
	if q.Verb != rdma.Read {
		s.pool.memory.mark(q.N)
	}
	switch w := (*uint64)(p); q.Verb {
	case rdma.Read:
		at := len(s.out)
		s.out = grow(s.out, transport.Pad(n))
		memcopy.Load(s.out[at:at+n], p)
	case rdma.Write:
		memcopy.Store(p, q.Data)
	case rdma.CompareSwap:
		s.out = le.AppendUint64(s.out, memcopy.CompareSwap(w, q.Expect, q.Value))
	case rdma.MaskedCompareSwap:
		s.out = le.AppendUint64(s.out, memcopy.MaskedCompareSwap(w, q.Expect, q.Compare, q.Value, q.Swap))
	case rdma.FetchAdd:
		s.out = le.AppendUint64(s.out, memcopy.FetchAdd(w, q.Value))
	}
	memcopy.Settle(&s.own) // a later verb stays behind this one
	return transport.StatusOK
}

// grow makes p longer by n bytes, whatever they are. The new bytes are not cleared: the caller
// overwrites them. Only the padding behind the data of a READ stays what it was, up to 7 bytes of
// an earlier answer to a connection of the same class.
func grow(p []byte, n int) []byte {
	for cap(p)-len(p) < n {
		p = append(p[:cap(p)], 0)[:len(p)]
	}
	return p[:len(p)+n]
}

// locate returns where a verb's memory is mapped; nil: it may not touch it. Verb 0 is a breach that
// the sender found itself: see transport.AppendBreach. The checks are in an order in which nothing
// wraps. q.N is MaxData at most, as ParseVerb has checked. Rules are those of an RNIC: one word
// outside refuses the whole verb, and an atomic is on an aligned word.
func (s *session) locate(q *transport.Request) unsafe.Pointer {
	size := s.pool.registered()
	if q.Verb == 0 || q.Verb.Atomic() && q.Off%8 != 0 ||
		q.Off > size || uint64(q.N) > size-q.Off {
		return nil
	}
	return unsafe.Add(s.pool.memory.base, q.Off)
}

// call runs one of the node's procedures. It runs at most once: a call is not sent again, and a
// client that gets no answer does not know whether it ran. It is executed as a frame of verbs is,
// in the order of the connection, under session.executing, and with the same rights. A fence waits
// for it, so that a procedure must not wait for other processes. The answer has the results, or the
// text of the error, which is cut and padded. One item tells results from a text.
func (s *session) call(h transport.Header, p []byte) {
	r := transport.ParseRights(p)
	s.credit(&r)
	s.out = append(s.out, make([]byte, transport.HeaderBytes)...)
	from := len(s.out)
	st := s.barred(&r)
	if st == transport.StatusOK && s.readsOnly(&r) {
		st = transport.StatusAccess
	}
	if st != transport.StatusOK {
		s.counters.failed(st, 1)
		s.answer(h, st, 0, from)
		return
	}
	q := &s.request
	*q = transport.ParseCall(p[transport.RightsBytes:])
	q.Client = r.Client
	s.counters.calls++
	if err := s.serveCall(q); err != nil {
		st = transport.StatusOf(err)
		text := err.Error()
		text = text[:min(len(text), transport.MaxText)]
		s.out = append(s.out, text...)
		for len(s.out)%8 != from%8 {
			s.out = append(s.out, ' ')
		}
		s.counters.failed(st, 1)
		s.answer(h, st, 0, from)
		return
	}
	for _, v := range q.Ret {
		s.out = binary.LittleEndian.AppendUint64(s.out, v)
	}
	s.answer(h, transport.StatusOK, 1, from)
}

// serveCall runs the handler while session.executing is held: a fence waits for it, and behind the
// fence its compare-and-swap has either happened or never will. The error has the status that
// transport.StatusOf finds. A panic is an error only when it came from touching the memory: see
// memory.fault.
func (s *session) serveCall(q *rdma.Request) (err error) {
	if s.node.cfg.Handler == nil {
		return fmt.Errorf("the node has no procedures: %w", rdma.ErrNotSupported)
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("no memory behind an uncommitted page: %w", s.pool.memory.fault(r).Err())
		}
	}()
	// Whether the procedure changes anything is not known. One word is announced, so that the next
	// fence of the region does not take all for durable already.
	s.pool.memory.mark(8)
	return s.node.cfg.Handler(&s.view, q)
}
