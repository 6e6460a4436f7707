package memory

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
)

// A block keeps its size class while it has pairs. In a pool that is mostly handed out, a client
// takes blocks that are empty out of use, so that others can carve them anew. The objects of
// another class begin in the middle of the old ones, and their words come back. So an emptied
// block rests until no client remembers a word that points into it, and no mark of an old object
// is on its way. Then it is wiped, on all replicas, and becomes vacant.
//
// Logs remember for longer which incarnations were replaced, and recovery frees these. So
// incarnations go on: those of a block that is carved anew are above all that it had. The block's
// floor, below them, is the incarnation of its first object. It is written before the others are
// wiped. An object that was never used begins there.
//
// What a crash leaves: a block of a dead client, of which the objects are free or never used; or
// one that is vacant on backups only, or of another class on the primary only, which its owner's
// recovery passes on as the primary has it.

// emptied is a block on its way to be vacant. Its entry names this client, and it is not among
// Own: no object of it is taken.
type emptied struct {
	*Block
	// restsUntil is the pool's timeout after it was taken out of use. No slot points into it since
	// then, or longer; and no client remembers a word that does when it has rested.
	restsUntil time.Duration
}

const (
	// mostEmptied is how many blocks rest at a time: the others stay in use until the next look.
	mostEmptied = 64
	// mostTaken is how many of departed clients' empty blocks a client takes over at a time that
	// finds no other room.
	mostTaken = 8
	// manyEmpty: one block of so many is empty where reshape carves blocks anew.
	manyEmpty = 16
	// emptyShare is for which part of an operation's time it takes its own empty blocks out of use,
	// and for which it takes over others'; how late it may be when reshape does so, and for how
	// much longer than a timeout it waits then. A block of small objects that were used costs a
	// thousand verbs; what is left waits for the next look.
	emptyShare = 4
	// wipeBytes are wiped in one trip, on all replicas.
	wipeBytes = 64 << 10
)

// Vacate takes the client's empty blocks out of use, all of them, or as long as it keeps a free
// object that is large enough for its DELETEs: without one it cannot DELETE in a full pool.
//
// A block is empty only by the free lists: an object that rests or is ripe may still be read by its
// old word, so it counts as in use.
//
// Its objects get their marks before it rests. Another client may free one for a second time,
// however late: it finds the mark then, and writes none into what is there next. Where marks cannot
// be written the block stays in use. No more than most blocks rest at a time.
func (a *Allocator) Vacate(all bool, most int) error {
	began := a.s.Now()
	for class := range a.Holdings.Slabs {
		s := &a.Holdings.Slabs[class]
		idle := map[*Block]int{}
		for _, p := range s.Free.Items() {
			idle[p.Block]++
		}
		// A block is empty if all its objects are in the free list.
		for _, b := range slices.Clone(s.Blocks) {
			if idle[b] < len(b.Incarnations) || len(a.Emptied) >= most || a.s.Now()-began > a.s.OpTimeout/emptyShare {
				continue
			}
			free := s.Split(b).Free.Items()
			if _, ok := a.Holdings.borrow(a.Holdings.deletes, 0); !ok && !all {
				a.Holdings.takeUp(b)
				continue
			}
			if err := a.Tables.writeHeads(free, true); err != nil {
				a.Holdings.takeUp(b)
				return fmt.Errorf("empty block %v: %w", b.Block, err)
			}
			a.Holdings.drop(b)
			a.Emptied = append(a.Emptied, emptied{b, a.s.Now() + a.s.Timeout})
		}
	}
	return nil
}

// takeBack takes a resting block back into use that serves the class as well as one of its own, or,
// if asked for, the smallest larger one. Its objects are free still.
func (a *Allocator) takeBack(class int, larger bool) bool {
	best := -1
	for i, e := range a.Emptied {
		if a.Holdings.serves(e.Class, class, larger) && (best < 0 || e.Class < a.Emptied[best].Class) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	a.Holdings.takeUp(a.Emptied[best].Block)
	a.Emptied = slices.Delete(a.Emptied, best, best+1)
	return true
}

// Clear makes the emptied blocks vacant that have rested for the pool's timeout. Where the change
// of an entry fails the block's owner is not known: tidy reads it.
func (a *Allocator) Clear() error {
	for {
		b, err := a.wipeRested()
		if b == nil || err != nil {
			return err
		}
		if err := a.Tables.PassOn([]*Block{{Block: b.Block, Class: layout.Vacant, Entry: b.Entry}}); err != nil {
			a.Untidy = true
			return fmt.Errorf("clear block %v: %w", b.Block, err)
		}
	}
}

// wipeRested wipes the emptied block that has rested longest, and returns it: nil where none has
// rested for the pool's timeout. It is in no list then: it becomes vacant, or one of another class,
// or tidy finds it. Where wiping fails the block is taken back into use.
func (a *Allocator) wipeRested() (*Block, error) {
	// They are in the order in which they became empty.
	if len(a.Emptied) == 0 || a.Emptied[0].restsUntil > a.s.Now() {
		return nil, nil
	}
	b := a.Emptied[0].Block
	a.Emptied = slices.Delete(a.Emptied, 0, 1)
	// The hints go first: one that is left would be another object's in the block's next use.
	err := a.Tables.clearHints(b)
	if err == nil {
		// The first object's is the old floor at least.
		floor := slices.Max(b.Incarnations)
		// Where wiping fails all objects go on above the floor. The head that has it may be the
		// next that is used, and an adopter begins there with those that were wiped.
		for i := range b.Incarnations {
			b.Incarnations[i] = floor
		}
		err = a.Tables.wipe(b.Block, floor)
	}
	if err != nil {
		a.Holdings.takeUp(b)
		return nil, fmt.Errorf("clear block %v: %w", b.Block, err)
	}
	return b, nil
}

// carveOwn makes the emptied block that has rested longest one of a class. Others cannot take it
// before, as they may a vacant one. It returns false when none has rested.
func (a *Allocator) carveOwn(class int) (bool, error) {
	b, err := a.wipeRested()
	if b == nil || err != nil {
		return false, err
	}
	mine, err := a.takeOver(b, class)
	if mine {
		a.s.Stats.Converted++
	} else if b.Entry != 0 {
		a.Untidy = true // the entry is not what this client wrote there
	}
	return mine, err
}

// carveVacant takes a vacant block, and makes it one of a class. It returns false when there is
// none. A vacant block is inherited rather than carved, so that its objects begin above the
// floor.
func (a *Allocator) carveVacant(class int) (bool, error) {
	list, err := a.Tables.ListAll(a.Tables.anywhere(), candidates, layout.IsVacant)
	for _, b := range list {
		if mine, err := a.takeOver(b, class); err != nil {
			return false, err
		} else if mine {
			a.s.Stats.Converted++
			return true, nil
		}
	}
	return false, err
}

// takeEmpty takes over departed clients' blocks that are empty by their hints, if there are at
// least so many, and takes them out of use, as Vacate does. Where others have blocks it takes no
// more than most: those would find the pool full while all of them rest.
func (a *Allocator) takeEmpty(atLeast, most int, all bool) error {
	left, err := a.Tables.departed(manyCandidates, anyObjects)
	if err != nil {
		return err
	}
	// Hints may say too much: Vacate goes by the marks that inherit reads.
	left = slices.DeleteFunc(left, func(b *Block) bool { return b.hinted < a.s.Classes.Objects[b.Class] })
	if len(left) < max(atLeast, 1) {
		return nil
	}
	// Blocks rest together: where no other client has any, a client takes three quarters of them,
	// so that it waits once or twice, not for eight at a time. The rest is for clients that come.
	rest := mostEmptied
	if len(left) > 2*most {
		others, err := a.Tables.others(anyObjects)
		if err != nil {
			return err
		}
		if !others {
			most = len(left) - len(left)/4
			rest = max(rest, most)
		}
	}
	// What cannot rest stays others'.
	most = min(most, rest-len(a.Emptied))
	began := a.s.Now()
	for _, b := range left {
		if most <= 0 || a.s.Now()-began > a.s.OpTimeout/emptyShare {
			break
		}
		mine, err := a.takeOver(b, b.Class)
		if mine { // no other client was faster
			most--
			err = a.Vacate(all, rest)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// anyObjects fits every block that has objects.
func anyObjects(node.Entry) bool { return true }

// reshape carves departed clients' empty blocks anew where many are empty, and takes one for the
// class. Pairs that find no block of their class would use larger objects, of which a block has
// fewer; and only a pair that is too large for what there is has blocks carved. So a pool that is
// filled and emptied again and again would be full with fewer and fewer pairs. The operation waits
// for that, but few do, as blocks rest together. One that has waited for something else does not.
func (a *Allocator) reshape(class, reserve int) (_ bool, err error) {
	if reserve == 0 { // a DELETE's object comes back soon
		return false, nil
	}
	began := a.s.Now()
	age := a.s.Age(began)
	if age > a.s.OpTimeout/emptyShare {
		return false, nil
	}
	defer func() { a.s.Exempt(began, err) }()
	blocks, rested := len(a.s.LiveRegions)*a.s.Space.Blocks(), len(a.Emptied)
	err = a.takeEmpty(min(manyCandidates, blocks)/manyEmpty, min(max(1, blocks/restShare), mostEmptied), false)
	if err != nil || len(a.Emptied) == rested {
		return false, err
	}
	// It waits for the last one, so that all of them become vacant, for other clients, too. Where
	// verbs are so slow that this one was late, it goes on with those that have rested.
	last := a.Emptied[len(a.Emptied)-1].restsUntil
	latest := began - age + a.s.Timeout + a.s.Timeout/emptyShare
	return a.watch(class, reserve, a.s.RetryUntil(kit.WhileBusy, min(last, latest)), false)
}

// awaitVacant waits until an emptied block has rested, and carves it, or until others have made
// room before that. It returns false when there is none. Wiping may fail: so an operation that has
// to leave a free object to DELETEs does not empty the last block that has one.
func (a *Allocator) awaitVacant(class, reserve int) (bool, error) {
	// Which blocks are empty is known when all objects are idle that are free: also those that
	// rest, and those that others have freed.
	a.Reclaim.sleep(a.Reclaim.resting.Len())
	if err := a.Reclaim.landAll(); err != nil {
		return false, err
	}
	for class := range a.Holdings.Slabs {
		if err := a.ReclaimAll(class); err != nil {
			return false, err
		}
	}
	if err := a.Vacate(reserve == 0, mostEmptied); err != nil {
		return false, err
	}
	// Where many wait, each takes as many as are fair, so that some are left for all of them.
	if err := a.takeEmpty(0, min(mostTaken, max(1, a.fair)), reserve == 0); err != nil {
		return false, err
	}
	// Nothing rests, but another client may have left a vacant block.
	if len(a.Emptied) == 0 {
		return a.carveVacant(class)
	}
	return a.watch(class, reserve, a.s.RetryUntil(kit.WhileBusy, a.Emptied[0].restsUntil), true)
}
