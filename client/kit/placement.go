package kit

import (
	"slices"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Replicas returns where the replicas of an item lie in a view, given where they lay when the pool
// was made (originals). First come original nodes that are not gone, in their order, and then
// stand-ins, in the order in which they were restored. So the first replica, the primary, changes
// only when its node dies. An item without a live replica is lost and keeps its original primary:
// verbs to it fail with rdma.ErrNodeDown. In the zero View nothing has changed since the pool was
// made.
//
// The result is a new list, or originals itself: the caller must not change it.
func Replicas(v *rdma.View, originals []node.Replica) (now []node.Replica, lost bool) {
	if len(v.Members) == 0 {
		return originals, false
	}
	now = make([]node.Replica, 0, len(originals))
	since := make([]uint64, 0, len(originals))
	for _, r := range originals {
		n, from, ok := v.Holder(r.Node)
		if !ok {
			continue
		}
		at := len(since)
		for at > 0 && since[at-1] > from {
			at--
		}
		now, since = slices.Insert(now, at, node.Replica{Node: n, Index: r.Index}), slices.Insert(since, at, from)
	}
	if len(now) == 0 {
		return originals[:1], true
	}
	return now, false
}

// Place returns the replicas of all items in a view, and lists the items that are not lost. If more
// nodes have died than there are replicas, the lost items must not prevent the use, or the
// recovery, of the others.
func Place(v *rdma.View, originals [][]node.Replica) (now [][]node.Replica, left []int) {
	now = make([][]node.Replica, len(originals))
	for i, o := range originals {
		var lost bool
		if now[i], lost = Replicas(v, o); !lost {
			left = append(left, i)
		}
	}
	return now, left
}

// Holders lists the nodes that hold, in a view, what each of the first n nodes held when the pool
// was made. Nodes without a holder are left out.
func Holders(v *rdma.View, n int) (list []int) {
	for original := range n {
		if h, _, ok := v.Holder(original); ok || len(v.Members) == 0 {
			list = append(list, h)
		}
	}
	return list
}

// IndexOn returns an item's index among the items of its kind on the node n, where a replica of it
// lay when the pool was made. A stand-in of the node has it at the same place. It reports false if
// no replica lay there.
func IndexOn(originals []node.Replica, n int) (index int, ok bool) {
	for _, r := range originals {
		if r.Node == n {
			return r.Index, true
		}
	}
	return 0, false
}

// Spares lists the spare nodes of a pool, which hold nothing until they replace a dead node: the
// last ones.
func Spares(nodes, spares int) (list []int) {
	for n := nodes - spares; n < nodes; n++ {
		list = append(list, n)
	}
	return list
}
