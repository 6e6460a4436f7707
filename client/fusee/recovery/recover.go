package recovery

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Recover does what FUSEE 5.3 asks for when a client has died, while others go on. It finishes or
// takes back the writes that were cut off, and passes the client's blocks on. It takes as long
// whatever these hold: of their objects it reads those that the client's journal names. The
// others, and what the client was about to free, are looked up before the blocks are used again:
// see clean. Objects of blocks that nodes hand out cannot wait, as only their writer tells them
// from those of other clients: they are read here.
//
// It relies on the fence: no verb of the dead client can land any more. A write of it is
// unfinished when a word of it is on some backup and not on the primary. Then the master goes on
// in its place, as one writer of SNAPSHOT among others, with the dead client's own words. By the
// paper's crash points:
//
//	c0  the object is not complete: nothing points at it, it is free
//	c1  no log was committed: rules 1 to 3 decide, as they would have for the client
//	c2  all backups have its word, the primary has not: the primary is changed
//	c3  the primary has its word, or a later one: nothing is left to do
//
// An INSERT of which the word is still pending gives way: it has not answered, and no client has
// seen its pair.
//
// A crash at any step leaves a recovery that the next master does again from the beginning. Words
// are the dead client's own, so the next master finds them. Marks may be repeated. Blocks are
// passed on last, when no round waits for the client any more.
func (m *Recoverer) Recover(v rdma.View, dead rdma.ClientID) error {
	m.s.View.Enter(v)
	if err := m.s.ReadSize(); err != nil {
		return fmt.Errorf("recover client %d: %w", dead, err)
	}
	// The crash may have left something in blocks that were swept.
	m.sweep.again = true
	r := m.recovery(dead)
	m.report = Breakdown{}
	for _, step := range []struct {
		what string
		do   func() error
		took *time.Duration
	}{
		{"find its blocks", r.metadata, &m.report.Metadata}, {"read its journal", r.readLog, &m.report.Log},
		{"finish its writes", r.requests, &m.report.Requests}, {"rest", r.rest, &m.report.Rest},
		// Where nodes hand out objects it also frees those that the client held. Others are judged
		// when its blocks are cleaned. A crash before the end leaves blocks of the dead client.
		{"free what it replaced", r.freeOlds, &m.report.Free}, {"free its objects", r.markLost, &m.report.Free},
		{"pass its blocks on", r.passAll, &m.report.Free},
	} {
		began := m.s.Now()
		if err := step.do(); err != nil {
			return fmt.Errorf("recover client %d: %s: %w", dead, step.what, err)
		}
		*step.took += m.s.Now() - began
	}
	return nil
}

// recovery returns the state of a dead client's recovery; 0 is that of a sweep.
func (m *Recoverer) recovery(dead rdma.ClientID) *recovery {
	return &recovery{Recoverer: m, rounds: rounds{s: m.s, dead: dead, ops: map[uint64]layout.Opcode{}},
		blocks: map[node.Block]*memory.Block{}}
}

// rest waits until no client reads what was found to be free: a quarantine. Nothing rests when
// nothing was found.
func (r *recovery) rest() error {
	if len(r.rounds.olds)+len(r.lost) > 0 {
		r.s.Sleep(r.s.Quarantine())
	}
	return nil
}

// Breakdown returns how long the last recovery took, by steps.
func (m *Recoverer) Breakdown() Breakdown { return m.report }

// recovery is that of one client, or what a sweep does with some blocks.
type recovery struct {
	*Recoverer
	rounds rounds
	// unclean: the blocks are unclean, and no client has objects of them in hand.
	unclean bool
	// list has the client's blocks, and those of nodes, in which it may have objects, with their
	// entries as they were read, and the classes of their objects, clean or not. blocks finds them.
	list   []*memory.Block
	blocks map[node.Block]*memory.Block
	// objects that were read: those that the journal names, or all of the blocks.
	objects []remains
	// lost are the objects that no slot points at, in the use in which they were found. They are
	// freed after the rest, as olds are.
	lost []layout.Object
}

// remains is an object as it was found.
type remains struct {
	// The incarnation is that of the primary replica, as mark is.
	layout.Object
	mark uint64
	// complete: its checksum is right. Without it only the incarnation and mark mean anything.
	complete bool
	// mine: the dead client wrote it last.
	mine  bool
	op    layout.Opcode
	seq   uint64
	hash  uint64 // of its key
	units int    // as a slot's word has them
	// What its log says was replaced: the word, and the incarnation of that object.
	replaced race.Word
	oldInc   uint32
}

// replaced notes an object that was replaced. It may be free already.
func (r *rounds) replaced(w race.Word, inc uint32) {
	r.olds = append(r.olds, layout.Object{Unit: w.Unit(), Class: int(r.s.Classes.Of[w.Units()]), Incarnation: inc})
}

// metadata finds the client's blocks (FUSEE 5.3: MNs search their local block allocation tables).
// It also completes what the client's changes of the tables left half done.
func (r *recovery) metadata() error { return r.mendTablesOf(r.concerns, r.note) }

// note lists a block if the dead client may have objects in it. Vacant blocks have none. Entries
// with a class that does not exist are left to Check.
func (r *recovery) note(blk node.Block, e node.Entry) {
	if r.concerns(e) && layout.EntryClass(e) < len(r.s.Classes.Units) {
		r.add(blk, e)
	}
}

// add lists a block.
func (r *recovery) add(blk node.Block, e node.Entry) {
	b := &memory.Block{Block: blk, Class: layout.EntryClass(e), Entry: e}
	r.list, r.blocks[blk] = append(r.list, b), b
}

// concerns reports whether the dead client may have objects in a block: one of its own, or of a
// node.
func (r *recovery) concerns(e node.Entry) bool {
	return e.Owner() == r.rounds.dead || e.Owner() == node.OfNode
}

// readLog reads those objects of the client that may be of unfinished writes. In blocks of nodes
// these may be any.
func (r *recovery) readLog() error {
	r.report.Blocks = len(r.list)
	if !r.s.NodeCentric {
		return r.readJournal()
	}
	err := r.traverse()
	r.report.Objects = len(r.objects)
	return err
}

const (
	traverseBytes = 64 << 10 // read in one trip
	lookups       = 64       // keys looked up in one trip
)

// traverse reads all objects of the blocks, on the primary.
func (r *recovery) traverse() error {
	for _, b := range r.list {
		objects, units := r.s.Classes.Objects[b.Class], r.s.Classes.Units[b.Class]
		size := units * node.Unit
		per := max(1, traverseBytes/size)
		for from := 0; from < objects; from += per {
			unit := r.s.Space.Object(b.Block, from, units)
			p, err := r.s.Read(session.StepReadObjects, r.s.Space.UnitAt(unit, 0), min(per, objects-from)*size)
			if err != nil {
				return fmt.Errorf("block %v: %w", b.Block, err)
			}
			for ; len(p) > 0; p, unit = p[size:], unit+uint64(units) {
				o := r.inspect(p[:size], unit, b.Class)
				// In a block of a node those count that the dead client wrote.
				if o.mine || b.Entry.Owner() != node.OfNode {
					r.objects = append(r.objects, o)
				}
				if o.mine {
					r.rounds.ops[o.Unit] = o.op
				}
			}
		}
	}
	return nil
}

// inspect returns what the bytes of an object say. The content may be torn: then it is not
// complete.
func (r *recovery) inspect(p []byte, unit uint64, class int) remains {
	h := layout.HeadOf(p)
	o := remains{Object: layout.Object{Unit: unit, Class: class, Incarnation: h.Incarnation}, mark: h.Mark}
	f, ok := layout.Decode(p)
	if !ok {
		return o
	}
	o.complete, o.mine = true, r.rounds.dead != 0 && f.Writer == r.rounds.dead
	o.op, o.seq, o.hash = f.Op, f.Seq, race.Hash(f.Key)
	if o.units = layout.UnitsFor(len(f.Key), len(f.Value)); int(r.s.Classes.Of[o.units]) != class {
		o.units = r.s.Classes.Units[class] // it borrows the object
	}
	o.OldAt = layout.LogAt(len(f.Key), len(f.Value)) + layout.OpBytes
	o.replaced, o.oldInc, _ = layout.GetLog(p[o.OldAt:])
	return o
}

// requests looks every complete object up in the index, finishes the dead client's writes that it
// finds there, and notes what nothing points at. It ends: each look that is repeated has ended a
// round of the dead client, which begins no more.
func (r *recovery) requests() (err error) {
	for batch := range slices.Chunk(r.objects, lookups) {
		for len(batch) > 0 {
			if batch, err = r.lookUp(batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookUp looks a batch of objects up, on all replicas of their slots. All buckets are read in one
// trip. It returns the objects that have to be looked up again, since a write was finished in one
// of their slots.
func (r *recovery) lookUp(batch []remains) (again []remains, err error) {
	b := r.s.Batch()
	defer b.Release()
	// By object: what each replica of its buckets holds.
	views := make([][]race.View, len(batch))
	for i := range batch {
		if o := &batch[i]; o.complete {
			at := r.s.Index.Locate(o.hash)
			if r.s.IsLost(r.s.Index.PlaceOf(at[0])) {
				o.complete, o.mine = false, false // nothing can point at it any more
				continue
			}
			for k := range r.s.Index.Copies(at[0]) {
				views[i] = append(views[i], r.s.Index.Read(b, at, k))
			}
		}
	}
	if err := r.s.Do(session.StepReadSlots, b); err != nil {
		return nil, err
	}
	for i := range batch {
		o, changed := &batch[i], false
		// All slots of the key count, not only that of the object's last write.
		for _, s := range r.unfinished(views[i]) {
			ended, err := r.rounds.finish(s, o)
			if err != nil {
				return nil, err
			}
			if ended {
				r.report.Unfinished++
				changed = true
			}
		}
		switch {
		case r.rounds.dead != 0 && !r.s.NodeCentric: // objects of the client's blocks are judged when these are cleaned
		case changed:
			again = append(again, *o)
		default:
			r.judge(o, views[i])
		}
	}
	return again, nil
}

// unfinished lists the slots in which a write of the dead client was cut off: a backup holds a
// word of it that the primary does not, or the only replica a pending one.
func (r *recovery) unfinished(views []race.View) (list []race.Slot) {
	if len(views) == 0 {
		return nil
	}
	for i := range race.Candidates {
		s, p := views[0].Slot(i)
		// A backup holds a word of the dead client that the primary does not.
		differs := func(v race.View) bool { _, w := v.Slot(i); return w != p && r.rounds.wrote(w) }
		// With one replica a pending word is an unfinished INSERT.
		if len(views) == 1 && p.IsPending() && r.rounds.wrote(p) || slices.ContainsFunc(views[1:], differs) {
			list = append(list, s)
		}
	}
	return list
}

// judge notes an object as lost when no slot points at it, and what its log says was replaced,
// when no slot points at that either. It looks at all replicas of the slots, so a word that may
// still win counts.
func (r *recovery) judge(o *remains, views []race.View) {
	word, pointed, oldPointed := race.Word(0), false, false
	if o.complete {
		word = race.Pack(race.Print(o.hash), o.units, o.Unit, r.s.Tag(o.Incarnation))
	}
	for i := range race.Candidates {
		for _, v := range views {
			_, w := v.Slot(i)
			pointed = pointed || o.complete && !w.Empty() && w.Final() == word
			oldPointed = oldPointed || w == o.replaced
		}
	}
	// In unclean blocks it counts whatever the primary says: a torn draft may have reached other
	// replicas only.
	if !pointed && (r.unclean || o.Incarnation != 0 && o.mark != uint64(o.Incarnation)) {
		r.lost = append(r.lost, o.Object)
	}
	if (o.mine || r.unclean) && o.replaced.Live() && !oldPointed {
		r.rounds.replaced(o.replaced, o.oldInc)
	}
}

// readJournal reads the objects that the dead client's journal names, as far as they are still
// that client's. An object of which the word may be in a slot lies in a block of the client's
// own, or of a node: a client leaves no block while a write of it is unresolved. No other client
// uses objects of a dead client's block. So what is read here is not used again before the blocks
// are passed on.
func (r *recovery) readJournal() error {
	named, err := r.journalOf(r.rounds.dead)
	if err != nil {
		return err
	}
	b := r.s.Batch()
	defer b.Release()
	var classes []int
	for _, w := range named {
		if class, ok := r.classAt(w.unit); ok {
			classes = append(classes, class)
			named[len(classes)-1] = w
			b.Read(r.s.Space.UnitAt(w.unit, 0), r.s.Classes.Units[class]*node.Unit)
		}
	}
	if err := r.s.Do(session.StepReadObjects, b); err != nil {
		return err
	}
	for i, class := range classes {
		if o := r.inspect(b.Op(i).Buf, named[i].unit, class); o.mine && o.seq&layout.SeqMask == named[i].seq {
			r.objects = append(r.objects, o)
			r.rounds.ops[o.Unit] = o.op
		}
	}
	r.report.Objects = len(classes)
	return nil
}

// journalEntry is a journal word, unpacked. Of the sequence number it has the bits of SeqMask.
type journalEntry struct{ unit, seq uint64 }

// journalOf returns the words of a client's journal on all nodes, each once. Words of one write
// are equal on all nodes.
//
// No word is missed when a node died. A word on it names an object of which a replica lay there:
// another replica's node has the same word, or the object is lost with it.
func (m *Recoverer) journalOf(id rdma.ClientID) (list []journalEntry, err error) {
	b := m.s.Batch()
	defer b.Release()
	for _, n := range m.s.Holders {
		b.Read(m.s.Journal(id, n), layout.JournalWords*8)
	}
	if err := m.s.Do(session.StepReadJournal, b); err != nil {
		return nil, err
	}
	for i := range b.Len() {
		for w := range layout.JournalWords {
			word := b.Op(i).Word(w)
			e := journalEntry{word & (1<<layout.UnitBits - 1), word >> layout.UnitBits}
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
//
// What it returns is a place, and no more: inspect says whether an object is there, and readJournal
// whether it is the journal word's.
func (r *recovery) classAt(unit uint64) (class int, ok bool) {
	blk, off, ok := r.s.Space.BlockOf(unit)
	b := r.blocks[blk]
	if !ok || b == nil {
		return 0, false
	}
	size := uint64(r.s.Classes.Units[b.Class] * node.Unit)
	off -= r.s.Space.BitmapBytes()
	return b.Class, off%size == 0 && off/size < uint64(r.s.Classes.Objects[b.Class])
}
