package tcp

import (
	"errors"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/transport"
)

// writer writes ops into frames. It holds the link's lock, and lives as long as one call of
// Endpoint.send.
//
// A frame has what the worker claims, and then verbs of one batch, in order. It has
// transport.MaxItems at most, which read no more than transport.MaxData, and write no more: so much
// a node takes in one piece, and answers in one. A verb that does not fit in begins the next frame.
// from is where the frame's header begins in out, and read and wrote are the bytes that its verbs
// read and write so far.
type writer struct {
	e           *Endpoint
	s           transport.Sending
	out         *[]byte // of s
	b           *rdma.Batch
	node        int
	frame       *sent // nil: none is begun
	from        int
	read, wrote int
}

// add writes one op. A verb that strays is sent as a breach, in its place among the others. So the
// node refuses what comes behind it, as it does for a verb that it finds to stray itself.
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
		*w.out = transport.AppendBreach(*w.out)
		w.frame.ops = append(w.frame.ops, i)
		return
	}
	if n > transport.MaxData {
		w.parts(i, op, n)
		return
	}
	r, wr := need(op.Verb, n)
	w.open(r, wr)
	*w.out = transport.AppendVerb(*w.out, op, op.Addr.Offset(), 0, n)
	w.frame.ops = append(w.frame.ops, i)
}

// send sends a message. One that gathers memory that the worker may not touch is a breach. What
// else is wrong with it ends the op here: it is not sent, and the verbs behind it go on.
func (w *writer) send(i int, op *rdma.Op) {
	switch box, err := w.e.BoxFor(op); {
	case errors.Is(err, rdma.ErrAccess):
		w.open(0, 0)
		*w.out = transport.AppendBreach(*w.out)
	case err != nil:
		op.Fail(err)
		w.b.Complete(i)
		return
	default:
		w.open(0, transport.SendBytes(op))
		*w.out = transport.AppendSend(*w.out, op, box)
	}
	w.frame.ops = append(w.frame.ops, i)
}

// entry sends an APPEND, as a whole: a node cuts it into blocks. A worker without an identity may
// not, and sends a breach instead. An entry of a bad length ends here.
func (w *writer) entry(i int, op *rdma.Op) {
	n := len(op.Buf)
	switch {
	case w.e.Client() == 0:
		w.open(0, 0)
		*w.out = transport.AppendBreach(*w.out)
	case n < 1 || n > rdma.MaxMessage:
		op.Fail(rdma.ErrMessageSize)
		w.b.Complete(i)
		return
	default:
		w.open(0, n)
		*w.out = transport.AppendVerb(*w.out, op, op.Addr.Offset(), 0, n)
	}
	w.frame.ops = append(w.frame.ops, i)
}

// need returns how many bytes of data an op of n bytes reads and writes. An atomic's operands count
// for nothing: transport.MaxBody has room for them.
func need(v rdma.Verb, n int) (read, wrote int) {
	switch v {
	case rdma.Read:
		return n, 0
	case rdma.Write:
		return 0, n
	}
	return 0, 0
}

// parts sends a long op in parts. It may tear anywhere, so that this needs no care. Each part is a
// frame of its own. Parts are executed in order, and other connections' verbs may come between
// them. left is shared by all parts, and has its full number before one is completed: this worker
// completes them, behind Post.
func (w *writer) parts(i int, op *rdma.Op, n int) {
	w.finish()
	left := new(int)
	for off := 0; off < n; off += transport.MaxData {
		m := min(transport.MaxData, n-off)
		w.open(need(op.Verb, m))
		*w.out = transport.AppendVerb(*w.out, op, op.Addr.Offset()+uint64(off), off, m)
		f := w.frame
		f.ops, f.part, f.off, f.n, f.left = append(f.ops, i), true, off, m, left
		*left++
		w.finish()
	}
}

// open makes sure that there is a frame with room for an op that reads and writes so many bytes.
// One that it begins has what the worker claims as of now, and the epoch for errors.
func (w *writer) open(read, wrote int) {
	if w.frame != nil && (len(w.frame.ops) == transport.MaxItems || w.read+read > transport.MaxData ||
		w.wrote+wrote > transport.MaxData) {
		w.finish()
	}
	w.read += read
	w.wrote += wrote
	if w.frame != nil {
		return
	}
	w.frame = w.e.spare()
	w.frame.batch, w.frame.node, w.frame.epoch = w.b, w.node, w.e.Epoch()
	w.from = len(*w.out)
	*w.out = w.e.Claim(append(*w.out, make([]byte, transport.HeaderBytes)...), w.node)
}

// finish ends the frame that was begun, if one was, by its header. From here on the frame is the
// link's, and counts as in flight.
func (w *writer) finish() {
	if w.frame == nil {
		return
	}
	w.s.End(transport.KindVerbs, len(w.frame.ops), w.from, w.frame)
	w.e.Flying[w.node]++
	w.frame, w.read, w.wrote = nil, 0, 0
}
