package fusee

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
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

// readPair adds the READ of what a live word points at, on a node that is not known to be slow.
// The word was read from the pool, so it is checked. The error wraps client.ErrDamaged when it
// points into no block.
func (c *Client) readPair(b *rdma.Batch, w race.Word) (*rdma.Op, error) {
	// The whole object must lie in one block.
	if blk, off, ok := c.space.BlockOf(w.Unit()); !ok || off+uint64(w.Units())*64 > c.space.BlockBytes {
		return nil, fmt.Errorf("follow %v into block %v: %w", w, blk, client.ErrDamaged)
	}
	return b.Read(c.pairAt(w.Unit()), w.Units()*64), nil
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
func (c *Client) find(key []byte, hash uint64, write bool) (at found, pair fields, held *rdma.Batch, err error) {
	var stale candidate
	for r := c.pace; ; {
		// The clock is read before the slots, so that began is a time before they were read.
		at.began = c.ep.Now()
		if c.deadline == unset {
			c.deadline = at.began + c.opt.Timeout
		}
		// Under a busy view, or after one, the index may be larger than this client knows.
		if !c.sized {
			if err := c.learnSize(); err != nil {
				return at, pair, nil, err
			}
		}
		b := c.ep.Batch()
		step := stepReadBuckets
		if r.Tries == 0 && write {
			step = stepWriteReadBuckets
			c.draft.write(c, b)
		}
		buckets := c.index.Locate(hash)
		view := c.index.Read(b, buckets, 0)
		others := c.readOthers(b, buckets)
		if err := c.do(step, b); err != nil {
			b.Release()
			return at, pair, nil, err
		}
		// The word of a slot of which the replicas differ is not known yet.
		if !others.agree(&view, race.Print(hash)) {
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
			at.slot, at.word, pair, held, stale, err = c.match(key, slots[:n])
			at.inc = pair.incarnation
		}
		// Nothing was found, and nothing was stale.
		if err == nil && held == nil && stale.word == 0 {
			grown, err := c.grewMeanwhile()
			if grown {
				continue // a split may have moved the key ahead of the READs
			}
			if n == 0 || err != nil {
				return at, pair, nil, err
			}
		}
		// What was found counts if it is not too old. Otherwise the slots are read again.
		if err != nil || stale.word == 0 && c.ep.Now() <= at.began+c.opt.Timeout {
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
			return at, pair, nil, errTimeout("find a pair that is not reused meanwhile")
		}
	}
}

// others are what the replicas besides the first hold of a key's buckets. The views lie in the
// batch that reads them.
type others struct {
	n     int // of the views
	views [maxReplicas]race.View
}

// errUnsettled is what find returns when the replicas of a key's slots differ: what they hold is
// not known before a master has mended them.
var errUnsettled = errors.New("the replicas of a slot differ")

// readOthers adds the READs of the other replicas while the first may not be right: its slots
// lost their primary, and no master has mended them yet. A word that all of them have is what the
// master will leave there (FUSEE 5.2), so it may be returned.
func (c *Client) readOthers(b *rdma.Batch, at race.Buckets) (o others) {
	if !c.view.Busy || !c.promoted[c.index.Subtable(at[0])] {
		return o
	}
	for r := 1; r < c.index.Copies(at[0]); r++ {
		o.views[o.n] = c.index.Read(b, at, r)
		o.n++
	}
	return o
}

// agree reports whether all replicas hold the same word in each slot that may be that of a key
// with the fingerprint.
func (o *others) agree(first *race.View, print uint8) bool {
	for r := range o.n {
		for i := range race.Candidates {
			_, a := first.Slot(i)
			_, b := o.views[r].Slot(i)
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

// match reads the pairs of the candidates in one trip and returns the key's. Candidates are at
// most those of two combined buckets, usually one. The pair lies in the batch that it returns,
// which the caller releases. A candidate is returned as stale if its pair is no longer its
// slot's, and the key's pair was not found: then the caller has to read the slot again.
func (c *Client) match(key []byte, slots []candidate) (
	slot race.Slot, word race.Word, pair fields, held *rdma.Batch, stale candidate, err error) {
	b := c.ep.Batch()
	// A word that points into no block ends the search: the index is damaged.
	for _, s := range slots {
		if _, err = c.readPair(b, s.word); err != nil {
			break
		}
	}
	if err == nil {
		err = c.doPairs(stepReadPairs, b, 0)
	}
	for i := 0; err == nil && i < len(slots); i++ {
		pair, ok := c.pairOf(slots[i].word, b.Op(i).Buf)
		if ok && bytes.Equal(pair.key, key) {
			return slots[i].slot, slots[i].word, pair, b, candidate{}, nil
		}
		// The first stale candidate is enough: it makes the caller read the slots again.
		if !ok && stale.word == 0 {
			stale = slots[i]
		}
	}
	b.Release()
	return 0, 0, fields{}, nil, stale, err
}
