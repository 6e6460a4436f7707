package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// leasedEndpoint is the endpoint of a master's recoverer. Mending may take longer than a lease,
// so the lease is renewed as the endpoint is used. Each call returns an error that wraps
// rdma.ErrStale once another client is master.
//
// It renews the keeper's present tenure, whichever that is. So the keeper drops the recoverer with
// the tenure: one of an earlier tenure must not post in a later one.
type leasedEndpoint struct {
	rdma.Endpoint
	k *keeper
}

// Post renews the lease first. The check does not replace fencing: a verb that is posted may land
// after the lease is over. Fencing ends it. If the tenure is over nothing is posted.
func (e *leasedEndpoint) Post(b *rdma.Batch) error {
	if err := e.k.prolong(); err != nil {
		return err
	}
	return e.Endpoint.Post(b)
}

// Call renews the lease first.
func (e *leasedEndpoint) Call(node int, r *rdma.Request, within time.Duration) error {
	if err := e.k.prolong(); err != nil {
		return err
	}
	return e.Endpoint.Call(node, r, within)
}

// Wait waits in parts of a quarter of a lease, and renews the lease in between. The parts add up to
// within, so a caller sees one wait.
func (e *leasedEndpoint) Wait(b *rdma.Batch, n int, within time.Duration) error {
	part := e.k.o.Lease / 4
	for ; within > part; within -= part {
		if err := e.Endpoint.Wait(b, n, part); !errors.Is(err, rdma.ErrTimeout) {
			return err
		}
		if err := e.k.prolong(); err != nil {
			return err
		}
	}
	return e.Endpoint.Wait(b, n, within)
}

// Sleep sleeps in parts, like Wait. If the tenure is over it returns early; the next verb returns
// the error.
func (e *leasedEndpoint) Sleep(d time.Duration) {
	part := e.k.o.Lease / 4
	for ; d > part; d -= part {
		e.Endpoint.Sleep(part)
		if e.k.prolong() != nil {
			return
		}
	}
	e.Endpoint.Sleep(d)
}

// Listen opens a mailbox for the recoverer. It may stay open over several tenures of the same
// keeper.
func (e *leasedEndpoint) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) {
	box, err := rdma.Listen(e.Endpoint, o)
	if err != nil {
		return nil, err
	}
	return &leasedMailbox{box, e}, nil
}

// leasedMailbox is a mailbox that renews the lease while it waits.
type leasedMailbox struct {
	rdma.Mailbox
	e *leasedEndpoint
}

// Await waits in parts, like leasedEndpoint.Wait.
func (m *leasedMailbox) Await(within time.Duration) error {
	part := m.e.k.o.Lease / 4
	for ; within > part; within -= part {
		if err := m.Mailbox.Await(part); !errors.Is(err, rdma.ErrTimeout) {
			return err
		}
		if err := m.e.k.prolong(); err != nil {
			return err
		}
	}
	return m.Mailbox.Await(within)
}

// SwapConfig implements Configurer. It reports whether this master's configuration was stored. If
// it fails the swap may have been stored, or may still be: the caller repeats it with the same
// version.
func (e *leasedEndpoint) SwapConfig(version uint64, data []byte, what string) (bool, error) {
	if err := e.k.prolong(); err != nil {
		return false, err
	}
	began := e.Now()
	ok, err := e.k.f.SwapConfig(e.k.role, version, data)
	if ok && what != "" {
		e.k.log(Event{What: Configured, Took: e.Now() - began, Report: what})
	}
	return ok, err
}

// errOver ends what is done in a tenure that is over.
var errOver = fmt.Errorf("another client is the pool's master: %w", rdma.ErrStale)

// prolong makes sure that the tenure lasts for most of another lease. If the lease expired because
// this process was slow, the tenure is continued unless another candidate has become master
// meanwhile. If another one was, this one's verbs were fenced off.
func (k *keeper) prolong() error {
	now := k.ep.Now()
	if k.role.Owner == 0 {
		return errOver
	}
	if now+k.o.Lease*3/4 < k.role.Until {
		return nil
	}
	r, ok, err := k.f.Renew(k.role, k.o.Lease)
	// The lease has expired. Becoming master anew is as good, if no other was in between: TryMaster
	// tells.
	if err == nil && !ok {
		r, ok, err = k.f.TryMaster(k.ep.Client(), k.o.Lease)
	}
	switch {
	case err != nil:
		return fmt.Errorf("prolong the tenure as master: %w", err)
	case !ok:
		k.log(Event{What: Lost, Epoch: k.role.Epoch, Client: rdma.Client{ID: r.Owner}})
		k.role, k.m = rdma.Role{}, nil
		return errOver
	}
	k.role = r
	return nil
}
