package swarm

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Read returns the object's value, valid until the client's next operation. The error wraps
// ErrEmpty, ErrGone or ErrOutdated; rdma.ErrNodeDown or rdma.ErrTimeout when no majority answers;
// and client.ErrFull when it must write a tuple back and there is no buffer.
//
// It is Safe-Guess' READ as in Algorithm 10. (In Algorithm 3 the wait-free path is only reached
// if the lock fails.) A VERIFIED tuple is returned at once. A guessed one is returned only if it
// is known to have been fresh: see settled. The iterations are bounded, see bound: so a READ ends
// though writers go on.
func (c *Client) Read(k *Register) ([]byte, error) {
	if k.gone {
		return nil, fmt.Errorf("read: %w", ErrGone)
	}
	began, err := c.enter(k)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if c.raw() {
		// k.met is not called: a late WRITE may have undone the tombstone, so that a READ does not
		// prove that the object still exists.
		return c.readRaw(k)
	}
	c.seen = c.seen[:0]
	// patience bounds the wait for a value. It grows, since all that have the value may be slow.
	patience := c.quorum.Slow()
	var r retries
	for another := true; another; {
		c.stats.Iterations = max(c.stats.Iterations, r.n+1)
		v, done, err := c.try(k, patience)
		if done {
			k.met(began)
		}
		if done || err != nil && !again(err) {
			return v, err
		}
		patience = min(4*patience, c.quorum.Timeout())
		another = c.more(&r, err)
	}
	return nil, fmt.Errorf("read a value that no writer ends in %d iterations: %w", c.quorum.Attempts, rdma.ErrTimeout)
}

// again reports whether a READ of the max register that failed is tried once more.
func again(err error) bool { return errors.Is(err, errLost) || errors.Is(err, quorum.ErrAttempts) }

// try is an iteration of READ. done: v is the answer. Otherwise, and without an error, another
// iteration is due. c.seen keeps what it met, without the value: the value's batch is released with
// the next step.
func (c *Client) try(k *Register, patience time.Duration) (v []byte, done bool, err error) {
	t, err := c.read(k, patience)
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("read: %w", err)
	case t.stamp == 0:
		return nil, false, fmt.Errorf("read: %w", ErrEmpty)
	case t.stamp.top():
		k.gone = true // the tombstone is at a majority
		return nil, false, fmt.Errorf("read: %w", ErrGone)
	}
	k.warm = true // so the next WRITE takes one trip (section 7.9)
	if t.stamp.verified() {
		v, err = c.fetch(k, &t, patience)
		return v, err == nil, err
	}
	// A guessed tuple of this writer that is met first is not returned: its timestamp may be stale.
	old := c.sawWriter(t.stamp)
	if old == nil {
		c.seen = append(c.seen, t)
		c.seen[len(c.seen)-1].value = nil // its batch goes
		return nil, false, nil
	}
	v, done, err = c.settled(k, &t, old, patience)
	*old = t
	old.value = nil
	return v, done, err
}

// settled decides about a guessed tuple t, after this READ has met the tuple old of the same
// writer. If both are the same, the tuple was read twice: it was fresh when it was written, and
// it is safe to return it once its writer is locked out. If they differ, the writer has gone on,
// so its write of old has ended before that: old is returned.
//
// The value is fetched behind the lock. If it is lost meanwhile, READ begins again, and the lock
// stays: to lock the stamp again in the same mode succeeds. If the buffer of old was reused, since
// the writer has replaced it, READ goes on with t in its place.
func (c *Client) settled(k *Register, t, old *tuple, patience time.Duration) (v []byte, done bool, err error) {
	if old.stamp != t.stamp {
		c.stats.WaitFree++
		v, err = c.fetch(k, old, patience)
		return v, err == nil, err
	}
	locked, err := c.tryLock(k, t.stamp, readMode)
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("read: %w", err)
	case !locked:
		return nil, false, nil
	}
	if v, err = c.fetch(k, t, patience); err == nil {
		c.confirm(k, t, v) // locked for readers, the tuple is settled
	}
	return v, err == nil, err
}

// sawWriter returns the tuple of a stamp's writer that this READ met last; nil: none.
func (c *Client) sawWriter(s stamp) *tuple {
	for i := range c.seen {
		if c.tidOf(c.seen[i].stamp) == c.tidOf(s) {
			return &c.seen[i]
		}
	}
	return nil
}
