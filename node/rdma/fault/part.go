package fault

import "github.com/farkv/farkv/node/rdma"

// part stands for a batch some ops of which are not posted.
type part struct {
	whole *rdma.Batch // the worker's
	sent  *rdma.Batch // the ops of it that are in flight, in chains of the same numbers
	place []int       // of each op of sent in whole; -1 once its answer was handed on
}

// postPart posts the ops of b that do not fail, and fails the others. The batch counts as posted:
// the worker waits for it and releases it as any other, and its buffers live until what was sent
// has landed.
func (e *Endpoint) postPart(b *rdma.Batch, fails map[int]error) error {
	p := e.cut(b, b.Len(), fails, false)
	if err := e.Endpoint.Post(p.sent); err != nil {
		p.sent.Release()
		return err
	}
	e.scratch.C.Trips = e.Counters().Trips // b departs now, by the trip clock that the worker sees
	e.scratch.Posted(b)
	b.Track()
	e.parts = append(e.parts, p)
	for i := range b.Len() {
		if err := fails[i]; err != nil {
			b.Op(i).Fail(err)
			b.Complete(i)
		}
	}
	e.settle()
	return nil
}

// postBefore posts the first n ops of b, without those that fail. The worker is dead and may give b
// back at once, so what is sent has bytes of its own.
func (e *Endpoint) postBefore(b *rdma.Batch, n int, fails map[int]error) error {
	p := e.cut(b, n, fails, true)
	e.sent += uint64(n)
	err := e.Endpoint.Post(p.sent)
	p.sent.Release()
	return err
}

// cut copies the first n ops of b, without those that fail, to a batch of the real queue.
func (e *Endpoint) cut(b *rdma.Batch, n int, fails map[int]error, clone bool) *part {
	p := &part{whole: b, sent: e.Endpoint.Batch().As(b.Step())}
	for i := range n {
		if fails[i] != nil {
			continue
		}
		for p.sent.Chains() <= b.ChainOf(i) {
			p.sent.Chain()
		}
		op := b.Op(i)
		buf := op.Buf
		if clone && buf != nil {
			buf = p.sent.Alloc(len(op.Buf))
			copy(buf, op.Buf)
		}
		p.add(op, buf)
		p.place = append(p.place, i)
	}
	for p.sent.Chains() < b.Chains() {
		p.sent.Chain() // those that fail as a whole are complete from the beginning
	}
	return p
}

func (p *part) add(op *rdma.Op, buf []byte) {
	var own *rdma.Op
	switch op.Verb {
	case rdma.Read:
		own = p.sent.ReadInto(op.Addr, buf)
	case rdma.Write:
		own = p.sent.Write(op.Addr, buf)
	case rdma.CompareSwap:
		own = p.sent.CompareSwap(op.Addr, op.Expect, op.Value)
	case rdma.MaskedCompareSwap:
		own = p.sent.MaskedCompareSwap(op.Addr, op.Expect, op.CompareMask, op.Value, op.SwapMask)
	case rdma.Send:
		own = p.sent.Send(rdma.BoxAddr(op.Addr), buf, op.Spans...)
	case rdma.Append:
		own = p.sent.Append(rdma.RingAddr(op.Addr), buf)
	default:
		own = p.sent.FetchAdd(op.Addr, op.Value)
	}
	own.Fence = op.Fence
}

// settle hands on what has been answered to the batches that the worker sees.
func (e *Endpoint) settle() {
	flying := e.parts[:0]
	for _, p := range e.parts {
		for k, i := range p.place {
			if i >= 0 && p.sent.Completed(k) {
				from, to := p.sent.Op(k), p.whole.Op(i)
				to.Result, to.Err = from.Result, from.Err
				p.whole.Complete(i)
				p.place[k] = -1
			}
		}
		if p.sent.Finished() {
			p.sent.Release()
		} else {
			flying = append(flying, p)
		}
	}
	clear(e.parts[len(flying):])
	e.parts = flying
}
