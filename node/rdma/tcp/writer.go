package tcp

import (
	"errors"

	"github.com/farkv/farkv/node/rdma"
)

// writer writes ops into frames.
type writer struct {
	e           *Endpoint
	s           sending
	b           *rdma.Batch
	node        int
	frame       *sent // nil: none is begun
	from        int
	read, wrote int
}

func (w *writer) add(i int) {
	op := w.b.Op(i)
	switch op.Verb {
	case rdma.Send:
		w.send(i, op)
		return
	case rdma.Append:
		w.entry(i, op)
		return
	}
	n := op.Len()
	if !w.e.fabric.holds(op) {
		w.open(0, 0)
		w.s.l.out = appendBreach(w.s.l.out)
		w.frame.ops = append(w.frame.ops, i)
		return
	}
	if n > maxData {
		w.parts(i, op, n)
		return
	}
	r, wr := need(op.Verb, n)
	w.open(r, wr)
	w.s.l.out = appendVerb(w.s.l.out, op, op.Addr.Offset(), 0, n)
	w.frame.ops = append(w.frame.ops, i)
}

// send sends a message.
func (w *writer) send(i int, op *rdma.Op) {
	switch err := w.e.box.maySend(op); {
	case errors.Is(err, rdma.ErrAccess):
		w.open(0, 0)
		w.s.l.out = appendBreach(w.s.l.out)
	case err != nil:
		op.Fail(err)
		w.b.Complete(i)
		return
	default:
		w.open(0, sendBytes(op))
		w.s.l.out = appendSend(w.s.l.out, op, w.e.box.o.Number)
	}
	w.frame.ops = append(w.frame.ops, i)
}

func need(v rdma.Verb, n int) (read, wrote int) {
	switch v {
	case rdma.Read:
		return n, 0
	case rdma.Write:
		return 0, n
	}
	return 0, 0
}

// parts sends a long op in parts. It may tear anywhere, so that this needs no care.
func (w *writer) parts(i int, op *rdma.Op, n int) {
	w.finish()
	left := new(int)
	for off := 0; off < n; off += maxData {
		m := min(maxData, n-off)
		w.open(need(op.Verb, m))
		w.s.l.out = appendVerb(w.s.l.out, op, op.Addr.Offset()+uint64(off), off, m)
		f := w.frame
		f.ops, f.part, f.off, f.n, f.left = append(f.ops, i), true, off, m, left
		*left++
		w.finish()
	}
}

// open makes sure that there is a frame with room for an op that reads and writes so many bytes.
func (w *writer) open(read, wrote int) {
	if w.frame != nil && (len(w.frame.ops) == maxItems || w.read+read > maxData || w.wrote+wrote > maxData) {
		w.finish()
	}
	w.read += read
	w.wrote += wrote
	if w.frame != nil {
		return
	}
	w.frame = w.e.spare()
	w.frame.batch, w.frame.node, w.frame.epoch = w.b, w.node, w.e.joined
	l := w.s.l
	w.from = len(l.out)
	l.out = append(l.out, make([]byte, headerBytes)...)
	l.out = w.e.claim(l.out, w.node)
}

// claim appends what the worker may do at a node.
func (e *Endpoint) claim(out []byte, node int) []byte {
	r := e.rights
	r.key, r.epoch = e.fabric.links[node].verbs.key.Load(), e.joined
	if e.box != nil {
		r.released = e.box.tell(node)
	}
	return r.append(out)
}

func (w *writer) finish() {
	if w.frame == nil {
		return
	}
	w.s.end(kindVerbs, len(w.frame.ops), w.from, w.frame)
	w.e.flying[w.node]++
	w.frame, w.read, w.wrote = nil, 0, 0
}
