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
	stamp   stamp
	has     quorum.Mask // replicas whose words are known to hold it
	pointer [MaxReplicas]uint16
	value   []byte // nil when it was not read; lives in a batch of the last step, or in Client.value
}

// highest returns the highest stamp in a replica's words.
func (l *Layout) highest(words []byte) (top stamp) {
	for p := range l.Words {
		if w := Word(le.Uint64(words[8*p:])); w != 0 {
			top = max(top, stampOf(w, p))
		}
	}
	return top
}

// look reads the words of a majority, and with data what lies in place. It is the weak READ of
// appendix A.2: the highest stamp that it finds may be at a minority, so only writers use it alone,
// which need to be above what is complete.
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

func (k *Register) saw(l *Layout, s stamp) {
	if !s.top() {
		k.seen = max(k.seen, l.iOf(s))
	}
}

// read is the reliable max register's READ (Algorithm 8): what it returns, a majority has. The
// error wraps errLost when it has to be read again, and quorum.ErrAttempts when a word changed too
// often.
func (c *Client) read(k *Register, patience time.Duration) (t tuple, err error) {
	top, answered, err := c.look(k, true)
	if err != nil || top == 0 {
		return t, err
	}
	t.stamp = top
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
// replicas that answered first. A buffer that it fills is the reader's.
func (c *Client) writeBack(k *Register, t *tuple, patience time.Duration) error {
	c.stats.WriteBacks++
	if !t.stamp.top() {
		v, err := c.fetch(k, t, patience)
		if err != nil {
			return err
		}
		t.value = c.keep(v)
	}
	p := put{tuple: *t, from: c.all() &^ t.has, need: c.Majority() - t.has.Len(), expect: &c.expect}
	err := c.put(stepWriteBack, k, &p)
	*t = p.tuple
	return err
}

// errLost is wrapped when a tuple's value lies only with nodes that died, or are slow, since it was
// read. Either a majority never had the tuple, or it has a higher one by now: the next read finds
// something else.
var errLost = errors.New("nobody who has the value answers")

// fetch returns a tuple's value, from the buffer of a replica that has it if need be; an error
// wraps errLost when none of those answers for as long as patience.
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

// errReused is wrapped when a buffer was used again under a READ, which begins again: its word has
// changed, too.
var errReused = fmt.Errorf("the buffer is used again: %w", errLost)

func isReused(err error) bool { return errors.Is(err, errReused) }

// reused tells why a tuple's buffers do not hold it. A word that still points there is one that did
// all the time: words never come back to what they were.
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
	tuple  // what is written; its value is the caller's
	from   quorum.Mask
	need   int
	expect *[MaxReplicas]Word  // what the tuple's word may hold at each replica
	read   bool                // read all words in the same trip
	top    stamp               // the highest that was met
	tops   [MaxReplicas]stamp  // at each replica
	stored quorum.Mask         // where the buffer is written
	buffer [MaxReplicas]uint16 // that are the client's: no word points there
	asked  quorum.Mask         // replicas that have not answered
}

// put brings a tuple into its word at each replica: a buffer and, behind it in the same chain, a
// CAS (MAX, Algorithm 7). A word that has a higher tuple stays, and counts: so words never fall.
// Where the tuple is guessed and becomes VERIFIED the buffer is there.
//
// What a crash here leaves: buffers that nothing points at, and the tuple at some of the replicas.
func (c *Client) put(step rdma.Step, k *Register, p *put) error {
	c.settleUnresolved()
	c.putting = *p
	err := c.putAll(step, k, &c.putting)
	*p, c.putting = c.putting, put{}
	c.recycle(k, p)
	return err
}

// void takes a buffer from a write that has not made a word point at it.
func (p *put) void(r int) {
	if p.buffer[r] != 0 {
		p.buffer[r] = 0
		p.stored &^= quorum.Only(r)
	}
}

func (c *Client) putAll(step rdma.Step, k *Register, p *put) error {
	place := p.stamp.place()
	var encoded *rdma.Batch
	var buf []byte
	return c.gather(step, k, p.from, p.need,
		func(b *rdma.Batch, r int) error {
			p.asked |= quorum.Only(r)
			if b.Len() == 0 { // a new batch, though it may have been one of this step's before
				encoded = nil
			}
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
			case held.time() == p.stamp.time():
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

// landed looks at the CAS of a replica, and reports whether that has the tuple, or a higher one,
// now.
func (p *put) landed(r int, cas *rdma.Op) quorum.Verdict {
	if p.buffer[r] != 0 { // written before the CAS
		p.stored |= quorum.Only(r)
	}
	p.expect[r] = Word(cas.Result)
	if cas.Swapped() {
		p.expect[r] = Word(cas.Value)
		if bufferOf(p.expect[r]) == p.buffer[r] {
			p.buffer[r] = 0
		}
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

// backgroundBatches bounds the batches in flight of a client's background work. Beyond it tuples
// stay unmarked, which costs readers trips, and nothing else.
const backgroundBatches = 16

// confirm marks a tuple as VERIFIED where it is, and writes the value in place, in the background
// (Algorithm 2, line 8; section 6). It is a hint: the caller knows that the tuple is settled.
func (c *Client) confirm(k *Register, t *tuple, value []byte) {
	slot := -1
	for i, b := range c.pending {
		if b == nil || b.Finished() {
			slot = i
			break
		}
	}
	if slot < 0 {
		c.stats.Unmarked++
		return
	}
	if b := c.pending[slot]; b != nil {
		b.Release()
		c.pending[slot] = nil
	}
	b := c.ep.Batch()
	for r := range c.Replicas {
		if !t.has.Has(r) || c.quorum.Avoids(k.At[r].Node()) {
			continue
		}
		b.Chain()
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
	if b.Len() == 0 || c.ep.Post(b.As(stepVerify)) != nil { // an endpoint that cannot post says so in the next operation
		b.Release()
		return
	}
	c.pending[slot] = b
}
