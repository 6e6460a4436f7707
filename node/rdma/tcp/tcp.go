package tcp

import (
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// What the fabric can do beyond rdma.Fabric.
var (
	// Most of it is control.Pool's.
	_ rdma.Fabric         = (*Fabric)(nil)
	_ rdma.Geometer       = (*Fabric)(nil)
	_ rdma.ClientLister   = (*Fabric)(nil)
	_ rdma.MasterReporter = (*Fabric)(nil)
	_ rdma.NodeMonitor    = (*Fabric)(nil)
	_ rdma.NodeGracer     = (*Fabric)(nil)
	_ rdma.ExpelChecker   = (*Fabric)(nil)
	_ rdma.CPUMeter       = (*Fabric)(nil)
	_ rdma.Perishable     = (*Fabric)(nil)
	_ rdma.Localizer      = (*Fabric)(nil)
	_ rdma.TenureAdviser  = (*Fabric)(nil)
	_ rdma.AccessReporter = (*Fabric)(nil)
	_ rdma.CloseNotifier  = (*Fabric)(nil)
	_ rdma.CarrierNamer   = (*Fabric)(nil)
	_ rdma.ProcessNamer   = (*Fabric)(nil)
	_ rdma.Peeker         = (*Fabric)(nil)
	_ rdma.Teller         = (*Fabric)(nil)
)

// Fabric is an open pool with verbs that go over the connections to its nodes. It is safe for
// concurrent use.
type Fabric struct {
	*control.Pool
	memory uint64 // bytes registered at each node
}

// newFabric adds verbs to an open pool. Several Fabrics of one pool share its connections: the one
// that Create hands to format is another than the one that it returns.
func newFabric(p *control.Pool) *Fabric { return &Fabric{p, p.Geometry().Registered()} }

// Open opens a pool by the addresses of some of its nodes: see control.Open.
func Open(o control.Options) (*Fabric, error) {
	p, err := control.Open(o)
	if err != nil {
		return nil, err
	}
	return newFabric(p), nil
}

// Create makes a pool on nodes that have none, and opens it: see control.Create. format writes the
// first content, by a Fabric that it does not close.
func Create(o control.Options, g control.Geometry, format func(*Fabric) error) (*Fabric, error) {
	p, err := control.Create(o, g, func(p *control.Pool) error {
		if format == nil {
			return nil
		}
		return format(newFabric(p))
	})
	if err != nil {
		return nil, err
	}
	return newFabric(p), nil
}

// holds reports whether op touches nothing but registered memory, which is the store's and what is
// registered behind it. It only saves asking: the node checks each verb itself, and refuses what
// this lets through. An atomic has to be on a whole word. A long WRITE of a reader is refused here,
// since the frame would be longer than nodes take from readers, and end the connection of all of
// the process's workers.
func (f *Fabric) holds(op *rdma.Op) bool {
	off, n := op.Addr.Offset(), uint64(op.Len())
	return op.Verb >= rdma.Read && op.Verb <= rdma.FetchAdd && !(op.Verb.Atomic() && off%8 != 0) &&
		off <= f.memory && n <= f.memory-off &&
		!(op.Verb == rdma.Write && n > control.ReaderWrite && f.ReadOnly()) // nodes take no such frame from readers
}

// Open returns an endpoint with an identity of its own, which has joined the view of this moment. A
// read-only process has no identity, and is client 0.
func (f *Fabric) Open(name string) (rdma.Endpoint, error) {
	w, err := f.Worker(name)
	if err != nil {
		return nil, err
	}
	return f.endpoint(w), nil
}

// Peek returns an endpoint without an identity, as those have that may only read. It takes no
// client's place, and a process that crashes leaves nothing of it to recover.
func (f *Fabric) Peek(name string) (rdma.Endpoint, error) {
	w, err := f.Anonymous(name)
	if err != nil {
		return nil, err
	}
	return rdma.ReadOnly(f.endpoint(w)), nil
}

// Tell returns an endpoint without an identity that may write behind the store's memory: see
// rdma.Teller. What else it may not do fails in Post: the node, which checks it as well, would take
// the worker's connection down for it.
func (f *Fabric) Tell(name string) (rdma.Endpoint, error) {
	w, err := f.Anonymous(name)
	if err != nil {
		return nil, err
	}
	return rdma.ReadOnlyBelow(f.endpoint(w), f.Size()), nil
}

// endpoint adds verbs to a worker. Memory of its batches is the Go heap's: links copy what is sent,
// and answers are copied into it.
func (f *Fabric) endpoint(w *control.Worker) *Endpoint {
	w.Init(nil)
	w.Appending()
	return &Endpoint{Worker: w, fabric: f}
}
