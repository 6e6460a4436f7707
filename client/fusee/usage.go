package fusee

import (
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// Usage returns what the memory of a pool is used for, by reading its block allocation tables,
// each on a node that answers. It may run while clients do. Bytes count all replicas.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	ep, l, _, err := client.Look(f, "read the use of memory", readLayoutInView)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	c, err := l.countBlocks(ep, l.regions, make([]bool, l.nodes))
	if err != nil {
		return nil, err
	}
	c.unread += uint64((len(l.space.Place) - len(l.regions)) * l.space.Blocks()) // lost
	r := uint64(l.DataReplicas)
	subtable := uint64(l.IndexReplicas) * race.SubtableBytes(l.Groups)
	now, more := uint64(len(l.index.Place)), uint64(l.mostSubtables()-len(l.index.Place))
	uses := []client.Use{
		{Name: "index slots", Count: l.index.Slots(), Bytes: now * subtable},
		{Name: "index memory free", Count: more * l.Groups * race.GroupSlots, Bytes: more * subtable},
		{Name: "journals", Count: uint64(l.Clients), Bytes: uint64(l.Clients*l.nodes) * journalBytes},
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
