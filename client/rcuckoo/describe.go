package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// Describe returns a function that says what lies at an address of the pool that ep reaches, for
// traces. It knows the leaders of the view in which the layout was read. For an address that
// belongs to nothing it returns "".
func Describe(ep rdma.Endpoint) (func(a rdma.Addr) string, error) {
	l, _, err := table.Read(ep)
	if err != nil {
		return nil, fmt.Errorf("describe an %s pool: %w", table.Format, err)
	}
	return l.Describe, nil
}
