package storetest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// real is a fabric of real time whose pools processes share.
type real struct {
	name string
	// make makes a formatted pool and returns where to open it; end takes it away.
	make func(h *Harness) (f rdma.Fabric, at string, end func() error, err error)
	open func(h *Harness, at string) (rdma.Fabric, error)
}

var onShm = real{"shm", makeShm, func(h *Harness, at string) (rdma.Fabric, error) { return shm.Open(at, h.Handler) }}

var onTCP = real{"tcp", makeTCP, func(_ *Harness, at string) (rdma.Fabric, error) {
	return tcp.Open(tcp.Options{Addresses: strings.Split(at, ",")})
}}

func makeShm(h *Harness) (rdma.Fabric, string, func() error, error) {
	pool := fmt.Sprintf("storetest-%d-%d", os.Getpid(), time.Now().UnixNano())
	f, err := shm.Create(pool, shm.Geometry{Nodes: h.Nodes, Memory: h.Memory, Clients: h.Clients}, h.Handler,
		func(f *shm.Fabric) error { return h.Format(f) })
	if err != nil {
		return nil, "", nil, err
	}
	return f, pool, func() error { return errors.Join(f.Close(), shm.Remove(pool, true)) }, nil
}

// makeTCP makes a pool whose nodes are in this process.
func makeTCP(h *Harness) (rdma.Fabric, string, func() error, error) {
	_, addresses, end, err := h.nodes()
	if err != nil {
		return nil, "", nil, err
	}
	f, err := h.pool(addresses)
	if err != nil {
		return nil, "", nil, errors.Join(err, end())
	}
	return f, strings.Join(addresses, ","), func() error { return errors.Join(f.Close(), end()) }, nil
}

// nodes starts memory nodes in this process; end ends them.
func (h *Harness) nodes() (nodes []*tcp.Node, addresses []string, end func() error, err error) {
	end = func() (err error) {
		for _, n := range nodes {
			err = errors.Join(err, n.Close())
		}
		return err
	}
	for range h.Nodes {
		n, err := tcp.Listen(tcp.Config{Listen: "127.0.0.1:0", Memory: max(h.Memory, 4096), Handler: h.Handler})
		if err != nil {
			return nil, nil, nil, errors.Join(err, end())
		}
		nodes, addresses = append(nodes, n), append(addresses, n.Addr())
	}
	return nodes, addresses, end, nil
}

// pool makes a formatted pool on nodes.
func (h *Harness) pool(addresses []string) (rdma.Fabric, error) {
	f, err := tcp.Create(tcp.Options{Addresses: addresses},
		tcp.Geometry{Nodes: h.Nodes, Memory: h.Memory, Clients: h.Clients}, func(f *tcp.Fabric) error { return h.Format(f) })
	if err != nil {
		return nil, err
	}
	return f, nil
}
