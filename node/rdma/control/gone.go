package control

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Gone returns an error wrapping rdma.ErrNoPool once the pool is gone for good, and nil while it
// may be there. A node's memory ends with its process or with its part in the pool. So the pool is
// gone when all nodes that have memory are: calls are refused, by machines on which nothing listens
// at that address, or by nodes that do not serve this pool. That it has to last for
// transport.DeadAfter keeps a blip from counting, such as a firewall that is loaded anew. A node
// that does not answer at all may come back.
func (n *nodes) Gone() error {
	// A witness has no link for verbs: its death takes no memory away. Links call again as long as
	// the process lives, so that what they know is half a second old at most, or the last call has
	// not ended yet.
	for _, l := range n.links {
		if v := l.verbs; v != nil && (!v.Gone() || v.DownFor() < transport.DeadAfter) {
			return nil
		}
	}
	return fmt.Errorf("%s: none of its nodes is there, or has it, any more: %w", n.name, rdma.ErrNoPool)
}
