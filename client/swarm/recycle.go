package swarm

import (
	"cmp"
	"errors"
	"time"

	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Buffers are recycled by swaps (see package buffers). The CAS that replaces a word's pointer
// makes its client the owner of the buffer that was replaced. If a CAS fails, the new buffer
// stays with the client that wrote it. Words never take a value twice, so of all CASes that
// expect one value of a word at most one succeeds: a buffer has one owner.
//
// A chain is unresolved while its client does not know the outcome: while it is in flight, its
// WRITE may land at any moment, so its buffers have no owner. If a chain fails, its outcome stays
// unknown, and its buffer leaks until a sweep finds it; unless the chain is known to have had no
// effect.
//
// A reader may find that a buffer was reused. The checksum shows it, which covers object and
// stamp. Then the reader reads the word again. If that is unchanged, the buffer should have held
// the tuple, and the pool is damaged. So recycling here is not wait-free (section 4.5): a READ
// ends only if the buffer that it was led to is not reused within its two trips.

// bufferOf returns the buffer that a word points at; 0: none.
func bufferOf(w Word) uint16 {
	if w == tombstone {
		return 0
	}
	return pointerOf(w)
}

// recycle gives back the buffers that a step owns in the end. A replica's buffer is not the
// client's if its chain is in flight, and unresolved from now on; and it leaks if its chain was
// sent and ended without an answer.
func (c *Client) recycle(k *Register, p *put) {
	for r, pointer := range p.buffer[:c.Replicas] {
		m := quorum.Only(r)
		switch {
		case pointer == 0 || c.quorum.Flying()&m != 0:
		case p.asked&m != 0 && c.quorum.Unsent()&m == 0: // and there was no answer: the chain failed
			c.leaked++
		default:
			c.alloc.Give(k.At[r].Node(), k.Hash, pointer)
		}
	}
	c.unresolved.Keep(&c.quorum, k.Hash)
}

// swapped gives back the buffer that a CAS has replaced in a word. A CAS that only sets VERIFIED
// replaces none.
func (c *Client) swapped(node int, hash uint64, cas *rdma.Op) {
	if old := bufferOf(Word(cas.Expect)); cas.Swapped() && old != bufferOf(Word(cas.Value)) {
		c.alloc.Give(node, hash, old)
	}
}

// settleUnresolved examines the unresolved chains that are complete by now, and forgets those of an
// earlier term: the client owns nothing of what they replaced.
func (c *Client) settleUnresolved() {
	c.follow()
	if c.unresolved.Len() > 0 {
		c.unresolved.Settle(c.settleChain)
	}
}

// settleChain settles the owners of the buffers of a complete chain: a WRITE, if it had one, and
// then the CAS. If the CAS succeeded, the client owns the buffer that it replaced. If it failed,
// the client owns the new one, unless that is the word's own, which the CAS was only to mark as
// VERIFIED. If a verb failed, the owner is unknown.
func (c *Client) settleChain(hash uint64, b *rdma.Batch, ch quorum.Chain) {
	cas := b.Op(ch.End - 1)
	own := bufferOf(Word(cas.Value))
	for i := ch.First; i < ch.End; i++ {
		if b.Op(i).Err != nil {
			c.leaked++
			return
		}
	}
	wrote := ch.End-ch.First > 1 && b.Op(ch.End-2).Verb == rdma.Write
	switch node := cas.Addr.Node(); {
	case cas.Swapped():
		c.swapped(node, hash, cas)
	case wrote || own != bufferOf(Word(cas.Expect)):
		c.alloc.Give(node, hash, own)
	}
}

// retries counts the iterations of a READ that its protocol bounds: see bound. An iteration that
// met a reused buffer does not count, until the time of a step has passed since the first such
// one.
type retries struct {
	n int
	// began is when a reused buffer was met first; 0: none was.
	began time.Duration
}

// more reports whether another iteration is allowed after one that ended with err.
func (c *Client) more(r *retries, err error) bool {
	if errors.Is(err, errReused) {
		now := c.ep.Now()
		if r.began = cmp.Or(r.began, now); now-r.began < c.quorum.Timeout() {
			return true
		}
	}
	r.n++
	return r.n < c.quorum.Attempts
}
