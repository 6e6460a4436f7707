package memory

import (
	"slices"

	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Suspect prepares resync for a new view. moved reports of which regions the primary has changed:
// hints of their blocks are lost. The tables may say something else than this client knows.
func (a *Allocator) Suspect(moved func(region int) bool) {
	a.Untidy, a.late = true, false
	// Hints of blocks with a new primary are lost.
	for region, list := range a.Holdings.own {
		for _, blk := range list {
			if blk != nil && moved(region) {
				blk.suspect = true
			}
		}
	}
}

// Resync brings the memory up to an idle view that was joined, in which nothing is in flight any
// more.
//
// What the steps rely on, in their order:
//   - ground: what was in flight decides which objects are free, so it ends first.
//   - tidy: in an idle view the primary's entry decides which client owns a block.
//   - reread: marks are on the nodes, whatever became of hints. Only suspect blocks are read.
func (a *Allocator) Resync() error {
	if err := a.ground(); err != nil {
		return err
	}
	if err := a.tidy(); err != nil {
		return err
	}
	for class := range a.Holdings.Slabs {
		for _, blk := range a.Holdings.Slabs[class].Blocks {
			if !blk.suspect {
				continue
			}
			// What was read stays read: the next call goes on with the other blocks.
			if a.s.Overdue() {
				return session.ErrDeadline
			}
			if err := a.reread(blk); err != nil {
				return err
			}
		}
	}
	return nil
}

// Resume goes on with frees in a new view: stuck ones begin anew.
func (a *Allocator) Resume() {
	a.s.Clock = a.s.Now()
	a.Reclaim.retry()
	a.Reclaim.harvest()
}

// ground takes back what is in flight: it has failed, or landed. Frees that were not over begin
// again at retry. A scan that has subtracted bits is completed first, since their hints are gone.
//
// In a new epoch the verbs in flight have landed before the view became idle, or fail. So the waits
// here end soon, unless a node of the new view does not answer.
func (a *Allocator) ground() error {
	if sc := &a.scan; sc.phase != noScan {
		if err := a.s.Wait(sc.batch, rdma.All, a.s.OpTimeout); err != nil {
			return err
		}
		// Its bits were subtracted, so this is the last look at them.
		if sc.phase == clearing {
			a.taken(sc.batch, sc.blocks, sc.found)
		}
		sc.batch.Release()
		sc.phase = noScan
	}
	for ; a.Reclaim.Flying > 0; a.Reclaim.Flying-- {
		k := &a.Reclaim.ring[a.Reclaim.first]
		if k.batch != nil {
			if err := a.s.Wait(k.batch, rdma.All, a.s.OpTimeout); err != nil {
				return err
			}
			at := 0
			for _, f := range k.frees {
				// The last step has added the hint: a second one would carry. Before that some of
				// the marks may have landed: retry begins with reading the heads.
				next, err := k.resultOf(f, at)
				if k.step > 0 || err != nil {
					a.Reclaim.stuck = append(a.Reclaim.stuck, f)
				}
				at = next
			}
			k.batch.Release()
			k.batch = nil
		}
		// Its frees are over, or stuck.
		a.Reclaim.landed = k.last
		a.Reclaim.first = (a.Reclaim.first + 1) % maxFlying
	}
	return nil
}

// tidy compares the blocks of this client with the block allocation tables. An allocation, an
// adoption, a clearing or a leaving may have been cut off, and the primary's entry says how it
// ended. Blocks that the tables give to this client and that it does not know are inherited;
// those that they do not are dropped. The backups' entries of a block that it takes in are made
// equal first. When tidy fails Untidy stays set.
//
// By what was cut off, the primary's entry tells:
//   - Allocation: it names this client, and nothing in the block was used. inherit finds its
//     objects free.
//   - Adoption: it names this client, or still node.Left: another client may adopt it then.
//   - Leaving: it names node.Left, or an adopter; or still this client, though backups say
//     node.Left. Then the client keeps the block.
//   - Clearing: as leaving, with the class of vacant blocks.
func (a *Allocator) tidy() error {
	list, err := a.Tables.ListEntries(0, len(a.s.Space.Place)*a.s.Space.Blocks(),
		func(e node.Entry) bool { return e.Owner() == a.s.ID })
	if err != nil {
		return err
	}
	mine := make(map[node.Block]*Block, len(list))
	for _, blk := range list {
		mine[blk.Block] = blk
	}
	// Blocks that this client was leaving come first: they are in no slab.
	if err := a.returnParting(mine); err != nil {
		return err
	}
	// Blocks that the tables do not give to this client, or with another class, are dropped.
	for class := range a.Holdings.Slabs {
		s := &a.Holdings.Slabs[class]
		for _, blk := range slices.Clone(s.Blocks) {
			if now := mine[blk.Block]; now != nil && now.Class == class {
				blk.Entry = now.Entry
			} else {
				s.Split(blk)
				a.Holdings.drop(blk)
			}
		}
	}
	// So are blocks on their way to be vacant.
	a.Emptied = slices.DeleteFunc(a.Emptied, func(e emptied) bool { return mine[e.Block.Block] == nil })
	// Blocks of this client that it does not know are taken in as if they were adopted.
	for _, blk := range list {
		if a.Holdings.Own(blk.Block) != nil {
			continue
		}
		if a.s.Overdue() {
			return session.TimedOut("take blocks back into use")
		}
		// The primary's entry names this client: the backups' entries follow it.
		if err := a.Tables.spread(blk); err != nil {
			return err
		}
		if blk.Entry == 0 { // a backup has no memory for it: it is free again
			continue
		}
		// The block was being emptied, and still is.
		if i := slices.IndexFunc(a.Emptied, func(e emptied) bool { return e.Block.Block == blk.Block }); i >= 0 {
			a.Emptied[i].Entry = blk.Entry
			continue
		}
		if err := a.inherit(blk); err != nil {
			return err
		}
	}
	a.Untidy = false
	return nil
}

// returnParting takes blocks that this client was leaving back into use, as far as they are still
// its own. Their free objects are free again. A block with another entry was left: this client may
// have adopted it since, and then knows it anew.
//
// leave may have marked objects of them as in use, and others as free. Neither matters to the
// owner: it knows by Incarnations and its lists which are free, and no other client uses objects of
// the block.
func (a *Allocator) returnParting(mine map[node.Block]*Block) error {
	for ; len(a.Parting) > 0; a.Parting = a.Parting[1:] {
		s := a.Parting[0]
		// The backups' entries follow the primary's: some may name node.Left already.
		kept := func(blk *Block) bool { now := mine[blk.Block]; return now != nil && now.Entry == blk.Entry }
		for _, blk := range s.Blocks {
			if kept(blk) {
				if err := a.Tables.spread(blk); err != nil {
					return err
				}
			}
		}
		for _, blk := range s.Blocks {
			if kept(blk) {
				blk.parting = false
				a.Holdings.hold(blk)
			} else if a.Holdings.Own(blk.Block) == blk {
				a.Holdings.drop(blk)
			}
		}
		for _, p := range s.Free.Items() {
			if a.Holdings.Own(p.Block.Block) == p.Block {
				a.Holdings.Slabs[p.Block.Class].Free.Push(p)
			}
		}
	}
	return nil
}
