package fusee

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// beforeCAS runs a function before its worker's n-th batch with a CAS, and fails the batch with what that returns.
type beforeCAS struct {
	rdma.Endpoint
	n    int
	then func(b *rdma.Batch) error
}

func (h *beforeCAS) Post(b *rdma.Batch) error {
	for i := range b.Len() {
		if h.n > 0 && b.Op(i).Verb == rdma.CompareSwap {
			if h.n--; h.n == 0 {
				if err := h.then(b); err != nil {
					return err
				}
			}
			break
		}
	}
	return h.Endpoint.Post(b)
}

// TestBlip: a node does not answer one client for a moment, in the midst of each of its writes' rounds. Nobody is dead and no
// master comes: the client ends its round itself, and holds up nobody.
func TestBlip(t *testing.T) {
	for _, replicas := range []int{1, 2, 3} {
		for n := 1; n <= 3; n++ {
			p := small(3, replicas, 2)
			p.Timeout = 20 * time.Millisecond
			f := simPool(t, 3, p)
			h := &beforeCAS{Endpoint: open2(t, f), then: func(b *rdma.Batch) error {
				return &rdma.OpError{Verb: rdma.CompareSwap, Addr: b.Op(0).Addr, Len: 8, Err: rdma.ErrNodeDown}
			}}
			c, err := Open(h, Options{})
			must(t, err)
			other, err := Open(open2(t, f), Options{})
			must(t, err)
			for _, op := range []func(c *Client) error{
				func(c *Client) error { return c.Insert(k, []byte("1")) },
				func(c *Client) error { return c.Update(k, []byte("2")) },
				func(c *Client) error { return c.Delete(k) },
			} {
				h.n = n
				must(t, op(c))
				h.n = 0
				if err := other.Update(k, []byte("3")); err != nil && !errors.Is(err, client.ErrNotFound) {
					t.Errorf("%d replicas, CAS %d: %v", replicas, n, err)
				}
			}
			must(t, c.Close())
			must(t, other.Close())
			r, err := Check(f)
			if err != nil || len(r.Damage)+len(r.Waiting) > 0 {
				t.Error(r.Damage, r.Waiting, err)
			}
		}
	}
}

// TestLongBlip: a node stays out of one client's reach until its operation has run out of time, in the midst of each of its
// writes' rounds. When it answers again the client ends that round before it writes anything else, and can leave.
func TestLongBlip(t *testing.T) {
	for _, replicas := range []int{1, 2, 3} {
		for n := 1; n <= 3; n++ {
			p := small(3, replicas, 2)
			p.Timeout = 20 * time.Millisecond
			f := simPool(t, 3, p)
			h := &away{Endpoint: open2(t, f)}
			c, err := Open(h, Options{})
			must(t, err)
			other, err := Open(open2(t, f), Options{})
			must(t, err)
			unknown := 0
			for _, op := range []func(c *Client) error{
				func(c *Client) error { return c.Insert(k, []byte("1")) },
				func(c *Client) error { return c.Update(k, []byte("2")) },
				func(c *Client) error { return c.Delete(k) },
				func(c *Client) error { return c.Insert(k, []byte("4")) },
			} {
				h.n = n
				if err := op(c); errors.Is(err, client.ErrUncertain) {
					unknown++
				} else if err != nil && !errors.Is(err, client.ErrNotFound) && !errors.Is(err, client.ErrExists) {
					t.Errorf("%d replicas, CAS %d: %v", replicas, n, err)
				}
				h.n, h.gone = 0, false
				if err := c.Insert([]byte("another"), nil); err != nil && !errors.Is(err, client.ErrExists) {
					t.Error(err)
				}
				if err := other.Update(k, []byte("3")); err != nil && !errors.Is(err, client.ErrNotFound) {
					t.Errorf("%d replicas, CAS %d: the next writer: %v", replicas, n, err)
				}
			}
			if n <= replicas && unknown == 0 {
				t.Errorf("%d replicas, CAS %d: no outcome was unknown", replicas, n)
			}
			must(t, c.Close())
			must(t, other.Close())
			r, err := Check(f)
			if err != nil || len(r.Damage)+len(r.Waiting) > 0 {
				t.Errorf("%d replicas, CAS %d: %v %v %v", replicas, n, r.Damage, r.Waiting, err)
			}
		}
	}
}

// away fails its worker's n-th batch with a CAS and all later ones, as long as gone is not taken back.
type away struct {
	rdma.Endpoint
	n    int
	gone bool
}

func (h *away) Post(b *rdma.Batch) error {
	for i := range b.Len() {
		if h.n > 0 && b.Op(i).Verb == rdma.CompareSwap {
			h.n--
			h.gone = h.n == 0
			break
		}
	}
	if h.gone {
		return &rdma.OpError{Verb: rdma.CompareSwap, Addr: b.Op(0).Addr, Len: 8, Err: rdma.ErrUnreachable}
	}
	return h.Endpoint.Post(b)
}

// TestLongBusy: a master takes longer to mend the pool than the operation may last that it cut off. Its outcome is unknown then;
// afterwards it is known, and the client can leave.
func TestLongBusy(t *testing.T) {
	p := small(3, 2, 2)
	p.Timeout = 20 * time.Millisecond
	f := simPool(t, 3, p)
	h := &beforeCAS{Endpoint: open2(t, f), then: func(*rdma.Batch) error {
		_, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true})
		return errors.Join(err, f.Fence(1))
	}}
	for _, op := range []func(c *Client) error{
		func(c *Client) error { return c.Update(k, []byte("2")) },
		func(c *Client) error { return c.Delete(k) },
	} {
		c, err := Open(h, Options{})
		must(t, err)
		must(t, c.Insert(k, []byte("1")))
		h.n = 2
		if err := op(c); !errors.Is(err, client.ErrUncertain) {
			t.Fatalf("got %v, want a write of unknown outcome", err)
		}
		_, err = cluster.Once(open2(t, f), f, mender, cluster.Options{Lease: time.Millisecond})
		must(t, err)
		if err := c.Insert(k, nil); err != nil && !errors.Is(err, client.ErrExists) {
			t.Fatal(err)
		}
		must(t, c.Delete(k))
		must(t, c.Close())
		h.then = func(*rdma.Batch) error {
			_, err := f.Advance(rdma.State{Epoch: f.View().Epoch}, rdma.State{Epoch: f.View().Epoch + 1, Busy: true})
			return errors.Join(err, f.Fence(f.View().Epoch))
		}
	}
	r, err := Check(f)
	if err != nil || len(r.Damage) > 0 {
		t.Fatal(r.Damage, r.Waiting, err)
	}
}
