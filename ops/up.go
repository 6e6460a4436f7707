package ops

import (
	"fmt"
	"io"
	"strings"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads"
)

// Made is a new pool.
type Made struct{ *State }

// Up makes a pool that stays until Down.
func Up(addr, store string, p stores.Params) (made *Made, err error) {
	if strings.HasPrefix(addr, "mem:") {
		return nil, workloads.Misuse("up %s: a mem: pool would end with this command; use a name, such as shm:farkv", addr)
	}
	pool, err := stores.Create(addr, store, p)
	if err != nil {
		return nil, explain(err, addr)
	}
	defer pool.Close()
	s, err := stateOf(pool)
	if err != nil {
		return nil, err
	}
	return &Made{s}, nil
}

// Print implements Result.
func (m *Made) Print(w io.Writer) {
	fmt.Fprintf(w, "made %s\n\n", m.Pool)
	m.State.Print(w)
}
