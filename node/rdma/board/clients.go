package board

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// Holder is an identity in use. Alive and Held are left to the caller, which knows the processes
// that are attached.
type Holder struct {
	rdma.Client
	Process string // Options.Process of its Board
	Machine string
	Fenced  bool // waits for recovery, and to be forgotten
	Closed  bool // it was fenced off, and its holder let go of it
}

func holder(id rdma.ClientID, r clientRecord) Holder {
	return Holder{
		Client:  rdma.Client{ID: id, Name: r.Name, Life: r.Life, PID: r.PID},
		Process: r.Process, Machine: r.Machine, Fenced: r.Fenced, Closed: r.Closed,
	}
}

// listed is an identity's record.
type listed struct {
	clientRecord
	version uint64
}

// listed returns what records of clients say of all identities, less one.
func (b *Board) listed(records []Record) ([]listed, error) {
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

// Clients lists the identities in use, in their order.
func (b *Board) Clients() ([]Holder, error) {
	_, all, err := b.look()
	if err != nil {
		return nil, fmt.Errorf("list the identities of clients: %w", err)
	}
	return holders(all), nil
}

// holders are the identities in use.
func holders(all []listed) []Holder {
	var holders []Holder
	for i, r := range all {
		if r.InUse {
			holders = append(holders, holder(rdma.ClientID(i+1), r.clientRecord))
		}
	}
	return slices.Clip(holders)
}

// editLife changes the record of a client while it has that identity, and does nothing to a
// successor.
func (b *Board) editLife(c rdma.Client, what string, change func(r *clientRecord) (bool, error)) error {
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

// Release gives an identity back, and ends its holder's tenure as master. One that was fenced off
// stays listed until it is forgotten. After an error it may be tried again. A crash before leaves
// an identity of a process that is not attached.
func (b *Board) Release(c rdma.Client) error {
	_ = b.endOf(c) // if that fails it is over all the same once the identity is given back
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

// MarkFenced notes that a client was fenced off: its identity is not handed out until it is
// forgotten. That it was noted before, or that this life has ended, is no error.
func (b *Board) MarkFenced(c rdma.Client) error {
	return b.editLife(c, "mark as fenced", func(r *clientRecord) (bool, error) {
		todo := !r.Fenced
		r.Fenced = true
		return todo, nil
	})
}

// Forget frees the identity of a client without a holder: one that was fenced off and closed, or
// whose process is not attached. The error wraps rdma.ErrHeld while a worker has the identity. A
// successor keeps it.
func (b *Board) Forget(c rdma.Client, attached func(h Holder) (bool, error)) error {
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

// Fenced reports whether a client must not go on, of those that Look returned: it was fenced off,
// or does not have its identity any more.
func Fenced(c rdma.Client, clients []Holder) bool {
	return !slices.ContainsFunc(clients, func(h Holder) bool { return h.ID == c.ID && h.Life == c.Life && !h.Fenced })
}
