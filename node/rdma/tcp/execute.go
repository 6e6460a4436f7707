package tcp

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
)

// barred reports whether a request may not be executed.
func (c *conn) barred(r *rights) status {
	p := c.pool
	switch {
	case r.key != p.key && (r.key != p.readKey || !c.readOnly):
		return statusAccess
	case int(r.client) >= len(p.revoked):
		return statusAccess
	case r.life <= p.revoked[r.client].Load():
		return statusRevoked
	case r.epoch < p.fence.Load():
		return statusStale
	case len(c.broken) > 0 && c.broken[r.client] == r.life:
		return statusAccess
	}
	return statusOK
}

// readsOnly reports whether a request may do nothing but READ, and tell: its sender has the read
// token alone, or no identity.
func (c *conn) readsOnly(r *rights) bool { return c.readOnly || r.client == 0 }

// verbs executes one frame of verbs. A verb that strays takes its client's connection down, as it
// would a queue pair: nothing that the client sent behind it is executed.
func (c *conn) verbs(h header, p []byte) error {
	if len(p) < rightsBytes || h.items < 1 || h.items > maxItems {
		return fmt.Errorf("%d verbs in %d bytes: %w", h.items, len(p), ErrProtocol)
	}
	r := parseRights(p)
	c.credit(&r)
	c.out = append(c.out, make([]byte, headerBytes)...)
	from := len(c.out)
	st := c.barred(&r)
	if st == statusOK && c.pool.region != nil {
		st = statusNotSupported // a processor's atomics are not atomic with a device's
	}
	if st != statusOK {
		c.counters.failed(st, h.items)
		c.answer(h, st, 0, from)
		return nil
	}
	p = p[rightsBytes:]
	read, strayed := 0, false
	for range h.items {
		q, rest, err := parseVerb(p)
		if err != nil {
			return err
		}
		p = rest
		if q.verb == rdma.Read {
			if read += q.n; read > maxData {
				return fmt.Errorf("verbs that read %d bytes: %w", read, ErrProtocol)
			}
		}
		st := statusAccess
		if !strayed {
			st = c.run(&q, &r)
		}
		if st != statusOK {
			strayed = strayed || st == statusAccess
			c.counters.failed(st, 1)
			c.out = append(c.out, byte(st), 0, 0, 0, 0, 0, 0, 0)
		}
	}
	if len(p) > 0 {
		return fmt.Errorf("%d bytes behind the last verb: %w", len(p), ErrProtocol)
	}
	if strayed {
		if c.broken == nil {
			c.broken = map[rdma.ClientID]uint64{}
		}
		c.broken[r.client] = r.life
	}
	c.answer(h, statusOK, h.items, from)
	return nil
}

// run executes one verb, unless its sender may not, and, when it succeeds, appends its answer.
func (c *conn) run(q *request, r *rights) status {
	switch {
	case (q.verb == rdma.Send || q.verb == rdma.Append) && c.readsOnly(r):
		return statusAccess
	case q.verb == rdma.Send:
		return c.deliver(q, r.client)
	case q.verb == rdma.Append:
		return c.append(q, r.client)
	case q.verb == rdma.Read || !c.readsOnly(r) || c.tells(q):
		return c.execute(q)
	}
	return statusAccess
}

// tells reports whether a verb is on telemetry, of a sender that may write that without an
// identity.
func (c *conn) tells(q *request) bool {
	return !c.readOnly && q.off >= c.pool.record.Memory-c.pool.record.Telemetry
}

// execute executes one verb on memory and, when it succeeds, appends its answer.
func (c *conn) execute(q *request) (st status) {
	p := c.locate(q)
	if p == nil {
		return statusAccess
	}
	if m := c.pool.memory; m.file != nil || m.region != nil {
		at := len(c.out)
		defer func() {
			if r := recover(); r != nil {
				c.out, st = c.out[:at], c.pool.memory.fault(r)
			}
		}()
	}
	le := binary.LittleEndian
	n := resultLen(q.verb, q.n)
	c.out = append(c.out, 0, 0, 0, 0)
	c.out = le.AppendUint32(c.out, uint32(n))
	c.counters.did(q)
	c.pool.model(q.verb, q.off, q.n)
	if q.verb != rdma.Read {
		c.pool.memory.mark(q.n)
	}
	switch w := (*uint64)(p); q.verb {
	case rdma.Read:
		at := len(c.out)
		c.out = grow(c.out, pad(n))
		memcopy.Load(c.out[at:at+n], p)
	case rdma.Write:
		memcopy.Store(p, q.data)
	case rdma.CompareSwap:
		c.out = le.AppendUint64(c.out, memcopy.CompareSwap(w, q.expect, q.value))
	case rdma.MaskedCompareSwap:
		c.out = le.AppendUint64(c.out, memcopy.MaskedCompareSwap(w, q.expect, q.compare, q.value, q.swap))
	case rdma.FetchAdd:
		c.out = le.AppendUint64(c.out, memcopy.FetchAdd(w, q.value))
	}
	memcopy.Settle(&c.own) // a later verb stays behind this one
	return statusOK
}

// grow makes p longer by n bytes, whatever they are.
func grow(p []byte, n int) []byte {
	for cap(p)-len(p) < n {
		p = append(p[:cap(p)], 0)[:len(p)]
	}
	return p[:len(p)+n]
}

// locate returns where a verb's memory is mapped; nil: it may not touch it.
func (c *conn) locate(q *request) unsafe.Pointer {
	size := c.pool.registered()
	if q.verb == 0 || q.verb.Atomic() && q.off%8 != 0 ||
		q.off > size || uint64(q.n) > size-q.off {
		return nil
	}
	return unsafe.Add(c.pool.memory.base, q.off)
}

// call runs one of the node's procedures.
func (c *conn) call(h header, p []byte) {
	r := parseRights(p)
	c.credit(&r)
	c.out = append(c.out, make([]byte, headerBytes)...)
	from := len(c.out)
	st := c.barred(&r)
	if st == statusOK && c.readsOnly(&r) {
		st = statusAccess
	}
	if st != statusOK {
		c.counters.failed(st, 1)
		c.answer(h, st, 0, from)
		return
	}
	q := &c.request
	*q = parseCall(p[rightsBytes:])
	q.Client = r.client
	c.counters.calls++
	if err := c.serveCall(q); err != nil {
		st = statusOf(err)
		text := err.Error()
		text = text[:min(len(text), maxText)]
		c.out = append(c.out, text...)
		for len(c.out)%8 != from%8 {
			c.out = append(c.out, ' ')
		}
		c.counters.failed(st, 1)
		c.answer(h, st, 0, from)
		return
	}
	for _, v := range q.Ret {
		c.out = binary.LittleEndian.AppendUint64(c.out, v)
	}
	c.answer(h, statusOK, 1, from)
}

func (c *conn) serveCall(q *rdma.Request) (err error) {
	if c.node.cfg.Handler == nil {
		return fmt.Errorf("the node has no procedures: %w", rdma.ErrNotSupported)
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("no memory behind an uncommitted page: %w", c.pool.memory.fault(r).err())
		}
	}()
	c.pool.memory.mark(8)
	return c.node.cfg.Handler(&c.view, q)
}
