package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// reign is the endpoint that a master's mender uses. Mending may take longer than a lease, so that
// the tenure is prolonged as the endpoint is used, and everything ends in rdma.ErrStale once
// another client is master.
type reign struct {
	rdma.Endpoint
	k *keeper
}

func (e *reign) Post(b *rdma.Batch) error {
	if err := e.k.prolong(); err != nil {
		return err
	}
	return e.Endpoint.Post(b)
}

func (e *reign) Call(node int, r *rdma.Request, within time.Duration) error {
	if err := e.k.prolong(); err != nil {
		return err
	}
	return e.Endpoint.Call(node, r, within)
}

// Wait waits in parts, so that the tenure does not run out meanwhile.
func (e *reign) Wait(b *rdma.Batch, n int, within time.Duration) error {
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

// Sleep sleeps in parts. That the tenure is over is found at the next verb.
func (e *reign) Sleep(d time.Duration) {
	part := e.k.o.Lease / 4
	for ; d > part; d -= part {
		e.Endpoint.Sleep(part)
		if e.k.prolong() != nil {
			return
		}
	}
	e.Endpoint.Sleep(d)
}

// Listen opens the mailbox of the mender's worker. It may stay open in later tenures of the same
// keeper.
func (e *reign) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) {
	box, err := rdma.Listen(e.Endpoint, o)
	if err != nil {
		return nil, err
	}
	return &reignBox{box, e}, nil
}

type reignBox struct {
	rdma.Mailbox
	e *reign
}

// Await waits in parts, as reign.Wait does.
func (m *reignBox) Await(within time.Duration) error {
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

// SwapConfig implements Configurer.
func (e *reign) SwapConfig(version uint64, data []byte, what string) (bool, error) {
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

var errOver = fmt.Errorf("somebody else is the pool's master: %w", rdma.ErrStale)

// prolong makes sure that the tenure lasts for most of another lease. One that ran out because its
// master was slow goes on if no other candidate took the role meanwhile. If another client was
// master in between, this one's verbs were fenced off.
func (k *keeper) prolong() error {
	now := k.ep.Now()
	if k.role.Owner == 0 {
		return errOver
	}
	if now+k.o.Lease*3/4 < k.role.Until {
		return nil
	}
	r, ok, err := k.f.Renew(k.role, k.o.Lease)
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
