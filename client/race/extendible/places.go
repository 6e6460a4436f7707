package extendible

import (
	"errors"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/dtx"
	"github.com/farkv/farkv/node/rdma"
)

// places is a directory with entries that are objects of DTX. While an entry is
// locked a look does not show its descriptor, so all keys of its subtable wait.
type places struct {
	entries[dtx.Ref, *dtx.Tx]
	w *dtx.Worker
}

// openPlaces opens the worker's part of DTX, which recovers what an earlier
// holder of its identity has left.
func openPlaces(s *Store, o Options) (shared, error) {
	w, err := dtx.Open(s.ep, s.places, dtx.Options{Timeout: o.Timeout})
	if err != nil {
		return nil, err
	}
	return &places{entries[dtx.Ref, *dtx.Tx]{t: w, root: s.places.Root}, w}, nil
}

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
