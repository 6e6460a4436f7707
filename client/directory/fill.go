package directory

import (
	"errors"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// A look at how full a directory is reads so many buckets, however large it is.
const (
	fillBuckets = 512
	fillRun     = 8  // buckets of a READ
	entriesAt   = 16 // of a value: the byte that counts its entries
)

// Fill returns how many entries buckets have, of a sample where the directory is large, as they lie
// in place at the first replica: what changes at this moment may be missing. Buckets whose node
// does not answer are left out.
func (l *Layout) Fill(ep rdma.Endpoint, timeout time.Duration) (client.Fill, error) {
	spans, whole := client.Sample(l.Buckets, fillBuckets, fillRun, l.per)
	fill := client.Fill{Of: "directory entries", Sampled: !whole}
	silent := make([]bool, l.Nodes)
	for _, s := range spans {
		at := l.at[s.From/l.per][0].Add(s.From % l.per * slotBytes)
		if silent[at.Node()] {
			continue
		}
		err := fillOf(ep, at, int(s.End-s.From), timeout, &fill)
		if silent[at.Node()] = errors.Is(err, rdma.ErrNodeDown); err != nil && !silent[at.Node()] {
			return fill, err
		}
	}
	return fill, nil
}

func fillOf(ep rdma.Endpoint, at rdma.Addr, n int, timeout time.Duration, fill *client.Fill) error {
	p, err := rdma.ReadBytes(ep, stepCount, at, n*slotBytes, timeout)
	if err != nil {
		return err
	}
	for i := range n {
		entries := uint64(p[i*slotBytes+wordBytes+entriesAt])
		fill.Add(min(entries, Slots), Slots)
	}
	return nil
}
