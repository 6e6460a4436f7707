package fusee

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Usage returns what the memory of a pool is used for, by reading its block allocation tables,
// each on a node that answers. It may run while clients do. Bytes count all replicas.
//
// Blocks of clients also hold free objects, and blocks to adopt hold pairs: of what is in them the
// tables say nothing. Vacant and unclean blocks count as blocks to adopt. Memory for the index to
// grow is set aside, and backed as it is used.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	ep, l, _, err := client.Look(f, "read the use of memory", session.ReadLayoutInView)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	c, err := countBlocks(ep, l, l.LiveRegions, make([]bool, l.Nodes))
	if err != nil {
		return nil, err
	}
	c.unread += uint64((len(l.Space.Place) - len(l.LiveRegions)) * l.Space.Blocks()) // lost
	r := uint64(l.DataReplicas)
	subtable := uint64(l.IndexReplicas) * race.SubtableBytes(l.Groups)
	now, more := uint64(len(l.Index.Place)), uint64(l.MostSubtables()-len(l.Index.Place))
	uses := []client.Use{
		{Name: "index slots", Count: l.Index.Slots(), Bytes: now * subtable},
		{Name: "index memory free", Count: more * l.Groups * race.GroupSlots, Bytes: more * subtable},
		{Name: "journals", Count: uint64(l.Clients), Bytes: uint64(l.Clients*l.Nodes) * layout.JournalBytes},
		{Name: "blocks of clients", Count: c.owned, Bytes: c.owned * l.BlockBytes * r},
		{Name: "blocks to adopt", Count: c.left, Bytes: c.left * l.BlockBytes * r},
		{Name: "blocks free", Count: c.free, Bytes: c.free * l.BlockBytes * r},
	}
	if c.unread > 0 {
		uses = append(uses, client.Use{
			Name: "blocks out of reach", Count: c.unread, Bytes: c.unread * l.BlockBytes * r})
	}
	return uses, nil
}

// A look at how full a pool is reads no more than this, however large the pool is: 192 KiB of the
// index, and 256 block allocation tables.
const (
	fillGroups  = 1024 // of the index
	fillRun     = 16   // groups of a READ
	fillRegions = 256  // of which the tables are read
)

// Fill returns how full the index is and how many blocks were handed out. Where the pool is large
// it takes samples. Blocks that were handed out may have room yet, also those that clients left
// for others to adopt. Fill may run while clients work: it counts what it reads at different
// moments.
//
// It posts READs only, and asks another replica where a node does not answer.
func Fill(f rdma.Fabric) ([]client.Fill, error) {
	ep, l, _, err := client.Look(f, "see how full the pool is", session.ReadLayoutInView)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	silent := make([]bool, l.Nodes)
	slots, err := fillSlots(ep, l, silent)
	if err != nil {
		return nil, fmt.Errorf("see how full the index is: %w", err)
	}
	blocks := client.Fill{Of: "blocks handed out"}
	spans, whole := client.Sample(uint64(len(l.LiveRegions)), fillRegions, 1, 1)
	blocks.Sampled = !whole
	var sample []int
	for _, s := range spans {
		sample = append(sample, l.LiveRegions[s.From])
	}
	c, err := countBlocks(ep, l, sample, silent)
	if err != nil {
		return nil, fmt.Errorf("see how full the pool is: %w", err)
	}
	blocks.Add(c.owned+c.left, c.owned+c.left+c.free)
	return []client.Fill{slots, blocks}, nil
}

// fillSlots counts the slots of a sample of groups, and those of them that have a pair. Groups of
// which no copy answers are left out.
func fillSlots(ep rdma.Endpoint, l *layout.Layout, silent []bool) (client.Fill, error) {
	const groupWords = uint64(race.GroupBytes / 8)
	spans, whole := client.Sample(uint64(len(l.LiveSubtables))*l.Groups, fillGroups, fillRun, l.Groups)
	fill := client.Fill{Of: "index slots", Sampled: !whole}
	for _, s := range spans {
		sub, first, n := l.LiveSubtables[s.From/l.Groups], s.From%l.Groups, s.End-s.From
		slot := race.Slot((uint64(sub)*l.Groups + first) * groupWords)
		p, err := readAny(ep, silent, l.Index.Copies(slot), int(n)*race.GroupBytes,
			func(r int) rdma.Addr { return l.Index.Address(slot, r) })
		if errors.Is(err, rdma.ErrNodeDown) {
			continue
		}
		if err != nil {
			return fill, err
		}
		for w := range n * groupWords {
			if !race.IsSlot(slot + race.Slot(w)) {
				continue
			}
			used := uint64(1)
			if race.Word(layout.LE.Uint64(p[8*w:])).Empty() {
				used = 0
			}
			fill.Add(used, 1)
		}
	}
	return fill, nil
}

// readAny reads n bytes on the first of so many copies of which the node answers. Nodes that do
// not answer are silent from then on, and not asked again. An error wraps rdma.ErrNodeDown when
// no copy answers.
func readAny(ep rdma.Endpoint, silent []bool, copies, n int, at func(copy int) rdma.Addr) (p []byte, err error) {
	err = rdma.ErrNodeDown
	for r := range copies {
		a := at(r)
		if silent[a.Node()] {
			continue
		}
		p, err = rdma.ReadBytes(ep, session.StepCount, a, n, layout.DefaultTimeout)
		if !errors.Is(err, rdma.ErrNodeDown) {
			return p, err
		}
		silent[a.Node()] = true
	}
	return nil, err
}

// blockCounts are numbers of blocks, by their owners. Blocks that are unread lie in regions of
// which no copy answers.
type blockCounts struct{ free, left, owned, unread uint64 }

// countBlocks counts the blocks of some regions. Where the replicas of a table differ it counts
// by the one that it has read.
func countBlocks(ep rdma.Endpoint, l *layout.Layout, regions []int, silent []bool) (c blockCounts, err error) {
	each := l.Space.Blocks()
	for _, g := range regions {
		table, err := readAny(ep, silent, l.Space.Copies(g), 8*each,
			func(r int) rdma.Addr { return l.Space.Table(g, r) })
		if errors.Is(err, rdma.ErrNodeDown) {
			c.unread += uint64(each)
			continue
		}
		if err != nil {
			return c, fmt.Errorf("read the block allocation table of region %d: %w", g, err)
		}
		for i := range each {
			switch node.Entry(layout.LE.Uint64(table[8*i:])).Owner() {
			case 0:
				c.free++
			case node.Left:
				c.left++
			default:
				c.owned++
			}
		}
	}
	return c, nil
}

// Outlives returns how many memory nodes may die at once so that each part of the index and each
// region keeps a copy: one less than the fewest copies there are. -1: something has none.
//
// Copies count by what the view says: a spare that is being filled is no copy yet, since it is in
// no view.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, l, v, err := client.Look(f, "count the copies", session.ReadLayoutInView)
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	return client.Fewest(&v.View, dead, slices.Concat(l.Original.Index, l.Original.Space)) - 1, nil
}
