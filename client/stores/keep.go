package stores

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Keep makes this process a candidate for the pool's master until the pool is closed. The master
// replaces dead memory nodes and recovers dead clients, also of other processes. It sweeps the
// memory of stores that need it, also in mem: pools. A candidate takes one of the pool's places for
// clients. Keep returns nil and does nothing when the pool has no free place, when this process may
// only read the pool, and when the store has no recovery.
func (p *Pool) Keep(o cluster.Options) error { return Keep(p.Fabric, p.Kind, o) }

// Lease is for how long a master holds its role without renewing it, in a pool that processes
// share. It is long enough for a busy machine, on which a master may not run for a while: a master
// that loses its role has to begin its work again.
const Lease = 300 * time.Millisecond

// Tenure returns the lease of the masters of an open pool. It is Lease, or more where renewing is
// expensive.
func Tenure(f rdma.Fabric) time.Duration {
	if t, ok := f.(rdma.TenureAdviser); ok {
		return t.Tenure()
	}
	return Lease
}

// KeeperName is the name of clients that are candidates for a pool's master. Nothing keeps another
// client from using it: a decision by this name may be wrong, and must not cost data then.
const KeeperName = "keeper"

// Keep is Pool.Keep for callers without a Pool.
func Keep(f rdma.Fabric, k *Kind, o cluster.Options) error {
	if r, ok := f.(rdma.AccessReporter); k.Recoverer == nil || ok && r.ReadOnly() {
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

// Teller returns a function that writes a keeper's events into the pool's telemetry. nil: the pool
// has no telemetry, or it cannot be read now.
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

// EventOf returns the record of an event in the pool's telemetry.
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

// keep is a candidate until the pool's fabric closes. When it was fenced off because it was slow,
// it goes on under another identity. It closes the endpoint of the lost identity, so that the pool
// can forget it.
func keep(ep rdma.Endpoint, f rdma.Fabric, k *Kind, o cluster.Options) {
	for {
		lost := cluster.Keep(ep, f, k.Recoverer(f), o)
		if err := ep.Close(); err != nil || !errors.Is(lost, rdma.ErrRevoked) {
			return
		}
		var err error
		if ep, err = f.Open(KeeperName); err != nil {
			return // closed, or full: other candidates keep the pool
		}
		ep.Sleep(o.Lease) // other candidates come first
	}
}
