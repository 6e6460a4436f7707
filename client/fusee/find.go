package fusee

import (
	"bytes"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// found is where a key's pair is: its slot, and what the primary held at a moment within the operation. A zero word
// means that the key is not there.
type found struct {
	slot  race.Slot
	word  race.Word
	began time.Duration // before the slot was read
	// free is a slot for the key when it is not there; freeOK is false when there is none.
	free     race.Slot
	freeWord race.Word
	freeOK   bool
}

// readPair adds the READ of what a live word points at. The word was read from the pool, so it is checked.
func (c *Client) readPair(b *rdma.Batch, w race.Word) (*rdma.Op, error) {
	if blk, off, ok := c.space.BlockOf(w.Unit()); !ok || off+uint64(w.Units())*64 > c.space.BlockBytes {
		return nil, fmt.Errorf("follow %v into block %v: %w", w, blk, client.ErrDamaged)
	}
	return b.Read(c.space.UnitAt(w.Unit(), 0), w.Units()*64), nil
}

// find looks a key up in the index: both buckets in one trip, then the pairs whose fingerprint fits in another. With
// write set, the draft is written in the first trip. The pair lies in the batch that find returns, which the
// caller releases; it is nil when the key is not there.
//
// When a pair is not what its slot said, it was reused since, so the slot was changed: find begins again.
func (c *Client) find(key []byte, hash uint64, write bool) (at found, pair fields, held *rdma.Batch, err error) {
	start := c.ep.Now()
	for attempt := 0; ; attempt++ {
		at.began = c.ep.Now()
		b := c.ep.Batch()
		if attempt == 0 && write {
			c.draft.write(c, b)
		}
		view := c.index.Read(b, c.index.Locate(hash), 0)
		if err := c.do(b); err != nil {
			b.Release()
			return at, pair, nil, err
		}
		slots, n := c.matching(&view, hash)
		at.free, at.freeWord, at.freeOK = view.Free(hash)
		b.Release()
		if n == 0 {
			return at, pair, nil, nil
		}
		var again bool
		at.slot, at.word, pair, held, again, err = c.match(key, slots[:n])
		if err != nil || !again && c.ep.Now()-at.began <= c.opt.Timeout {
			return at, pair, held, err
		}
		if held != nil {
			held.Release()
		}
		if c.tired(start) {
			return at, pair, nil, errTimeout("find a pair that is not reused meanwhile")
		}
		c.pause(attempt)
	}
}

// candidate is a slot whose pair may be the key's.
type candidate struct {
	slot race.Slot
	word race.Word
}

// matching lists the live slots with the hash's fingerprint. It also remembers all words of the view for INSERT.
func (c *Client) matching(view *race.View, hash uint64) (slots [race.Candidates]candidate, n int) {
	for i := range race.Candidates {
		s, w := view.Slot(i)
		c.scratch[i] = w
		if w.Live() && w.Print() == race.Print(hash) {
			slots[n] = candidate{s, w}
			n++
		}
	}
	return slots, n
}

// match reads the pairs of the candidates in one trip and returns the key's. It must be tried again when a pair is not
// its slot's any more.
func (c *Client) match(key []byte, slots []candidate) (race.Slot, race.Word, fields, *rdma.Batch, bool, error) {
	b := c.ep.Batch()
	for _, s := range slots {
		if _, err := c.readPair(b, s.word); err != nil {
			b.Release()
			return 0, 0, fields{}, nil, false, err
		}
	}
	if err := c.do(b); err != nil {
		b.Release()
		return 0, 0, fields{}, nil, false, err
	}
	again := false
	for i, s := range slots {
		pair, ok := c.pairOf(s.word, b.Op(i).Buf)
		if ok && bytes.Equal(pair.key, key) {
			return s.slot, s.word, pair, b, false, nil
		}
		again = again || !ok
	}
	b.Release()
	return 0, 0, fields{}, nil, again, nil
}
