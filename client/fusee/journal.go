package fusee

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// A client's journal names the objects of its writes that may be unfinished, so that its recovery
// reads these and nothing else (recover.go). The paper links all objects of a size class in lists,
// from heads on the nodes, and takes the ends of the lists for what may be unfinished. An object
// that is used again is linked anew, so that a walk misses some and ends in an old list; and a
// client that goes on behind a write of unknown outcome leaves it anywhere in a list.
//
// A journal is a few words on each node that serves. A write takes one of them, the same on each
// node, and its first trip writes the object's unit and the write's sequence number there, on the
// nodes that get the object. What recovery relies on:
//   - No slot gets a write's word before its first trip is complete. So the node of each replica of
//     an object whose word may be in a slot has its journal word.
//   - A write whose outcome is not known keeps its word until it is resolved: no later write of the
//     client takes that. While its first trip may be in flight it keeps it, too: a word that lands
//     late would cover a later one.
//
// Other nodes, and a node that a client has not written to for a while, have words of writes that
// are over. They name objects that are live, or used again, or lie in blocks that are others' now:
// recovery tells by the block's owner and by what the object says. Where they name what they named,
// nothing in its slots is unfinished.
//
// What a crash in the first trip leaves: a word on some of the nodes, and perhaps no object.
const (
	journalWords = 8
	journalBytes = 2 * node.Unit // the words, and the ceiling: no two clients share a line
	unitBits     = 34
	seqMask      = 1<<26 - 1
)

// journal returns where a client's journal lies on a node.
func (l *layout) journal(c rdma.ClientID, n int) rdma.Addr {
	return rdma.At(n, l.journals+uint64(int(c)-1)*journalBytes)
}

// ceiling returns where a client's ceiling lies: see ceiling.go.
func (l *layout) ceiling(c rdma.ClientID, n int) rdma.Addr {
	return l.journal(c, n).Add(journalWords * 8)
}

// journaled returns the journal word of a write. Unit 0 is no object, so that 0 is no word.
func journaled(unit, seq uint64) uint64 { return seq&seqMask<<unitBits | unit }

// journalWord returns a word of the journal that no unresolved write holds. Where all are held it
// tries to resolve them for as long as the operation may take. The error wraps rdma.ErrStale when
// the view has changed meanwhile.
func (c *Client) journalWord() (int, error) {
	for r := c.pace; ; {
		held := uint64(0)
		for i := range c.unresolved {
			if w := &c.unresolved[i]; w.flying || w.word != 0 {
				held |= 1 << w.journal
			}
		}
		if i := bits.TrailingZeros64(^held); i < journalWords {
			return i, nil
		}
		if err := c.view.Join(); err != nil {
			return 0, fmt.Errorf("journal a write: %w", err)
		}
		if c.view.Busy || c.behind {
			return 0, fmt.Errorf("journal a write: %w", rdma.ErrStale)
		}
		c.landWrites()
		c.settle()
		if !r.Again() {
			return 0, errTimeout(fmt.Sprintf("journal a write: %d earlier ones are unresolved", len(c.unresolved)))
		}
	}
}

// landWrites finds out whether the verbs of unresolved writes are still in flight: a READ that waits
// for earlier atomics of its node, and comes behind earlier WRITEs, has come back from every node.
func (c *Client) landWrites() {
	b := c.ep.Batch()
	defer b.Release()
	for _, n := range c.holders {
		b.Read(c.ceiling(c.id, n), 8).Fence = true
	}
	if c.do(stepProbe, b) != nil {
		return
	}
	for i := range c.unresolved {
		c.unresolved[i].flying = false
	}
}

// readJournal reads the objects that the dead client's journal names, as far as they are that
// client's still. An object whose word may be in a slot lies in a block of its own, or of a node: a
// client leaves no block while a write of it is unresolved. No other client uses the objects of a
// dead client's block, so that what is read here is not used again before the blocks are passed on.
func (r *recovery) readJournal() error {
	named, err := r.journalOf(r.dead)
	if err != nil {
		return err
	}
	b := r.ep.Batch()
	defer b.Release()
	var classes []int
	for _, w := range named {
		if class, ok := r.classAt(w.unit); ok {
			classes = append(classes, class)
			named[len(classes)-1] = w
			b.Read(r.space.UnitAt(w.unit, 0), r.classes.units[class]*node.Unit)
		}
	}
	if err := r.do(stepReadObjects, b); err != nil {
		return err
	}
	for i, class := range classes {
		if o := r.inspect(b.Op(i).Buf, named[i].unit, class); o.mine && o.seq&seqMask == named[i].seq {
			r.objects = append(r.objects, o)
			r.ops[o.unit] = o.op
		}
	}
	r.report.Objects = len(classes)
	return nil
}

// journalEntry is a journal word.
type journalEntry struct{ unit, seq uint64 }

// journalOf returns the words of a client's journal on all nodes, each once.
func (c *Client) journalOf(id rdma.ClientID) (list []journalEntry, err error) {
	b := c.ep.Batch()
	defer b.Release()
	for _, n := range c.holders {
		b.Read(c.journal(id, n), journalWords*8)
	}
	if err := c.do(stepReadJournal, b); err != nil {
		return nil, err
	}
	for i := range b.Len() {
		for w := range journalWords {
			word := b.Op(i).Word(w)
			e := journalEntry{word & (1<<unitBits - 1), word >> unitBits}
			if word != 0 && !slices.Contains(list, e) {
				list = append(list, e)
			}
		}
	}
	return list, nil
}

// classAt returns the class of the object that begins at a unit in one of the blocks that concern
// the recovery.
func (r *recovery) classAt(unit uint64) (class int, ok bool) {
	blk, off, ok := r.space.BlockOf(unit)
	e, listed := r.blocks[blk]
	if !ok || !listed {
		return 0, false
	}
	class = entryClass(e)
	size := uint64(r.classes.units[class] * node.Unit)
	off -= r.space.BitmapBytes()
	return class, off%size == 0 && off/size < uint64(r.classes.objects[class])
}
