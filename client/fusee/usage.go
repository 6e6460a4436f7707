package fusee

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Usage tells what the memory of a pool is used for, by reading its block allocation tables, each on a node that answers. It may
// run while clients do. Bytes count all replicas.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	ep, err := f.Open("status")
	if err != nil {
		return nil, fmt.Errorf("read the use of memory: %w", err)
	}
	defer ep.Close()
	v, err := ep.Join()
	if err != nil {
		return nil, fmt.Errorf("read the use of memory: %w", err)
	}
	l, err := readLayout(ep, len(v.Members))
	if err != nil {
		return nil, fmt.Errorf("read the use of memory: %w", err)
	}
	l.apply(&v)
	free, left, owned, unread, err := l.countBlocks(ep)
	if err != nil {
		return nil, err
	}
	r := uint64(l.DataReplicas)
	uses := []client.Use{
		{Name: "index slots", Count: l.index.Slots(), Bytes: uint64(l.Subtables*l.IndexReplicas) * race.SubtableBytes(l.Groups)},
		{Name: "log heads", Count: uint64(l.Clients), Bytes: uint64(l.Clients*l.nodes) * headsPer},
		{Name: "blocks of clients", Count: owned, Bytes: owned * l.BlockBytes * r},
		{Name: "blocks to adopt", Count: left, Bytes: left * l.BlockBytes * r},
		{Name: "blocks free", Count: free, Bytes: free * l.BlockBytes * r},
	}
	if unread > 0 {
		uses = append(uses, client.Use{Name: "blocks out of reach", Count: unread, Bytes: unread * l.BlockBytes * r})
	}
	return uses, nil
}

// countBlocks counts blocks by their owners. unread are those of regions of which no copy answers.
func (l *layout) countBlocks(ep rdma.Endpoint) (free, left, owned, unread uint64, err error) {
	silent := make([]bool, l.nodes)
	unread = uint64((len(l.original.space) - len(l.regions)) * l.space.Blocks()) // lost
	for _, g := range l.regions {
		table, err := l.readTable(ep, g, silent)
		if errors.Is(err, rdma.ErrNodeDown) {
			unread += uint64(l.space.Blocks())
			continue
		}
		if err != nil {
			return 0, 0, 0, 0, fmt.Errorf("read the block allocation table of region %d: %w", g, err)
		}
		for _, e := range table {
			switch e.Owner() {
			case 0:
				free++
			case node.Left:
				left++
			default:
				owned++
			}
		}
	}
	return free, left, owned, unread, nil
}

// readTable reads a region's block allocation table on the first copy whose node answers. Those that do not are silent from then
// on, and not asked again.
func (l *layout) readTable(ep rdma.Endpoint, g int, silent []bool) (table []node.Entry, err error) {
	err = rdma.ErrNodeDown
	for r := range l.space.Copies(g) {
		at := l.space.Table(g, r)
		if silent[at.Node()] {
			continue
		}
		b := ep.Batch()
		op := b.Read(at, l.space.Blocks()*8)
		if err = rdma.Do(ep, b, defaultTimeout); err == nil {
			for i := range l.space.Blocks() {
				table = append(table, node.Entry(le.Uint64(op.Buf[8*i:])))
			}
		}
		b.Release()
		if !errors.Is(err, rdma.ErrNodeDown) {
			return table, err
		}
		silent[at.Node()] = true
	}
	return nil, err
}
