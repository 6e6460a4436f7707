package cluster

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// HoldName is the name of a client that asks the pool's master to resign: see Hold. Another client
// with that name does little harm: a master does all that is due before it resigns, and resigns
// less and less often.
const HoldName = "hold still"

const (
	// holdLeases is the length of a Held's tenure, in leases. Its process may be kept from renewing
	// by work that uses all of the machine.
	holdLeases = 4
	// holdPatience bounds, in leases, how long Hold waits for a master that has work to do.
	holdPatience = 20
	// yieldLeases is how long, in leases, a keeper is no candidate after it resigned for a Hold.
	yieldLeases = 2
)

// Held is the tenure of a master that does nothing. While it lasts nothing is mended, recovered or
// swept.
type Held struct {
	f     rdma.Fabric
	role  rdma.Role
	lease time.Duration
	// Why the tenure did not last; nil: it lasts.
	err error
}

// Hold makes the endpoint the pool's master, once the present master has done all that is due and
// has resigned. The endpoint must have been opened with the name HoldName. Masters of older
// versions do not resign; then the error is an *OtherMaster. Only Lease, Tick and Stop of o are
// used. The caller calls Renew at least once a lease, and End in the end, which also reports
// whether the tenure lasted.
func Hold(ep rdma.Endpoint, f rdma.Fabric, o Options) (*Held, error) {
	o.defaults()
	for until := ep.Now() + holdPatience*o.Lease; ; ep.Sleep(o.Tick) {
		r, ok, err := f.TryMaster(ep.Client(), holdLeases*o.Lease)
		if err != nil {
			return nil, fmt.Errorf("hold the pool's master: %w", err)
		}
		if ok {
			v, err := ep.Join()
			// The view must be idle, and the fence of the last tenure done: otherwise the last
			// master died in the middle of its work, and a keeper has to complete that.
			if err == nil && !v.Busy && v.Epoch >= r.FenceEpoch {
				return &Held{f: f, role: r, lease: holdLeases * o.Lease}, nil
			}
			// A keeper must complete what the last master began; this process has no recoverer.
			f.Resign(r)
			if err != nil {
				return nil, fmt.Errorf("hold the pool's master: %w", err)
			}
			ep.Sleep(yieldLeases * o.Lease)
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

// Renew renews the lease. A tenure that was over, even for a moment, is not continued: another
// master may have acted meanwhile. After any other failure the caller may try again.
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

// End ends the tenure. It returns nil if no other client was master since Hold. It resigns in any
// case: a role that is another client's is not touched.
func (h *Held) End() error {
	err := h.Renew()
	h.f.Resign(h.role)
	return err
}

// errAsked ends the tick of a keeper that resigned for a Hold.
var errAsked = errors.New("a client asks the pool's master to hold still")

// yield ends the tenure if a client asks for it. It is called when nothing else is due. Each time
// it yields it rests longer before it does so again.
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
