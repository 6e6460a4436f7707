package fusee

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// A client's journal names the objects of its writes that may be unfinished. Its recovery reads
// these objects and no others (recover.go). The paper links all objects of a size class in lists,
// from heads on the nodes, and takes the ends of the lists for what may be unfinished. An object
// that is used again is linked anew, so that a walk misses some and ends in an old list. And a
// client that goes on after a write of unknown outcome leaves that write anywhere in a list.
//
// A journal is a few words on each node that serves. A write takes one of them, the same on each
// node. Its first trip writes the object's unit and the write's sequence number there, on the
// nodes that get the object. What recovery relies on:
//   - No slot gets a write's word before its first trip is complete. So the node of each replica
//     of an object, if the object's word may be in a slot, has its journal word.
//   - A write of unknown outcome keeps its journal word until it is resolved: no later write of
//     the client takes it. It also keeps the word while its first trip may be in flight: a word
//     that lands late would overwrite a later one.
//
// Other nodes, and a node to which a client has not written for a while, have words of writes
// that are over. They name objects that are live, or used again, or lie in blocks of other
// clients now. Recovery finds that by the block's owner and by what the object says. Where such a
// word still names its own write, nothing in its slots is unfinished.
//
// What a crash in the first trip leaves: a word on some of the nodes, and perhaps no object.
const (
	journalWords = 8
	// journalBytes has the words, and the ceiling behind them. No two clients share a cache line.
	journalBytes = 2 * node.Unit
	// A journal word has the unit in its lower bits and the lower bits of the sequence number
	// above.
	unitBits = 34
	seqMask  = 1<<26 - 1
)

// journal returns where a client's journal lies on a node. Identities begin at 1.
func (l *layout) journal(c rdma.ClientID, n int) rdma.Addr {
	return rdma.At(n, l.journals+uint64(int(c)-1)*journalBytes)
}

// ceiling returns where a client's ceiling lies on a node, behind its journal: see ceiling.go.
func (l *layout) ceiling(c rdma.ClientID, n int) rdma.Addr {
	return l.journal(c, n).Add(journalWords * 8)
}

// journaled returns the journal word of a write. Unit 0 is no object, so no word is 0, which is
// an empty place.
func journaled(unit, seq uint64) uint64 { return seq&seqMask<<unitBits | unit }

// journalWord returns the index of a journal word that no unresolved write holds. Where all are
// held it tries to resolve them for as long as the operation may take. The error wraps
// rdma.ErrStale when the view has changed meanwhile, and errDeadline when none is resolved in
// time.
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
		// All words are held: find out which writes have landed, and resolve those.
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

// landWrites finds out whether the verbs of unresolved writes are still in flight. It posts a
// READ to every node that waits for earlier atomics and comes after earlier WRITEs to that node.
// When all of them have come back, nothing that was posted before is in flight. When one fails
// nothing is learned.
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

// readJournal reads the objects that the dead client's journal names, as far as they are still
// that client's. An object of which the word may be in a slot lies in a block of the client's
// own, or of a node: a client leaves no block while a write of it is unresolved. No other client
// uses objects of a dead client's block. So what is read here is not used again before the blocks
// are passed on.
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

// journalEntry is a journal word, unpacked. Of the sequence number it has the bits of seqMask.
type journalEntry struct{ unit, seq uint64 }

// journalOf returns the words of a client's journal on all nodes, each once. Words of one write
// are equal on all nodes.
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

// classAt returns the class of the object that begins at a unit. It is not ok when the unit lies
// in no block that concerns the recovery, or where no object of the block begins: an old journal
// word may name an object of a class that the block had before.
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
