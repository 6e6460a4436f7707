package swarm

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Write replaces the object's value. An error wraps client.ErrUncertain when it is not known
// whether it had an effect; otherwise it had none: ErrGone, client.ErrTooLarge, client.ErrFull,
// ErrExhausted.
func (c *Client) Write(k *Register, value []byte) error {
	if len(value) > c.MaxValue {
		return fmt.Errorf("write %d bytes (at most %d): %w", len(value), c.MaxValue, client.ErrTooLarge)
	}
	if k.gone {
		return fmt.Errorf("write: %w", ErrGone)
	}
	began, err := c.enter(k)
	if err == nil && c.raw() {
		return c.writeRaw(k, value, c.failed) // which does not tell whether it met the object
	}
	if err == nil {
		err = c.write(k, value)
	}
	if err == nil {
		k.met(began)
	}
	return err
}

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
	return c.writeVerified(k, max(k.last, k.seen)+1, value, c.failed) // ABD: above all that was complete before, section 2.3
}

// learn reads the words: what those of this client hold, and what its timestamp has to be above. It
// costs a register that is not cached no trip, since a CAS that expects nothing there fails. It is
// also what keeps a writer off an object of which it knew once that it is gone, and no more.
func (c *Client) learn(k *Register) error {
	top, _, err := c.look(k, false)
	if err != nil {
		return err
	}
	k.warm = true
	if !top.top() {
		return nil
	}
	if err := c.bury(k); err != nil {
		return err
	}
	return ErrGone
}

// writeGuessed is Safe-Guess' WRITE (Algorithm 10).
func (c *Client) writeGuessed(k *Register, value []byte) error {
	i := c.guess(k)
	if err := c.use(k, i); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	p := put{tuple: tuple{stamp: c.stamp(i, c.tid), value: value}, from: c.all(), need: c.Majority(), expect: &k.own, read: true}
	if err := c.put(stepWriteReadWords, k, &p); err != nil {
		return c.failed("write", err)
	}
	k.saw(&c.Layout, p.top)
	top, err := c.above(k, &p)
	switch {
	case err != nil:
		return uncertain("write", err)
	case top.time() <= p.stamp.time():
		c.confirm(k, &p.tuple, value)
		return nil
	}
	return c.settle(k, p.stamp, top, value)
}

// above returns what a READ in parallel to a WRITE found. One that is above the guess is brought to
// a majority: a reader whose lock fails reads again until it finds that, and where only nodes have
// it that die, with its writer and this one, it never would. (Appendix A.2 has the weak READ for
// writers, and says that it is not covered by the proof; where Algorithm 2 goes on to lock, it does
// not do.)
func (c *Client) above(k *Register, p *put) (stamp, error) {
	if p.top.time() <= p.stamp.time() || p.top.top() || p.holders() >= c.Majority() {
		return p.top, nil
	}
	patience := c.quorum.Slow()
	var r retries
	for another := true; another; {
		t, err := c.read(k, patience)
		if !again(err) {
			return t.stamp, err
		}
		patience = min(4*patience, c.quorum.Timeout())
		another = c.more(&r, err)
	}
	return 0, fmt.Errorf("read what is above a guess: %w", rdma.ErrTimeout)
}

// settle is the slow path: the guess may have been stale. When the lock is the writer's, no reader
// has returned or will return the value by that timestamp, and the value is written with another
// one. When the lock is not the writer's, a reader has read the tuple twice, so that the guess was
// fresh.
//
// A tombstone leaves no timestamp above it. It is brought to a majority before anything is said
// that tells of it. The writer's lock then decides as ever: a value that was read was written
// before the deletion, which is under way.
func (c *Client) settle(k *Register, guess, top stamp, value []byte) error {
	c.stats.Stale++
	gone := top.top()
	if gone {
		if err := c.bury(k); err != nil {
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
		return nil
	case gone:
		return fmt.Errorf("write: %w", ErrGone)
	}
	c.stats.Rewritten++
	err = c.writeVerified(k, c.iOf(top)+1, value, uncertain)
	if err != nil && !errors.Is(err, client.ErrUncertain) { // no timestamp; a later write of this client lets readers return the guess
		err = uncertain("write again", err)
	}
	return err
}

// use makes a timestamp one that the writer has used for k, before any other client can see it.
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

// writeVerified writes with a timestamp that is known to be fresh; failed tells what becomes of it
// when it fails.
func (c *Client) writeVerified(k *Register, i uint64, value []byte, failed func(what string, err error) error) error {
	if err := c.use(k, i); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	p := put{tuple: tuple{stamp: c.stamp(i, c.tid) | verified, value: value}, from: c.all(), need: c.Majority(), expect: &k.own}
	if err := c.put(stepWriteVerified, k, &p); err != nil {
		return failed("write", err)
	}
	k.saw(&c.Layout, max(p.top, p.stamp))
	c.confirm(k, &p.tuple, value)
	return nil
}

// create writes the first value of an object that no other client knows.
func (c *Client) create(k *Register, value []byte) error {
	if c.raw() {
		return c.writeRaw(k, value, unseen)
	}
	return c.writeVerified(k, c.guess(k), value, unseen)
}

// unseen wraps the failure of a write to an object that no other client knows: whatever the
// outcome, nothing was inserted.
func unseen(what string, err error) error { return fmt.Errorf("%s: %w", what, err) }
