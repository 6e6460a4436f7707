package kit

import (
	"slices"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Replicas returns where the replicas of an item lie in a view, of which originals are where they
// lay when the pool was made: on the original nodes that are not gone, in their order, and then on
// stand-ins, in the order in which they came. So the first replica, the primary, changes only when
// its node died. An item that is lost, as no replica is left, keeps its original primary: verbs to
// it fail with rdma.ErrNodeDown. In the zero View nothing has changed since the pool was made.
//
// The list is made anew, or is the originals: an old one stays as it was.
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

// Place returns the replicas of all items in a view, and lists those items that are not lost. More
// nodes may die than there are replicas: what is lost then must not keep the rest from being used,
// nor from being mended.
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

// Holders lists the nodes that have in a view what each of the first n nodes had when the pool was
// made, as far as one has.
func Holders(v *rdma.View, n int) (list []int) {
	for original := range n {
		if h, _, ok := v.Holder(original); ok || len(v.Members) == 0 {
			list = append(list, h)
		}
	}
	return list
}

// IndexOn returns the how-manieth item of its kind an item is on a node where it lay when the pool
// was made: a stand-in of the node has it at the same place. false: no replica of it lay there.
func IndexOn(originals []node.Replica, n int) (index int, ok bool) {
	for _, r := range originals {
		if r.Node == n {
			return r.Index, true
		}
	}
	return 0, false
}

// Spares lists the nodes of a pool that hold nothing until one takes a dead node's place: the last
// ones.
func Spares(nodes, spares int) (list []int) {
	for n := nodes - spares; n < nodes; n++ {
		list = append(list, n)
	}
	return list
}
