package fabrics

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

// sharedShmScheme is that of shm pools which other users of the machine may change.
const sharedShmScheme = "shared"

func parseShm(name string) (Address, error) {
	if err := shm.CheckName(name); err != nil {
		return Address{}, fmt.Errorf("%w: %w", ErrAddress, err)
	}
	return Address{Scheme: "shm", Name: name}, nil
}

func parseShared(name string) (Address, error) {
	a, err := parseShm(name)
	a.Shared = true
	return a, err
}

func (g Geometry) shm() shm.Geometry {
	return shm.Geometry{Nodes: g.Nodes, Memory: g.Memory, Clients: g.Clients, Telemetry: g.Telemetry}
}

// users returns with which users a shm pool is shared.
func (a Address) users() (all []shm.Option) {
	if a.Shared {
		return []shm.Option{shm.Shared}
	}
	return nil
}

func createShm(a Address, g Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error) {
	return known(shm.Create(a.Name, g.shm(), node.Serve, func(f *shm.Fabric) error { return format(f) }, a.users()...))
}

func openShm(a Address) (rdma.Fabric, error) {
	return known(shm.Open(a.Name, node.Serve, a.users()...))
}

func removeShm(a Address, force bool) error { return shm.Remove(a.Name, force, a.users()...) }

func sharedShm(a Address) Address {
	a.Shared = a.Shared || shm.MeantShared(a.Name)
	return a
}

func supplyOfShm() []supply {
	folder, _, _ := shm.Room()
	return machine().folder(folder)
}

func lacksShm() error {
	_, _, err := shm.Room()
	return err
}

func parseMem(name string) (Address, error) {
	if name != "" {
		return Address{}, errors.New("mem: takes no name, since only one process sees that pool")
	}
	return Address{}, nil
}

func createMem(_ Address, g Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error) {
	f, err := shm.NewMem(g.shm(), node.Serve)
	if err != nil {
		return nil, err
	}
	if err := format(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func openMem(a Address) (rdma.Fabric, error) {
	return nil, fmt.Errorf("open %s: %w: only the process that makes a mem: pool sees it", a, ErrNoPool)
}

func removeMem(a Address, _ bool) error {
	return fmt.Errorf("remove %s: %w: a mem: pool ends with the process that made it", a, ErrNoPool)
}

// known keeps a nil pointer from becoming an rdma.Fabric that is not nil.
func known[F rdma.Fabric](f F, err error) (rdma.Fabric, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}
