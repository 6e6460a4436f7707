package extendible

import (
	"errors"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node/rdma"
)

// objects is a directory with entries that are objects of rTX. A look at an entry
// READs lock and pointer. The descriptor that the pointer names never changes.
type objects struct {
	entries[rtx.Ref, *rtx.Tx]
	w *rtx.Worker
}

// openObjects opens the worker's part of rTX, which recovers what an earlier
// holder of its identity has left.
func openObjects(s *Store, o Options) (shared, error) {
	w, err := rtx.Open(s.ep, s.objects, rtx.Options{Drift: s.Lease, Timeout: o.Timeout})
	if err != nil {
		return nil, err
	}
	// The lease grows with the subtable, so that a rehash which goes on is not
	// suspected before its first Renew.
	begin := func(tx *rtx.Tx, r *rehash) {
		tx.Takes(time.Duration(s.subtableBytes()) * byteTime)
		r.renew = tx.Renew
	}
	return &objects{entries[rtx.Ref, *rtx.Tx]{w, s.objects.Root, begin}, w}, nil
}

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
