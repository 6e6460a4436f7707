package cluster

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// OtherMaster is the error of becoming master of a pool that has another one.
type OtherMaster struct{ Role rdma.Role }

func (e *OtherMaster) Error() string {
	return fmt.Sprintf("client %d is the pool's master", e.Role.Owner)
}

// ErrStopped is wrapped when Options.Stop ended Once or Hold.
var ErrStopped = errors.New("stopped")

// mostRounds bounds the rounds of Once. It is far more than a pool's nodes and clients need.
const mostRounds = 1 << 18

// downPatience is for how many times Options.NodePatience Once goes on while each round meets a
// node that is down. A node that does not answer counts as dead after one NodePatience, and the
// next round does without it, unless too few nodes are left.
const downPatience = 2

// Once does all that is due for a master now, and resigns. It returns what it did, also with an
// error. If another client is master, and stays so for a lease, the error is an *OtherMaster. It
// wraps rdma.ErrNodeDown if too few nodes are left, and ErrStopped if Stop ended it. Stop is called
// once a round.
func Once(ep rdma.Endpoint, f rdma.Fabric, m NewRecoverer, o Options) (did []Event, err error) {
	o.defaults()
	log := o.Log
	o.Log = func(e Event) {
		did = append(did, e)
		log(e)
	}
	k := &keeper{ep: ep, f: f, make: m, o: o, probes: make([]probe, f.Nodes()), needsSweep: true}
	defer func() {
		k.tellLast()
		k.resign()
	}()
	if err := k.becomeMaster(); err != nil {
		return did, err
	}
	well := ep.Now() // the end of the last round that met no node that is down
	for range mostRounds {
		if o.Stop() {
			return did, fmt.Errorf("recover the pool: %w", ErrStopped)
		}
		more, err := k.tick()
		if !errors.Is(err, rdma.ErrNodeDown) {
			well = ep.Now()
		}
		switch {
		// The lease was lost: another master goes on.
		case k.role.Owner == 0:
			return did, errors.Join(fmt.Errorf("recover the pool: %w", errOver), err)
		case errors.Is(err, rdma.ErrNodeDown) && ep.Now()-well > downPatience*o.NodePatience:
			return did, fmt.Errorf("recover the pool: too few nodes are left: %w", err)
		case errors.Is(err, rdma.ErrStale), errors.Is(err, rdma.ErrNodeDown):
			ep.Sleep(o.Tick / 4)
		case err != nil:
			return did, fmt.Errorf("recover the pool: %w", err)
		case !more && !k.waits():
			return did, nil
		case !more:
			ep.Sleep(o.Tick)
		}
	}
	return did, fmt.Errorf("recover the pool: nodes and clients die as fast as they are recovered: %w", rdma.ErrTimeout)
}

// waits reports whether something is still to come: a node does not answer and does not count as
// dead yet, or work is due that a later tick does. Without it Once would end while a dead node is
// only silent.
func (k *keeper) waits() bool {
	flying := func(p probe) bool { return p.flying != nil }
	return k.need != NeedNothing || k.restoreWaits || k.attends || slices.ContainsFunc(k.probes, flying)
}

// becomeMaster becomes master. If another client is master it waits until that tenure is over.
func (k *keeper) becomeMaster() error {
	var other rdma.Role
	for until := k.ep.Now() + k.o.Lease + k.o.Tick; ; k.ep.Sleep(k.o.Tick) {
		r, ok, err := k.f.TryMaster(k.ep.Client(), k.o.Lease)
		switch {
		case err != nil:
			return fmt.Errorf("become the pool's master: %w", err)
		case ok:
			k.elected(r)
			return nil
		case k.o.Stop():
			return fmt.Errorf("become the pool's master: %w", ErrStopped)
		case other.Owner == 0:
			until = max(until, r.Until+k.o.Tick)
		case k.ep.Now() > until:
			return &OtherMaster{other}
		}
		other = r
	}
}
