package directory

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Lookup returns the entries of a hash, in the order in which a change left them. They are valid
// until the next call. The error wraps rdma.ErrNodeDown or rdma.ErrTimeout if no majority
// answers, or other clients change the bucket all the time; and client.ErrFull if there is no
// buffer to settle what another client left half done.
func (c *Client) Lookup(hash uint64) ([]Entry, error) {
	c.begin(c.BucketOf(hash))
	if err := c.run(&change{}); err != nil {
		return nil, fmt.Errorf("look up in bucket %d: %w", c.bucket, err)
	}
	n := 0
	for at := headBytes; at < len(c.found); at += entryBytes { // an empty bucket has no value
		if e := entryAt(c.found[at:]); e.Hash == hash {
			c.entries[n] = e
			n++
		}
	}
	return c.entries[:n], nil
}

// look reads the words of a majority, and of more replicas if these do not agree, and the value
// of the round in which a majority agrees; false: there is no such round, or its value is out of
// reach. The value is chosen, and none was newer when the look began: of any majority some
// replica has accepted what was chosen before, or something newer.
func (c *Client) look() (settled bool, err error) {
	// Nothing of an earlier attempt counts.
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

// lookFurther asks the replicas that a look left out, if there are enough of them to complete a
// majority. It asks none on a node that was silent lately: to settle the bucket takes no longer.
// It waits no longer than for a slow replica. found is saved first: its batch is released by this
// step.
func (c *Client) lookFurther(need int) error {
	rest := c.all()
	for r := range c.Replicas {
		if c.replicas[r].known || c.quorum.IsSlow(c.at[r].Node()) {
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

// briefly is a step that the operation can repeat with other replicas. It waits for slow nodes no
// longer than limit. The limit grows with each step that ended in a timeout although no replica
// refused; so it stays short while other proposers are the reason.
func (c *Client) briefly(step rdma.Step, from quorum.Mask, need int, ask quorum.Ask, answer quorum.Answer) error {
	c.quorum.Limit = c.limit
	err := c.gather(step, from, need, ask, answer)
	c.quorum.Limit = c.quorum.Timeout()
	if c.quorum.Refused() == 0 && errors.Is(err, rdma.ErrTimeout) {
		c.limit = min(4*c.limit, c.quorum.Timeout())
	}
	return err
}

// askSlot reads a replica's word, and at the first replica also what lies in place.
func (c *Client) askSlot(b *rdma.Batch, r int) error {
	n := wordBytes
	if r == 0 {
		n = slotBytes
	}
	b.Read(c.at[r], n)
	return nil
}

// tellSlot notes the answer to askSlot, or to a READ of the word alone.
func (c *Client) tellSlot(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
	c.tell(r, b.Op(ch.First).Buf)
	return quorum.Done
}

// tell notes a replica's word, and what lies in place behind it, if p has that. It counts only if
// it is of the word's round.
func (c *Client) tell(r int, p []byte) {
	k := &c.replicas[r]
	k.meet(Word(le.Uint64(p)))
	if len(p) > wordBytes && k.word.accepted() {
		c.find(p[wordBytes:], k.since)
	}
}

// meet notes a replica's word, which no CAS of this attempt has made.
func (k *replica) meet(w Word) {
	k.word, k.known, k.mine = w, true, false
	k.since, k.sure = w.since()
}

// find notes the value in p, if it is whole and of the round. It keeps p, and does not copy it.
func (c *Client) find(p []byte, round uint64) bool {
	v, ok := whole(p, c.bucket)
	if !ok || roundOf(v) != round {
		return false
	}
	c.found, c.round, c.has = v, round, true
	return true
}

// save copies what was found, so that it outlives its batch.
func (c *Client) save() {
	if c.has && c.found != nil {
		c.found = c.saved[:copy(c.saved[:], c.found)]
	}
}

// agreed returns the highest round in which a replica is known to have accepted its value, and
// how many replicas have. A replica that has neither accepted nor promised anything agrees to
// round 0. One with a promise does not count: its proposer may have a newer value accepted
// elsewhere.
func (c *Client) agreed() (round uint64, n int) {
	return c.newest(func(k *replica) bool { return k.known && (k.word == 0 || k.word.accepted()) })
}

// newest returns the highest round in which a replica that counts has accepted its value, and how
// many of them have accepted in that round.
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

// load makes the value of a round the one that was found. It reads a buffer, unless the value was
// found in place; false: no replica that has it answers, or they have newer values by now. All
// values of this bucket and round are equal, so it does not matter where it lies. Round 0 is the
// empty bucket.
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

// askBuffer reads the buffer that a replica's word names.
func (c *Client) askBuffer(b *rdma.Batch, r int) error {
	b.Read(c.alloc.Resolve(c.at[r].Node(), c.bucket, c.replicas[r].word.pointer()), BufferBytes)
	return nil
}

// mend writes a value in place that had to be fetched, in the background, if it is the one of the
// first replica's word. It is a hint: readers use what lies in place only if it is whole and of the
// word's round. What several clients write there at a time may mix, and is not whole. One such
// WRITE of a client is in flight at a time.
func (c *Client) mend() {
	k := &c.replicas[0]
	if !k.known || !k.word.accepted() || k.since != c.round || c.quorum.IsSlow(c.at[0].Node()) || !c.mending.Room(1) {
		return
	}
	b := c.ep.Batch()
	b.WriteCopy(c.at[0].Add(wordBytes), c.found)
	c.mending.Post(c.ep, b.As(stepMend))
}
