package shm

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Gone returns an error wrapping rdma.ErrNoPool once the pool was removed: its memory is only that
// of processes that still have it open, and ends with them. A pool that is being made has no name
// yet, and counts as removed.
func (f *Fabric) Gone() error {
	if f.backing.removed() {
		return fmt.Errorf("%s was removed: %w", f.name, rdma.ErrNoPool)
	}
	return nil
}
