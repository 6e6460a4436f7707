package fusee

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// Get is SEARCH (FUSEE 4.6): one trip when the cache knows where the pair is, two otherwise. The
// value lies in registered memory, which the client owns, and is valid until the next call. The
// error wraps client.ErrNotFound when there is no such key.
//
// A cached pair is checked by reading its slot in the same trip. While the primary slot holds the
// cached word, its object is the key's current pair. The paper's invalidation bit would say less,
// and cost its writer a verb.
func (c *Client) Get(key []byte) ([]byte, error) {
	c.releaseHeld()
	if c.s.Damage != nil {
		return nil, c.s.Damage
	}
	hash := race.Hash(key)
	c.s.Start()
	// Under a busy view reads go on, but not by the cache.
	if c.s.View.Busy {
		return c.getMeanwhile(key, hash, rdma.ErrStale)
	}
	// A client that only reads still has frees to send, and rounds to end: others wait for these.
	if c.gets++; c.gets%memory.TendEvery == 0 && !c.views.behind {
		c.mem.TendIdle()
		c.unresolved.settle(true)
	}
	value, err := c.get(key, hash)
	if err != nil && session.Interrupted(err) {
		return c.getMeanwhile(key, hash, err)
	}
	return value, err
}

// getMeanwhile searches while a master mends the pool, or is about to (FUSEE 5.2). It joins the
// view before each attempt. Slots that have their primary are read as ever. Slots that lost it
// are read from the replicas that are left, if those agree. It ends at the operation's deadline.
func (c *Client) getMeanwhile(key []byte, hash uint64, err error) ([]byte, error) {
	for r := (kit.Retry{Env: c.s.Endpoint, Pause: kit.WhileBusy, Over: c.s.Overdue}); ; {
		// Without another view the one that was joined is as good as before.
		if e := c.s.View.Join(); e != nil && !errors.Is(e, rdma.ErrUnreachable) {
			return nil, fmt.Errorf("get: %w", e)
		}
		value, e := c.get(key, hash)
		switch {
		case e == nil || !session.Interrupted(e) && !errors.Is(e, errUnsettled):
			return value, e
		// In an idle view no master brings the replica back.
		case !c.s.View.Busy && c.s.IsGone(e):
			return nil, fmt.Errorf("the last replica is gone (epoch %d): %w", c.s.View.Epoch, e)
		case !r.Again():
			return nil, fmt.Errorf("get: wait for the pool to be mended (epoch %d): %w: %w",
				c.s.View.Epoch, session.ErrDeadline, err)
		}
		err = e
	}
}

// get searches in the view that was joined. When the node of a pair does not answer, the pair is
// read at once from another replica: see pairAt.
func (c *Client) get(key []byte, hash uint64) ([]byte, error) {
	var began time.Duration // unset while all nodes answer: then the clock is not read
	// Marks of slow nodes last in proportion to this time: see elsewhere.
	if c.pairs.slow.Any() {
		began = c.s.Now()
	}
	for {
		value, err := c.getOnce(key, hash)
		if err == nil || !c.pairs.elsewhere(err, began) {
			return value, err
		}
		// elsewhere has marked the node as slow, so the next attempt asks another one.
		began = c.s.Now()
	}
}

// getOnce is get without another attempt. Under a busy view it does not use the cache: the cached
// slot's primary may not be right.
func (c *Client) getOnce(key []byte, hash uint64) ([]byte, error) {
	// Under a busy view the slot's primary may not be right: both buckets are read then, on all
	// replicas if need be.
	if e := c.cache.Find(hash); e != nil && !c.s.View.Busy {
		value, ok, err := c.getCached(key, hash, e)
		if ok || err != nil {
			return value, err
		}
	} else {
		c.s.Stats.Misses++
	}
	at, pair, held, err := c.find(key, hash, false)
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	if held == nil {
		return nil, client.ErrNotFound
	}
	// The caller reads the value in the batch's buffer until the next operation.
	c.held = held
	if !c.views.tentative(at.slot) {
		c.cache.remember(hash, at.slot, at.word)
	}
	return pair.Value, nil
}

// getCached reads through a cache entry. It is not ok when the slot holds something else than
// this key's pair. A key that is written often is bypassed: then only the slot is read, and the
// pair by its word.
//
// The pair's READ and the slot's may be executed in any order. That does no harm: a pair that is
// freed rests before it is used again, and a pair that the slot got just now is complete.
func (c *Client) getCached(key []byte, hash uint64, e *entry) (value []byte, ok bool, err error) {
	word := e.word
	// The counters decide before this access is counted.
	bypass := e.bypass(c.cache.threshold)
	e.accessed()
	b := c.s.Batch()
	slot := b.Read(c.s.Index.Address(e.slot(), 0), 8)
	var pair *rdma.Op
	if bypass {
		c.s.Stats.Bypassed++
	} else if pair, err = c.pairs.read(b, word); err != nil {
		b.Release()
		return nil, false, err
	}
	// The slot's READ is the first op: only the pair may be given up (pairs.do).
	if err := c.pairs.do(session.StepReadSlotAndPair, b, 1); err != nil {
		b.Release()
		return nil, false, fmt.Errorf("get: %w", err)
	}
	now := session.WordOf(slot)
	// The slot still holds the cached word, so the pair that was read in the same trip is
	// current.
	if !bypass && now == word {
		if f, ok := c.s.PairOf(word, pair.Buf); ok && bytes.Equal(f.Key, key) {
			c.s.Stats.Hits++
			c.held = b
			return f.Value, true, nil
		}
	}
	b.Release()
	// The key's pair was replaced, or the slot has another key's.
	if now != word {
		e.invalidated()
		c.s.Stats.Invalid++
	}
	// No pair of the key's fingerprint is there: the entry is of no use.
	if !now.Live() || now.Print() != race.Print(hash) {
		c.cache.Drop(hash)
		return nil, false, nil
	}
	return c.follow(key, e, now)
}

// follow reads the pair that a cached slot points at by now: an update's, most likely. It is not
// ok when that is not the key's, or was used again meanwhile.
func (c *Client) follow(key []byte, e *entry, now race.Word) ([]byte, bool, error) {
	_, word, pair, held, _, err := c.pairs.match(key, []candidate{{e.slot(), now}})
	if err != nil {
		return nil, false, fmt.Errorf("get: %w", err)
	}
	if held == nil {
		return nil, false, nil
	}
	e.word = word
	c.held = held
	return pair.Value, true, nil
}
