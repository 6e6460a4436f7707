package rdmatest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// testRing is where the suite's senders append, at node 0.
var testRing = rdma.RingAt(0, 3)

// ringBase is where the buffers of the suite's rings begin.
const ringBase = 64 << 10

// ringed is a pool with a ring, and how far its workers are.
type ringed struct {
	t       testing.TB
	f       rdma.Fabric
	mtu     int
	counts  bool
	p       rdma.RingPromises
	senders atomic.Int32 // that have not returned
}

// over reports whether all senders have returned.
func (r *ringed) over() bool { return r.senders.Load() == 0 }

// appending runs a receiver with a ring beside node 0, and senders. Without rings it checks that
// this is said, and returns false.
func appending(t testing.TB, h Harness, receiver func(*ringed, rdma.Endpoint, rdma.Ring),
	senders ...func(*ringed, rdma.Endpoint),
) bool {
	r := &ringed{t: t, f: h.New(t, 2, poolBytes, nil)}
	if !h.Rings {
		one(t, h, r.f, func(ep rdma.Endpoint) {
			_, err := rdma.Rings(ep)
			_, oerr := rdma.OpenRing(ep, rdma.RingOptions{Number: 1})
			if !errors.Is(err, rdma.ErrNotSupported) || !errors.Is(oerr, rdma.ErrNotSupported) {
				t.Errorf("rings of a fabric without: %v, %v", err, oerr)
			}
		})
		return false
	}
	one(t, h, r.f, func(ep rdma.Endpoint) {
		p, err := rdma.Rings(ep)
		if err != nil {
			t.Error(err)
		}
		r.mtu, r.counts, r.p = p.MTU, p.Counts, p
	})
	r.senders.Store(int32(len(senders)))
	var fs []func(rdma.Endpoint)
	for _, s := range senders {
		fs = append(fs, func(ep rdma.Endpoint) {
			defer r.senders.Add(-1)
			s(r, ep)
		})
	}
	h.Beside(t, r.f, 0, func(ep rdma.Endpoint) {
		ring, err := rdma.OpenRing(ep, rdma.RingOptions{Node: 0, Number: testRing.Number()})
		if err != nil {
			t.Error(err)
			return
		}
		if ring.Addr() != testRing {
			t.Errorf("%s says that it is %s", testRing, ring.Addr())
		}
		receiver(r, ep, ring)
		if err := ring.Close(); err != nil {
			t.Error(err)
		}
	}, fs...)
	return true
}

// post posts the i-th to the n-th buffer of so many bytes, at once: a stream that comes second
// finds the second.
func (r *ringed) post(ring rdma.Ring, size, i, n int) {
	var all []rdma.Span
	for ; i < n; i++ {
		all = append(all, rdma.Span{Addr: rdma.At(0, uint64(ringBase+i*size)), Len: size})
	}
	if err := ring.Post(all...); err != nil {
		r.t.Errorf("post %d buffers: %v", len(all), err)
	}
}

// await waits until done, or until all senders have returned.
func (r *ringed) await(ep rdma.Endpoint, done func() bool) {
	for until := ep.Now() + patience; !done() && !r.over() && ep.Now() < until; {
		ep.Sleep(20 * time.Microsecond)
	}
}

// appendOne appends p and waits for its end. It tries again as long as there is no such ring yet.
func appendOne(ep rdma.Endpoint, p []byte) error {
	for until := ep.Now() + patience; ; ep.Sleep(20 * time.Microsecond) {
		b := ep.Batch()
		buf := b.Alloc(len(p))
		copy(buf, p)
		b.Append(testRing, buf)
		err := rdma.Do(ep, b, patience)
		b.Release()
		if !errors.Is(err, rdma.ErrNoRing) || ep.Now() > until {
			return err
		}
	}
}

// An entry of the suite is blocks of up to an MTU, each with a header of 16 bytes: its length,
// sender, number, block.
type ringBlock struct{ length, sender, number, block uint32 }

func (k ringBlock) fill(p []byte) {
	for i := 16; i < len(p); i++ {
		p[i] = byte(k.number*31 + k.block*7 + k.sender + uint32(i))
	}
	for i, v := range [...]uint32{k.length, k.sender, k.number, k.block} {
		binary.LittleEndian.PutUint32(p[4*i:], v)
	}
}

func ringEntry(p []byte, mtu, sender, number int) {
	for i := 0; len(p) > 0; i++ {
		n := min(len(p), mtu)
		ringBlock{uint32(n), uint32(sender), uint32(number), uint32(i)}.fill(p[:n])
		p = p[n:]
	}
}

// blocks returns the blocks in memory, in order, and fails t when one is not whole. Memory was
// zero.
func ringBlocks(t testing.TB, memory []byte) (all []ringBlock) {
	for len(memory) >= rdma.Stride {
		var v [4]uint32
		for i := range v {
			v[i] = binary.LittleEndian.Uint32(memory[4*i:])
		}
		k := ringBlock{v[0], v[1], v[2], v[3]}
		if k.length == 0 {
			memory = memory[rdma.Stride:]
			continue
		}
		if int(k.length) < 16 || int(k.length) > len(memory) {
			t.Errorf("block %+v does not fit", k)
			return all
		}
		want := make([]byte, k.length)
		k.fill(want)
		if !bytes.Equal(want, memory[:k.length]) {
			t.Errorf("block %+v is torn", k)
		}
		all = append(all, k)
		memory = memory[min(len(memory), (int(k.length)+rdma.Stride-1)/rdma.Stride*rdma.Stride):]
	}
	return all
}

// sequential checks that each of the senders' entries is there once, its blocks in order, and in
// posting order within its stream. It returns how many blocks lie behind one of another entry,
// though they are not the first of their own.
func (r *ringed) sequential(all []ringBlock, senders, entries int, sizeOf func(r *ringed, number int) int) (apart int) {
	streams := max(1, r.p.Streams)
	next := make([]ringBlock, senders*streams)
	stream := func(number uint32) int { return r.p.Stream(sizeOf(r, int(number))) }
	skip := func(n *ringBlock, s int) { // to the next entry of the stream
		for n.block = 0; n.number < uint32(entries) && stream(n.number) != s; n.number++ {
		}
	}
	for i := range next {
		skip(&next[i], i%streams)
	}
	for i, k := range all {
		s := stream(k.number)
		n := &next[int(k.sender)*streams+s]
		if k.number != n.number || k.block != n.block {
			r.t.Errorf("block %+v is out of order: want block %d of entry %d", k, n.block, n.number)
			return apart
		}
		if k.block > 0 && all[i-1].sender != k.sender {
			apart++
		}
		if n.block++; int(n.block) == (sizeOf(r, int(n.number))+r.mtu-1)/r.mtu {
			n.number++
			skip(n, s)
		}
	}
	for i := range next {
		if next[i].number != uint32(entries) {
			r.t.Errorf("sender %d, stream %d: %d of %d entries came", i/streams, i%streams, next[i].number, entries)
		}
	}
	return apart
}

// testAppends has senders append entries of some sizes, several in a batch, and looks at what is in
// the ring's buffers.
func testAppends(t testing.TB, h Harness, entries, size, buffers int, sizeOf func(r *ringed, number int) int) {
	const senders, most = 3, 5
	var found []ringBlock
	receiver := func(r *ringed, ep rdma.Endpoint, ring rdma.Ring) {
		r.post(ring, size, 0, buffers)
		r.await(ep, r.over)
		p, err := read(ep, rdma.At(0, ringBase), size*buffers)
		if err != nil {
			t.Error(err)
		}
		found = ringBlocks(t, p)
		if apart := r.sequential(found, senders, entries, sizeOf); apart > 0 {
			t.Logf("%d of %d blocks lie apart from their entries", apart, len(found))
		}
	}
	sender := func(id int) func(*ringed, rdma.Endpoint) {
		return func(r *ringed, ep rdma.Endpoint) {
			for i := 0; i < entries; {
				p := make([]byte, sizeOf(r, i))
				ringEntry(p, r.mtu, id, i)
				if i == 0 { // when the ring is there, and has buffers, all are appended at once
					err := appendOne(ep, p)
					for until := ep.Now() + patience; errors.Is(err, rdma.ErrRingDry) &&
						ep.Now() < until; err = appendOne(ep, p) {
						ep.Sleep(20 * time.Microsecond)
					}
					if err != nil {
						t.Errorf("append entry %d: %v", i, err)
						return
					}
					i++
					continue
				}
				b := ep.Batch()
				for range min(1+i%most, entries-i) {
					buf := b.Alloc(sizeOf(r, i))
					ringEntry(buf, r.mtu, id, i)
					b.Append(testRing, buf)
					i++
				}
				if err := rdma.Do(ep, b, patience); err != nil {
					t.Errorf("append up to entry %d: %v", i, err)
					return
				}
				b.Release()
			}
		}
	}
	appending(t, h, receiver, sender(0), sender(1), sender(2))
}

// testRings has entries of up to a block in small buffers, the ends of which stay empty.
func testRings(t testing.TB, h Harness) {
	sizes := [...]int{64, 16, 65, 128, 200, 17, 63, 250}
	testAppends(t, h, 120, 8<<10, 20, func(_ *ringed, i int) int { return sizes[i%len(sizes)] })
}

// testRingBlocks has entries of up to some blocks.
func testRingBlocks(t testing.TB, h Harness) {
	testAppends(t, h, 20, 64<<10, 14, func(r *ringed, i int) int { return 40 + r.mtu*(i%6)*2/3 })
}

// testDryRing fills all buffers of a ring: then appends are refused, until there is another buffer.
// Nothing lands outside of the buffers.
func testDryRing(t testing.TB, h Harness) {
	var dry, room atomic.Bool
	shape := func(r *ringed) (size, entries int) {
		size = 2*r.mtu + 32 // its end is no stride
		return size, size / rdma.Stride
	}
	receiver := func(r *ringed, ep rdma.Endpoint, ring rdma.Ring) {
		size, entries := shape(r)
		guard := bytes.Repeat([]byte{0xa5}, size)
		if err := write(ep, rdma.At(0, ringBase+uint64(size)), guard); err != nil {
			t.Error(err)
		}
		r.post(ring, size, 0, 1)
		r.await(ep, dry.Load)
		p, err := read(ep, rdma.At(0, ringBase+uint64(size)), size)
		if err != nil || !bytes.Equal(p, guard) {
			t.Errorf("what lies behind the ring's only buffer has changed: %v", err)
		}
		again := (size + rdma.Stride - 1) / rdma.Stride * rdma.Stride
		if err := ring.Post(rdma.Span{Addr: rdma.At(0, ringBase+uint64(again)), Len: r.mtu}); err != nil {
			t.Error(err)
		}
		room.Store(true)
		r.await(ep, r.over)
		p, err = read(ep, rdma.At(0, ringBase+uint64(again)), rdma.Stride)
		if want := make([]byte, rdma.Stride); err == nil {
			if ringEntry(want, r.mtu, 0, entries); !bytes.Equal(p, want) {
				t.Errorf("in the buffer that was posted last is %x, want %x", p, want)
			}
		}
	}
	appending(t, h, receiver, func(r *ringed, ep rdma.Endpoint) {
		p := make([]byte, rdma.Stride)
		var err error
		n := 0
		for ; err == nil && n <= 10_000; n++ {
			ringEntry(p, r.mtu, 0, n)
			for err = appendOne(ep, p); n == 0 && errors.Is(err, rdma.ErrRingDry); err = appendOne(ep, p) {
				ep.Sleep(20 * time.Microsecond) // the first buffer is on its way
			}
		}
		_, entries := shape(r)
		if n--; !errors.Is(err, rdma.ErrRingDry) || n != entries {
			t.Errorf("appended %d entries to a buffer with place for %d: %v", n, entries, err)
		}
		dry.Store(true)
		for until := ep.Now() + patience; !room.Load() && ep.Now() < until; {
			ep.Sleep(20 * time.Microsecond)
		}
		if err := appendOne(ep, p); err != nil {
			t.Errorf("append where there is room again: %v", err)
		}
	})
}

// testRingCounts checks what rings count: a buffer that is settled does not change any more, and
// all but the last come to be. A ring has as many places as it says, and those of settled buffers
// again.
func testRingCounts(t testing.TB, h Harness) {
	const all, most = 8, 4 // buffers, and at a time
	var done atomic.Bool
	receiver := func(r *ringed, ep rdma.Endpoint, ring rdma.Ring) {
		defer done.Store(true)
		if err := ring.Close(); err != nil {
			t.Error(err)
		}
		small, err := rdma.OpenRing(ep, rdma.RingOptions{Node: 0, Number: testRing.Number(), Buffers: most})
		if err != nil {
			t.Error(err)
			return
		}
		size, posted := 8*r.mtu, most
		r.post(small, size, 0, most)
		buffer := func(i int) rdma.Span { return rdma.Span{Addr: rdma.At(0, uint64(ringBase+i*size)), Len: size} }
		// one of the first is in use, however fast it goes
		more := []rdma.Span{buffer(4), buffer(5), buffer(6), buffer(7)}
		if err := small.Post(more...); !errors.Is(err, rdma.ErrFull) {
			t.Errorf("post more buffers than a ring has places: %v", err)
		}
		if !r.counts {
			if c, err := small.Count(); c != (rdma.RingCount{}) || err != nil {
				t.Errorf("a ring that does not count says %+v, %v", c, err)
			}
			return
		}
		var seen [all][]byte
		settled := uint64(0)
		look := func() {
			c, err := small.Count()
			if err != nil || c.Settled > c.Begun || c.Begun > uint64(posted) || c.Settled < settled {
				t.Errorf("%d buffers were posted, %d settled, and now %+v, %v", posted, settled, c, err)
			}
			for ; settled < c.Settled; settled++ {
				i := int(settled)
				if seen[i], err = read(ep, buffer(i).Addr, size); err != nil {
					t.Error(err)
				}
				ringBlocks(t, seen[i])
			}
		}
		for until := ep.Now() + patience; settled < all-1 && ep.Now() < until; ep.Sleep(5 * time.Microsecond) {
			look()
			for settled+most > uint64(posted) && posted < all {
				r.post(small, size, posted, posted+1)
				posted++
			}
		}
		done.Store(true)
		r.await(ep, r.over)
		for i := range int(settled) {
			if p, err := read(ep, buffer(i).Addr, size); err != nil || !bytes.Equal(p, seen[i]) {
				t.Errorf("buffer %d changed when it was settled: %v", i, err)
			}
		}
		if c, err := small.Count(); err != nil || c.Begun != all || c.Settled != all-1 {
			t.Errorf("of %d buffers that are full, but for the last, and with nothing in flight: %+v, %v", all, c, err)
		}
	}
	sender := func(id int) func(*ringed, rdma.Endpoint) {
		return func(r *ringed, ep rdma.Endpoint) {
			for until := ep.Now() + patience; !done.Load() && ep.Now() < until; {
				b := ep.Batch()
				p := b.Alloc(r.mtu / 2)
				ringEntry(p, r.mtu, id, 0)
				b.Append(testRing, p)
				err := rdma.Do(ep, b, patience)
				if b.Release(); err != nil {
					ep.Sleep(10 * time.Microsecond) // the ring is dry, or not there yet
				}
			}
		}
	}
	appending(t, h, receiver, sender(0), sender(1))
}

// testAppendAllocations measures appends in steady state.
func testAppendAllocations(t testing.TB, h Harness) {
	if !h.AllocFree {
		t.Skip("not claimed")
	}
	var full atomic.Bool
	receiver := func(r *ringed, ep rdma.Endpoint, ring rdma.Ring) {
		for err := error(nil); err == nil; {
			err = ring.Post(rdma.Span{Addr: rdma.At(0, ringBase), Len: rdma.MaxMessage})
		}
		full.Store(true)
		r.await(ep, r.over)
	}
	appending(t, h, receiver, func(r *ringed, ep rdma.Endpoint) {
		var failed error
		round := func() {
			b := ep.Batch()
			b.Append(testRing, b.Alloc(100))
			b.Append(testRing, b.Alloc(r.mtu+100))
			if err := rdma.Do(ep, b, patience); err != nil {
				failed = err
			}
			b.Release()
		}
		for until := ep.Now() + patience; ep.Now() < until; ep.Sleep(20 * time.Microsecond) {
			failed = nil
			if round(); failed == nil && full.Load() { // the receiver posts no more
				break
			}
		}
		least := math.Inf(1)
		for range 5 { // see testAllocations
			least = min(least, testing.AllocsPerRun(100, round))
		}
		if least != 0 || failed != nil {
			t.Errorf("appends allocate %v times: %v", least, failed)
		}
	})
}
