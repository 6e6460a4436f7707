package stores

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Keep makes this process a candidate for the pool's master until the pool is closed: the master
// replaces memory nodes that died, recovers clients that did, of other processes too, and sweeps
// the pools of stores that need it, mem: pools among them. It takes one of the pool's places for
// clients. A pool that is full, and a store that has nothing to mend, are not kept, which is no
// error.
func (p *Pool) Keep(o cluster.Options) error { return Keep(p.Fabric, p.Kind, o) }

// Lease is the tenure of the master of a pool that processes share, unless it prolongs it. On a
// machine that is busy a master may not run for a while, and one that loses its role has to begin
// anew.
const Lease = 300 * time.Millisecond

// Tenure is the lease of masters of an open pool: Lease, or longer where it costs more to prolong
// one.
func Tenure(f rdma.Fabric) time.Duration {
	if t, ok := f.(rdma.TenureAdviser); ok {
		return t.Tenure()
	}
	return Lease
}

// KeeperName is the name of clients that are candidates for a pool's master. Any client may be
// called so: a decision that rests on it may be wrong, and must cost no data then.
const KeeperName = "keeper"

// Keep is Pool.Keep for callers that have the pool's parts.
func Keep(f rdma.Fabric, k *Kind, o cluster.Options) error {
	if r, ok := f.(rdma.AccessReporter); k.Mender == nil || ok && r.ReadOnly() {
		return nil
	}
	if o.Lease == 0 {
		o.Lease = Tenure(f)
		o.Tick = o.Lease / 12
	}
	ep, err := f.Open(KeeperName)
	if err == nil {
		if o.Tell == nil {
			o.Tell = Teller(ep, f)
		}
		err = errors.Join(ep.Go("keeper", func(own rdma.Endpoint) { keep(own, f, k, o) }), ep.Close())
	}
	if err != nil && !errors.Is(err, rdma.ErrFull) {
		return fmt.Errorf("keep the pool: %w", err)
	}
	return nil
}

// Teller returns what puts a keeper's events into the pool's telemetry; nil: the pool has none, or
// it cannot be found now.
func Teller(ep rdma.Endpoint, f rdma.Fabric) func(rdma.Endpoint, *rdma.View, []cluster.Event, time.Duration) error {
	if g, ok := f.(rdma.Geometer); !ok || g.Geometry().Telemetry == 0 {
		return nil
	}
	r, err := telemetry.Find(ep, f.Nodes())
	if err != nil {
		return nil
	}
	return func(ep rdma.Endpoint, v *rdma.View, did []cluster.Event, within time.Duration) error {
		now, clock := time.Now(), ep.Now()
		var events []telemetry.Event
		for _, e := range did {
			events = append(events, EventOf(e, now.Add(e.At-clock)))
		}
		return r.Append(ep, v, events, within)
	}
}

// EventOf is what the pool's telemetry keeps of an event.
func EventOf(e cluster.Event, at time.Time) telemetry.Event {
	t := telemetry.Event{
		At: at, What: e.What.String(), Tenure: e.Tenure, Epoch: e.Epoch, Node: -1, Client: int(e.Client.ID),
		Took: e.Took, Text: e.String(),
	}
	if e.What == cluster.Expelled || e.What == cluster.Restored {
		t.Node = e.Node
	}
	return t
}

// keep keeps the pool until its fabric closes. A master that was slow was fenced off, and goes on
// with another identity: it closes the lost one, so that it can be forgotten.
func keep(ep rdma.Endpoint, f rdma.Fabric, k *Kind, o cluster.Options) {
	for {
		lost := cluster.Keep(ep, f, k.Mender(f), o)
		if err := ep.Close(); err != nil || !errors.Is(lost, rdma.ErrRevoked) {
			return
		}
		var err error
		if ep, err = f.Open(KeeperName); err != nil {
			return // closed, or full: others keep the pool
		}
		ep.Sleep(o.Lease) // others are there
	}
}
