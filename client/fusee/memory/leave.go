package memory

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// shed leaves blocks to others when the pool is mostly handed out: those of a class of which this
// client holds more free objects than its share, and then those that are empty. Other clients may
// have none. When it fails the client just keeps its blocks until the next try, and the operation
// goes on: a node that does not answer is seen by the operation itself. Operations wait
// for its trips, but only one in shedEvery does, and only while the pool is tight or the client
// holds much. It leaves no more blocks than a trip takes: the next one goes on.
func (a *Allocator) shed(class int) error {
	s := &a.Holdings.Slabs[class]
	if len(a.pinned) > 0 { // their verbs may be in flight, into blocks that others would sweep
		return nil
	}
	// What was cut off comes first: it costs nothing where there is none.
	if err := a.endLeaving(); err != nil {
		return err
	}
	// What has rested becomes vacant before anything else: others wait for it.
	if err := a.Clear(); err != nil {
		return err
	}
	// The common case, without a trip: the pool is not known to be tight, and the client does not
	// hold much.
	if !a.tight && s.Idle() <= a.Holdings.share(class) {
		return nil
	}
	if err := a.lookAround(); err != nil || !a.tight {
		return err
	}
	// A scan in flight may have subtracted bits of the blocks: it has to end first.
	if err := a.EndScan(); err != nil {
		return err
	}
	if blocks := s.surplus(a.Holdings.share(class)); len(blocks) > 0 {
		// Blocks that cannot be left now stay out of use: resync takes them back, or the next try
		// leaves them.
		a.Part(s.Split(blocks...))
		if err := a.LeaveParting(); err != nil {
			return err
		}
	}
	if a.full {
		if err := a.lend(class); err != nil {
			return err
		}
	}
	return a.Vacate(false, mostEmptied) // empty blocks begin to rest
}

// lend leaves blocks to others, in a full pool, as far as the client has more than its share: not
// those of the given class, and first those of the classes that it has not used for longest. So
// any client finds the free objects of any class, and pays trips to adopt their blocks. A block
// stays of which an object is free, or will be, for the client's DELETEs. All blocks stay while
// writes are unresolved, since their verbs may be in flight.
func (a *Allocator) lend(class int) error {
	if len(a.pinned) > 0 {
		return nil
	}
	if err := a.endLeaving(); err != nil {
		return err
	}
	a.Reclaim.land(0)
	a.Reclaim.mature()
	var keep *Block
	if least, ok := a.Holdings.borrow(a.Holdings.deletes, 0); ok {
		s := &a.Holdings.Slabs[least]
		keep = s.Free.Items()[0].Block
	} else if rests := a.inHand(); len(rests) > 0 {
		keep = slices.MaxFunc(rests, func(x, y Place) int { return cmp.Compare(x.Block.Class, y.Block.Class) }).Block
	}
	var others []*Block
	for i := range a.Holdings.Slabs {
		for _, b := range a.Holdings.Slabs[i].Blocks {
			if i != class && b != keep {
				others = append(others, b)
			}
		}
	}
	if len(others) <= a.fair {
		return nil
	}
	slices.SortStableFunc(others, func(x, y *Block) int {
		return cmp.Compare(a.Holdings.Slabs[y.Class].used, a.Holdings.Slabs[x.Class].used)
	})
	// A scan in flight may have subtracted bits of the blocks: it has to end first.
	if err := a.EndScan(); err != nil {
		return err
	}
	// Blocks of one class come one behind the other.
	for rest := others[a.fair:]; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Class == rest[0].Class {
			n++
		}
		a.Part(a.Holdings.Slabs[rest[0].Class].Split(rest[:n]...))
		a.s.Stats.Lent += uint64(n)
		rest = rest[n:]
	}
	return a.LeaveParting()
}

// lookAround learns how full the pool is from the table of a region that it chooses at random:
// whether fewer blocks than a quarter are free or vacant, or none. If none, it learns from all
// tables how many others have blocks.
//
// One region of many is a sample: the next look may say something else, so what follows from it may
// be undone (adopt, takeBack).
func (a *Allocator) lookAround() error {
	// Without a region nothing can be allocated.
	if len(a.s.LiveRegions) == 0 {
		a.tight, a.full = true, true
		return nil
	}
	region := a.s.LiveRegions[a.s.Rand().IntN(len(a.s.LiveRegions))]
	table, err := a.s.Read(session.StepReadTables, a.s.Space.Table(region, 0), a.s.Space.Blocks()*8)
	if err != nil {
		return err
	}
	free := 0
	for i := range a.s.Space.Blocks() {
		if e := node.Entry(layout.LE.Uint64(table[8*i:])); e == 0 || layout.IsVacant(e) {
			free++
		}
	}
	a.tight, a.full = free*4 < a.s.Space.Blocks(), free == 0
	if !a.full {
		return nil
	}
	// What is fair goes by the clients in all regions, as each may have its blocks elsewhere.
	others := map[rdma.ClientID]bool{}
	_, err = a.Tables.ListAll(0, 1, func(e node.Entry) bool {
		if e != 0 && e.Owner() != node.Left && e.Owner() != a.s.ID {
			others[e.Owner()] = true
		}
		return false // none is listed, so all tables are read
	})
	a.fair = max(0, len(a.s.LiveRegions)*a.s.Space.Blocks()/(fairShare*max(1, len(others)))-1)
	return err
}

// fairShare: in a full pool the clients may hold one in so many of its blocks, of which one each is
// of the class that it uses. The others can be adopted.
const fairShare = 4

// LeaveAll leaves all blocks to others. No write is unresolved, and background work is over.
func (a *Allocator) LeaveAll() error {
	// An allocation may have come about behind the last look.
	a.Untidy = a.Untidy || a.late
	if _, err := a.Ascertain(); err != nil {
		return err
	}
	// Emptied blocks are left like the others: their objects are free.
	for _, e := range a.Emptied {
		a.Holdings.takeUp(e.Block)
	}
	a.Emptied = nil
	for class := range a.Holdings.Slabs {
		if s := a.Holdings.Slabs[class]; len(s.Blocks) > 0 {
			a.Part(&Slab{Blocks: s.Blocks, Free: s.Free})
		}
		a.Holdings.Slabs[class] = Slab{}
	}
	return a.LeaveParting()
}

// Ascertain finds out which blocks are this client's, in a view that has not changed. It reports
// whether that was in doubt. Tables may give the client blocks that it does not know: those have to
// be used, or left. Or not give it those that it knows: no object of them may be marked.
func (a *Allocator) Ascertain() (bool, error) {
	if !a.Untidy {
		return false, nil
	}
	if err := a.EndScan(); err != nil {
		return true, err
	}
	// A CAS of an entry may still be in flight, and is over behind the fence. (A call is not: a
	// node that records an allocation so late leaves a block in which nothing is used.)
	if err := a.s.Fence(); err != nil {
		return true, err
	}
	return true, a.tidy()
}

// endLeaving leaves what an earlier try has not reached, or takes it back into use if it may have
// come to the entries.
func (a *Allocator) endLeaving() error {
	if _, err := a.Ascertain(); err != nil {
		return err
	}
	return a.LeaveParting()
}

// Part takes a slab out of use. Its blocks stay this client's until they are passed on. Meanwhile
// frees of their objects are sent like those of another client's block.
func (a *Allocator) Part(s *Slab) {
	for _, blk := range s.Blocks {
		blk.parting = true
	}
	a.Parting = append(a.Parting, s)
}

// LeaveParting leaves the blocks that are out of use. Blocks that it does not reach, because a
// node died or the view changed, stay out of use: resync decides, or endLeaving. When Untidy is set
// behind an error, a block may be another client's already, and tidy comes before the next try.
func (a *Allocator) LeaveParting() error {
	for ; len(a.Parting) > 0; a.Parting = a.Parting[1:] {
		for s := a.Parting[0]; len(s.Blocks) > 0; {
			// A batch has the entries of so many blocks at most.
			some := s.Blocks[:min(syncBlocks, len(s.Blocks))]
			if err := a.leave(some, s.Free.Items()); err != nil {
				return fmt.Errorf("leave blocks: %w", err)
			}
			// They are left: the next attempt begins behind them.
			s.Blocks = s.Blocks[len(some):]
		}
	}
	return nil
}

// leave passes blocks on to node.Left. Before that it marks those objects that are free. It
// unmarks those that are not free but may look so: objects that rest, and those of unresolved
// writes, some of which were never written. Their WRITEs that are still in flight land before
// this one, by the order of a node's queue. It may be repeated as long as it has not come to the
// entries. Behind that another client may own the blocks and use the objects: then tidy has to find
// out first.
//
// An adopter relies on the marks (inherit). So they are complete, on all replicas, before any
// entry changes. Hints come after the marks and before the entries, so that adopters see how much
// of a block is free. A crash leaves blocks of a dead client, of which some objects are marked.
func (a *Allocator) leave(blocks []*Block, free []Place) error {
	parting := make(map[*Block]bool, len(blocks))
	for _, blk := range blocks {
		parting[blk] = true
	}
	stays := func(p Place) bool { return !parting[p.Block] }
	// First the objects that must not look free, then those that are free.
	list := slices.DeleteFunc(a.inHand(), stays)
	if err := a.Tables.writeHeads(list, false); err != nil {
		return err
	}
	list = slices.DeleteFunc(slices.Clone(free), stays)
	if err := a.Tables.writeHeads(list, true); err != nil {
		return err
	}
	// Hints come after marks: an owner that finds a hint finds the mark.
	if err := a.Tables.setHints(blocks, list); err != nil {
		return err
	}
	// From here on other clients may adopt the blocks, also when this client does not hear that it
	// has passed them on.
	if err := a.Tables.PassOn(blocks); err != nil {
		a.Untidy = true
		return err
	}
	for _, blk := range blocks {
		a.Holdings.drop(blk)
	}
	return nil
}
