package client_test

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

type endpoint struct {
	rdma.Endpoint
	closed bool
}

func (e *endpoint) Close() error { e.closed = true; return nil }

// TestLeave: an identity whose store still owns memory is not given back.
func TestLeave(t *testing.T) {
	for _, x := range []struct {
		err    error
		closed bool
	}{{nil, true}, {rdma.ErrTimeout, false}, {rdma.ErrRevoked, true}, {rdma.ErrClosed, true}} {
		ep := &endpoint{}
		if err := client.Leave(store{x.err}, ep); !errors.Is(err, x.err) || ep.closed != x.closed {
			t.Errorf("store: %v; answer %v, endpoint closed: %v", x.err, err, ep.closed)
		}
	}
}

type store struct{ err error }

func (store) Get([]byte) ([]byte, error)  { return nil, nil }
func (store) Insert([]byte, []byte) error { return nil }
func (store) Update([]byte, []byte) error { return nil }
func (store) Delete([]byte) error         { return nil }
func (s store) Close() error              { return s.err }
