package layout

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// A client's journal names the objects of its writes that may be unfinished. Its recovery reads
// these objects and no others (package recovery). The paper links all objects of a size class in
// lists, from heads on the nodes, and takes the ends of the lists for what may be unfinished. An
// object that is used again is linked anew, so that a walk misses some and ends in an old list. And
// a client that goes on after a write of unknown outcome leaves that write anywhere in a list.
//
// A journal is a few words on each node that serves. A write takes one of them, the same on each
// node. Its first trip writes the object's unit and the write's sequence number there, on the nodes
// that get the object. What recovery relies on:
//   - No slot gets a write's word before its first trip is complete. So the node of each replica of
//     an object, if the object's word may be in a slot, has its journal word.
//   - A write of unknown outcome keeps its journal word until it is resolved: no later write of the
//     client takes it. It also keeps the word while its first trip may be in flight: a word that
//     lands late would overwrite a later one.
//
// Other nodes, and a node to which a client has not written for a while, have words of writes that
// are over. They name objects that are live, or used again, or lie in blocks of other clients now.
// Recovery finds that by the block's owner and by what the object says. Where such a word still
// names its own write, nothing in its slots is unfinished.
//
// What a crash in the first trip leaves: a word on some of the nodes, and perhaps no object.
const (
	JournalWords = 8
	// JournalBytes has the words, and the ceiling behind them. No two clients share a cache line.
	JournalBytes = 2 * node.Unit
	// A journal word has the unit in its lower bits and the lower bits of the sequence number
	// above.
	UnitBits = 34
	SeqMask  = 1<<26 - 1
)

// Journal returns where a client's journal lies on a node. Identities begin at 1.
func (l *Layout) Journal(c rdma.ClientID, n int) rdma.Addr {
	return rdma.At(n, l.Journals+uint64(int(c)-1)*JournalBytes)
}

// Ceiling returns where a client's ceiling lies on a node, behind its journal: see
// Session.Tombstone.
func (l *Layout) Ceiling(c rdma.ClientID, n int) rdma.Addr {
	return l.Journal(c, n).Add(JournalWords * 8)
}

// Journaled returns the journal word of a write. Unit 0 is no object, so no word is 0, which is
// an empty place.
func Journaled(unit, seq uint64) uint64 { return seq&SeqMask<<UnitBits | unit }

// SizeBytes are behind the journals on each node: the index's size, and the size that clients
// want. The size counts from that with which the index began, so zeroed memory says that it has
// not grown. Bit 0 is the mark of a split that is not over.
const SizeBytes = 16

// SizeAt returns where a node has the index's size.
func (l *Layout) SizeAt(n int) rdma.Addr {
	return rdma.At(n, l.Journals+uint64(l.Clients)*JournalBytes)
}

// Wanted returns where a node has the size that clients want. Only that of the first holder is
// used: without the node clients ask again.
func (l *Layout) Wanted(n int) rdma.Addr { return l.SizeAt(n).Add(8) }

// SizeWord returns what a node's size word says for so many subtables; halfway: with the mark of
// a split.
func (l *Layout) SizeWord(size int, halfway bool) uint64 {
	w := uint64(size-l.Subtables) << 1
	if halfway {
		w |= 1
	}
	return w
}

// SizeOf decodes a size word. The error wraps client.ErrDamaged when the index cannot be so
// large.
func (l *Layout) SizeOf(w uint64) (size int, halfway bool, err error) {
	if w>>1 > uint64(l.MostSubtables()-l.Subtables) {
		return 0, false, fmt.Errorf("the index has %d subtables more than at first, of %d: %w",
			w>>1, l.MostSubtables()-l.Subtables, client.ErrDamaged)
	}
	return l.Subtables + int(w>>1), w&1 != 0, nil
}

// Resize gives the index so many subtables, and places them as the view says. It changes the
// client's memory only.
func (l *Layout) Resize(v *rdma.View, size int) {
	place, left := kit.Place(v, l.Original.Index[:size])
	l.Index.Resize(l.Subtables, place)
	l.LiveSubtables = left
}

// FirstSlot returns the first slot of a subtable. All subtables have the same number of words.
func (l *Layout) FirstSlot(sub int) race.Slot {
	return race.Slot(uint64(sub) * race.SubtableBytes(l.Groups) / 8)
}

// EachRun calls f with runs of words of the subtables that are left, of up to most words each. No
// run crosses a subtable's end.
func (l *Layout) EachRun(most uint64, f func(from race.Slot, n int) error) error {
	for _, sub := range l.LiveSubtables {
		end := uint64(l.FirstSlot(sub + 1))
		for from := uint64(l.FirstSlot(sub)); from < end; from += most {
			if err := f(race.Slot(from), int(min(most, end-from))); err != nil {
				return err
			}
		}
	}
	return nil
}

// Lossy reports whether parts of the pool are gone for good: what is left refers to them, and
// they to what is left.
func (l *Layout) Lossy() bool {
	return len(l.LiveSubtables) < len(l.Index.Place) || len(l.LiveRegions) < l.Regions
}

// ApplyView places everything as a view says. It makes new lists: a list that a caller kept does
// not change. There is always a holder, so that reads of a pool without any node fail with that
// node's error.
func (l *Layout) ApplyView(v *rdma.View) {
	l.Resize(v, len(l.Index.Place))
	l.Space.Place, l.LiveRegions = kit.Place(v, l.Original.Space)
	if l.Holders = kit.Holders(v, l.Nodes-l.Spares); len(l.Holders) == 0 {
		l.Holders = []int{0}
	}
}

// Kept reports whether a backup that held a slot's word when the word had won is still among the
// replicas. A master that mended the slot has seen the word then.
func (l *Layout) Kept(s race.Slot, holders []node.Replica) bool {
	return slices.ContainsFunc(l.Index.PlaceOf(s), func(now node.Replica) bool {
		return slices.ContainsFunc(holders[1:], func(backup node.Replica) bool { return backup.Node == now.Node })
	})
}

// IndexOf returns the index of the object at a unit in its block.
func (l *Layout) IndexOf(unit uint64, class int) int {
	_, off, _ := l.Space.BlockOf(unit)
	return int(off-l.Space.BitmapBytes()) / (l.Classes.Units[class] * node.Unit)
}

// Quarantine returns how long a freed object rests before it is used again. An object has 2^TagBits
// incarnations of different tags, and each takes one quarantine at least. So a tag comes around
// only after twice the operation timeout. A client CASes a slot at most one timeout after it has
// read the slot (see the write of package fusee). So no CAS finds a repeated word and takes it for
// the one that was read.
func (l *Layout) Quarantine() time.Duration {
	return 2 * l.Timeout / time.Duration(uint64(1)<<l.TagBits)
}

// Tag returns what a slot keeps of an incarnation: its lower bits.
func (l *Layout) Tag(incarnation uint32) uint64 { return uint64(incarnation) & (1<<l.TagBits - 1) }
