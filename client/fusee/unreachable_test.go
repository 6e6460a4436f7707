package fusee

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// beforeCAS runs a function before its worker's n-th batch with a CAS, and fails the batch with
// what that returns.
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

// TestBlip: a node does not answer one client for a moment, in the midst of each round of that
// client's writes. No client or node is dead and no master comes. The client ends its round
// itself, and blocks no other client.
func TestBlip(t *testing.T) {
	for _, replicas := range []int{1, 2, 3} {
		for n := 1; n <= 3; n++ {
			p := small(3, replicas, 2)
			p.Timeout = 20 * time.Millisecond
			f := simPool(t, 3, p)
			h := &beforeCAS{Endpoint: open2(t, f), then: func(b *rdma.Batch) error {
				return &rdma.OpError{Verb: rdma.CompareSwap, Addr: b.Op(0).Addr, Len: 8, Err: rdma.ErrNodeDown}
			}}
			c, err := Open(h, thrifty(Options{}))
			must(t, err)
			other, err := Open(open2(t, f), thrifty(Options{}))
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

// TestLongBlip: a node stays out of one client's reach until the operation has run out of time,
// in the midst of each round of that client's writes. When the node answers again the client ends
// that round before it writes anything else, and can leave.
func TestLongBlip(t *testing.T) {
	for _, replicas := range []int{1, 2, 3} {
		for n := 1; n <= 3; n++ {
			p := small(3, replicas, 2)
			p.Timeout = 20 * time.Millisecond
			f := simPool(t, 3, p)
			h := &away{Endpoint: open2(t, f)}
			c, err := Open(h, thrifty(Options{}))
			must(t, err)
			other, err := Open(open2(t, f), thrifty(Options{}))
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

// TestReplacedMeanwhile: a client completes a write of unknown outcome when its nodes answer again,
// and another client replaces that before the first one leaves. What the write had replaced is
// freed all the same, by no other client.
func TestReplacedMeanwhile(t *testing.T) {
	ops := []func(c *Client) error{
		func(c *Client) error { return c.Update(k, []byte("2")) },
		func(c *Client) error { return c.Delete(k) },
	}
	for _, replicas := range []int{2, 3} {
		for _, nodeCentric := range []bool{false, true} {
			for n := 1; n <= 2; n++ {
				for _, lands := range []bool{false, true} {
					for i, op := range ops {
						p := small(3, replicas, 2)
						p.NodeCentric, p.Timeout = nodeCentric, 20*time.Millisecond
						if err := replacedMeanwhile(t, p, away{n: n, lands: lands}, op); err != nil {
							t.Errorf("operation %d, CAS %d, which lands: %v, %+v: %v", i, n, lands, p, err)
						}
					}
				}
			}
		}
	}
}

func replacedMeanwhile(t *testing.T, p layout.Params, h away, op func(c *Client) error) error {
	f := simPool(t, 3, p)
	cas := h.n
	h.n, h.Endpoint = 0, open2(t, f)
	c, err := Open(&h, Options{})
	must(t, err)
	other, err := Open(open2(t, f), thrifty(Options{}))
	must(t, err)
	must(t, c.Insert(k, []byte("1")))
	h.n = cas
	if err := op(c); !errors.Is(err, client.ErrUncertain) {
		return fmt.Errorf("got %v, want a write of unknown outcome", err)
	}
	h.gone = false
	must(t, c.Insert([]byte("another"), nil))
	if err := other.Insert(k, []byte("3")); errors.Is(err, client.ErrExists) {
		must(t, other.Update(k, []byte("3")))
	} else {
		must(t, err)
	}
	must(t, c.Close())
	must(t, other.Close())
	r, err := Check(f)
	if len(r.Damage)+len(r.Waiting) > 0 {
		err = fmt.Errorf("%v %v", r.Damage, r.Waiting)
	}
	return err
}

// away fails its worker's n-th batch with a CAS and all later ones, as long as gone is not taken
// back. That one lands when lands is set.
type away struct {
	rdma.Endpoint
	n           int
	lands, gone bool
}

func (h *away) Post(b *rdma.Batch) error {
	for i := range b.Len() {
		if h.n > 0 && b.Op(i).Verb == rdma.CompareSwap {
			if h.n--; h.n == 0 {
				h.gone = true
				if h.lands {
					_ = rdma.Do(h.Endpoint, b, time.Second)
				}
			}
			break
		}
	}
	if h.gone {
		return &rdma.OpError{Verb: rdma.CompareSwap, Addr: b.Op(0).Addr, Len: 8, Err: rdma.ErrUnreachable}
	}
	return h.Endpoint.Post(b)
}

// TestLongBusy: a master takes longer to mend the pool than the operation that it cut off may
// last. The outcome of that is unknown then; afterwards it is known, and the client can leave.
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
		c, err := Open(h, thrifty(Options{}))
		must(t, err)
		must(t, c.Insert(k, []byte("1")))
		h.n = 2
		if err := op(c); !errors.Is(err, client.ErrUncertain) {
			t.Fatalf("got %v, want a write of unknown outcome", err)
		}
		_, err = cluster.Once(open2(t, f), f, recoverer, cluster.Options{Lease: time.Millisecond})
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
