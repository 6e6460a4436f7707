package client

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Look opens an endpoint to inspect a pool, without an identity if the fabric allows that. It reads
// the pool's layout, and in which view. The caller closes the endpoint. An error says what the
// inspection was for; no endpoint is open then. An endpoint without an identity takes no place of a
// client, so a pool that is full can be inspected.
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
