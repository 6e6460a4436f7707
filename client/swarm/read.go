package swarm

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Read returns the object's value, valid until the client's next operation; or an error wrapping
// ErrEmpty, ErrGone; when no majority answers, rdma.ErrNodeDown or rdma.ErrTimeout; and
// client.ErrFull when there is no buffer for what it has to write back.
//
// It is Safe-Guess' READ as Algorithm 10 has it (in Algorithm 3 the wait-free path hangs at the
// lock's failure).
func (c *Client) Read(k *Register) ([]byte, error) {
	if k.gone {
		return nil, fmt.Errorf("read: %w", ErrGone)
	}
	began, err := c.enter(k)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if c.raw() { // a READ does not prove that the object is still there: a WRITE may have undone the tombstone
		return c.readRaw(k)
	}
	c.seen = c.seen[:0]
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

// try is an iteration of READ.
func (c *Client) try(k *Register, patience time.Duration) (v []byte, done bool, err error) {
	t, err := c.read(k, patience)
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("read: %w", err)
	case t.stamp == 0:
		return nil, false, fmt.Errorf("read: %w", ErrEmpty)
	case t.stamp.top():
		k.gone = true
		return nil, false, fmt.Errorf("read: %w", ErrGone)
	}
	k.warm = true // a WRITE behind a READ takes one trip (section 7.9)
	if t.stamp.verified() {
		v, err = c.fetch(k, &t, patience)
		return v, err == nil, err
	}
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

// settled decides about a guessed tuple of a writer of which this READ has met a tuple before, the
// same or another. A tuple that was read twice was fresh when it was written, and is safe to return
// once its writer is locked out. A tuple whose writer has gone on to another was settled before
// that.
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
		c.confirm(k, t, v)
	}
	return v, err == nil, err
}

// sawWriter returns the tuple of a stamp's writer that this READ met last.
func (c *Client) sawWriter(s stamp) *tuple {
	for i := range c.seen {
		if c.tidOf(c.seen[i].stamp) == c.tidOf(s) {
			return &c.seen[i]
		}
	}
	return nil
}
