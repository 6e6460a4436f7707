package client_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

type leaving struct {
	rdma.Endpoint
	closed bool
	then   func()
}

func (e *leaving) Close() error {
	e.closed = true
	if e.then != nil {
		e.then()
	}
	return nil
}

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

// far is a fabric whose board is out of reach for so many calls.
type far struct{ calls int }

func (f *far) Revoke(rdma.ClientID) error {
	if f.calls--; f.calls >= 0 {
		return fmt.Errorf("revoke: %w", rdma.ErrUnreachable)
	}
	return nil
}

func (e *leaving) Client() rdma.ClientID { return 7 }

// An identity that could not be fenced off is not given back: nobody would recover it. It is fenced off when that works.
func TestDoor(t *testing.T) {
	defer goleak.VerifyNone(t)
	var d client.Door
	ep, board, closed := &leaving{}, &far{2}, make(chan struct{})
	ep.then = func() { close(closed) }
	if err := d.Leave(closer{rdma.ErrTimeout}, ep, board); !errors.Is(err, rdma.ErrTimeout) || !errors.Is(err, rdma.ErrUnreachable) {
		t.Errorf("answer %v", err)
	}
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("it was not fenced off when the board was back")
	}
	if board.calls >= 0 {
		t.Error("it was closed before it was fenced off")
	}
	never := &leaving{}
	if err := d.Leave(closer{rdma.ErrTimeout}, never, &far{1 << 30}); !errors.Is(err, rdma.ErrUnreachable) {
		t.Errorf("answer %v", err)
	}
	if err := d.Close(); !errors.Is(err, rdma.ErrUnreachable) || never.closed {
		t.Errorf("closed: %v, endpoint closed: %v", err, never.closed)
	}
}
