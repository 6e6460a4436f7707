package fusee

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// found is where a key's pair is: its slot, and what the primary held at a moment within the
// operation. A zero word means that the key is not there.
type found struct {
	slot race.Slot
	word race.Word
	inc  uint32 // incarnation of word's object
	// began is a time before the slot was read: see write.began.
	began time.Duration
	// free is a slot for the key when it is not there, and freeWord what the primary held there.
	free     race.Slot
	freeWord race.Word
	// room is how many empty slots the key's buckets have, free among them. 0: there is none.
	room int
}

// find looks a key up in the index: both buckets in one trip, then the pairs of which the
// fingerprint fits in another. With write set, the draft is written in the first trip. The pair
// lies in the batch that find returns, which the caller releases. It is nil when the key is not
// there.
//
// When a pair is not what its slot said, it was used again since, so the slot was changed: find
// begins again. When the slot still says the same then, the pair was there all the time, and is
// damaged. What it returns was read at most a timeout after the slot: later the slot's word may
// have come around.
//
// It reads the primaries only, unless they died in this view. So a SEARCH takes effect when the
// primary's slot is read, and an UPDATE when the primary is CASed.
func (c *Client) find(key []byte, hash uint64, write bool) (at found, pair layout.Fields, held *rdma.Batch, err error) {
	var stale candidate
	for r := c.s.Pace; ; {
		// The clock is read before the slots, so that began is a time before they were read.
		at.began = c.s.Now()
		if c.s.Deadline == session.Unset {
			c.s.Deadline = at.began + c.s.OpTimeout
		}
		// Under a busy view, or after one, the index may be larger than this client knows.
		if !c.views.sized {
			if err := c.views.learnSize(); err != nil {
				return at, pair, nil, err
			}
		}
		b := c.s.Batch()
		step := session.StepReadBuckets
		if r.Tries == 0 && write {
			step = session.StepWriteReadBuckets
			c.draft.write(c.s, b)
		}
		buckets := c.s.Index.Locate(hash)
		view := c.s.Index.Read(b, buckets, 0)
		others := c.pairs.readOthers(b, buckets)
		if err := c.s.Do(step, b); err != nil {
			b.Release()
			return at, pair, nil, err
		}
		// The word of a slot of which the replicas differ is not known yet.
		if !agree(&view, others, race.Print(hash)) {
			b.Release()
			return at, pair, nil, errUnsettled // the replicas differ: see readOthers
		}
		slots, n := c.matching(&view, hash)
		at.free, at.freeWord, at.room = view.Free(hash)
		// What is needed of the views has been copied.
		b.Release()
		before := stale
		held, stale = nil, candidate{}
		// All pairs of the key's fingerprint are read in one trip.
		if n > 0 {
			at.slot, at.word, pair, held, stale, err = c.pairs.match(key, slots[:n])
			at.inc = pair.Incarnation
		}
		// Nothing was found, and nothing was stale.
		if err == nil && held == nil && stale.word == 0 {
			grown, err := c.views.grewMeanwhile()
			if grown {
				continue // a split may have moved the key ahead of the READs
			}
			if n == 0 || err != nil {
				return at, pair, nil, err
			}
		}
		// What was found counts if it is not too old. Otherwise the slots are read again.
		if err != nil || stale.word == 0 && c.s.Now() <= at.began+c.s.OpTimeout {
			return at, pair, held, err
		}
		if held != nil {
			held.Release()
		}
		// The slot had the same stale word twice: it names an object that is not its own.
		if stale.word != 0 && stale == before {
			return at, pair, nil, fmt.Errorf("slot %d: %v: the object there is not the slot's: %w",
				stale.slot, stale.word, client.ErrDamaged)
		}
		if !r.Again() {
			return at, pair, nil, session.TimedOut("find a pair that is not reused meanwhile")
		}
	}
}

// errUnsettled is what find returns when the replicas of a key's slots differ: what they hold is
// not known before a master has mended them.
var errUnsettled = errors.New("the replicas of a slot differ")

// agree reports whether all replicas hold the same word in each slot that may be that of a key
// with the fingerprint.
func agree(first *race.View, others []race.View, print uint8) bool {
	for _, other := range others {
		for i := range race.Candidates {
			_, a := first.Slot(i)
			_, b := other.Slot(i)
			// Slots of other fingerprints do not matter to the key.
			if a != b && (a.Print() == print || b.Print() == print) {
				return false
			}
		}
	}
	return true
}

// candidate is a slot of which the pair may be the key's, and the word that the slot held.
type candidate struct {
	slot race.Slot
	word race.Word
}

// matching lists the live slots with the hash's fingerprint. It also stores all words of the view
// in scratch, for INSERT: see alone.
func (c *Client) matching(view *race.View, hash uint64) (slots [race.Candidates]candidate, n int) {
	view.Words(&c.scratch)
	for i, w := range c.scratch {
		if w.Print() == race.Print(hash) && w.Live() {
			s, _ := view.Slot(i)
			slots[n] = candidate{s, w}
			n++
		}
	}
	return slots, n
}
