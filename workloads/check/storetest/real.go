package storetest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/ibverbs"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// The flags of a store's tests.
var (
	fabric = flag.String("fabric", "", "run the suites of real time on this fabric alone: shm, tcp or rdma (default "+
		"each on those that it is for)")
	host = flag.String("rdma", "",
		"IP address of the RDMA device that -fabric rdma is to use (default the best device)")
	part = flag.Int("part", 1, "histories of real time have one operation in so many: for slow machines")
)

// real is a fabric of real time, with pools that several processes share.
type real struct {
	name string
	// make makes a formatted pool and returns where to open it; end takes it away.
	make func(h *Harness) (f rdma.Fabric, at string, end func() error, err error)
	open func(h *Harness, at string) (rdma.Fabric, error)
	// wired is the same in parts, if the fabric has nodes with connections that can be cut.
	wired *wired
}

var onShm = real{name: "shm", make: makeShm, open: func(h *Harness, at string) (rdma.Fabric, error) {
	return shm.Open(at, h.Handler)
}}

var onTCP = onNodes(wired{
	name: "tcp",
	create: func(o control.Options, g control.Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error) {
		return tcp.Create(o, g, func(f *tcp.Fabric) error { return format(f) })
	},
	open: func(o control.Options) (rdma.Fabric, error) { return tcp.Open(o) },
})

var onRDMA = onNodes(wired{
	name:   "rdma",
	device: func() (*ibverbs.Device, error) { return ibverbs.OpenDevice(ibverbs.Choice{}, *host+":0") },
	create: func(o control.Options, g control.Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error) {
		return ibverbs.Create(o, g, ibverbs.Options{}, func(f *ibverbs.Fabric) error { return format(f) })
	},
	open: func(o control.Options) (rdma.Fabric, error) { return ibverbs.Open(o, ibverbs.Options{}) },
})

// chosen returns the fabric that -fabric names; false: it is not set.
func chosen() (real, bool, error) {
	if *part < 1 {
		return real{}, false, fmt.Errorf("-part %d: want 1 or more", *part)
	}
	if *fabric == "" {
		return real{}, false, nil
	}
	all := []real{onShm, onTCP, onRDMA}
	i := slices.IndexFunc(all, func(r real) bool { return r.name == *fabric })
	switch {
	case i < 0:
		return real{}, false, fmt.Errorf("-fabric %s: want shm, tcp or rdma", *fabric)
	case *fabric == "rdma" && !ibverbs.Built:
		return real{}, false, ibverbs.ErrNotBuilt
	}
	return all[i], true, nil
}

func makeShm(h *Harness) (rdma.Fabric, string, func() error, error) {
	pool := fmt.Sprintf("storetest-%d-%d", os.Getpid(), time.Now().UnixNano())
	f, err := shm.Create(pool, shm.Geometry{Nodes: h.Nodes, Memory: h.Memory, Clients: h.Clients}, h.Handler,
		func(f *shm.Fabric) error { return h.Format(f) })
	if err != nil {
		return nil, "", nil, err
	}
	return f, pool, func() error { return errors.Join(f.Close(), shm.Remove(pool, true)) }, nil
}

// wired is a fabric with memory nodes that clients reach over TCP. The nodes run in the test's
// process.
type wired struct {
	name   string
	device func() (*ibverbs.Device, error) // of a node; nil: it needs none
	create func(o control.Options, g control.Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error)
	open   func(o control.Options) (rdma.Fabric, error)
}

func onNodes(w wired) real {
	return real{
		name: w.name,
		make: func(h *Harness) (rdma.Fabric, string, func() error, error) {
			addresses, end, err := w.nodes(h)
			if err != nil {
				return nil, "", nil, err
			}
			f, err := w.pool(h, addresses)
			if err != nil {
				return nil, "", nil, errors.Join(err, end())
			}
			return f, strings.Join(addresses, ","), func() error { return errors.Join(f.Close(), end()) }, nil
		},
		open: func(_ *Harness, at string) (rdma.Fabric, error) {
			return w.open(control.Options{Addresses: strings.Split(at, ",")})
		},
		wired: &w,
	}
}

// nodes starts memory nodes; end ends them.
func (w *wired) nodes(h *Harness) (addresses []string, end func() error, err error) {
	var ends []func() error
	end = func() (err error) {
		for _, e := range slices.Backward(ends) { // a node before its device
			err = errors.Join(err, e())
		}
		return err
	}
	for range h.Nodes {
		c := memnode.Config{Listen: "127.0.0.1:0", Memory: max(h.Memory, 4096), Handler: h.Handler}
		if w.device != nil {
			d, err := w.device()
			if err != nil {
				return nil, nil, errors.Join(err, end())
			}
			c.Device, ends = d, append(ends, d.Close)
		}
		n, err := memnode.Listen(c)
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		addresses, ends = append(addresses, n.Addr()), append(ends, n.Close)
	}
	return addresses, end, nil
}

// pool makes a formatted pool on nodes.
func (w *wired) pool(h *Harness, addresses []string) (rdma.Fabric, error) {
	return w.create(control.Options{Addresses: addresses},
		control.Geometry{Nodes: h.Nodes, Memory: h.Memory, Clients: h.Clients}, h.Format)
}
