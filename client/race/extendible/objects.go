package extendible

import (
	"errors"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// objects is a directory with entries that are objects of rTX. A look at an entry
// READs lock and pointer. The descriptor that the pointer names never changes.
type objects struct {
	s *Store
	w *rtx.Worker
}

// openObjects opens the worker's part of rTX, which recovers what an earlier
// holder of its identity has left.
func openObjects(s *Store, o Options) (shared, error) {
	w, err := rtx.Open(s.ep, s.objects, rtx.Options{Drift: s.Lease, Timeout: o.Timeout})
	if err != nil {
		return nil, err
	}
	return &objects{s, w}, nil
}

// descriptorBytes is the size of a descriptor: local depth, and where the
// subtable lies.
const descriptorBytes = 16

// encode returns the descriptor of a subtable.
func (s subtable) encode() []byte {
	return le.AppendUint64(le.AppendUint64(nil, uint64(s.depth)), s.place)
}

// root returns the object that is the entry of a suffix.
func (o *objects) root(suffix uint64) rtx.Ref { return o.s.objects.Root(int(suffix)) }

// await waits for a lock. It repairs what a client has left when the lease of
// that client is over.
func (o *objects) await(suffix uint64) error { return o.w.Await(o.root(suffix)) }

// create makes the descriptor of the subtable of all keys.
func (o *objects) create(place uint64) error {
	return o.w.Run(func(tx *rtx.Tx) error { return tx.Write(o.root(0), subtable{place: place}.encode()) })
}

// split is one transaction: it locks the subtable, makes memory that no entry
// names hold what moves, and changes two descriptors. It relies on the lock for
// the copy only: a slot that changes meanwhile, and was not copied, is changed
// again by its client, which looks. If the transaction is run again the memory is
// written again. A crash before the commit leaves memory that is claimed again,
// and behind the commit a transaction that other clients finish.
//
// split returns false if the subtable was split already.
func (o *objects) split(r *rehash) (done bool, err error) {
	from := r.from
	err = o.w.Run(func(tx *rtx.Tx) error {
		done = false
		// The lease grows with the subtable, so that a rehash which goes on is
		// not suspected before its first Renew.
		tx.Takes(time.Duration(o.s.subtableBytes()) * byteTime)
		// A rehash that takes longer than its lease renews it between its
		// batches.
		r.renew = tx.Renew
		root := o.root(from.suffix)
		// From here on no other client splits the subtable. Operations on keys
		// that move wait for the lock.
		if err := tx.Lock(root); err != nil {
			return err
		}
		data, err := tx.Read(root)
		// The subtable was split since the client has read the entry.
		if err != nil || int(le.Uint64(data)) != from.depth {
			return err
		}
		// The memory that is written here is named by no entry yet, so a copy
		// that is given up does no harm.
		if err := r.copy(); err != nil {
			return err
		}
		done = true
		// Both descriptors change in one transaction, so no search finds a
		// subtable without its keys.
		if err := tx.Write(root, subtable{depth: from.depth + 1, place: from.place}.encode()); err != nil {
			return err
		}
		return tx.Write(o.root(from.child()), subtable{depth: from.depth + 1, place: r.to}.encode())
	})
	return done && err == nil, err
}

// settle has nothing to do: the next transaction settles what an earlier one has
// left.
func (o *objects) settle() error                 { return nil }
func (o *objects) recover(c rdma.ClientID) error { return o.w.Recover(c) }
func (o *objects) close() error                  { return o.w.Close() }

func (o *objects) counts(to []telemetry.Counter) []telemetry.Counter { return o.w.Counts(to) }

// check checks rTX's part. Locks of transactions that are over are released by
// the next client that meets them, so they are no damage.
func (o *objects) check(c *checker) error {
	known := func(id rdma.ClientID) bool { _, ok := c.alive[id]; return ok }
	u, err := o.w.Check(known)
	if errors.Is(err, client.ErrDamaged) {
		c.Damaged("%v", err)
		err = nil
	}
	if u.Lost > 0 {
		c.Damaged("%d chunks of descriptors are of clients that there are not", u.Lost)
	}
	c.locks, c.halfway = uint64(u.Held), u.Unfinished
	return err
}
