package extendible

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Usage says what the memory of a pool is used for. It may run while clients
// work.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	ep, l, _, err := client.Look(f, "read the use of memory", readLayout)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	all, _, err := l.walk(ep)
	if err != nil {
		return nil, fmt.Errorf("read the use of memory: %w", err)
	}
	subtables, err := l.handed(ep, &l.subtables)
	if err != nil {
		return nil, err
	}
	chunks, err := l.handed(ep, &l.pairs)
	if err != nil {
		return nil, err
	}
	// A subtable that is handed out, and that no entry names, has a client that is
	// about to split another one, or whose split did not commit.
	n, nodes, most := uint64(len(all)), uint64(l.nodes), l.pairs.Count*uint64(l.nodes)
	return []client.Use{
		{Name: "index slots", Count: n * uint64(l.slots()), Bytes: n * l.subtables.Bytes},
		{Name: "subtables handed out", Count: subtables, Bytes: subtables * l.subtables.Bytes},
		{Name: "subtables", Count: l.subtables.Count * nodes, Bytes: l.subtables.Count * nodes * l.subtables.Bytes},
		{Name: "directory entries, and logs of their changes", Count: 1 << l.Depth,
			Bytes: (l.records - node.HeaderBytes) * nodes},
		{Name: "chunks of pairs handed out", Count: chunks, Bytes: chunks * l.pairs.Bytes},
		{Name: "chunks of pairs", Count: most, Bytes: most * l.pairs.Bytes},
	}, nil
}

const (
	// fillGroups is how many groups Fill reads of a large pool, in runs of
	// fillRun.
	fillGroups = 512
	fillRun    = 8
)

// Fill returns how full the index is, as far as it has grown, and how much of the
// memory for pairs has pairs; both by a sample if the index is large. It may run
// while clients work.
func Fill(f rdma.Fabric) ([]client.Fill, error) {
	ep, l, _, err := client.Look(f, "see how full the pool is", readLayout)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	tables, _, err := l.walk(ep)
	if err != nil {
		return nil, fmt.Errorf("see how full the pool is: %w", err)
	}
	// Groups are numbered through all subtables, so a sample is spread evenly
	// over them.
	groups := uint64(l.Groups)
	spans, whole := client.Sample(uint64(len(tables))*groups, fillGroups, fillRun, groups)
	slots := client.Fill{Of: "index slots", Sampled: !whole}
	for _, s := range spans {
		from := int(s.From % groups)
		err := l.readGroups(ep, tables[s.From/groups].place, from, from+int(s.End-s.From),
			func(slot race.Slot, w uint64) {
				if race.IsSlot(slot) {
					used := uint64(0)
					if word := word(w); !word.empty() && word.kind() == live {
						used = 1
					}
					slots.Add(used, 1)
				}
			})
		if err := l.whereLeft(err); err != nil {
			return nil, fmt.Errorf("see how full the pool is: %w", err)
		}
	}
	// Each live slot names a pair of its own. Blocks that were replaced, and
	// are not found yet, do not count.
	blocks := client.Fill{Of: "room for pairs", Used: slots.Used,
		All: l.pairs.Count * uint64(l.nodes) * (l.pairs.Bytes / l.blockBytes), Sampled: slots.Sampled}
	if slots.Sampled {
		// The sample stands for all slots.
		share := float64(uint64(len(tables))*uint64(l.slots())) / float64(max(slots.All, 1))
		blocks.Used = uint64(float64(slots.Used)*share + 0.5)
	}
	return []client.Fill{slots, blocks}, nil
}
