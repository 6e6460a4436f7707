package rdmatest

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// strangeRings opens rings and posts buffers that may not be.
func strangeRings(r *ringed, ep rdma.Endpoint, ring rdma.Ring) {
	t := r.t
	if _, err := rdma.OpenRing(ep, rdma.RingOptions{Number: testRing.Number()}); !errors.Is(err, rdma.ErrExists) {
		t.Errorf("open a ring twice: %v", err)
	}
	for _, o := range []rdma.RingOptions{
		{Node: -1, Number: 9}, {Node: 2, Number: 9}, {Number: 0}, {Number: rdma.MaxRing + 1}, {Number: 9, Buffers: -1},
		{Number: 9, Buffers: rdma.MaxRingBuffers + 1},
	} {
		if _, err := rdma.OpenRing(ep, o); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("a ring of %+v: %v", o, err)
		}
	}
	for _, b := range []rdma.Span{
		{Addr: rdma.At(0, ringBase+8), Len: r.mtu}, {Addr: rdma.At(0, ringBase), Len: r.mtu - 1},
		{Addr: rdma.At(1, ringBase), Len: r.mtu}, {Addr: rdma.At(0, 1<<40), Len: r.mtu},
		{Addr: rdma.At(0, r.f.Size()), Len: 1 << 30}, {Addr: rdma.At(0, ringBase), Len: -64},
	} {
		if err := ring.Post(b); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("post %+v: %v", b, err)
		}
	}
}

// testRingRefusals opens rings and posts buffers that may not be, and appends to where no ring is,
// or what is too long.
func testRingRefusals(t testing.TB, h Harness) {
	var closed atomic.Bool
	receiver := func(r *ringed, ep rdma.Endpoint, ring rdma.Ring) {
		strangeRings(r, ep, ring)
		r.post(ring, rdma.MaxMessage, 0, 6) // two for each stream, and two
		for until := ep.Now() + patience; !closed.Load() && !r.over() && ep.Now() < until; {
			ep.Sleep(20 * time.Microsecond)
		}
		if err := ring.Close(); err != nil {
			t.Error(err)
		}
		if err := ring.Post(rdma.Span{Addr: rdma.At(0, ringBase), Len: r.mtu}); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("post a buffer to a ring that is closed: %v", err)
		}
		again, err := rdma.OpenRing(ep, rdma.RingOptions{Number: testRing.Number() + 1})
		if err != nil {
			t.Errorf("open another ring: %v", err)
			return
		}
		closed.Store(false)
		r.await(ep, r.over)
		again.Close()
	}
	appending(t, h, receiver, func(r *ringed, ep rdma.Endpoint) {
		try := func(to rdma.RingAddr, n int) error {
			b := ep.Batch()
			defer b.Release()
			b.Append(to, b.Alloc(n))
			b.FetchAdd(rdma.At(1, 64), 1)
			err := rdma.Do(ep, b, patience)
			if b.Op(1).Err != nil {
				t.Errorf("a verb behind an append to %s that ended in %v: %v", to, err, b.Op(1).Err)
			}
			return b.Op(0).Err
		}
		for until := ep.Now() + patience; ep.Now() < until; ep.Sleep(20 * time.Microsecond) {
			if err := try(testRing, 64); !errors.Is(err, rdma.ErrNoRing) && !errors.Is(err, rdma.ErrRingDry) {
				if err != nil {
					t.Error(err)
				}
				break
			}
		}
		for _, n := range []int{0, rdma.MaxMessage + 1, rdma.MaxMessage, 1} {
			err := try(testRing, n)
			if fits := n > 0 && n <= rdma.MaxMessage; fits != (err == nil) ||
				!fits && !errors.Is(err, rdma.ErrMessageSize) {
				t.Errorf("append %d bytes: %v", n, err)
			}
		}
		if err := try(rdma.RingAt(1, testRing.Number()), 64); !errors.Is(err, rdma.ErrNoRing) {
			t.Errorf("append where no ring is: %v", err)
		}
		closed.Store(true)
		for until := ep.Now() + patience; closed.Load() && ep.Now() < until; {
			ep.Sleep(20 * time.Microsecond)
		}
		if err := try(testRing, 64); !errors.Is(err, rdma.ErrNoRing) {
			t.Errorf("append to a ring that was closed: %v", err)
		}
		b := ep.Batch()
		b.Append(rdma.RingAt(2, 1), b.Alloc(64))
		if err := rdma.Do(ep, b, patience); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("append to a node that the pool does not have: %v", err)
		}
		b.Release()
	})
}

// testFencedAppends fences senders off, as testFencedMessages does.
func testFencedAppends(t testing.TB, h Harness) {
	var found []string
	receiver := func(r *ringed, ep rdma.Endpoint, ring rdma.Ring) {
		r.post(ring, 8*rdma.Stride+r.mtu, 0, 1)
		r.await(ep, r.over)
		ep.Join()
		p, err := read(ep, rdma.At(0, ringBase), 8*rdma.Stride)
		if err != nil {
			t.Error(err)
		}
		for ; len(p) > 0 && p[0] != 0; p = p[rdma.Stride:] {
			text, _, _ := bytes.Cut(p[:rdma.Stride], []byte{0})
			found = append(found, string(text))
		}
	}
	ran := appending(t, h, receiver, func(r *ringed, ep rdma.Endpoint) {
		say := func(text string, want error) {
			err := appendOne(ep, append([]byte(text), 0))
			for errors.Is(err, rdma.ErrRingDry) && want == nil {
				err = appendOne(ep, append([]byte(text), 0))
			}
			if want == nil && err != nil || want != nil && !errors.Is(err, want) {
				t.Errorf("append %q: %v, want %v", text, err, want)
			}
		}
		say("first", nil)
		ok, err := r.f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true})
		if err := errors.Join(err, r.f.Fence(1)); err != nil || !ok {
			t.Errorf("begin an epoch: %v, %v", ok, err)
			return
		}
		say("stale", rdma.ErrStale)
		if _, err := ep.Join(); err != nil {
			t.Error(err)
		}
		say("joined", nil)
		if err := r.f.Revoke(ep.Client()); err != nil {
			t.Error(err)
		}
		say("revoked", rdma.ErrRevoked)
	})
	if want := []string{"first", "joined"}; ran && !slices.Equal(found, want) {
		t.Errorf("in the ring are %q, want %q", found, want)
	}
}

// testFencedRing fences a receiver off: nothing lands in its ring any more, and another worker
// takes over.
func testFencedRing(t testing.TB, h Harness) {
	var client, fenced atomic.Int32
	receiver := func(r *ringed, ep rdma.Endpoint, ring rdma.Ring) {
		r.post(ring, 8*r.mtu, 0, 1)
		client.Store(int32(ep.Client()))
		r.await(ep, func() bool { return fenced.Load() > 0 })
		if _, err := rdma.OpenRing(ep, rdma.RingOptions{Number: 9}); !errors.Is(err, rdma.ErrRevoked) {
			t.Errorf("a worker that was fenced off opens a ring: %v", err)
		}
		if err := ring.Post(rdma.Span{Addr: rdma.At(0, ringBase), Len: r.mtu}); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("post a buffer to the ring of a worker that was fenced off: %v", err)
		}
	}
	appending(t, h, receiver, func(r *ringed, ep rdma.Endpoint) {
		for until := ep.Now() + patience; client.Load() == 0 && ep.Now() < until; {
			ep.Sleep(20 * time.Microsecond)
		}
		if err := appendOne(ep, []byte("an entry")); err != nil {
			t.Error(err)
		}
		if err := r.f.Revoke(rdma.ClientID(client.Load())); err != nil {
			t.Error(err)
		}
		fenced.Store(1)
		b := ep.Batch()
		b.Append(testRing, b.Alloc(64))
		if err := rdma.Do(ep, b, patience); !errors.Is(err, rdma.ErrNoRing) {
			t.Errorf("append to the ring of a worker that was fenced off: %v", err)
		}
		b.Release()
		ring, err := rdma.OpenRing(ep, rdma.RingOptions{Node: 0, Number: testRing.Number()})
		if err != nil {
			t.Errorf("open the ring of a worker that was fenced off: %v", err)
			return
		}
		r.post(ring, 8*r.mtu, 0, 1)
		if err := errors.Join(appendOne(ep, []byte("another")), ring.Close()); err != nil {
			t.Error(err)
		}
	})
}

// testDeadRing kills the node that entries land on.
func testDeadRing(t testing.TB, h Harness) {
	if h.KillNode == nil {
		t.Skip("nodes of this fabric cannot die")
	}
	receiver := func(r *ringed, ep rdma.Endpoint, ring rdma.Ring) {
		r.post(ring, 8*r.mtu, 0, 1)
		r.await(ep, r.over)
	}
	appending(t, h, receiver, func(r *ringed, ep rdma.Endpoint) {
		err := appendOne(ep, []byte("an entry"))
		for errors.Is(err, rdma.ErrRingDry) {
			err = appendOne(ep, []byte("an entry"))
		}
		if err != nil {
			t.Error(err)
		}
		h.KillNode(t, r.f, 0)
		if err := appendOne(ep, []byte("another")); !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("append on a dead node: %v", err)
		}
		if _, err := fetchAdd(ep, rdma.At(1, 64), 1); err != nil {
			t.Errorf("a verb to a node that lives: %v", err)
		}
	})
}
