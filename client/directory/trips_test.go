package directory

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
)

var errNo = errors.New("no")

// TestTrips asserts the common case.
func TestTrips(t *testing.T) {
	for _, replicas := range []int{1, 3, 5, 7} {
		f, a := pool(t, Shape{Nodes: 7, Replicas: replicas, Buckets: 3, Base: 64}, 100)
		x, y := worker(t, f, a, Options{}), worker(t, f, a, Options{})
		trips := func(what string, c *Client, want uint64, wantErr error, op func() error) {
			t.Helper()
			var err error
			n := trace.Trips(c.ep, func() { err = op() })
			if !errors.Is(err, wantErr) {
				t.Errorf("%s: got %v, want %v", what, err, wantErr)
			}
			if n.Trips != want {
				t.Errorf("%d replicas: %s took %d trips, want %d (%+v)", replicas, what, n.Trips, want, n)
			}
		}
		lookup := func(c *Client, hash uint64, want ...Entry) func() error {
			return func() error {
				got, err := c.Lookup(hash)
				if len(got) != len(want) {
					t.Errorf("got %v, want %v", got, want)
				}
				for i := range got {
					if got[i] != want[i] {
						t.Errorf("got %v, want %v", got, want)
					}
				}
				return err
			}
		}
		const h = 1 << 63
		trips("lookup in an empty bucket", x, 1, nil, lookup(x, h))
		trips("change", x, 3, nil, func() error { return put(x, h, 7) })
		trips("lookup", y, 1, nil, lookup(y, h, Entry{h, 7}))
		trips("change", y, 3, nil, func() error { return put(y, h, 8) })
		trips("change", y, 3, nil, func() error { return put(y, h+1, 9) })
		trips("lookup", x, 1, nil, lookup(x, h, Entry{h, 7}, Entry{h, 8}))
		trips("lookup of another hash in the bucket", x, 1, nil, lookup(x, h+1, Entry{h + 1, 9}))
		trips("change that is refused", x, 1, errNo, func() error {
			return x.Change(h, 1<<40, func([]Entry) ([]Entry, error) { return nil, errNo })
		})
		trips("change beside another batch", x, 3, nil, func() error {
			b := x.ep.Batch()
			defer b.Release()
			b.Read(rdma.At(0, 0), 8)
			must(t, x.ep.Post(b))
			return x.Change(h, 1<<40+1, func(e []Entry) ([]Entry, error) {
				return e[1:], x.ep.Wait(b, rdma.All, time.Second)
			})
		})
		trips("lookup", y, 1, nil, lookup(y, h, Entry{h, 8}))
		for n := range Slots - 2 {
			must(t, put(x, h+2, uint64(n)))
		}
		trips("change of a bucket that is full", x, 1, client.ErrFull, func() error { return put(x, h, 8) })
		if n := x.Stats(); n != (Stats{}) {
			t.Errorf("%d replicas: %+v", replicas, n)
		}
	}
}

// TestNoAllocations: a lookup makes none.
func TestNoAllocations(t *testing.T) {
	f, a := pool(t, Shape{Nodes: 3, Replicas: 3, Buckets: 10}, 1000)
	c := worker(t, f, a, Options{})
	for h := range uint64(20) {
		must(t, put(c, h<<59, h))
	}
	hash := uint64(0)
	for what, op := range map[string]func(){
		"lookup": func() {
			hash += 1 << 59
			got, err := c.Lookup(hash)
			must(t, err)
			if n := int(hash >> 59); n < 20 && len(got) != 1 {
				t.Errorf("got %v for %x", got, hash)
			}
		},
	} {
		if n := testing.AllocsPerRun(100, op); n != 0 {
			t.Errorf("%s makes %v allocations", what, n)
		}
	}
}
