package rtx

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// TestLateChunk: a client that has no answer to its question for a chunk cannot
// close, since the chunk may be its own yet. A recovery, which fences the client
// off first, finds the chunk.
func TestLateChunk(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 1, Objects: 100})
	ep, err := f.Open("gives up")
	must(t, err)
	w := open(t, hasty{ep}, l, Options{})
	_, err = create(w, "new")
	wantError(t, err, rdma.ErrTimeout)
	wantError(t, w.Close(), client.ErrUncertain)
	other := worker(t, f, l, Options{})
	must(t, f.Revoke(w.id))
	must(t, other.Recover(w.id))
	u, err := other.Check(func(c rdma.ClientID) bool { return c == other.id })
	if err != nil || u.Handed != 1 || u.Owned != 0 {
		t.Errorf("got %+v, %v, want one chunk of no client", u, err)
	}
}

// hasty is an endpoint that gives up calls which are served.
type hasty struct{ rdma.Endpoint }

func (e hasty) Call(node int, r *rdma.Request, within time.Duration) error {
	if err := e.Endpoint.Call(node, r, within); err != nil {
		return err
	}
	return rdma.ErrTimeout
}

// TestLostChunk: a connection breaks, and with it the answer to a client's question for a chunk.
// The client closes, and gives back that chunk, too: its node has answered since.
func TestLostChunk(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 1, Objects: 100})
	ep, err := f.Open("loses an answer")
	must(t, err)
	w := open(t, &unlucky{Endpoint: ep}, l, Options{})
	_, err = create(w, "new")
	must(t, errors.Join(err, w.Close()))
	other := worker(t, f, l, Options{})
	u, err := other.Check(func(c rdma.ClientID) bool { return c == other.id })
	if err != nil || u.Handed != 3 || u.Owned != 0 {
		t.Errorf("got %+v, %v, want three chunks of no client", u, err)
	}
}

// unlucky is an endpoint that loses the answer to its first call.
type unlucky struct {
	rdma.Endpoint
	lost bool
}

func (e *unlucky) Call(node int, r *rdma.Request, within time.Duration) error {
	err := e.Endpoint.Call(node, r, within)
	if err == nil && !e.lost {
		e.lost = true
		return rdma.ErrNodeDown
	}
	return err
}
