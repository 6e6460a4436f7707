package extendible

import (
	"errors"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/dtx"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// places is a directory with entries that are objects of DTX. While an entry is
// locked a look does not show its descriptor, so all keys of its subtable wait.
type places struct {
	s *Store
	w *dtx.Worker
}

// openPlaces opens the worker's part of DTX, which recovers what an earlier
// holder of its identity has left.
func openPlaces(s *Store, o Options) (shared, error) {
	w, err := dtx.Open(s.ep, s.places, dtx.Options{Timeout: o.Timeout})
	if err != nil {
		return nil, err
	}
	return &places{s, w}, nil
}

// root returns the object that is the entry of a suffix.
func (o *places) root(suffix uint64) dtx.Ref { return o.s.places.Root(int(suffix)) }

// await waits for a lock. If its holder is dead, that takes until the master has
// recovered it.
func (o *places) await(suffix uint64) error { return o.w.Await(o.root(suffix)) }

// create makes the descriptor of the subtable of all keys.
func (o *places) create(place uint64) error {
	return o.w.Run(func(tx *dtx.Tx) error { return tx.Write(o.root(0), subtable{place: place}.encode()) })
}

// split is one transaction: see objects.split. A client that dies in it leaves
// the lock to the master.
func (o *places) split(r *rehash) (done bool, err error) {
	from := r.from
	err = o.w.Run(func(tx *dtx.Tx) error {
		done = false
		root := o.root(from.suffix)
		// The lock hides the descriptor: from here on all operations on the
		// subtable wait, also those on keys that stay.
		if err := tx.Lock(root); err != nil {
			return err
		}
		data, err := tx.Read(root)
		// Another client has split the subtable since the entry was read.
		if err != nil || int(le.Uint64(data)) != from.depth {
			return err
		}
		if err := r.copy(); err != nil {
			return err
		}
		done = true
		if err := tx.Write(root, subtable{depth: from.depth + 1, place: from.place}.encode()); err != nil {
			return err
		}
		return tx.Write(o.root(from.child()), subtable{depth: from.depth + 1, place: r.to}.encode())
	})
	return done && err == nil, err
}

// settle has nothing to do: the next transaction settles what an earlier one has
// left.
func (o *places) settle() error                 { return nil }
func (o *places) recover(c rdma.ClientID) error { return o.w.Recover(c) }
func (o *places) close() error                  { return o.w.Close() }

func (o *places) counts(to []telemetry.Counter) []telemetry.Counter { return o.w.Counts(to) }

// check checks DTX's part. Dead clients may have left transactions that are not
// over.
func (o *places) check(c *checker) error {
	known := func(id rdma.ClientID) bool { _, ok := c.alive[id]; return ok }
	u, err := o.w.Check(known)
	if errors.Is(err, client.ErrDamaged) {
		c.Damaged("%v", err)
		err = nil
	}
	if u.Waiting > 0 {
		c.Waits("%d locks of transactions that did not end: the master ends those of dead clients", u.Waiting)
	}
	if u.Lost > 0 {
		c.Damaged("%d chunks of objects are of clients that there are not", u.Lost)
	}
	c.locks = uint64(u.Held)
	return err
}
