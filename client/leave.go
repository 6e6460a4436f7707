package client

import (
	"errors"

	"github.com/farkv/farkv/node/rdma"
)

// Fencer is the part of a fabric that fences clients off: see rdma.Fabric.
type Fencer interface {
	Revoke(c rdma.ClientID) error
}

// Leave closes a worker's store and then its endpoint, which gives the identity back. A store that cannot be closed still
// owns memory under that identity, and may have left a write half done for which others wait: then the worker is fenced
// off, so that the pool's master recovers it at once, and not when its process ends. That may fail halfway, when nodes do
// not answer; the master makes up for it.
//
// Without a fencer the endpoint of such a worker is left open, and its identity waits for the end of the process.
func Leave(s Store, ep rdma.Endpoint, f Fencer) error {
	err := s.Close()
	if err != nil && !errors.Is(err, rdma.ErrAccess) && !errors.Is(err, rdma.ErrClosed) {
		if f == nil {
			return err
		}
		err = errors.Join(err, f.Revoke(ep.Client()))
	}
	return errors.Join(err, ep.Close())
}
