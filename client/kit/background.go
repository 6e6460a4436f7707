package kit

import (
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// Background are batches in flight that a worker does not wait for. It owns them.
type Background []*rdma.Batch

// Room releases the batches that are finished, whether or not their verbs have succeeded. It
// reports whether fewer than most are left.
func (g *Background) Room(most int) bool {
	*g = slices.DeleteFunc(*g, func(b *rdma.Batch) bool {
		done := b.Finished()
		if done {
			b.Release()
		}
		return done
	})
	return len(*g) < most
}

// Post takes a batch over and posts it, unless it is empty. If the endpoint cannot post, the
// worker's next operation fails, too.
func (g *Background) Post(q rdma.Queue, b *rdma.Batch) {
	if b.Len() == 0 || q.Post(b) != nil {
		b.Release()
		return
	}
	*g = append(*g, b)
}

// Release releases all. What is in flight goes on.
func (g *Background) Release() {
	for _, b := range *g {
		b.Release()
	}
	*g = nil
}
