package shm

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// CheckName reports whether name may name a pool: letters, digits, '.', '_' and '-', the first no
// '.' and no '-'. The error wraps ErrName. So a name is one element of a path, and no option of a
// command.
func CheckName(name string) error {
	if !rdma.IsPoolName(name) {
		return fmt.Errorf("%w %q: want %s", ErrName, name, rdma.PoolNames)
	}
	return nil
}
