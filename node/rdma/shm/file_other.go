//go:build !linux

package shm

import (
	"fmt"
	"runtime"

	"github.com/farkv/farkv/node/rdma"
)

func onlyMem(what, name string) error {
	return fmt.Errorf("%s shm:%s: only mem: works on %s: %w", what, name, runtime.GOOS, rdma.ErrNotSupported)
}

// Create needs Linux.
func Create(name string, _ Geometry, _ rdma.Handler, _ func(*Fabric) error, _ ...Option) (*Fabric, error) {
	return nil, onlyMem("create", name)
}

// Open needs Linux.
func Open(name string, _ rdma.Handler, _ ...Option) (*Fabric, error) {
	return nil, onlyMem("open", name)
}

// Remove needs Linux.
func Remove(name string, _ bool, _ ...Option) error { return onlyMem("remove", name) }

// List returns no names: where only mem: works there are no pools to be shared.
func List() ([]string, error) { return nil, nil }

// MeantShared needs Linux.
func MeantShared(string) bool { return false }

// Room needs Linux.
func Room() (string, uint64, error) {
	return "", 0, fmt.Errorf("look at the folder of pools: only mem: works on %s: %w",
		runtime.GOOS, rdma.ErrNotSupported)
}
