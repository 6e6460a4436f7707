// Package recovery is the master's work in a FUSEE pool (FUSEE 5). Package cluster calls it, after
// it has fenced off what died.
//
//	a node died     Mend makes all replicas equal (mend.go); Restore fills a spare (restore.go)
//	a client died   Recover ends its rounds (finish.go) and passes its blocks on (recover.go,
//	                release.go)
//	later           Sweep frees what crashes have leaked, piece by piece (sweep.go, release.go)
//	the index is    Mend splits subtables under its busy view (grow.go)
//	nearly full
//
// Every step may be repeated: a master may die at each of its verbs, and the next one begins anew.
// A recovery of a client changes slots while others write, as one more writer of SNAPSHOT. Mend and
// the splits rely on a busy view, in which no client writes.
package recovery

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/fusee/snapshot"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Recoverer is what a pool's master uses to mend it (FUSEE 5, Algorithm 3). It implements
// cluster.Recoverer. It is also a client, with an identity of its own, which holds no blocks.
type Recoverer struct {
	s *session.Session
	t *memory.Tables
	// report is of the last recovery.
	report Breakdown
	// Of the last Mend: halfway says that a split of the index was not over, and grown how many
	// subtables were added.
	halfway bool
	grown   int
	// sweep is how far sweeping has come.
	sweep sweep
}

// A sweep goes piece by piece: see Unswept.
var _ cluster.Piecewise = (*Recoverer)(nil)

// NewRecoverer returns a recoverer that works through ep. It has no index cache and no blocks: of
// what it knows only the layout changes with the view.
func NewRecoverer(ep rdma.Endpoint) (*Recoverer, error) {
	s, err := session.Open(ep, 0)
	if err != nil {
		return nil, err
	}
	return RecovererOf(s), nil
}

// RecovererOf returns a recoverer that works in a session.
func RecovererOf(s *session.Session) *Recoverer {
	s.View.Follow(s.Layout.ApplyView)
	return &Recoverer{s: s, t: memory.NewTables(s)}
}

// Spares lists the nodes that hold nothing until they replace a dead node.
func (m *Recoverer) Spares() []int {
	return kit.Spares(m.s.Nodes, m.s.Params.Spares)
}

// Mend makes all replicas of all slots and of all block allocation tables equal (FUSEE 5.2). It
// acts as the representative last writer of every round that was cut off: no client writes, since
// the view is busy.
//
// Which word a slot gets:
//   - The one that all replicas but the first hold, if that is final. When the primary lives, its
//     round's winner was decided and is completed. When the primary died, it is either the
//     committed word or a proposal that no client committed, and either may win.
//   - Otherwise no round was decided: the first final word. When the primary lives, that is its
//     own: all proposals are taken back, and their writers find the old word and begin again.
//     When the primary died, any proposal may win.
//   - Where there are only pending words, an INSERT that was not committed gives way: the slot
//     gets a tombstone. In a pool in which slots have one replica the word is left to its writer,
//     or to the writer's recovery. Where one of several replicas is left it is not: a spare would
//     get a copy of it.
//
// A crash of the master leaves slots of which some replicas have the chosen word. By the same
// rules its successor chooses it again, or another word that it may choose. No reader has seen a
// slot of which the replicas differ, or it has seen the primary's word, which may still be chosen
// until the primary is changed, last.
func (m *Recoverer) Mend(v rdma.View) error {
	m.s.View.Enter(v)
	m.sweep.again = true
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"settle the size of the index", m.settleSize},
		{"mend the block allocation tables", m.mendTables}, {"mend the index", m.mendIndex},
		{"grow the index", m.grow},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// mendTables gives every backup the primary's entries. An ALLOC, a take-over or a departure that
// was cut off is then either done on all replicas or on none. The client concerned compares its
// blocks with the tables (memory.Allocator.Resync); if it is dead, its recovery reads them.
func (m *Recoverer) mendTables() error {
	return m.mendTablesOf(func(node.Entry) bool { return true }, func(node.Block, node.Entry) {})
}

// mendTablesOf gives the backups of regions the primaries' entries where some replica's entry
// concerns the caller. It calls tell with the primary's entry of each block. It may
// be repeated after a crash.
func (m *Recoverer) mendTablesOf(concerns func(node.Entry) bool, tell func(node.Block, node.Entry)) error {
	for some := range slices.Chunk(m.s.LiveRegions, memory.TablesPerTrip) {
		if err := m.mendSomeTables(some, concerns, tell); err != nil {
			return fmt.Errorf("block allocation tables of %d regions from %d: %w", len(some), some[0], err)
		}
	}
	return nil
}

// mendSomeTables is mendTablesOf for regions of which one trip reads the tables.
func (m *Recoverer) mendSomeTables(
	regions []int, concerns func(node.Entry) bool, tell func(node.Block, node.Entry)) error {
	b, next := m.s.Batch(), m.s.Batch()
	defer b.Release()
	defer next.Release()
	for _, g := range regions {
		for r := range m.s.Space.Copies(g) {
			b.Read(m.s.Space.Table(g, r), m.s.Space.Blocks()*8)
		}
	}
	if err := m.s.Do(session.StepMendTables, b); err != nil {
		return err
	}
	// Tables come in the order of the regions, and of their replicas.
	at := 0
	for _, g := range regions {
		for i := range m.s.Space.Blocks() {
			blk, first := node.Block{Region: g, Index: i}, b.Op(at).Word(i)
			for r := 1; r < m.s.Space.Copies(g); r++ {
				switch other := b.Op(at + r).Word(i); {
				case other == first || !concerns(node.Entry(first)) && !concerns(node.Entry(other)):
				case other == 0: // an ALLOC was cut off before the node backed the block with memory
					kept, err := m.t.Complete(session.StepMendTables, blk, r, node.Entry(first))
					if err != nil {
						return err
					}
					if !kept {
						first, r = 0, m.s.Space.Copies(g) // the entries of all replicas are 0 now
					}
				default:
					next.CompareSwap(m.s.Space.Entry(blk, r), other, first)
				}
			}
			tell(blk, node.Entry(first))
		}
		at += m.s.Space.Copies(g)
	}
	return m.swapAll(session.StepMendTables, next)
}

// swapAll posts CASes with which no other verb interferes. One that finds another word than it
// expects is damage. Some of the others may have succeeded then.
//
// Under a busy view no client writes, and no verb of an earlier epoch lands. So the words are as
// they were read, in a trip before.
func (m *Recoverer) swapAll(step rdma.Step, b *rdma.Batch) error {
	if err := m.s.Do(step, b); err != nil {
		return err
	}
	for i := range b.Len() {
		if op := b.Op(i); !op.Swapped() {
			return fmt.Errorf("%s: it held %#x, not %#x: another client writes while the pool is mended: %w",
				op.Addr, op.Result, op.Expect, client.ErrDamaged)
		}
	}
	return nil
}

// mendWords is how many words of the index are read in one trip, from each replica: 8 KB.
const mendWords = 1024

// mendIndex makes the replicas of all slots equal. Slots are independent, so a crash leaves some
// that are mended and others that are not.
func (m *Recoverer) mendIndex() error { return m.s.EachRun(mendWords, m.mendSlots) }

// mendSlots makes the replicas of n words of the index equal. The CASes of a slot are posted with
// the primary's last; see Mend. In a pool with one index replica there is nothing to do.
func (m *Recoverer) mendSlots(from race.Slot, n int) error {
	b, next := m.s.Batch(), m.s.Batch()
	defer b.Release()
	defer next.Release()
	if m.s.IndexReplicas == 1 {
		return nil
	}
	copies := m.s.Index.Copies(from)
	for r := range copies {
		b.Read(m.s.Index.Address(from, r), n*8)
	}
	if err := m.s.Do(session.StepMendSlots, b); err != nil {
		return fmt.Errorf("slots from %d: %w", from, err)
	}
	var words [layout.MaxReplicas]race.Word
	for i := range n {
		for r := range copies {
			words[r] = race.Word(layout.LE.Uint64(b.Op(r).Buf[8*i:]))
		}
		s := from + race.Slot(i)
		chosen, ok := snapshot.Choose(words[:copies])
		// All words are pending: an INSERT gives way.
		if !ok {
			var err error
			if chosen, err = m.s.Tombstone(words[0].Print()); err != nil {
				return err
			}
		}
		// The primary's CAS is the last: see Mend.
		for r := copies - 1; r >= 0; r-- {
			if words[r] != chosen {
				next.CompareSwap(m.s.Index.Address(s, r), uint64(words[r]), uint64(chosen))
			}
		}
	}
	return m.swapAll(session.StepMendSlots, next)
}

// Breakdown is how long the steps of a client's recovery took (FUSEE Table 1), and what they met.
type Breakdown struct {
	Metadata time.Duration // read the block allocation tables
	Log      time.Duration // read the journal, and the objects that it names
	Requests time.Duration // finish what was cut off
	Rest     time.Duration // wait until no client is on the way to what will be freed
	Free     time.Duration // free what was replaced and pass the blocks on

	// Blocks that concerned the recovery, objects that were read, rounds that were ended, and
	// objects that were freed.
	Blocks, Objects, Unfinished, Freed int
}
