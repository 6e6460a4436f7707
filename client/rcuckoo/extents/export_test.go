package extents

import (
	"slices"
	"time"

	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// What follows is for tests of Check, which the package of the operations has.

// ID is the client's identity.
func (x *Client) ID() rdma.ClientID { return x.id }

// Claimed returns the extents of a class that the client has claimed and not taken.
func (x *Client) Claimed(shard, class int) []table.Ref {
	return slices.Clone(x.stocks[shard].of[class].claimed)
}

// Taken returns the extent that the client took last of the first that it claimed in a class.
func (x *Client) Taken(shard, class int) table.Ref {
	claimed := x.stocks[shard].of[class].claimed
	return claimed[:len(claimed)+1][len(claimed)]
}

// EndUse ends a use of an extent.
func (x *Client) EndUse(shard int, r table.Ref) error {
	return x.post(func(b *rdma.Batch) { x.table.AddMark(b, shard, r) })
}

// WriteClaims makes the client's record of what it claims next in a class empty.
func (x *Client) WriteClaims(shard, class int) error {
	return x.post(func(b *rdma.Batch) { x.addClaims(b, shard, class, nil) })
}

// WriteMoves makes the client's record of units that change their class empty.
func (x *Client) WriteMoves(shard int) error {
	return x.post(func(b *rdma.Batch) { x.addMoves(b, shard, nil) })
}

// CutCarving changes the last unit of slab 0 that can change from class 0 to a class, up to so
// many CASes.
func (x *Client) CutCarving(class, landed int) error {
	marks, err := x.readMarks(0, 0, x.table.Most(), x.ep.Now()+x.timeout)
	if err != nil {
		return err
	}
	unit, from := -1, 0
	for i := range x.table.SlabExtents {
		if c, ok := x.holdable(marks, 0, i, class); ok && c.from != class {
			unit, from = i, c.from
		}
	}
	return cutCarving(x, unit, from, class, landed)
}

func (x *Client) post(add func(b *rdma.Batch)) error {
	b := x.ep.Batch()
	defer b.Release()
	add(b)
	return rdma.Do(x.ep, b, time.Second)
}
