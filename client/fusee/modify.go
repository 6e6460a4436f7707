package fusee

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// SNAPSHOT is last-writer-wins on a slot. The answer of an operation depends on more. When a
// write loses:
//
//	UPDATE  took effect just before the winner's write, whatever that was: the key was there.
//	DELETE  cannot say that, since the winner may be an UPDATE, which would have found nothing:
//	        it begins again, and answers ErrNotFound when the winner was a DELETE.
//	INSERT  lost its slot, perhaps to another key: it begins again, and finds its own key
//	        or another slot.
//
// A DELETE proposes a tombstone of its own, unlike every other word. Two DELETEs never propose
// the same word.

// Update replaces the value of a key: four trips when the cache knows its slot, five when not,
// one more each for rules 2 and 3. The error wraps client.ErrNotFound when there is no such key.
// It wraps client.ErrUncertain when the outcome is unknown. Key and value are the caller's again
// when it returns.
func (c *Client) Update(key, value []byte) error { return c.modify(opUpdate, key, value) }

// Delete removes a key, in as many trips as an Update and with its errors. Its object holds the
// key and the log entry. Once the DELETE is over no slot points at it, so it is given back at
// once.
func (c *Client) Delete(key []byte) error { return c.modify(opDelete, key, nil) }

// modify carries an operation out. It tries again as long as changes of the view cut it off
// before it changed anything.
func (c *Client) modify(op opcode, key, value []byte) error {
	c.releaseHeld()
	err := c.admit(key, value)
	if err == nil {
		hash := race.Hash(key)
		c.start()
		// start has cleared the deadline: all attempts share one.
		for err = c.try(op, key, value, hash); repeatable(err); err = c.try(op, key, value, hash) {
			if errors.Is(err, errSilent) { // the next attempt reads the pair on another node
				continue
			}
			// Between two attempts the client joins an idle view. What the last one had in flight
			// has failed or landed then.
			if _, e := c.settled(err); e != nil {
				err = e
				break
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%v: %w", op, err)
	}
	return nil
}

// try is an attempt at the operation within one view, which must be idle.
func (c *Client) try(op opcode, key, value []byte, hash uint64) error {
	if err := c.keepUp(); err != nil {
		return err
	}
	if op == opInsert {
		return c.tryInsert(key, value, hash)
	}
	return c.tryReplace(op, key, value, hash)
}

// repeatable reports whether a failed operation was cut off by a change of the view before it
// changed anything. A write of unknown outcome is not repeated: it could take effect twice.
func repeatable(err error) bool {
	return err != nil && interrupted(err) && !errors.Is(err, client.ErrUncertain)
}

// tryReplace replaces the key's pair within one view. Its first trip writes the object and finds
// the key's slot. It relies on that order of trips: when the slot is CASed the object is complete
// on all replicas.
//
// A DELETE that loses finds the key again and proposes its tombstone once more; the tombstone was
// not committed, so the same one will do. A crash leaves an object that the journal names.
func (c *Client) tryReplace(op opcode, key, value []byte, hash uint64) error {
	if err := c.begin(op, key, value); err != nil {
		return err
	}
	var err error
	// A DELETE's word is a tombstone. It is numbered before anything is written, since raising
	// the ceiling may fail.
	word := c.draft.word(c, hash)
	if op == opDelete {
		if word, err = c.tombstone(race.Print(hash)); err != nil {
			c.abandon(err)
			return err
		}
	}
	at, err := c.locate(key, hash)
	for r := c.pace; ; {
		if err != nil {
			c.abandon(err)
			return err
		}
		// The key is not there. The object was written, and no slot names it.
		if at.word == 0 {
			c.recycle()
			return client.ErrNotFound
		}
		w := write{slot: at.slot, old: at.word, new: word, inc: at.inc, obj: &c.draft.object,
			hash: hash, began: at.began}
		verdict, failed := c.write(&w)
		// The view changed in the midst of the round: the next idle view shows how it ended.
		if verdict == undecided && interrupted(failed) {
			verdict, failed = c.resolve(&w, op, failed)
		}
		// An UPDATE that lost took effect just before the winner. A DELETE goes on only if it has
		// lost and nothing has failed.
		if verdict != lost || failed != nil || op == opUpdate {
			return c.finishReplace(op, hash, &w, verdict, failed)
		}
		if !r.Again() {
			c.recycle()
			return errTimeout("win a slot")
		}
		// The cached word is the one that lost.
		c.cache.Drop(hash)
		at, err = c.locateMiss(key, hash, false)
	}
}

// finishReplace gives back what the write does not need any more, and caches the key's new slot.
// A write that took effect frees the pair that it replaced. After an overtaken one another client
// may free the same pair: a free may be repeated (reclaim.go). An object of a lost or overtaken
// write goes back, as no slot names it. One of an undecided write is kept.
func (c *Client) finishReplace(op opcode, hash uint64, w *write, v verdict, err error) error {
	switch v {
	case won, overtaken:
		c.free(w.old, w.inc)
		// The tombstone names no object, so the DELETE's own goes back.
		if op == opDelete {
			c.recycle()
			c.cache.Drop(hash)
		} else if v == overtaken {
			c.recycle()
		} else {
			c.remember(hash, w.slot, w.new)
		}
	case lost:
		c.recycle()
	case undecided:
		c.keepUnresolved(w, err)
	}
	return err
}

// locate writes the draft and finds the key's slot in the same trip. By the cache's word it reads
// the slot, which says whether the word is current, and the head of the object, which says
// whether the object is the key's: two keys may have the same hash.
func (c *Client) locate(key []byte, hash uint64) (found, error) {
	e := c.cache.Find(hash)
	if e == nil {
		c.stats.Misses++
		return c.locateMiss(key, hash, true)
	}
	e.accessed()
	at := found{slot: e.slot(), word: e.word, began: c.reclaim.now}
	b := c.ep.Batch()
	c.draft.write(c, b)
	slot := b.Read(c.index.Address(at.slot, 0), 8)
	head := b.Read(c.space.UnitAt(at.word.Unit(), 0), min(headerBytes+len(key), at.word.Units()*64))
	err := c.do(stepWriteReadSlot, b)
	now := slotWord(slot)
	same := err == nil && now == at.word && now.Print() == race.Print(hash) && c.headIs(now, head, key)
	if same {
		at.inc = le.Uint32(head.Buf[incarnationAt:])
	}
	// The head lies in the batch's buffer: what is needed of it has been copied.
	b.Release()
	switch {
	case err != nil:
		return at, err
	case same:
		c.stats.Hits++
		return at, nil
	}
	// The slot has changed: the cached word was out of date.
	if now != at.word {
		c.stats.Invalid++
		e.invalidated()
	}
	if now.Live() && now.Print() == race.Print(hash) {
		// The slot has a pair of the key's fingerprint, after an update most likely. Read the
		// pair by the slot's word.
		at.began = c.reclaim.now
		_, _, pair, held, _, err := c.match(key, []candidate{{at.slot, now}})
		if held != nil || err != nil {
			if held != nil {
				at.inc = pair.incarnation
				held.Release()
			}
			at.word = now
			return at, err
		}
	}
	c.cache.Drop(hash)
	return c.locateMiss(key, hash, false)
}

// headIs reports whether the head of an object is that of the key's pair of word w. Key and
// incarnation lie in the head. No checksum is needed: while the slot holds w the object is
// complete, and when the slot has changed since, the CAS fails.
func (c *Client) headIs(w race.Word, head *rdma.Op, key []byte) bool {
	p := head.Buf
	return len(p) == headerBytes+len(key) && int(le.Uint16(p[keyLenAt:])) == len(key) &&
		c.tag(le.Uint32(p[incarnationAt:])) == w.Tag() && bytes.Equal(p[keyAt:], key)
}

// locateMiss finds the key's slot without the cache. The word is zero when the key is not there.
// With write set the draft is written in the first trip.
func (c *Client) locateMiss(key []byte, hash uint64, write bool) (found, error) {
	at, _, held, err := c.find(key, hash, write)
	if held != nil {
		held.Release()
	} else {
		at.word = 0
	}
	return at, err
}

// Insert adds a key: four trips, and one that makes its word final, when no slot of its buckets
// has its fingerprint and no other client inserts it. The error wraps client.ErrExists when the
// key is there, client.ErrFull when the index or the pool has no room, and client.ErrUncertain
// when the outcome is unknown.
func (c *Client) Insert(key, value []byte) error { return c.modify(opInsert, key, value) }

// tryInsert inserts the pair within one view. After it gave way it begins again with a new
// object, and finds the key of the other INSERT, unless that has given way, too.
func (c *Client) tryInsert(key, value []byte, hash uint64) error {
	for r := c.pace; ; {
		// Each attempt has an object, and so a word, of its own.
		if err := c.begin(opInsert, key, value); err != nil {
			return err
		}
		verdict, err := c.insert(key, hash)
		switch {
		case err != nil:
			return err
		case verdict == won:
			return nil
		case !r.Again():
			return errTimeout("outlast others of the same key")
		}
		// It gave way: its slot has a tombstone now. The next attempt takes another object.
	}
}

// insert tries to insert the draft until it wins a slot or gives way. It gives back the draft
// unless it won. An attempt that lost its slot proposes the same word elsewhere: no replica holds
// it then. Without an empty slot it waits for the index to grow, and the caller begins again.
func (c *Client) insert(key []byte, hash uint64) (verdict, error) {
	for r := c.pace; ; {
		// Only the first attempt writes the draft. It stays as it is while the INSERT looks for a
		// slot.
		at, _, held, err := c.find(key, hash, r.Tries == 0)
		switch {
		case err != nil:
			c.abandon(err)
			return lost, err
		case held != nil:
			held.Release()
			c.remember(hash, at.slot, at.word)
			c.recycle()
			return lost, client.ErrExists
		case at.room == 0:
			c.recycle()
			return lost, c.awaitGrowth(hash)
		}
		w := write{slot: at.free, old: at.freeWord, new: c.draft.word(c, hash), obj: &c.draft.object,
			key: key, hash: hash, began: at.began}
		v, err := c.write(&w)
		if v == undecided && interrupted(err) {
			v, err = c.resolve(&w, opInsert, err)
		}
		switch v {
		case won:
			c.remember(hash, w.slot, w.new)
			// Few empty slots are left, or a test wants splits.
			if at.room <= littleRoom || c.opt.Splits > 0 && c.ep.Rand().Float64() < c.opt.Splits {
				c.askEarly(hash)
			}
			return won, nil
		case gaveWay:
			c.recycle()
			return gaveWay, nil
		case undecided:
			c.keepUnresolved(&w, err)
			return undecided, err
		}
		// It lost its slot to another writer, which has changed the primary by now.
		if err == nil && !r.Again() {
			err = errTimeout("win an empty slot")
		}
		if err != nil {
			c.recycle()
			return lost, err
		}
	}
}
