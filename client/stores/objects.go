package stores

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node/rdma"
)

// Objects are objects of rTX without an index: they measure its locks (rTX 6.4).
type Objects struct{ layout *rtx.Layout }

const (
	objectBytes = 8
	// objectsSpare is how much memory of the node each client has for the objects that it
	// replaces, in addition to what all objects take.
	objectsSpare = 1 << 20
)

// NewObjects returns n objects on one node, for so many clients. writes bounds the objects that a
// transaction changes.
func NewObjects(n, clients, writes int) (*Objects, error) {
	l, err := rtx.NewLayout(rtx.Shape{
		Nodes: 1, Memory: uint64(n)*1024 + uint64(clients)*objectsSpare, Clients: clients, Roots: n,
		Sizes: []int{objectBytes}, Writes: max(writes, 2),
	})
	if err != nil {
		return nil, fmt.Errorf("%d objects: %w", n, err)
	}
	return &Objects{l}, nil
}

// Memory returns the size of the node that the objects need.
func (o *Objects) Memory() uint64 { return o.layout.Memory }

// Make makes the objects in a new pool. It closes the endpoint.
func (o *Objects) Make(f rdma.Fabric, ep rdma.Endpoint) error {
	if err := rtx.Prepare(f, o.layout); err != nil {
		return err
	}
	u, err := o.Open(ep, ObjectOptions{})
	if err != nil {
		return err
	}
	for i := range o.layout.Roots {
		err = errors.Join(err, u.Update([]int{i}))
	}
	return errors.Join(err, u.w.Close(), ep.Close())
}

// ObjectOptions are those of an Updater.
type ObjectOptions struct {
	Drift time.Duration // rtx.Options.Drift
	Flat  bool          // rtx.Options.Flat
}

// Open returns a client of the objects.
func (o *Objects) Open(ep rdma.Endpoint, opt ObjectOptions) (*Updater, error) {
	w, err := rtx.Open(ep, o.layout, rtx.Options{Drift: opt.Drift, Flat: opt.Flat})
	if err != nil {
		return nil, err
	}
	return &Updater{w: w}, nil
}

// Updater changes objects.
type Updater struct {
	w    *rtx.Worker
	data [objectBytes]byte
}

// Update reads and changes objects in one transaction. The reads need no validation of their own:
// the CAS of an object's lock fails if the object has changed since.
func (u *Updater) Update(objects []int) error {
	u.data[0]++
	return u.w.Run(func(tx *rtx.Tx) error {
		for _, i := range objects {
			r := u.w.Root(i)
			if _, err := tx.Read(r); err != nil && !errors.Is(err, rtx.ErrNoObject) {
				return err
			}
			tx.Relax(r) // its lock's CAS says whether it is as it was
			if err := tx.Write(r, u.data[:]); err != nil {
				return err
			}
		}
		return nil
	})
}

// Counts returns how many transactions the client has committed, and how many transactions of other
// clients it has aborted or finished.
func (u *Updater) Counts() (commits, suspected uint64) {
	s := u.w.Stats()
	return s.Commits, s.Aborted + s.Finished
}
