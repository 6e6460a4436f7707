package directory

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Lookup returns the entries of a hash, in the order in which a change left them, valid until the
// next call. An error wraps rdma.ErrNodeDown or rdma.ErrTimeout, when no majority answers, or
// others are at the bucket all the time; and client.ErrFull when it takes a buffer to settle what
// another client left half done, and there is none.
func (c *Client) Lookup(hash uint64) ([]Entry, error) {
	c.begin(c.BucketOf(hash))
	if err := c.run(&change{}); err != nil {
		return nil, fmt.Errorf("look up in bucket %d: %w", c.bucket, err)
	}
	n := 0
	for i := range c.count() {
		if e := entryAt(c.found[headBytes:], i); e.Hash == hash {
			c.entries[n] = e
			n++
		}
	}
	return c.entries[:n], nil
}

// count returns how many entries were found.
func (c *Client) count() int {
	if c.found == nil {
		return 0
	}
	return (len(c.found) - headBytes) / entryBytes
}

// look reads the words of a majority, and more where these do not agree, and the value of the round
// in which they do; false: there is none, or its value is out of reach. What it finds is chosen,
// and was the newest when it began: of what was chosen before, some replica of any majority has
// accepted it, or something newer.
func (c *Client) look() (settled bool, err error) {
	clear(c.replicas[:c.Replicas])
	c.has = false
	if err := c.gather(stepRead, c.all(), c.majority(), c.askSlot, c.tellSlot); err != nil {
		return false, err
	}
	round, n := c.agreed()
	if n < c.majority() {
		c.stats.Mixed++
		if err := c.lookFurther(c.majority() - n); err != nil {
			return false, err
		}
		if round, n = c.agreed(); n < c.majority() {
			return false, nil
		}
	}
	return c.load(round)
}

// lookFurther asks replicas that a look left out, where so many of them can make up for those that
// lag behind; but none on a node that was silent lately: to bring along what lags takes no longer.
func (c *Client) lookFurther(need int) error {
	rest := c.all()
	for r := range c.Replicas {
		if c.replicas[r].known || c.quorum.Avoids(c.at[r].Node()) {
			rest &^= quorum.Only(r)
		}
	}
	if rest.Len() < need {
		return nil
	}
	c.save()
	c.quorum.Limit = c.quorum.Slow()
	err := c.gather(StepReadOthers, rest, need, c.askSlot, c.tellSlot)
	c.quorum.Limit = c.quorum.Timeout()
	if passing(err) {
		return nil
	}
	return err
}

// briefly is a step that others may make up for: it waits for slow nodes no longer than the timer,
// when others have refused, and otherwise longer each time.
func (c *Client) briefly(step rdma.Step, from quorum.Mask, need int, ask func(b *rdma.Batch, r int) error,
	answer func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict) error {
	c.quorum.Limit = c.limit
	err := c.gather(step, from, need, ask, answer)
	c.quorum.Limit = c.quorum.Timeout()
	if c.quorum.Refused() == 0 && errors.Is(err, rdma.ErrTimeout) {
		c.limit = min(4*c.limit, c.quorum.Timeout())
	}
	return err
}

func (c *Client) askSlot(b *rdma.Batch, r int) error {
	n := wordBytes
	if r == 0 {
		n = slotBytes
	}
	b.Read(c.at[r], n)
	return nil
}

func (c *Client) tellSlot(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
	p := b.Op(ch.First).Buf
	k := &c.replicas[r]
	k.meet(Word(le.Uint64(p)))
	if r == 0 && k.word.accepted() {
		c.find(p[wordBytes:], k.since)
	}
	return quorum.Done
}

// meet notes what a replica's word is.
func (k *replica) meet(w Word) {
	k.word, k.known, k.mine = w, true, false
	k.since, k.sure = w.since()
}

// find notes the value in p when it is whole and of a round.
func (c *Client) find(p []byte, round uint64) bool {
	v, ok := whole(p, c.bucket)
	if !ok || roundOf(v) != round {
		return false
	}
	c.found, c.round, c.has = v, round, true
	return true
}

// save makes what was found outlive its batch.
func (c *Client) save() {
	if c.has && c.found != nil {
		c.found = c.saved[:copy(c.saved[:], c.found)]
	}
}

// agreed returns the highest round in which a replica is known to have accepted its value, and how
// many have. One that has accepted nothing agrees to that while it has promised nothing: with a
// promise, a client may have had its value accepted elsewhere.
func (c *Client) agreed() (round uint64, n int) {
	return c.newest(func(k *replica) bool { return k.known && (k.word == 0 || k.word.accepted()) })
}

// newest returns the highest round that was accepted by the replicas that count, and how many of
// them have.
func (c *Client) newest(counts func(*replica) bool) (round uint64, n int) {
	for r := range c.Replicas {
		switch k := &c.replicas[r]; {
		case !counts(k) || k.since < round:
		case k.since == round:
			n++
		default:
			round, n = k.since, 1
		}
	}
	return round, n
}

// load finds the value of a round, in a buffer if need be; false: no replica that has it answers,
// or they have newer ones by now. A value of this bucket and round is the one that was accepted in
// it, wherever it lies.
func (c *Client) load(round uint64) (bool, error) {
	switch {
	case round == 0:
		c.found, c.round, c.has = nil, 0, true
		return true, nil
	case c.has && c.round == round:
		return true, nil
	}
	c.has = false
	c.stats.Fetches++
	var holders quorum.Mask
	for r := range c.Replicas {
		if k := &c.replicas[r]; k.sure && k.since == round {
			holders |= quorum.Only(r)
		}
	}
	err := c.briefly(stepFetch, holders, 1, c.askBuffer, func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
		if c.find(b.Op(ch.First).Buf, round) {
			return quorum.Done
		}
		return quorum.Never
	})
	switch {
	case err == nil:
		c.mend()
		return true, nil
	case passing(err):
		return false, nil
	}
	return false, err
}

func (c *Client) askBuffer(b *rdma.Batch, r int) error {
	b.Read(c.alloc.Resolve(c.at[r].Node(), c.bucket, c.replicas[r].word.pointer()), BufferBytes)
	return nil
}

// mend writes in place what had to be fetched, in the background, when it is the value of the first
// replica's word. It is a hint: of what many write there at a time nothing fits a word.
func (c *Client) mend() {
	k := &c.replicas[0]
	if !k.known || !k.word.accepted() || k.since != c.round || c.quorum.Avoids(c.at[0].Node()) {
		return
	}
	if c.mending != nil {
		if !c.mending.Finished() {
			return
		}
		c.mending.Release()
		c.mending = nil
	}
	b := c.ep.Batch()
	b.WriteCopy(c.at[0].Add(wordBytes), c.found)
	if c.ep.Post(b.As(stepMend)) != nil { // an endpoint that cannot post says so in the next operation
		b.Release()
		return
	}
	c.mending = b
}
