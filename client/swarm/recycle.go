package swarm

import (
	"time"

	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Buffers are used again by the swap discipline (see package buffers): the CAS that replaces a
// word's pointer takes the buffer that was replaced, and a CAS that fails leaves the new buffer
// with the client that wrote it. Words never take a value twice, so that of all CASes that expect a
// word at most one succeeds: a buffer has one owner.
//
// A chain whose outcome its client does not know is unresolved until it does: a chain in flight may
// land its WRITE at any moment. The outcome of a chain that failed stays unknown, and its buffer
// leaks: a sweep finds it.
//
// A reader may find a buffer used again. It sees that by the checksum, which covers object and
// stamp, and reads the words again; when its word is still the same the buffer should have been
// there, and the pool is damaged. So recycling is not wait-free (section 4.5): a READ ends when
// writers do not come around all buffers within two trips of it.

// bufferOf returns the buffer that a word points at; 0: none.
func bufferOf(w Word) uint16 {
	if w == tombstone {
		return 0
	}
	return pointerOf(w)
}

// recycle takes what a step has not used; chains in flight are kept as unresolved.
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

// swapped takes the buffer that a CAS replaced.
func (c *Client) swapped(node int, hash uint64, cas *rdma.Op) {
	if old := bufferOf(Word(cas.Expect)); cas.Swapped() && old != bufferOf(Word(cas.Value)) {
		c.alloc.Give(node, hash, old)
	}
}

// settleUnresolved looks for what is complete by now.
func (c *Client) settleUnresolved() {
	c.follow()
	if c.unresolved.Len() > 0 {
		c.unresolved.Settle(c.settleChain)
	}
}

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
	case wrote || own != bufferOf(Word(cas.Expect)): // else it is the word's, which only becomes VERIFIED
		c.alloc.Give(node, hash, own)
	}
}

// retries counts what a READ does again. It is bounded by the iterations that the protocol may
// take; a buffer that was used again is no iteration of it, until the time of a step has passed so.
type retries struct {
	n       int
	began   time.Duration
	waiting bool
}

// more reports whether there may be another iteration, behind one that ended with err.
func (c *Client) more(r *retries, err error) bool {
	if isReused(err) {
		now := c.ep.Now()
		if !r.waiting {
			r.began, r.waiting = now, true
		}
		if now-r.began < c.quorum.Timeout() {
			return true
		}
	}
	r.n++
	return r.n < c.quorum.Attempts
}
