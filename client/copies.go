package client

import "github.com/farkv/farkv/node/rdma"

// Copies returns how many copies of something are left, of which one was made on each of the original nodes: those on
// nodes that serve, or on their stand-ins. dead reports nodes that do not serve, besides those that are gone from the
// view.
func Copies(v *rdma.View, dead func(node int) bool, originals ...int) (left int) {
	for _, o := range originals {
		if n, _, ok := v.Holder(o); ok && !dead(n) {
			left++
		}
	}
	return left
}
