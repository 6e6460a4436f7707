package client_test

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

type leaving struct {
	rdma.Endpoint
	closed bool
}

func (e *leaving) Close() error { e.closed = true; return nil }

// TestLeave: an identity whose store still owns memory is not given back.
func TestLeave(t *testing.T) {
	for _, x := range []struct {
		err    error
		closed bool
	}{{nil, true}, {rdma.ErrTimeout, false}, {rdma.ErrRevoked, true}, {rdma.ErrClosed, true}} {
		ep := &leaving{}
		if err := client.Leave(closer{x.err}, ep, nil); !errors.Is(err, x.err) || ep.closed != x.closed {
			t.Errorf("store: %v; answer %v, endpoint closed: %v", x.err, err, ep.closed)
		}
	}
}

type closer struct{ err error }

func (closer) Get([]byte) ([]byte, error)  { return nil, nil }
func (closer) Insert([]byte, []byte) error { return nil }
func (closer) Update([]byte, []byte) error { return nil }
func (closer) Delete([]byte) error         { return nil }
func (s closer) Close() error              { return s.err }
