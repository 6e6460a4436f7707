package ibverbs

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// ring is a ring at the device of its node.
type ring struct {
	region *region
	o      rdma.RingOptions
	p      rdma.RingPromises
	depth  int // places of a stream that the device has at most

	// mu is held for all below, by the goroutine of the ring and by those of the node.
	mu      sync.Mutex
	closed  bool
	err     error // the device does not take a place
	cq      completions
	streams []stream
	posted  []rdma.Span          // and not begun
	begun   uint64               // buffers
	settled int64                // of these
	conns   map[uint32]*ringConn // by the number of their queue pair
	found   [32]completion
}

// stream is the places of one size, and the receive queue that the device takes them from.
type stream struct {
	into   receives
	place  int
	wanted bool     // a sender was connected
	open   []filled // buffers that are begun and not settled, in order: mostOpen at most
	flying int      // places that the device has
}

// filled is a buffer that is being filled.
type filled struct {
	rdma.Span
	number              uint64 // from 0
	places, given, came int
}

const (
	// mostOpen is how many buffers of a stream are open at a time: one that fills, and one ahead.
	mostOpen = 2
	// ringDepth is how many places of a stream the device has at most. It takes it some 400 us to
	// fill them at 10 million a second, in which the node's goroutine is to come by.
	ringDepth = 4096
	// ringPause is for how long that goroutine leaves the device alone when there was something to
	// do: less than the device waits for a place, and than it takes to fill them.
	ringPause = 200 * time.Microsecond
	// ringSlice bounds its sleep when there is nothing to do, so that it finds the ring closed.
	ringSlice = 20 * time.Millisecond
)

// promises returns what a pool with blocks of so many bytes promises of rings over a device of
// which the port takes packets of an MTU, as libibverbs counts: a block is one packet.
func promises(mtu int, port uint8) rdma.RingPromises {
	mtu = min(mtu, 128<<port)
	return rdma.RingPromises{MTU: mtu, Counts: true, Streams: rdma.RingStreams(mtu)}
}

// OpenRing implements memnode.RingRegistration.
func (r *region) OpenRing(o rdma.RingOptions, mtu int) (memnode.DeviceRing, error) {
	own := &ring{region: r, o: o, p: promises(mtu, r.a.limits().mtu), conns: map[uint32]*ringConn{}}
	if err := own.open(); err != nil {
		return nil, fmt.Errorf("open ring %d: %w", o.Number, errors.Join(err, own.shut()))
	}
	r.rings.Add(1)
	go own.run()
	return own, nil
}

func (r *ring) open() (err error) {
	l := r.region.a.limits()
	r.depth = min(ringDepth, l.slots, l.room/r.p.Streams)
	// a place has one until it is posted again
	if r.cq, err = r.region.a.completions(r.depth * r.p.Streams); err != nil {
		return err
	}
	for i := range r.p.Streams {
		into, err := r.region.a.receives(r.depth)
		if err != nil {
			return err
		}
		r.streams = append(r.streams, stream{into: into, place: r.p.Place(i), open: make([]filled, 0, mostOpen)})
	}
	return nil
}

// run has the device have places, until the ring is closed.
func (r *ring) run() {
	defer r.region.rings.Done()
	for {
		came, over := r.step()
		switch {
		case over:
			return
		case came:
			time.Sleep(ringPause)
		default:
			if err := r.cq.await(realtime.Now() + ringSlice); err != nil {
				r.fail(err)
				time.Sleep(ringSlice)
			}
		}
	}
}

// It arms the queue before it takes what came, so that what comes behind that ends the goroutine's
// sleep.
func (r *ring) step() (came, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		if err := r.shut(); err != nil {
			panic(fmt.Sprintf("ibverbs: a ring that was closed is not gone: %v", err))
		}
		return false, true
	}
	r.err = cmp.Or(r.err, r.cq.arm())
	came = r.receive()
	r.feed()
	return came, false
}

func (r *ring) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = cmp.Or(r.err, err)
}

// receive takes what came, and reports whether anything did. The caller holds mu.
func (r *ring) receive() (came bool) {
	for n := len(r.found); n == len(r.found); came = came || n > 0 {
		n = r.cq.poll(r.found[:], 0)
		for _, c := range r.found[:n] {
			s := &r.streams[c.id>>placeBits]
			s.flying--
			for i := range s.open {
				if b := &s.open[i]; b.number == c.id&(1<<placeBits-1) {
					b.came++ // if it failed, too: the device has done with the place
				}
			}
			if from := r.conns[c.pair]; from != nil && c.status == statusSuccess {
				from.blocks++
			}
		}
	}
	for i := range r.streams {
		for s := &r.streams[i]; len(s.open) > 1 && s.open[0].came == s.open[0].places; r.settled++ {
			s.open = s.open[:copy(s.open, s.open[1:])]
		}
	}
	return came
}

// placeBits are those of a buffer's number in the id of a place; above them is its stream.
const placeBits = 56

// feed begins buffers, first for streams that have none, and gives the device places: those of open
// buffers before all. The caller holds mu.
func (r *ring) feed() {
	for have := -1; have < mostOpen; have++ {
		for i := range r.streams {
			s := &r.streams[i]
			if s.wanted && len(s.open) == have && len(r.posted) > 0 && s.allGiven() {
				b := r.posted[0]
				r.posted = r.posted[:copy(r.posted, r.posted[1:])]
				s.open = append(s.open, filled{Span: b, number: r.begun, places: b.Len / s.place})
				r.begun++
			}
			r.give(i)
		}
	}
}

func (s *stream) allGiven() bool {
	return len(s.open) == 0 || s.open[len(s.open)-1].given == s.open[len(s.open)-1].places
}

// give gives the device places of a stream. The caller holds mu.
func (r *ring) give(i int) {
	s := &r.streams[i]
	key, _ := r.region.mem.keys()
	for k := range s.open {
		b := &s.open[k]
		for ; b.given < b.places && s.flying < r.depth; b.given++ {
			at := unsafe.Add(r.region.at, b.Addr.Offset()+uint64(b.given*s.place))
			if err := s.into.post(uint64(i)<<placeBits|b.number, unsafe.Slice((*byte)(at), s.place), key); err != nil {
				r.err = cmp.Or(r.err, err)
				return
			}
			s.flying++
		}
	}
}

// Post implements memnode.DeviceRing. It takes what came first, since that may make room.
func (r *ring) Post(buffers []rdma.Span) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return rdma.ErrNoRing
	}
	r.receive()
	free := r.o.Buffers - len(r.posted) - int(int64(r.begun)-r.settled)
	if err := rdma.CheckRingBuffers(buffers, free, r.o.Node, r.region.size, r.p.MTU); err != nil {
		return err
	}
	r.posted = append(r.posted, buffers...)
	r.feed()
	return r.err
}

// Count implements memnode.DeviceRing.
func (r *ring) Count() rdma.RingCount {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.receive()
		r.feed()
	}
	var open []uint64
	for i := range r.streams {
		for _, b := range r.streams[i].open {
			open = append(open, b.number+1)
		}
	}
	return rdma.CountOpen(r.begun, open)
}

// Close implements memnode.DeviceRing. The goroutine closes what is left, which nothing comes into.
// All connections are gone when it returns, so that nothing lands any more.
func (r *ring) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.end()
	}
	r.closed = true
}

func (r *ring) shut() error {
	var errs []error
	for i := range r.streams {
		errs = append(errs, r.streams[i].into.close())
	}
	if r.cq != nil {
		errs = append(errs, r.cq.close())
	}
	return errors.Join(errs...)
}

// ringConn is the node's end of a sender's connection.
type ringConn struct {
	r      *ring
	qp     pair
	blocks uint64
	ended  bool
}

// Connect implements memnode.DeviceRing. The card is answered behind feed: if the worker has posted
// buffers, the stream has places when the sender's first block comes.
func (r *ring) Connect(i int, offer []byte) ([]byte, memnode.RingConn, error) {
	remote, err := parseCard(offer)
	if err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, nil, rdma.ErrNoRing
	case i >= len(r.streams):
		return nil, nil, fmt.Errorf("ring %d has %d streams: %w", r.o.Number, len(r.streams), rdma.ErrAccess)
	case min(r.p.MTU, 128<<remote.mtu) != r.p.MTU:
		return nil, nil, fmt.Errorf("ring %d has blocks of %d bytes, and the sender's device an MTU of %d: %w",
			r.o.Number, r.p.MTU, 128<<remote.mtu, rdma.ErrNotSupported)
	}
	s := &r.streams[i]
	qp, err := s.into.pair(r.cq, accessRead)
	if err != nil {
		return nil, nil, err
	}
	if err := qp.connect(remote); err != nil {
		return nil, nil, errors.Join(err, qp.close())
	}
	card := qp.card()
	c := &ringConn{r: r, qp: qp}
	r.conns[card.qpn] = c
	s.wanted = true
	r.feed()
	card.base = r.region.base
	_, card.key = r.region.mem.keys()
	return card.bytes(), c, nil
}

// End implements memnode.DeviceConn.
func (c *ringConn) End() {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.end()
}

// end ends the connection, and counts what came over it. The caller holds mu.
func (c *ringConn) end() {
	if c.ended {
		return
	}
	number := c.qp.card().qpn
	if c.qp.stop() == nil {
		c.r.receive() // a device may forget completions with their queue pair
	}
	if err := c.qp.close(); err != nil {
		// The caller goes on as if nothing could land any more. Better no node than a wrong one.
		panic(fmt.Sprintf("ibverbs: a queue pair that was fenced off is not gone: %v", err))
	}
	c.r.receive()
	delete(c.r.conns, number)
	c.ended = true
}

// Landed implements memnode.RingConn.
func (c *ringConn) Landed() (blocks uint64, ended bool) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.blocks, c.ended
}
