package directory

import (
	"errors"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

const (
	// fillBuckets bounds the buckets that Fill reads, however large the directory is.
	fillBuckets = 512
	// fillRun is how many buckets a READ covers.
	fillRun = 8
	// entriesAt is the offset in a value of the byte that counts its entries.
	entriesAt = 16
)

// Fill returns how many entries buckets have, by a sample if the directory is large. It reads
// what lies in place at the first replicas, unverified: what changes at this moment may be
// missing. Buckets on a node that does not answer are left out.
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

// fillOf adds the n buckets from at on. Each count is bounded, since what lies in place may be
// torn.
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
