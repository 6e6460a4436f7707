package membership

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// View returns the pool's view, and by node whether it is expelled. The caller owns both.
func (b *Registry) View() (v rdma.View, down []bool, err error) {
	r, _, err := b.loadView()
	if err != nil {
		return rdma.View{}, nil, fmt.Errorf("view of the pool: %w", err)
	}
	return r.view(), r.Down, nil
}

func (r *viewRecord) view() rdma.View {
	v := rdma.View{Epoch: r.Epoch, Busy: r.Busy, Members: make([]rdma.Member, len(r.Members))}
	for n, word := range r.Members {
		v.Members[n] = rdma.MemberOf(word)
	}
	return v
}

// Look is View and then Clients, in one question to the store. The clients are not older than the
// view. So a client that was fenced off before the view's epoch began is listed as Fenced, or is
// not listed any more.
func (b *Registry) Look() (v rdma.View, down []bool, clients []Holder, err error) {
	r, all, err := b.look()
	if err != nil {
		return rdma.View{}, nil, nil, fmt.Errorf("view and clients of the pool: %w", err)
	}
	return r.view(), r.Down, holders(all), nil
}

// look returns the view's record, and the records of all identities, at index identity less one. No
// identity's record is older than the view's: see Store.Look.
func (b *Registry) look() (v viewRecord, all []listed, err error) {
	first, records, err := b.store.Look(viewKey, clientsKey)
	if err != nil {
		return v, nil, err
	}
	if first.Version > 0 {
		if v, err = decode[viewRecord](viewKey, first.Value, &b.o); err != nil {
			return v, nil, err
		}
	}
	v.grown(b.o.Nodes)
	all, err = b.listed(records)
	return v, all, err
}

// grown makes r a view of the pool's nodes, all members and none expelled, if it was never written.
func (r *viewRecord) grown(nodes int) {
	if r.Members == nil {
		r.Members, r.Down = make([]uint64, nodes), make([]bool, nodes)
	}
}

// loadView reads the view's record and its version.
func (b *Registry) loadView() (viewRecord, uint64, error) {
	r, version, err := load[viewRecord](b, viewKey)
	r.grown(b.o.Nodes)
	return r, version, err
}

// Advance replaces the view's state, as rdma.Control says. It decides between masters: of two that
// advance from the same state one succeeds, whatever their leases are.
//
// An error that wraps ErrUnreachable leaves open whether the state was replaced. A later Advance,
// by any master, from the state that it finds then, settles that: one that is still on its way
// finds another version.
func (b *Registry) Advance(from, to rdma.State) (bool, error) {
	if err := from.Becomes(to); err != nil {
		return false, fmt.Errorf("advance the pool's view: %w", err)
	}
	ok, err := b.changeView(func(r *viewRecord) bool {
		if r.state() != from {
			return false
		}
		r.Epoch, r.Busy = to.Epoch, to.Busy
		return true
	})
	if err != nil {
		return false, fmt.Errorf("advance the pool's view from %+v to %+v: %w", from, to, err)
	}
	return ok, nil
}

// SetMember replaces one node's state, as rdma.Control says: only in the given epoch, and while
// that is busy. So a master that was slow, and of which the epoch is over, changes no member. An
// error that wraps ErrUnreachable leaves open whether the state was replaced.
func (b *Registry) SetMember(epoch uint64, node int, from, to rdma.Member) (bool, error) {
	err := b.knownNode(node)
	if err == nil {
		err = from.Becomes(to, epoch)
	}
	ok := false
	if err == nil {
		ok, err = b.changeView(func(r *viewRecord) bool {
			if r.state() != (rdma.State{Epoch: epoch, Busy: true}) || rdma.MemberOf(r.Members[node]) != from {
				return false
			}
			r.Members[node] = to.Word()
			return true
		})
	}
	if err != nil {
		return false, fmt.Errorf("change member %d of the pool's view in epoch %d: %w", node, epoch, err)
	}
	return ok, nil
}

// changeView applies change to the view once, and reports whether this call made the change. change
// reports false if the view is not what it expects. Unlike edit, changeView does not try again
// after an error: it would find its own change, and report false.
func (b *Registry) changeView(change func(r *viewRecord) bool) (bool, error) {
	for range maxRestarts {
		r, version, err := b.loadView()
		if err != nil || !change(&r) {
			return false, err
		}
		if ok, err := b.swap(viewKey, version, &r); ok || err != nil {
			return ok, err
		}
	}
	return false, fmt.Errorf("others changed it %d times meanwhile: %w", maxRestarts, ErrUnreachable)
}

// SetDown marks a node as expelled, for ever. It is no error if the node was marked before. It acts
// in the given busy epoch only: in any other the error wraps rdma.ErrStale. For a node that the
// pool does not have the error wraps rdma.ErrAccess.
//
// It is the first step of expelling, so that no other master takes the node for one that may serve.
// A crash behind it leaves a node that is marked and may still serve. The next master expels it.
func (b *Registry) SetDown(epoch uint64, node int) error {
	err := b.knownNode(node)
	if err == nil {
		err = edit(b, viewKey, func(r *viewRecord) (bool, error) {
			r.grown(b.o.Nodes)
			if r.state() != (rdma.State{Epoch: epoch, Busy: true}) {
				return false, fmt.Errorf("the view's state is %+v: %w", r.state(), rdma.ErrStale)
			}
			marked := r.Down[node]
			r.Down[node] = true
			return !marked, nil
		})
	}
	if err != nil {
		return fmt.Errorf("mark node %d down in epoch %d: %w", node, epoch, err)
	}
	return nil
}

// knownNode returns an error that wraps rdma.ErrAccess if the pool does not have that node.
func (b *Registry) knownNode(node int) error {
	if node < 0 || node >= b.o.Nodes {
		return fmt.Errorf("the pool has nodes 0 to %d: %w", b.o.Nodes-1, rdma.ErrAccess)
	}
	return nil
}

// knownClient returns an error that wraps rdma.ErrAccess if the pool does not have that identity.
func (b *Registry) knownClient(c rdma.ClientID) error {
	if c < 1 || int(c) > b.o.Clients {
		return fmt.Errorf("the pool has clients 1 to %d: %w", b.o.Clients, rdma.ErrAccess)
	}
	return nil
}
