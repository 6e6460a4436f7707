package stores

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Keep makes this process a candidate for the pool's master until the pool is closed: the master replaces memory nodes
// that died, recovers clients that did, of other processes too, and sweeps the pools of stores that need it, mem: pools
// among them. It takes one of the pool's places for clients. A pool that is full, and a store that has nothing to mend,
// are not kept, which is no error.
func (p *Pool) Keep(o cluster.Options) error { return Keep(p.Fabric, p.Kind, o) }

// Lease is the tenure of the master of a pool that processes share, unless it prolongs it. On a machine that is busy a
// master may not run for a while, and one that loses its role has to begin anew.
const Lease = 300 * time.Millisecond

// Tenure is the lease of masters of an open pool: Lease, or longer where it costs more to prolong one.
func Tenure(f rdma.Fabric) time.Duration {
	if t, ok := f.(rdma.TenureAdviser); ok {
		return t.Tenure()
	}
	return Lease
}

// Keep is Pool.Keep for those who have the pool's parts.
func Keep(f rdma.Fabric, k *Kind, o cluster.Options) error {
	if r, ok := f.(rdma.AccessReporter); k.Mender == nil || ok && r.ReadOnly() {
		return nil
	}
	if o.Lease == 0 {
		o.Lease = Tenure(f)
		o.Tick = o.Lease / 12
	}
	ep, err := f.Open("keeper")
	if err == nil {
		err = errors.Join(ep.Go("keeper", func(own rdma.Endpoint) { keep(own, f, k, o) }), ep.Close())
	}
	if err != nil && !errors.Is(err, rdma.ErrFull) {
		return fmt.Errorf("keep the pool: %w", err)
	}
	return nil
}

// keep keeps the pool until its fabric closes. A master that was slow was fenced off, and goes on with another identity:
// it closes the lost one, so that it can be forgotten.
func keep(ep rdma.Endpoint, f rdma.Fabric, k *Kind, o cluster.Options) {
	for {
		lost := cluster.Keep(ep, f, k.Mender, o)
		if err := ep.Close(); err != nil || !errors.Is(lost, rdma.ErrRevoked) {
			return
		}
		var err error
		if ep, err = f.Open("keeper"); err != nil {
			return // closed, or full: others keep the pool
		}
		ep.Sleep(o.Lease) // others are there
	}
}
