//go:build !linux

package shm

import (
	"fmt"
	"os"

	"github.com/farkv/farkv/node/rdma"
)

// CrashClient needs pools that processes share.
func (f *Fabric) CrashClient(c rdma.Client, _ rdma.Step) error {
	return fmt.Errorf("crash client %d: %w", c.ID, rdma.ErrNotSupported)
}

// 137 is how a shell reports a SIGKILL.
func die() { os.Exit(137) }
