package stores

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Keep makes this process a candidate for the pool's master until the pool is closed: the master replaces memory nodes
// that died and recovers clients that did, of other processes too. It takes one of the pool's places for clients. A pool
// of this process alone, one that is full, and a store that has nothing to mend are not kept, which is no error.
func (p *Pool) Keep(o cluster.Options) error {
	if strings.HasPrefix(p.Address, "mem:") {
		return nil
	}
	return Keep(p.Fabric, p.Kind, o)
}

// Keep is Pool.Keep for those who have the pool's parts.
func Keep(f rdma.Fabric, k *Kind, o cluster.Options) error {
	if k.Mender == nil {
		return nil
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

// again is the pause before a keeper that was fenced off begins again: it was slow, and others are there.
const again = 100 * time.Millisecond

// keep keeps the pool until its fabric closes. Whoever loses its role in the midst of something loses its identity, too,
// and goes on with another one.
func keep(own rdma.Endpoint, f rdma.Fabric, k *Kind, o cluster.Options) {
	ep := own
	for {
		err := cluster.Keep(ep, f, k.Mender, o)
		if ep != own {
			err = errors.Join(err, ep.Close())
		}
		if !errors.Is(err, rdma.ErrRevoked) {
			return
		}
		own.Sleep(again)
		if ep, err = f.Open("keeper"); err != nil {
			return // closed, or full: others keep the pool
		}
	}
}
