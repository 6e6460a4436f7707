package fusee

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Usage tells what the memory of a pool is used for, by reading its block allocation tables. It may run while clients
// do. Bytes count all replicas.
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
	var free, left, owned uint64
	for _, g := range l.regions {
		b := ep.Batch()
		op := b.Read(l.space.Table(g, 0), l.space.Blocks()*8)
		if err := rdma.Do(ep, b, defaultTimeout); err != nil {
			b.Release()
			return nil, fmt.Errorf("read the block allocation table of region %d: %w", g, err)
		}
		for i := range l.space.Blocks() {
			switch node.Entry(le.Uint64(op.Buf[8*i:])).Owner() {
			case 0:
				free++
			case node.Left:
				left++
			default:
				owned++
			}
		}
		b.Release()
	}
	r := uint64(l.DataReplicas)
	return []client.Use{
		{Name: "index slots", Count: l.index.Slots(), Bytes: uint64(l.Subtables*l.IndexReplicas) * race.SubtableBytes(l.Groups)},
		{Name: "log heads", Count: uint64(l.Clients), Bytes: uint64(l.Clients*l.nodes) * headsPer},
		{Name: "blocks of clients", Count: owned, Bytes: owned * l.BlockBytes * r},
		{Name: "blocks to adopt", Count: left, Bytes: left * l.BlockBytes * r},
		{Name: "blocks free", Count: free, Bytes: free * l.BlockBytes * r},
	}, nil
}
