package fusee

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
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
func (c *Client) Update(key, value []byte) error { return c.modify(layout.OpUpdate, key, value) }

// Delete removes a key, in as many trips as an Update and with its errors. Its object holds the
// key and the log entry. Once the DELETE is over no slot points at it, so it is given back at
// once.
func (c *Client) Delete(key []byte) error { return c.modify(layout.OpDelete, key, nil) }

// modify carries an operation out. It tries again as long as changes of the view cut it off
// before it changed anything.
//
// What an attempt leaves when it is cut off:
//   - Before the CAS of trip 2: an object that no slot names. abandon keeps or returns it, and the
//     next attempt takes another one.
//   - Behind it: a round that may go either way. resolve finds out how it ended, in the next idle
//     view, and modify repeats the operation only if the write was undone.
func (c *Client) modify(op layout.Opcode, key, value []byte) error {
	c.releaseHeld()
	err := c.admit(key, value)
	if err == nil {
		hash := race.Hash(key)
		c.s.Start()
		// start has cleared the deadline: all attempts share one.
		for err = c.try(op, key, value, hash); repeatable(err); err = c.try(op, key, value, hash) {
			// The next attempt reads the pair on another node, or nothing is left of the last one.
			if errors.Is(err, errSilent) || errors.Is(err, errUndone) {
				continue
			}
			// Between two attempts the client joins an idle view. What the last one had in flight
			// has failed or landed then.
			if _, e := c.views.settled(err); e != nil {
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
func (c *Client) try(op layout.Opcode, key, value []byte, hash uint64) error {
	if err := c.views.keepUp(); err != nil {
		return err
	}
	if op == layout.OpInsert {
		return c.tryInsert(key, value, hash)
	}
	return c.tryReplace(op, key, value, hash)
}

// repeatable reports whether a failed operation was cut off by a change of the view before it
// changed anything. A write of unknown outcome is not repeated: it could take effect twice.
func repeatable(err error) bool {
	return err != nil && session.Interrupted(err) && !errors.Is(err, client.ErrUncertain)
}

// tryReplace replaces the key's pair within one view. Its first trip writes the object and finds
// the key's slot. It relies on that order of trips: when the slot is CASed the object is complete
// on all replicas.
//
// A DELETE that loses finds the key again and proposes its tombstone once more; the tombstone was
// not committed, so the same one will do. A crash leaves an object that the journal names.
func (c *Client) tryReplace(op layout.Opcode, key, value []byte, hash uint64) error {
	if err := c.begin(op, key, value); err != nil {
		return err
	}
	var err error
	// A DELETE's word is a tombstone. It is numbered before anything is written, since raising
	// the ceiling may fail.
	word := c.draft.word(c.s, hash)
	if op == layout.OpDelete {
		if word, err = c.s.Tombstone(race.Print(hash)); err != nil {
			c.abandon(err)
			return err
		}
	}
	at, err := c.locate(key, hash)
	for r := c.s.Pace; ; {
		if err != nil {
			c.abandon(err)
			return err
		}
		// The key is not there. The object was written, and no slot names it.
		if at.word == 0 {
			c.recycle()
			return client.ErrNotFound
		}
		w := write{slot: at.slot, old: at.word, new: word, inc: at.inc, obj: &c.draft.Object,
			hash: hash, began: at.began}
		verdict, failed := c.writer.write(&w)
		// The view changed in the midst of the round: the next idle view shows how it ended.
		if verdict == undecided && session.Interrupted(failed) {
			verdict, failed = c.writer.resolve(&w, op, failed)
		}
		// An UPDATE that lost took effect just before the winner. A DELETE goes on only if it has
		// lost and nothing has failed.
		if verdict != lost || failed != nil || op == layout.OpUpdate {
			return c.finishReplace(op, hash, &w, verdict, failed)
		}
		if !r.Again() {
			c.recycle()
			return session.TimedOut("win a slot")
		}
		// The cached word is the one that lost.
		c.cache.Drop(hash)
		at, err = c.locateMiss(key, hash, false)
	}
}

// finishReplace gives back what the write does not need any more, and caches the key's new slot.
// A write that took effect frees the pair that it replaced. After an overtaken one another client
// may free the same pair: a free may be repeated (package memory). An object of a lost or overtaken
// write goes back, as no slot names it. One of an undecided write is kept.
func (c *Client) finishReplace(op layout.Opcode, hash uint64, w *write, v verdict, err error) error {
	switch v {
	case won, overtaken:
		c.mem.Reclaim.Free(w.old, w.inc)
		// The tombstone names no object, so the DELETE's own goes back.
		if op == layout.OpDelete {
			c.recycle()
			c.cache.Drop(hash)
		} else if v == overtaken {
			c.recycle()
		} else {
			c.cache.remember(hash, w.slot, w.new)
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
//
// The object is written before it is known that the key is there. A key that is not there costs an
// object, which rests and comes back (recycle).
func (c *Client) locate(key []byte, hash uint64) (found, error) {
	e := c.cache.Find(hash)
	if e == nil {
		c.s.Stats.Misses++
		return c.locateMiss(key, hash, true)
	}
	e.accessed()
	at := found{slot: e.slot(), word: e.word, began: c.s.Clock}
	b := c.s.Batch()
	c.draft.write(c.s, b)
	slot := b.Read(c.s.Index.Address(at.slot, 0), 8)
	head := b.Read(c.s.Space.UnitAt(at.word.Unit(), 0), min(layout.HeaderBytes+len(key), at.word.Units()*64))
	err := c.s.Do(session.StepWriteReadSlot, b)
	now := session.WordOf(slot)
	same := err == nil && now == at.word && now.Print() == race.Print(hash) && c.s.Layout.HeadIs(now, head.Buf, key)
	if same {
		at.inc = layout.LE.Uint32(head.Buf[layout.IncarnationAt:])
	}
	// The head lies in the batch's buffer: what is needed of it has been copied.
	b.Release()
	switch {
	case err != nil:
		return at, err
	case same:
		c.s.Stats.Hits++
		return at, nil
	}
	// The slot has changed: the cached word was out of date.
	if now != at.word {
		c.s.Stats.Invalid++
		e.invalidated()
	}
	if now.Live() && now.Print() == race.Print(hash) {
		// The slot has a pair of the key's fingerprint, after an update most likely. Read the
		// pair by the slot's word.
		at.began = c.s.Clock
		_, _, pair, held, _, err := c.pairs.match(key, []candidate{{at.slot, now}})
		if held != nil || err != nil {
			if held != nil {
				at.inc = pair.Incarnation
				held.Release()
			}
			at.word = now
			return at, err
		}
	}
	c.cache.Drop(hash)
	return c.locateMiss(key, hash, false)
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
func (c *Client) Insert(key, value []byte) error { return c.modify(layout.OpInsert, key, value) }

// tryInsert inserts the pair within one view. After it gave way it begins again with a new
// object, and finds the key of the other INSERT, unless that has given way, too.
func (c *Client) tryInsert(key, value []byte, hash uint64) error {
	for r := c.s.Pace; ; {
		// Each attempt has an object, and so a word, of its own.
		if err := c.begin(layout.OpInsert, key, value); err != nil {
			return err
		}
		verdict, err := c.insert(key, hash)
		switch {
		case err != nil:
			return err
		case verdict == won:
			return nil
		case !r.Again():
			return session.TimedOut("outlast others of the same key")
		}
		// It gave way: its slot has a tombstone now. The next attempt takes another object.
	}
}

// insert tries to insert the draft until it wins a slot or gives way. It gives back the draft
// unless it won. An attempt that lost its slot proposes the same word elsewhere: no replica holds
// it then. Without an empty slot it waits for the index to grow, and the caller begins again.
//
// The slot is one that the primary had empty: with a zero word or a tombstone. The CASes expect
// exactly that word, so a slot that another client has filled and emptied since fails them.
func (c *Client) insert(key []byte, hash uint64) (verdict, error) {
	for r := c.s.Pace; ; {
		// Only the first attempt writes the draft. It stays as it is while the INSERT looks for a
		// slot.
		at, _, held, err := c.find(key, hash, r.Tries == 0)
		switch {
		case err != nil:
			c.abandon(err)
			return lost, err
		case held != nil:
			held.Release()
			c.cache.remember(hash, at.slot, at.word)
			c.recycle()
			return lost, client.ErrExists
		case at.room == 0:
			c.recycle()
			return lost, c.views.awaitGrowth(hash)
		}
		w := write{slot: at.free, old: at.freeWord, new: c.draft.word(c.s, hash), obj: &c.draft.Object,
			key: key, hash: hash, seen: &c.scratch, began: at.began}
		v, err := c.writer.write(&w)
		if v == undecided && session.Interrupted(err) {
			v, err = c.writer.resolve(&w, layout.OpInsert, err)
		}
		switch v {
		case won:
			c.cache.remember(hash, w.slot, w.new)
			// Few empty slots are left, or a test wants splits.
			if at.room <= littleRoom || c.opt.Splits > 0 && c.s.Rand().Float64() < c.opt.Splits {
				c.views.askEarly(hash)
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
			err = session.TimedOut("win an empty slot")
		}
		if err != nil {
			c.recycle()
			return lost, err
		}
	}
}

// abandon gives back the draft of an operation that failed before it proposed a word. Where its
// verbs may be in flight, or may have failed in part, its object is kept: a late WRITE would land
// in its next use. A READ of a pair that was given up comes behind the draft's trip.
func (c *Client) abandon(err error) {
	if errors.Is(err, session.ErrDeadline) || errors.Is(err, errUnsettled) || errors.Is(err, errSilent) {
		c.recycle()
		return
	}
	c.unresolved.keep(unresolvedWrite{Object: c.draft.Object, flying: session.InFlight(err)})
}

// keepUnresolved keeps the draft of a write of unknown outcome. Its word is the draft's, also for
// an INSERT that gave way, of which the write has a tombstone instead. A DELETE's word is its
// tombstone.
func (c *Client) keepUnresolved(w *write, err error) {
	// The index may have grown since the write had its slot: only what is in the list follows its
	// pair.
	s := unresolvedWrite{Object: c.draft.Object, slot: c.s.Index.Where(w.slot, w.hash), hash: w.hash, word: w.new,
		old: w.old, inc: w.inc, epoch: w.epoch, op: c.draft.Op, flying: session.InFlight(err)}
	if c.draft.Op != layout.OpDelete {
		s.word = c.draft.word(c.s, race.Hash(c.draft.Key))
	}
	if w.decided && !w.yielded {
		s.wonAt, s.holders = w.decidedAt, w.holders
	}
	c.unresolved.keep(s)
}

// recycle puts the draft's object to rest: no slot points at it, or none any more. The paper
// clears the used bit of its log entry first, so that recovery does not redo the write. There is
// no need: a write is unfinished only if some replica holds its word.
func (c *Client) recycle() { c.mem.Reclaim.Lay(c.draft.Object) }
