package client

import (
	"errors"

	"github.com/farkv/farkv/node/rdma"
)

// Leave closes a worker's store and then its endpoint, which gives the identity back. When the store cannot be closed it
// still owns memory under that identity, so the endpoint is left open, unless it is of no use any more: nobody may be
// given the identity, and when the process ends it is a dead client's.
func Leave(s Store, ep rdma.Endpoint) error {
	err := s.Close()
	if err != nil && !errors.Is(err, rdma.ErrAccess) && !errors.Is(err, rdma.ErrClosed) {
		return err
	}
	return errors.Join(err, ep.Close())
}
