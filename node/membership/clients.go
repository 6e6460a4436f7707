package membership

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// Holder is an identity in use. The fields Alive and Held of its Client are left to the caller,
// which knows the processes that are attached.
type Holder struct {
	rdma.Client
	// Process is Options.Process of the Registry that claimed the identity.
	Process string
	Machine string
	// Fenced: the client was fenced off. It waits for recovery, and for Forget.
	Fenced bool
	// Closed: it was fenced off, and its holder has released it since.
	Closed bool
}

// holder returns what record r of identity id says.
func holder(id rdma.ClientID, r clientRecord) Holder {
	return Holder{
		Client:  rdma.Client{ID: id, Name: r.Name, Life: r.Life, PID: r.PID},
		Process: r.Process, Machine: r.Machine, Fenced: r.Fenced, Closed: r.Closed,
	}
}

// listed is an identity's record and its version; version 0: it was never written.
type listed struct {
	clientRecord
	version uint64
}

// listed decodes the records of clients. It returns one for each identity, at index identity less
// one. The caller owns the slice. Only records of which the version has changed since the last call
// are decoded.
func (b *Registry) listed(records []Record) ([]listed, error) {
	b.mu.Lock()
	was := b.decoded
	b.mu.Unlock()
	all := make([]listed, b.o.Clients)
	for _, r := range records {
		id, err := clientOf(r.Key)
		if err == nil {
			err = b.knownClient(id)
		}
		if err != nil {
			return nil, err
		}
		l := &all[id-1]
		if *l = was[id-1]; l.version == r.Version {
			continue
		}
		if l.clientRecord, err = decode[clientRecord](r.Key, r.Value, &b.o); err != nil {
			return nil, err
		}
		l.version = r.Version
	}
	b.mu.Lock()
	b.decoded = slices.Clone(all)
	b.mu.Unlock()
	return all, nil
}

// Clients lists the identities in use, in their order. It is no snapshot, see Store.Look.
func (b *Registry) Clients() ([]Holder, error) {
	_, all, err := b.look()
	if err != nil {
		return nil, fmt.Errorf("list the identities of clients: %w", err)
	}
	return holders(all), nil
}

// holders returns the identities in use, in their order.
func holders(all []listed) []Holder {
	var holders []Holder
	for i, r := range all {
		if r.InUse {
			holders = append(holders, holder(rdma.ClientID(i+1), r.clientRecord))
		}
	}
	return slices.Clip(holders)
}

// editLife applies change to the record of a client, while c's life has the identity. It does
// nothing, and returns no error, if that life is over: a successor in the identity is another
// client. change must be idempotent, as in edit.
func (b *Registry) editLife(c rdma.Client, what string, change func(r *clientRecord) (bool, error)) error {
	err := b.knownClient(c.ID)
	if err == nil {
		err = edit(b, clientKey(c.ID), func(r *clientRecord) (bool, error) {
			if r.Life != c.Life || !r.InUse {
				return false, nil
			}
			return change(r)
		})
	}
	if err != nil {
		return fmt.Errorf("%s client %d, life %d: %w", what, c.ID, c.Life, err)
	}
	return nil
}

// Release gives an identity back, and ends its holder's tenure as master. An identity that was
// fenced off stays listed until Forget: its client was not recovered yet. Release may be called
// again after an error.
//
// The tenure ends first. A crash between the two, or before them, leaves an identity in use by a
// process that is not attached, as every crash of a process does.
func (b *Registry) Release(c rdma.Client) error {
	_ = b.endOf(c) // a tenure that it cannot end is over once the identity is given back
	err := b.editLife(c, "release", func(r *clientRecord) (bool, error) {
		if r.Fenced {
			todo := !r.Closed
			r.Closed = true
			return todo, nil
		}
		r.InUse = false
		return true, nil
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[c.ID] == c.Life {
		delete(b.held, c.ID)
	}
	return nil
}

// MarkFenced notes that a client was fenced off: its identity is not handed out before Forget. It
// is no error if that was noted before, or if this life has ended. It is the first step of fencing
// off, before the nodes are told. A crash between the two leaves the mark: the client itself and
// every process that looks at the registry learn of it, and may tell the nodes again.
func (b *Registry) MarkFenced(c rdma.Client) error {
	return b.editLife(c, "mark as fenced", func(r *clientRecord) (bool, error) {
		todo := !r.Fenced
		r.Fenced = true
		return todo, nil
	})
}

// Forget frees the identity of a client that has no holder: it was fenced off and closed, or
// attached reports false for it. The error wraps rdma.ErrHeld while a worker has the identity. If
// the life is over already, Forget does nothing. attached may be called several times.
func (b *Registry) Forget(c rdma.Client, attached func(h Holder) (bool, error)) error {
	return b.editLife(c, "forget", func(r *clientRecord) (bool, error) {
		if !r.Closed {
			held, err := attached(holder(c.ID, *r))
			if err != nil {
				return false, err
			}
			if held {
				return false, rdma.ErrHeld
			}
		}
		r.InUse, r.Fenced, r.Closed = false, false, false
		return true, nil
	})
}

// Fenced reports whether client c must not go on, according to the clients that Look returned: it
// was fenced off, or its life is over.
func Fenced(c rdma.Client, clients []Holder) bool {
	return !slices.ContainsFunc(clients, func(h Holder) bool { return h.ID == c.ID && h.Life == c.Life && !h.Fenced })
}
