package ibverbs

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

const ringMTU = 4096 // of the device in software

// ringBase is where the tests' buffers begin.
const ringBase = 64 << 10

// receiver is a worker with ring 3 at node 0, and so many buffers of so many bytes.
func receiver(t testing.TB, f *Fabric, n, size int) (*Endpoint, rdma.Ring) {
	t.Helper()
	ep := worker(t, f)
	r, err := rdma.OpenRing(ep, rdma.RingOptions{Number: 3})
	if err == nil {
		err = r.Post(ringBuffers(n, size)...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ep, r
}

func ringBuffers(n, size int) (all []rdma.Span) {
	for i := range n {
		all = append(all, rdma.Span{Addr: rdma.At(0, uint64(ringBase+i*size)), Len: size})
	}
	return all
}

// entries posts an APPEND of so many bytes each: of its number, from 1 up.
func entries(t testing.TB, ep *Endpoint, first byte, sizes ...int) *rdma.Batch {
	t.Helper()
	b := ep.Batch()
	for _, n := range sizes {
		b.Append(rdma.RingAt(0, 3), fillWith(b.Alloc(n), first))
		first++
	}
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func fillWith(p []byte, x byte) []byte {
	for i := range p {
		p[i] = x
	}
	return p
}

// bytesAt returns the first byte of each n-th in the ring's buffers.
func bytesAt(t testing.TB, ep *Endpoint, n, places int) (firsts []byte) {
	t.Helper()
	b := ep.Batch()
	defer b.Release()
	for i := range places {
		b.Read(rdma.At(0, uint64(ringBase+i*n)), n)
	}
	if err := rdma.Do(ep, b, testPatience); err != nil {
		t.Fatal(err)
	}
	for i := range places {
		p := b.Op(i).Buf
		if !bytes.Equal(p[1:], p[:n-1]) {
			t.Errorf("place %d is torn", i)
		}
		firsts = append(firsts, p[0])
	}
	return firsts
}

// TestStreams fills buffers of two streams, of which one then stands still: those of the other are
// settled.
func TestStreams(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	ep, ring := receiver(t, p.Fabric, 8, 2*ringMTU)
	from := worker(t, p.Fabric)
	promises, err := rdma.Rings(from)
	if err != nil || promises != (rdma.RingPromises{MTU: ringMTU, Counts: true, Streams: 6}) {
		t.Fatalf("the device promises %+v: %v", promises, err)
	}
	ends(t, from, entries(t, from, 1, 64), nil)
	for i := range 7 {
		ends(t, from, entries(t, from, byte(2+i), 1025+i*500), nil)
	}
	c, err := ring.Count()
	if err != nil || c.Begun != 7 || c.Settled != 0 {
		t.Errorf("of 8 buffers, of which the first is in use: %+v, %v", c, err)
	}
	// 0 and 1 are those of the short entry's stream, the second one ahead; the others filled 2 to 4
	// and half of 5.
	var settled []int
	for i := range 9 {
		if c.IsSettled(uint64(i)) {
			settled = append(settled, i)
		}
	}
	if !slices.Equal(settled, []int{2, 3, 4}) {
		t.Errorf("buffers %v are settled: %+v", settled, c)
	}
	for i := range 7 {
		b := ep.Batch()
		b.Read(rdma.At(0, uint64(ringBase+2*2*ringMTU+i*ringMTU)), 1025+i*500)
		if err := rdma.Do(ep, b, testPatience); err != nil ||
			!bytes.Equal(b.Op(0).Buf, fillWith(make([]byte, 1025+i*500), byte(2+i))) {
			t.Errorf("entry %d is not in its place: %v", i, err)
		}
		b.Release()
	}
}

// TestLongerPackets: a sender of which the port takes longer packets than the node's does not
// connect, as its blocks would not fit the ring's places, and the ring takes no buffers for it.
func TestLongerPackets(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1, nodeMTU: 3})
	_, ring := receiver(t, p.Fabric, 8, 2*ringMTU)
	from := worker(t, p.Fabric)
	for _, n := range []int{64, 3000} {
		ends(t, from, entries(t, from, 1, n), rdma.ErrNotSupported)
	}
	if c, err := ring.Count(); err != nil || c.Begun != 0 {
		t.Errorf("a ring without senders: %+v, %v", c, err)
	}
}

// TestFailedJoins: what the node made for a sender that fails to connect goes with the sender.
func TestFailedJoins(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	receiver(t, p.Fabric, 8, 2*ringMTU)
	p.net.lame.Store(true)
	before := p.net.open.Load()
	from, err := p.Fabric.Open("sender")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ends(t, from, entries(t, from.(*Endpoint), 1, 64), unix.EINVAL)
	}
	if err := from.Close(); err != nil {
		t.Fatal(err)
	}
	if n := p.net.open.Load() - before; n != 0 {
		t.Errorf("the sender has left %d things of the device", n)
	}
}

// TestDryAmidEntry has the device find no place for the second block of an entry: nothing else of
// it lands, and what is behind it does, in order.
func TestDryAmidEntry(t *testing.T) {
	needsSoft(t)
	for _, fails := range []int32{1, 2, 3} {
		p := newPool(t, shape{nodes: 1})
		p.net.hasty.Store(true)
		ep, _ := receiver(t, p.Fabric, 1, 9*ringMTU)
		from := worker(t, p.Fabric)
		var sends atomic.Int32
		p.net.fail(func(_ *softPair, q request) status {
			if q.op == uint8(rdma.Send) && sends.Add(1) == fails {
				return statusNotReady
			}
			return statusSuccess
		})
		b := entries(t, from, 1, 3*ringMTU, 2*ringMTU, 2*ringMTU)
		if err := from.Wait(b, rdma.All, testPatience); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(b.Op(0).Err, rdma.ErrRingDry) || b.Op(1).Err != nil || b.Op(2).Err != nil {
			t.Errorf("block %d finds no place: %v, %v, %v", fails, b.Op(0).Err, b.Op(1).Err, b.Op(2).Err)
		}
		b.Release()
		want := append(bytes.Repeat([]byte{1}, int(fails)-1), 2, 2, 3, 3, 0)
		if got := bytesAt(t, ep, ringMTU, len(want)); !bytes.Equal(got, want) {
			t.Errorf("block %d finds no place: in the ring are %v, want %v", fails, got, want)
		}
	}
}

// TestHeldAppend has an entry find no place for its second block while the node is not known to
// serve: the entry ends when its first block is known to have landed.
func TestHeldAppend(t *testing.T) {
	g := newGated(t)
	g.net.hasty.Store(true)
	receiver(t, g.Fabric, 1, 9*ringMTU)
	from := worker(t, g.Fabric)
	ends(t, from, entries(t, from, 1, 3*ringMTU), nil)
	var sends atomic.Int32
	g.net.fail(func(_ *softPair, q request) status {
		if q.op == uint8(rdma.Send) && sends.Add(1) == 2 {
			return statusNotReady
		}
		return statusSuccess
	})
	g.gates[0].close()
	g.overdue(t, 0)
	b := entries(t, from, 2, 3*ringMTU)
	eventually(t, "the device has told", func() bool { from.progress(0); return from.ways[0].qp == nil })
	for range 5 {
		from.progress(0)
	}
	if b.Completed(0) {
		t.Error("an entry ends of which a block may have landed while the node did not serve")
	}
	g.gates[0].open()
	ends(t, from, b, rdma.ErrRingDry)
}

// TestLateAppend holds an entry back until its sender was told that it does not land later. Then it
// arrives.
func TestLateAppend(t *testing.T) {
	needsSoft(t)
	for what, c := range map[string]struct {
		end  func(p *pool, from, to *Endpoint, ring rdma.Ring) error
		want error
	}{
		"fence": {func(p *pool, _, _ *Endpoint, _ rdma.Ring) error {
			return errors.Join(p.advance(1), p.Fence(1))
		}, rdma.ErrStale},
		"join": {func(p *pool, from, _ *Endpoint, _ rdma.Ring) error {
			if err := p.advance(1); err != nil {
				return err
			}
			_, err := from.Join()
			return err
		}, rdma.ErrStale},
		"revoke": {func(p *pool, from, _ *Endpoint, _ rdma.Ring) error {
			return p.Revoke(from.Client())
		}, rdma.ErrRevoked},
		"close": {func(_ *pool, _, _ *Endpoint, ring rdma.Ring) error { return ring.Close() }, rdma.ErrNoRing},
		"revoke the receiver": {func(p *pool, _, to *Endpoint, _ rdma.Ring) error {
			return p.Revoke(to.Client())
		}, rdma.ErrNoRing},
		"sender's close": {func(_ *pool, from, _ *Endpoint, _ rdma.Ring) error { return from.Close() }, rdma.ErrClosed},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPool(t, shape{nodes: 1})
			to, ring := receiver(t, p.Fabric, 1, 8*ringMTU)
			from, reader := worker(t, p.Fabric), worker(t, p.Fabric)
			ends(t, from, entries(t, from, 1, 64), nil)
			w := &wire{p: p, gate: make(chan struct{})}
			p.net.fail(func(_ *softPair, q request) status {
				if q.op == uint8(rdma.Send) {
					<-w.gate
				}
				return statusSuccess
			})
			b := entries(t, from, 2, 64)
			if err := c.end(p, from, to, ring); err != nil {
				t.Fatal(err)
			}
			w.open(t)
			ends(t, from, b, c.want)
			if _, err := reader.Join(); err != nil {
				t.Error(err)
			}
			if got := bytesAt(t, reader, 64, 2); !bytes.Equal(got, []byte{1, 0}) {
				t.Errorf("in the ring are %v", got)
			}
		})
	}
}

// TestClosedRingSays closes a ring into which an entry has landed that was not acknowledged: it is
// not said that none is there.
func TestClosedRingSays(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	_, ring := receiver(t, p.Fabric, 1, 8*ringMTU)
	from := worker(t, p.Fabric)
	ends(t, from, entries(t, from, 1, 64), nil)
	p.net.fail(func(_ *softPair, q request) status {
		if q.op == uint8(rdma.Read) {
			return silent
		}
		return statusSuccess
	})
	before := p.net.past.Load()
	b := entries(t, from, 2, 64)
	eventually(t, "the entry lands", func() bool { return p.net.past.Load() > before })
	if err := ring.Close(); err != nil {
		t.Fatal(err)
	}
	if err := from.Wait(b, rdma.All, testPatience); err != nil {
		t.Fatal(err)
	}
	if err := b.Err(); errors.Is(err, rdma.ErrNoRing) || !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("an entry that has landed ends in %v", err)
	}
	b.Release()
	ends(t, from, entries(t, from, 3, 64), rdma.ErrNoRing)
}

// TestFenceBehindAppend posts a fenced verb behind an entry: it goes when that is acknowledged.
func TestFenceBehindAppend(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	receiver(t, p.Fabric, 1, 8*ringMTU)
	from := worker(t, p.Fabric)
	ends(t, from, entries(t, from, 1, 64), nil)
	gate := make(chan struct{})
	p.net.fail(func(_ *softPair, q request) status {
		if q.op == uint8(rdma.Send) {
			<-gate
		}
		return statusSuccess
	})
	b := from.Batch()
	b.Append(rdma.RingAt(0, 3), fillWith(b.Alloc(64), 2))
	b.FetchAdd(rdma.At(0, 8), 1).Fence = true
	b.Append(rdma.RingAt(0, 3), fillWith(b.Alloc(64), 3))
	if err := from.Post(b); err != nil {
		t.Fatal(err)
	}
	if near := &from.peers[0]; near.head != near.tail {
		t.Error("a fenced verb is in flight beside the entry in front of it")
	}
	close(gate)
	ends(t, from, b, nil)
}

// TestRingMTU connects a device that takes shorter packets than the ring has blocks.
func TestRingMTU(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	receiver(t, p.Fabric, 1, 8*ringMTU)
	from := worker(t, p.Fabric)
	offer := card{qpn: 1, mtu: 3, rdAtomic: 1, ethernet: true}.bytes()
	if _, err := from.AttachRing(rdma.RingAt(0, 3), 0, offer); !errors.Is(err, rdma.ErrNotSupported) {
		t.Errorf("connect a device with an MTU of 1024: %v", err)
	}
	if _, err := from.AttachRing(rdma.RingAt(0, 3), 9,
		card{qpn: 1, mtu: 5, rdAtomic: 1, ethernet: true}.bytes()); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("connect to a stream that there is not: %v", err)
	}
}
