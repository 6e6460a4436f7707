package cluster

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// HoldName is the name of a client that asks the pool's master to resign: see Hold. A client of
// that name which is something else does little harm: a master sees to all that is due before it
// resigns, and resigns less and less often.
const HoldName = "hold still"

const (
	// holdLeases is the tenure of a Held in leases: it is renewed beside work that may keep all of the
	// machine busy.
	holdLeases = 4
	// holdPatience is for how many leases Hold waits for a master that has work to do.
	holdPatience = 20
	// yieldLeases is for how many leases a keeper that resigned for a Hold is no candidate.
	yieldLeases = 2
)

// Held is the tenure of a master that does nothing, so that nothing is mended, recovered or swept
// meanwhile.
type Held struct {
	f     rdma.Fabric
	role  rdma.Role
	lease time.Duration
	err   error // nil: it lasts
}

// Hold makes the endpoint, which was opened by the name HoldName, the pool's master, once the
// master of now has done all that is due and has resigned. Keepers of older versions do not resign;
// then the error is an *OtherMaster. Of o only Lease, Tick and Stop count. Renew has to be called
// at least once a lease, and End in the end, also for whether the tenure lasted.
func Hold(ep rdma.Endpoint, f rdma.Fabric, o Options) (*Held, error) {
	o.defaults()
	for until := ep.Now() + holdPatience*o.Lease; ; ep.Sleep(o.Tick) {
		r, ok, err := f.TryMaster(ep.Client(), holdLeases*o.Lease)
		if err != nil {
			return nil, fmt.Errorf("hold the pool's master: %w", err)
		}
		if ok {
			v, err := ep.Join()
			if err == nil && !v.Busy && v.Epoch >= r.Beyond {
				return &Held{f: f, role: r, lease: holdLeases * o.Lease}, nil
			}
			f.Resign(r)
			if err != nil {
				return nil, fmt.Errorf("hold the pool's master: %w", err)
			}
			ep.Sleep(yieldLeases * o.Lease) // the last master died in the midst of its work: a keeper has to end it
		}
		switch {
		case o.Stop():
			return nil, fmt.Errorf("hold the pool's master: %w", ErrStopped)
		case ep.Now() > until && ok:
			return nil, fmt.Errorf("hold the pool's master: its recovery does not end: %w", rdma.ErrTimeout)
		case ep.Now() > until:
			return nil, &OtherMaster{r}
		}
	}
}

// Renew prolongs the tenure. One that was over for a moment does not go on: another master may have
// been there.
func (h *Held) Renew() error {
	if errors.Is(h.err, errOver) {
		return h.err
	}
	r, ok, err := h.f.Renew(h.role, h.lease)
	switch {
	case err != nil:
		h.err = fmt.Errorf("prolong the tenure as master: %w", err)
	case !ok:
		h.err = errOver
	default:
		h.role, h.err = r, nil
	}
	return h.err
}

// End ends the tenure. It returns nil when no other client was master since Hold.
func (h *Held) End() error {
	err := h.Renew()
	h.f.Resign(h.role)
	return err
}

var errAsked = errors.New("a client asks the pool's master to hold still")

// yield ends the tenure when a client asks for it. It is called when nothing else is due.
func (k *keeper) yield(clients []rdma.Client) error {
	if !k.yields {
		return nil
	}
	i := slices.IndexFunc(clients, func(c rdma.Client) bool { return c.Alive && c.Name == HoldName })
	what := target{hold: true}
	if i < 0 {
		k.forget(what)
		return nil
	}
	if k.resting(what) {
		return nil
	}
	k.rest(what)
	k.log(Event{What: Lost, Epoch: k.role.Epoch, Client: clients[i]})
	k.resign()
	return errAsked
}
