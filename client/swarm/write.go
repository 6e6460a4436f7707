package swarm

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Write replaces the object's value. The caller owns value. If the error wraps client.ErrUncertain,
// it is not known whether the write took effect. Otherwise it did not: ErrGone, ErrOutdated,
// client.ErrTooLarge, client.ErrFull, ErrExhausted.
func (c *Client) Write(k *Register, value []byte) error {
	if len(value) > c.MaxValue {
		return fmt.Errorf("write %d bytes (at most %d): %w", len(value), c.MaxValue, client.ErrTooLarge)
	}
	if k.gone {
		return fmt.Errorf("write: %w", ErrGone)
	}
	began, err := c.enter(k)
	if err == nil && c.raw() {
		return c.writeRaw(k, value, c.failed) // it does not prove that the object still exists
	}
	if err == nil {
		err = c.write(k, value)
	}
	if err == nil {
		k.met(began)
	}
	return err
}

// write chooses the protocol. Writers with a lock guess (Safe-Guess), others use ABD (section 2.3):
// they read the words first, and take a timestamp above all that was complete before. A guessing
// writer reads the words first only when the register is not cached.
func (c *Client) write(k *Register, value []byte) error {
	guesses := c.tid < c.Locks
	if !k.warm || !guesses {
		if err := c.learn(k); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	if guesses {
		return c.writeGuessed(k, value)
	}
	return c.writeVerified(k, max(k.last, k.seen)+1, value, c.failed)
}

// learn reads the words: what this client's word holds, and what its timestamp must be above. For
// a register that is not cached this costs no additional trip, since a CAS that expects an empty
// word would fail. It also keeps a writer away from an object that it knew to be deleted and has
// forgotten since. A tombstone that it finds may be at a minority: it is brought to a majority
// before the answer tells of it.
func (c *Client) learn(k *Register) error {
	top, _, err := c.look(k, false)
	if err != nil {
		return err
	}
	k.warm = true
	if !top.top() {
		return nil
	}
	if err := c.writeTombstone(k); err != nil {
		return err
	}
	return ErrGone
}

// writeGuessed is Safe-Guess' WRITE (Algorithm 10). The words are read in the same trip as the
// tuple is written. If nothing higher was met, the guess was fresh, and the write is complete
// after one trip. Otherwise the lock decides: see settle.
//
// What a crash here leaves: a guessed tuple at some replicas. A reader that meets it twice locks it
// and returns it, or finds a higher one.
func (c *Client) writeGuessed(k *Register, value []byte) error {
	i := c.guess(k)
	if err := c.use(k, i); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	p := put{tuple: tuple{stamp: c.stamp(i, c.tid), value: value},
		from: c.all(), need: c.Majority(), expect: &k.own, read: true}
	if err := c.put(stepWriteReadWords, k, &p); err != nil {
		return c.failed("write", err)
	}
	k.saw(&c.Layout, p.top)
	top, err := c.above(k, &p)
	switch {
	case err != nil:
		// The tuple is at a majority, so a reader may return it.
		return uncertain("write", err)
	case top.time() <= p.stamp.time():
		// Nothing higher was complete when the write began: the guess was fresh.
		c.confirm(k, &p.tuple, value)
		return nil
	}
	return c.settle(k, p.stamp, top, value)
}

// above returns the highest stamp that a WRITE met in the trip of its guess. If that is above the
// guess, it is first brought to a majority. The reason: a reader that fails to lock the guess reads
// again until it finds the higher tuple. If only nodes that die have that tuple, and its writer and
// this one die as well, the reader would never find it. (Appendix A.2 allows writers the weak READ,
// and says that its proof does not cover that. Before a lock, as in Algorithm 2, a weak READ is not
// enough.)
func (c *Client) above(k *Register, p *put) (stamp, error) {
	if p.top.time() <= p.stamp.time() || p.top.top() || p.holders() >= c.Majority() {
		return p.top, nil
	}
	patience := c.quorum.Slow()
	var r retries
	for another := true; another; {
		// This READ writes back, so what it returns is at a majority.
		t, err := c.read(k, patience)
		if !again(err) {
			return t.stamp, err
		}
		patience = min(4*patience, c.quorum.Timeout())
		another = c.more(&r, err)
	}
	return 0, fmt.Errorf("read what is above a guess: %w", rdma.ErrTimeout)
}

// settle is the slow path: the guess may have been stale. If the writer gets the lock, no reader
// has returned or will return the value by the guessed timestamp, and the value is written again
// with a higher one. If it does not get the lock, a reader has read the tuple twice, so the guess
// was fresh, and the write is complete.
//
// There is no timestamp above a tombstone. A tombstone is brought to a majority before any answer
// tells of it. Then the writer's lock decides as always: a value that a reader has returned was
// written before the deletion, which is under way.
//
// What a crash behind the lock leaves: a tuple that readers do not return, unless a later write of
// the same writer's number replaces it during a READ. Both are right: the write has not returned.
func (c *Client) settle(k *Register, guess, top stamp, value []byte) error {
	c.stats.Stale++
	gone := top.top()
	if gone {
		if err := c.writeTombstone(k); err != nil {
			return uncertain("write", err)
		}
	} else {
		c.resync(k.seen)
	}
	locked, err := c.tryLock(k, guess, writeMode)
	switch {
	case err != nil:
		return uncertain("write", err)
	case !locked:
		return nil // a reader has locked the tuple, so it stays
	case gone:
		return fmt.Errorf("write: %w", ErrGone)
	}
	c.stats.Rewritten++
	// A majority's words were read after this write began, so a timestamp above the highest is
	// fresh.
	err = c.writeVerified(k, c.iOf(top)+1, value, uncertain)
	// No timestamp was left. A later write of this client would let readers return the guess.
	if err != nil && !errors.Is(err, client.ErrUncertain) {
		err = uncertain("write again", err)
	}
	return err
}

// use reserves a timestamp and notes that the writer has used it for k, before any verb contains
// it. The highest i is the tombstone's: below it the error is ErrExhausted. k.last rises even if
// the write fails later: of an i that a word may have, no second value is ever written. A crash
// between the reservation and the write costs timestamps, and no more.
func (c *Client) use(k *Register, i uint64) error {
	if i >= c.maxI() {
		return ErrExhausted
	}
	if c.opt.Use != nil {
		if err := c.opt.Use(i); err != nil {
			return err
		}
	}
	k.last = i
	return nil
}

// writeVerified writes with a timestamp that is known to be fresh, so that the tuple is VERIFIED at
// once and needs no lock. failed wraps the error of its step.
//
// What a crash here leaves: a VERIFIED tuple at some replicas. A reader that meets it brings it
// to a majority and returns it; one that asks only the others does not meet it, and returns what
// was there before. Both are right: the write has not returned.
func (c *Client) writeVerified(k *Register, i uint64, value []byte, failed func(what string, err error) error) error {
	if err := c.use(k, i); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	p := put{tuple: tuple{stamp: c.stamp(i, c.tid) | verified, value: value},
		from: c.all(), need: c.Majority(), expect: &k.own}
	if err := c.put(stepWriteVerified, k, &p); err != nil {
		return failed("write", err)
	}
	k.saw(&c.Layout, max(p.top, p.stamp))
	c.confirm(k, &p.tuple, value)
	return nil
}

// create writes the first value of an object that no other client knows. Each timestamp is fresh
// there.
func (c *Client) create(k *Register, value []byte) error {
	if c.raw() {
		return c.writeRaw(k, value, unseen)
	}
	return c.writeVerified(k, c.guess(k), value, unseen)
}

// unseen wraps the failure of a write to an object that no other client knows: whatever the
// outcome, nothing was inserted.
func unseen(what string, err error) error { return fmt.Errorf("%s: %w", what, err) }
