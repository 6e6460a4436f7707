package extendible

import (
	"errors"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// objects is a directory whose entries are objects of rTX.
type objects struct {
	s *Store
	w *rtx.Worker
}

func openObjects(s *Store, o Options) (shared, error) {
	w, err := rtx.Open(s.ep, s.objects, rtx.Options{Drift: s.Lease, Timeout: o.Timeout})
	if err != nil {
		return nil, err
	}
	return &objects{s, w}, nil
}

// descriptorBytes is the size of a descriptor: local depth, and where the subtable lies.
const descriptorBytes = 16

func (s subtable) encode() []byte {
	return le.AppendUint64(le.AppendUint64(nil, uint64(s.depth)), s.place)
}

func (o *objects) root(suffix uint64) rtx.Ref { return o.s.objects.Root(int(suffix)) }

// await repairs what a client has left whose lease is over.
func (o *objects) await(suffix uint64) error { return o.w.Await(o.root(suffix)) }

func (o *objects) create(place uint64) error {
	return o.w.Run(func(tx *rtx.Tx) error { return tx.Write(o.root(0), subtable{place: place}.encode()) })
}

// split is one transaction: the subtable is locked, memory that no entry names is made to hold what
// moves, and two descriptors are changed.
func (o *objects) split(r *rehash) (done bool, err error) {
	from := r.from
	err = o.w.Run(func(tx *rtx.Tx) error {
		done = false
		tx.Takes(time.Duration(o.s.subtableBytes()) * byteTime)
		r.renew = tx.Renew
		root := o.root(from.suffix)
		if err := tx.Lock(root); err != nil {
			return err
		}
		data, err := tx.Read(root)
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

func (o *objects) settle() error                 { return nil } // the next transaction does
func (o *objects) recover(c rdma.ClientID) error { return o.w.Recover(c) }
func (o *objects) close() error                  { return o.w.Close() }

func (o *objects) counts(to []telemetry.Counter) []telemetry.Counter { return o.w.Counts(to) }

// check checks rTX's part. Locks whose transactions are over are released by the next client that
// meets them.
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
