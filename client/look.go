package client

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Look opens an endpoint for a look at a pool, which takes no identity where the fabric can do
// without, and reads how the pool is laid out, in which view. The caller closes the endpoint; an
// error says what the look was for, and leaves none open.
func Look[L, V any](f rdma.Fabric, what string, read func(rdma.Endpoint) (L, V, error)) (ep rdma.Endpoint, l L, v V,
	err error) {
	if ep, err = rdma.Peek(f, "status"); err == nil {
		if l, v, err = read(ep); err == nil {
			return ep, l, v, nil
		}
		ep.Close()
	}
	return nil, l, v, fmt.Errorf("%s: %w", what, err)
}
