package fusee

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

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
func Fill(f rdma.Fabric) ([]client.Fill, error) {
	ep, l, _, err := client.Look(f, "see how full the pool is", readLayoutInView)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	silent := make([]bool, l.nodes)
	slots, err := l.fillSlots(ep, silent)
	if err != nil {
		return nil, fmt.Errorf("see how full the index is: %w", err)
	}
	blocks := client.Fill{Of: "blocks handed out"}
	spans, whole := client.Sample(uint64(len(l.regions)), fillRegions, 1, 1)
	blocks.Sampled = !whole
	var sample []int
	for _, s := range spans {
		sample = append(sample, l.regions[s.From])
	}
	c, err := l.countBlocks(ep, sample, silent)
	if err != nil {
		return nil, fmt.Errorf("see how full the pool is: %w", err)
	}
	blocks.Add(c.owned+c.left, c.owned+c.left+c.free)
	return []client.Fill{slots, blocks}, nil
}

// fillSlots counts the slots of a sample of groups, and those of them that have a pair. Groups of
// which no copy answers are left out.
func (l *layout) fillSlots(ep rdma.Endpoint, silent []bool) (client.Fill, error) {
	const groupWords = uint64(race.GroupBytes / 8)
	spans, whole := client.Sample(uint64(len(l.subtables))*l.Groups, fillGroups, fillRun, l.Groups)
	fill := client.Fill{Of: "index slots", Sampled: !whole}
	for _, s := range spans {
		sub, first, n := l.subtables[s.From/l.Groups], s.From%l.Groups, s.End-s.From
		slot := race.Slot((uint64(sub)*l.Groups + first) * groupWords)
		p, err := readAny(ep, silent, l.index.Copies(slot), int(n)*race.GroupBytes,
			func(r int) rdma.Addr { return l.index.Address(slot, r) })
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
			if race.Word(le.Uint64(p[8*w:])).Empty() {
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
		p, err = rdma.ReadBytes(ep, stepCount, a, n, defaultTimeout)
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
func (l *layout) countBlocks(ep rdma.Endpoint, regions []int, silent []bool) (c blockCounts, err error) {
	each := l.space.Blocks()
	for _, g := range regions {
		table, err := readAny(ep, silent, l.space.Copies(g), 8*each,
			func(r int) rdma.Addr { return l.space.Table(g, r) })
		if errors.Is(err, rdma.ErrNodeDown) {
			c.unread += uint64(each)
			continue
		}
		if err != nil {
			return c, fmt.Errorf("read the block allocation table of region %d: %w", g, err)
		}
		for i := range each {
			switch node.Entry(le.Uint64(table[8*i:])).Owner() {
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
