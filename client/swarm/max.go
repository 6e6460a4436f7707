package swarm

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// tuple is what the max register holds: a stamp, and where its value is.
type tuple struct {
	stamp stamp
	// has are the replicas of which the word is known to hold the tuple.
	has quorum.Mask
	// pointer names the buffer at each replica in has.
	pointer [MaxReplicas]uint16
	// value lives in a batch of the last step, or in Client.value. nil: it was not read.
	value []byte
}

// highest returns the highest stamp in a replica's words; 0: nothing was written there.
func (l *Layout) highest(words []byte) (top stamp) {
	for p := range l.Words {
		if w := Word(le.Uint64(words[8*p:])); w != 0 {
			top = max(top, stampOf(w, p))
		}
	}
	return top
}

// look reads the words of a majority, and with data also what lies in place. It is the weak READ of
// appendix A.2: the highest stamp that it finds may be at a minority. So only writers use it alone:
// all that they need is to be above each write that is complete.
//
// It takes one trip, and notes in k.own what this client's word holds at each replica that answers:
// the next CAS expects that. c.words is valid until the next step.
func (c *Client) look(k *Register, data bool) (top stamp, answered quorum.Mask, err error) {
	err = c.gather(stepReadWords, k, c.all(), c.Majority(),
		func(b *rdma.Batch, r int) error {
			n := 8 * c.Words
			if data && r == k.InPlace && !c.Apart {
				n = c.Bytes(true) - c.wordsAt()
			}
			b.Read(c.wordAt(k, r, 0), n)
			return nil
		},
		func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
			c.words[r] = b.Op(ch.First).Buf
			k.own[r] = Word(le.Uint64(c.words[r][8*(c.tid%c.Words):]))
			top = max(top, c.highest(c.words[r]))
			return quorum.Done
		})
	k.saw(&c.Layout, top)
	return top, c.quorum.Done(), err
}

// saw notes the i of a stamp. A tombstone's is no writer's.
func (k *Register) saw(l *Layout, s stamp) {
	if !s.top() {
		k.seen = max(k.seen, l.iOf(s))
	}
}

// read is the reliable max register's READ (Algorithm 8). A majority has the tuple that it returns,
// so no later READ returns a lower one. patience bounds the wait for a replica that has the value.
// The error wraps errLost when the register must be read again, and quorum.ErrAttempts when a word
// changed too often.
//
// VERIFIED is the lowest bit of the order (section 4.3). So a replica that has the highest tuple
// only as guessed does not count as one that has it, and a write-back sets the flag there.
//
// What lies in place is used only for a VERIFIED tuple, and only if its checksum fits the word that
// came in the same READ: WRITEs in place are not ordered.
func (c *Client) read(k *Register, patience time.Duration) (t tuple, err error) {
	top, answered, err := c.look(k, true)
	if err != nil || top == 0 {
		return t, err
	}
	t.stamp = top
	// A write-back first assumes that the word is empty at a replica that has not answered.
	c.expect = [MaxReplicas]Word{}
	for r := range c.Replicas {
		if !answered.Has(r) {
			continue
		}
		c.expect[r] = Word(le.Uint64(c.words[r][8*top.place():]))
		if stampOf(c.expect[r], top.place()) == top {
			t.has |= quorum.Only(r)
			t.pointer[r] = pointerOf(c.expect[r])
		}
	}
	// The replica's word seeds the checksum in place, so another tuple's value does not fit it.
	if r := k.InPlace; t.has.Has(r) && top.verified() && !top.top() && !c.Apart {
		if v, ok := decodeInPlace(c.words[r][8*c.Words:], c.expect[r]); ok {
			t.value = v
		}
	}
	if t.has.Len() >= c.Majority() {
		return t, nil
	}
	return t, c.writeBack(k, &t, patience)
}

// writeBack is Algorithm 8's inner_write by a reader: it brings a tuple to a majority, at the
// replicas that answer first of those that lack it. A buffer that it fills belongs to the reader
// until a word points at it.
//
// What a crash here leaves: the tuple at some more replicas, which is harmless, and buffers that no
// word points at.
func (c *Client) writeBack(k *Register, t *tuple, patience time.Duration) error {
	c.stats.WriteBacks++
	if !t.stamp.top() {
		v, err := c.fetch(k, t, patience)
		if err != nil {
			return err
		}
		// The value must outlive the batch that it was read in, which the next step releases.
		c.value = append(c.value[:0], v...)
		t.value = c.value
	}
	p := put{tuple: *t, from: c.all() &^ t.has, need: c.Majority() - t.has.Len(), expect: &c.expect}
	err := c.put(stepWriteBack, k, &p)
	*t = p.tuple
	return err
}

// errLost is wrapped when the value of a tuple lies only on nodes that died, or became slow,
// after the words were read. Then either a majority never had the tuple, or it has a higher one
// by now: the next read finds another tuple.
var errLost = errors.New("no replica that has the value answers")

// fetch returns a tuple's value, from the buffer at one of the replicas that have it, unless it was
// read in place. It lives in a batch of the last step, or in Client.value. The error
// wraps errLost when none of those replicas answers within patience, and errReused when the buffers
// hold other values by now.
func (c *Client) fetch(k *Register, t *tuple, patience time.Duration) ([]byte, error) {
	if t.value != nil {
		c.stats.InPlace++
		return t.value, nil
	}
	c.stats.Fetches++
	var v []byte
	var reused quorum.Mask
	c.quorum.Limit = patience
	err := c.gather(stepFetch, k, t.has, 1,
		func(b *rdma.Batch, r int) error {
			b.Read(c.alloc.Resolve(k.At[r].Node(), k.Hash, t.pointer[r]), c.BufferBytes())
			return nil
		},
		func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
			if found, ok := decodeBuffer(b.Op(ch.First).Buf, k.Hash, t.stamp); ok {
				v = found
				return quorum.Done
			}
			reused |= quorum.Only(r)
			return quorum.Never
		})
	c.quorum.Limit = c.quorum.Timeout()
	switch {
	case errors.Is(err, quorum.ErrRefused):
		return nil, c.reused(k, t, reused)
	case errors.Is(err, rdma.ErrNodeDown), errors.Is(err, rdma.ErrTimeout):
		c.stats.Lost++
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	return v, err
}

// errReused is wrapped when a buffer was reused during a READ. The READ begins again: the word that
// named the buffer has changed, too.
var errReused = fmt.Errorf("the buffer is used again: %w", errLost)

// reused finds out why a tuple's buffers do not hold it, by its words. Words never take a value
// twice: a word that still points at the buffer has done so all the time, and its buffer should
// have held the tuple. Then the pool is damaged. Otherwise the error wraps errReused.
func (c *Client) reused(k *Register, t *tuple, at quorum.Mask) error {
	c.stats.Reused++
	same := false
	err := c.gather(stepReadWord, k, at, 1,
		func(b *rdma.Batch, r int) error {
			b.Read(c.wordAt(k, r, t.stamp.place()), 8)
			return nil
		},
		func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
			w := Word(le.Uint64(b.Op(ch.First).Buf))
			same = same || stampOf(w, t.stamp.place()).time() == t.stamp.time() && pointerOf(w) == t.pointer[r]
			return quorum.Done
		})
	switch {
	case errors.Is(err, rdma.ErrStale):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", errLost, err)
	case same:
		return fmt.Errorf("a buffer of writer %d: %w", c.tidOf(t.stamp), client.ErrDamaged)
	}
	return errReused
}

// put is a WRITE of the max register (Algorithm 8's inner_write over Algorithms 5 and 7).
type put struct {
	// tuple is what is written. The caller owns its value.
	tuple
	// from are the replicas to ask, and need is how many of them have to have the tuple, or a
	// higher one.
	from quorum.Mask
	need int
	// expect is what the tuple's word is assumed to hold at each replica. Answers correct it.
	expect *[MaxReplicas]Word
	// read: all words are read in the same trip.
	read bool
	// top is the highest stamp that was met, and tops is that at each replica.
	top  stamp
	tops [MaxReplicas]stamp
	// stored are the replicas at which the buffer is known to be written.
	stored quorum.Mask
	// buffer names the buffers that the client owns: no word points at them. 0: none.
	buffer [MaxReplicas]uint16
	// asked are the replicas that were asked and have not answered.
	asked quorum.Mask
}

// put brings a tuple into its word at each replica: it writes a buffer and, behind that in the
// same chain, CASes the word (MAX, Algorithm 7). So a word never points at a buffer that is not
// written. A word with a higher tuple stays, and counts: words never fall. A word that has the
// tuple guessed keeps its buffer when the tuple becomes VERIFIED.
//
// In the end each buffer has an owner: the client, which gives it back, or the word that points at
// it; or its chain is unresolved, or failed: see recycle.go.
//
// What a crash here leaves: buffers that no word points at, and the tuple at some of the
// replicas. A reader that finds it decides: see read.go.
func (c *Client) put(step rdma.Step, k *Register, p *put) error {
	c.settleUnresolved()
	// rejoin works on c.putting during the step.
	c.putting = *p
	err := c.putAll(step, k, &c.putting)
	*p, c.putting = c.putting, put{}
	c.recycle(k, p)
	return err
}

// void takes a buffer away from a write that has not made a word point at it: the client does not
// own it any more. The write allocates another one if it asks the replica again.
func (p *put) void(r int) {
	if p.buffer[r] != 0 {
		p.buffer[r] = 0
		p.stored &^= quorum.Only(r)
	}
}

// putAll is the step of put. Three chains are possible at a replica. If its word is known to have
// the tuple, or a higher one, a CAS of the word to itself only makes sure. If it has the tuple
// guessed, the CAS sets VERIFIED and keeps the pointer. Otherwise the chain writes a buffer
// first. All replicas of one batch share one encoded copy, which the batch owns.
func (c *Client) putAll(step rdma.Step, k *Register, p *put) error {
	place := p.stamp.place()
	var encoded *rdma.Batch
	var buf []byte
	return c.gather(step, k, p.from, p.need,
		func(b *rdma.Batch, r int) error {
			p.asked |= quorum.Only(r)
			if b.Len() == 0 { // a new batch, maybe with the address of a released one
				encoded = nil
			}
			// Once the buffer is stored, the words were read, too. One READ of them suffices: it
			// came after the write had begun.
			if p.read && !p.stored.Has(r) {
				b.Read(c.wordAt(k, r, 0), 8*c.Words)
			}
			held := stampOf(p.expect[r], place)
			if held >= p.stamp { // nothing to do here; the CAS only makes sure
				b.CompareSwap(c.wordAt(k, r, place), uint64(p.expect[r]), uint64(p.expect[r]))
				return nil
			}
			switch {
			case p.stored.Has(r) || p.stamp.top():
				// The buffer is written already, or the tuple has none.
			case held.time() == p.stamp.time():
				// The word has the tuple as guessed, with its buffer.
				p.pointer[r] = pointerOf(p.expect[r])
			default:
				pointer, at, err := c.alloc.Allocate(k.At[r].Node(), k.Hash)
				if err != nil {
					return err
				}
				if encoded != b { // one batch, one copy
					encoded, buf = b, b.Alloc(bufferHeader+len(p.value))
					encodeBuffer(buf, k.Hash, p.stamp, p.value)
				}
				p.pointer[r], p.buffer[r] = pointer, pointer
				b.Write(at, buf)
			}
			b.CompareSwap(c.wordAt(k, r, place), uint64(p.expect[r]), uint64(p.stamp.word(p.pointer[r])))
			return nil
		},
		func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
			if op := b.Op(ch.First); op.Verb == rdma.Read {
				p.met(r, c.highest(op.Buf))
			}
			p.asked &^= quorum.Only(r)
			cas := b.Op(ch.End - 1)
			c.swapped(k.At[r].Node(), k.Hash, cas)
			return p.landed(r, cas)
		})
}

// landed examines the CAS of a replica: Done if the replica's word has the tuple, or a higher
// one, now. A CAS that succeeded has given the buffer to the word. After one that failed the
// buffer stays written, and the next attempt only CASes.
func (p *put) landed(r int, cas *rdma.Op) quorum.Verdict {
	if p.buffer[r] != 0 { // written before the CAS
		p.stored |= quorum.Only(r)
	}
	// If the CAS failed, the next attempt expects what the word held.
	p.expect[r] = Word(cas.After())
	if cas.Swapped() && bufferOf(p.expect[r]) == p.buffer[r] {
		p.buffer[r] = 0 // the word owns it now
	}
	now := stampOf(p.expect[r], p.stamp.place())
	p.met(r, now)
	if now.time() == p.stamp.time() && now >= p.stamp { // by us, or by a reader that wrote it back before us
		p.pointer[r] = pointerOf(p.expect[r])
		p.has |= quorum.Only(r)
	}
	if now >= p.stamp {
		return quorum.Done
	}
	return quorum.Again
}

// met notes a stamp at a replica.
func (p *put) met(r int, s stamp) {
	p.tops[r] = max(p.tops[r], s)
	p.top = max(p.top, s)
}

// holders returns at how many replicas the highest stamp was met.
func (p *put) holders() (n int) {
	for _, s := range p.tops {
		if s == p.top {
			n++
		}
	}
	return n
}

// backgroundBatches bounds the batches in flight of a client's background work. Beyond it
// tuples stay unmarked, which only costs readers trips.
const backgroundBatches = 16

// confirm marks a tuple as VERIFIED at the replicas that have it, and writes the value in place, in
// the background (Algorithm 2, line 8; section 6). The caller guarantees that the tuple is settled.
// It is a hint: a reader that does not find the mark, or the value in place, takes more trips. The
// caller owns value: it is copied.
//
// What a crash before it lands leaves: a guessed tuple, which a reader locks, and an older value in
// place, of which the checksum does not fit the word. The WRITE lands whether or not the CAS has
// succeeded: if the word is higher by then, the value fits no word.
func (c *Client) confirm(k *Register, t *tuple, value []byte) {
	if !c.pending.Room(backgroundBatches) {
		c.stats.Unmarked++
		return
	}
	b := c.ep.Batch()
	for r := range c.Replicas {
		if !t.has.Has(r) || c.quorum.IsSlow(k.At[r].Node()) {
			continue
		}
		b.Chain()
		// The CAS expects the guessed tuple: it fails, without harm, if the word is higher by now.
		guessed, sure := t.stamp.word(t.pointer[r]), (t.stamp | verified).word(t.pointer[r])
		if guessed != sure {
			b.CompareSwap(c.wordAt(k, r, t.stamp.place()), uint64(guessed), uint64(sure))
			if k.own[r] == guessed {
				k.own[r] = sure // the next CAS of this client comes behind this one
			}
		}
		if r == k.InPlace && !c.Apart {
			p := b.Alloc(inPlaceHeader + len(value))
			encodeInPlace(p, sure, value)
			b.Write(k.At[r].Add(uint64(c.dataAt())), p)
		}
	}
	c.pending.Post(c.ep, b.As(stepVerify))
}
