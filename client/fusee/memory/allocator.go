// Package memory is FUSEE's two-level memory management (FUSEE 4.4): clients get blocks from memory
// nodes, and objects from their blocks.
//
// Three parts know of each other in this order:
//
//	Tables    what the nodes know: block allocation tables, marks and hints (tables.go, marks.go)
//	Holdings  what this client holds: its blocks, and their free objects by class (holdings.go)
//	Reclaim   objects on their way back, to this client or to others (reclaim.go, carry.go)
//
// The Allocator decides on top of them where an operation's object comes from (refill.go), and
// which blocks are left to others or get another size class (leave.go, vacant.go). It finds
// in the background what others have freed (scan.go), and makes up for a change of the view
// (resync.go). A master uses the Tables alone.
//
// The life of a block, by its entry in the block allocation table of its region:
//
//	free       -> a client's     NewBlock: the node's CAS of the entry decides
//	a client's -> left           PassOn: its owner leaves it, or its recovery does
//	left       -> a client's     takeOver: an adopter's CAS of the primary's entry decides
//	a client's -> vacant         Clear: it was empty, has rested, and is wiped
//	a client's -> a client's     carveOwn: likewise, and its owner has waited for it
//	vacant     -> a client's     carveVacant: it may get another size class
//	left       -> unclean, left  by recovery and sweeps (package recovery)
//
// The life of an object, as its block's owner sees it:
//
//	free -> in use     Take
//	in use -> resting  Free or Lay: no slot points at it any more
//	resting -> ripe    mature: no client remembers a word that points at it
//	ripe -> free       harvest: the frees that were queued before it are over
//
// An object of another client's block goes from resting into a carrier, which marks it.
package memory

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
)

// Allocator is a client's memory (FUSEE 4.4): blocks of the nodes, and objects of its blocks.
// Operations take objects and free what they replace; the rest happens on the way.
type Allocator struct {
	s *session.Session
	// What the nodes know, what this client holds, and what is on its way back.
	Tables   *Tables
	Holdings *Holdings
	Reclaim  *Reclaim
	// The scan in flight.
	scan scan
	// writes counts operations, for shed, and shedAt is when the last of them ran it.
	writes uint64
	shedAt time.Duration
	// tight: the region of the last allocation or look had few free blocks left.
	tight bool
	// full: no region had a block at the last allocation, or a region had none at the last look.
	full bool
	// spent is until when no region is asked for a block, as all have said that they have none, and
	// none is what the last of them said.
	spent time.Duration
	none  error
	// fair is how many blocks of other classes than its operation's the client may hold then.
	fair  int
	known nodeBlocks // only with node-centric allocation
	// Blocks that this client is leaving, each slab of one class. No operation takes objects of
	// them.
	Parting []*Slab
	// Blocks on their way to be vacant, in the order in which they became empty.
	Emptied []emptied
	// Untidy: tables may name this client as the owner of a block that is not among Own, or another
	// one as that of a block among Parting.
	Untidy bool
	// late: a call of this view that allocates a block was given up, and may still be executed.
	late bool
	// pinned are the objects of writes of unknown outcome. No block is left meanwhile, since verbs
	// may be in flight into the objects.
	pinned []layout.Object
}

// New returns the memory of a client that holds nothing yet.
func New(s *session.Session) *Allocator {
	t := NewTables(s)
	h := &Holdings{Layout: s.Layout, Slabs: make([]Slab, len(s.Classes.Units)),
		own: make([][]*Block, s.Regions)}
	return &Allocator{s: s, Tables: t, Holdings: h, known: nodeBlocks{},
		Reclaim: &Reclaim{s: s, t: t, h: h, Rest: s.Quarantine()}}
}

// Take takes a free object for an operation: of the class, or of a larger one (classFor). toDelete
// is the class of an object that a DELETE of the same key would need, and deletes says that the
// operation is one. The error wraps client.ErrFull when there is none.
func (a *Allocator) Take(class, toDelete int, deletes bool) (layout.Object, error) {
	a.Holdings.deletes = max(a.Holdings.deletes, toDelete)
	if a.s.NodeCentric {
		return a.takeFromNode(class)
	}
	// shed comes before an object is taken: an adopter of the object's block reads how often the
	// object was used, and must not read that before the object is written.
	//
	// A client that writes seldom sheds all the same.
	if a.writes++; a.writes%shedEvery == 0 || a.s.Clock-a.shedAt > a.s.Timeout {
		began := a.s.Now()
		a.s.Fault(a.shed(class))
		a.s.Exempt(began, nil) // the operation goes on whatever ails shed
		a.shedAt = a.s.Clock
	}
	class, err := a.classFor(class, deletes)
	if err != nil {
		return layout.Object{}, err
	}
	s := &a.Holdings.Slabs[class]
	p := s.Free.Pop()
	s.used = a.writes
	o := layout.Object{Unit: a.Tables.UnitOf(p), Class: class, Incarnation: p.Block.use(p.Index)}
	// Frees and scans in flight move on with each write.
	a.tend(class)
	return o, nil
}

// tend advances what needs no waiting. Every operation that writes calls it once.
func (a *Allocator) tend(class int) {
	a.Reclaim.land(0)
	a.Reclaim.mature()
	_ = a.tendScan() // the operation sees itself what ails a node
	s := &a.Holdings.Slabs[class]
	if s.taken++; s.taken > s.gap && s.Idle() < lowWater && a.scan.phase == noScan && len(s.Blocks) > 0 {
		s.taken = 0
		a.beginScan(class)
	}
}

// TendIdle advances what a client that only reads has left over from its writes. A client without
// any operations keeps what rests, and less than a batch of frees.
func (a *Allocator) TendIdle() {
	if a.Reclaim.resting.Len() > 0 || len(a.Reclaim.out) > 0 || a.Reclaim.Flying > 0 {
		a.s.Clock = a.s.Now()
		a.Reclaim.land(0)
		a.Reclaim.mature()
	}
	a.s.Fault(a.Clear())
}

// Drain ends all background work: it waits until everything has rested and landed. The error
// says what did not; it may be called again.
func (a *Allocator) Drain() error {
	a.Reclaim.sleep(a.Reclaim.resting.Len())
	a.Reclaim.retry()
	if err := a.Reclaim.landAll(); err != nil {
		return err
	}
	if len(a.Reclaim.stuck) > 0 {
		return fmt.Errorf("free %d objects of others: %w", len(a.Reclaim.stuck), a.Reclaim.trouble)
	}
	return a.EndScan()
}

// Pin keeps an object of a write of unknown outcome out of use, and all blocks this client's.
func (a *Allocator) Pin(o layout.Object) { a.pinned = append(a.pinned, o) }

// Unpin ends what pin began, once it is known how the write ended.
func (a *Allocator) Unpin(unit uint64) {
	i := slices.IndexFunc(a.pinned, func(o layout.Object) bool { return o.Unit == unit })
	a.pinned = slices.Delete(a.pinned, i, i+1)
}

// inHand lists the objects of this client's blocks that it uses or may use, and to which no slot
// may point: those that rest, are ripe, or are of unresolved writes. One that was taken and then
// not written everywhere looks free by its old mark.
func (a *Allocator) inHand() []Place {
	var list []Place
	for _, x := range a.Reclaim.resting.Items() {
		// An earlier use that was freed a second time is not in hand.
		if p, own := a.Holdings.PlaceOf(x.unit, int(x.class)); own && a.Reclaim.isOf(x, p.Block.Incarnations[p.Index]) {
			list = append(list, p)
		}
	}
	for _, x := range a.Reclaim.ripe.Items() {
		list = append(list, x.Place)
	}
	for _, x := range a.pinned {
		if p, own := a.Holdings.PlaceOf(x.Unit, x.Class); own {
			list = append(list, p)
		}
	}
	return list
}
