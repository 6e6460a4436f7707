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

// A ring is used by these, all in the node's process:
//
//  - Its own goroutine (run) takes completions and gives the device places, as time passes.
//  - Goroutines of the node's connections post its worker's buffers, count, and connect and part
//    senders. Those that post and count take what came first, so that their answer is up to date.
//
// None of them copies a block. A buffer is posted; begun, when a stream takes it; given, when the
// device has all of its places; and settled, when all of these have completed, and the stream has
// begun its next one.

// ring is a ring at the device of its node.
//
// It ends in two steps. Close, as when its worker is fenced off, ends all connections before it
// returns. The goroutine closes the queues behind that, as the region waits for it to.
type ring struct {
	region *region
	o      rdma.RingOptions
	mtu    int // the longest block of the pool's
	p      rdma.RingPromises
	depth  int // places of a stream that the device has at most

	// mu is held for all below, by the goroutine of the ring and by those of the node.
	mu sync.Mutex
	// closed is set once no connection is left and none is made any more.
	closed bool
	// err is the first one, and the worker's with each later Post.
	err error // the device does not take a place
	// cq has room for one completion for each place that the device has: it is never full.
	cq      completions
	streams []stream
	// Buffers of posted have no number yet: they get it when they begin.
	posted []rdma.Span // and not begun
	// begun less settled are in open, over all streams.
	begun   uint64 // buffers
	settled int64  // of these
	// A completion of one that is not in it is of a connection that was ended, and counts for none.
	conns map[uint32]*ringConn // by the number of their queue pair
	found [32]completion
}

// stream is the places of one size, and the receive queue that the device takes them from.
type stream struct {
	// into is shared by the stream's senders: their blocks take places in the order in which they
	// come.
	into  receives
	place int
	// wanted stays true when its senders are gone: buffers that it has begun are its own.
	wanted bool // a sender was connected
	// open is in the order of begin; only the last one may have places that were not given.
	open []filled // buffers that are begun and not settled, in order: mostOpen at most
	// flying counts receives that were posted and not completed. It is depth at most.
	flying int // places that the device has
}

// filled is a buffer that is being filled. came <= given <= places.
type filled struct {
	rdma.Span
	// number tells completions of its places from those of others of the stream: it is in their
	// ids.
	number              uint64 // from 0
	places, given, came int
}

const (
	// mostOpen is how many buffers of a stream are open at a time: one that fills, and one ahead.
	// With one alone the stream would be dry from the last place of one until the goroutine comes
	// by.
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
// which the port takes packets of an MTU, as libibverbs counts: a block is one packet. A block
// longer than a packet of the device could be torn between packets when its sender dies. Both ends
// compute it: Connect refuses senders that have computed another.
func promises(mtu int, port uint8) rdma.RingPromises {
	mtu = min(mtu, 128<<port)
	return rdma.RingPromises{MTU: mtu, Counts: true, Streams: rdma.RingStreams(mtu)}
}

// OpenRing implements memnode.RingRegistration. The region waits for the goroutine when it is
// closed. Its caller closes the ring before that.
func (r *region) OpenRing(o rdma.RingOptions, mtu int) (memnode.DeviceRing, error) {
	own := &ring{region: r, o: o, mtu: mtu, p: promises(mtu, r.a.limits().mtu), conns: map[uint32]*ringConn{}}
	if err := own.open(); err != nil {
		return nil, fmt.Errorf("open ring %d: %w", o.Number, errors.Join(err, own.shut()))
	}
	r.rings.Add(1)
	go own.run()
	return own, nil
}

// open makes the queue of completions and a receive queue for each stream, all without places. What
// it made by the time of an error is for shut.
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

// run has the device have places, until the ring is closed. It sleeps a fixed time when there is
// something to do, rather than until the next completion: with many senders there is one all the
// time, and to be woken for each would cost more than it brings.
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

// step is one round of run. It reports whether something came, and whether the ring is over. It
// arms the queue before it takes what came, so that what comes behind that ends the goroutine's
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

// fail keeps the first error.
func (r *ring) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = cmp.Or(r.err, err)
}

// receive takes what came, and reports whether anything did. The caller holds mu.
//
// A place counts for the buffer of its number, if that is still open: it is, since a buffer is only
// taken out when all its places have come. Blocks count for the connection they came over.
// Completions of connections that were ended are taken by ringConn.end.
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
	// rdma.RingCount has the last buffer of each stream in use: it stays open though it is full,
	// until another one has begun.
	for i := range r.streams {
		for s := &r.streams[i]; len(s.open) > 1 && s.open[0].came == s.open[0].places; r.settled++ {
			s.open = s.open[:copy(s.open, s.open[1:])]
		}
	}
	return came
}

// placeBits are those of a buffer's number in the id of a place; above them is its stream. A stream
// fits the 8 bits above, and a buffer's number never reaches 56.
const placeBits = 56

// feed begins buffers, first for streams that have none, and gives the device places: those of open
// buffers before all. The caller holds mu.
//
// A buffer ahead is begun only once the device has all places of the one before. With few buffers
// left a stream that has none goes before one that wants one ahead. The order in which buffers
// begin is the order of their posts.
func (r *ring) feed() {
	// First, with -1, only places of buffers that are open are given; then streams with none begin
	// one; then those with one begin another.
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

// allGiven reports whether the device has had all places of the stream's buffers, or there is none.
func (s *stream) allGiven() bool {
	return len(s.open) == 0 || s.open[len(s.open)-1].given == s.open[len(s.open)-1].places
}

// give gives the device places of a stream. The caller holds mu. Places are given in the order of
// their addresses; a part of a buffer that is shorter than a place is left out. It stops when the
// device has depth of the stream, and goes on when some have come.
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

// Post implements memnode.DeviceRing. It takes what came first, since that may make room. The
// buffers are within the node's memory and each has room for a block, or none is added.
func (r *ring) Post(buffers []rdma.Span) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return rdma.ErrNoRing
	}
	r.receive()
	// What is settled has made room, out of order, too.
	free := r.o.Buffers - len(r.posted) - int(int64(r.begun)-r.settled)
	if err := rdma.CheckRingBuffers(buffers, free, r.o.Node, r.region.size, r.p.MTU); err != nil {
		return err
	}
	r.posted = append(r.posted, buffers...)
	r.feed()
	return r.err
}

// Count implements memnode.DeviceRing. Behind Close it says what was true then.
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

// shut closes the queues, receive queues first, behind all queue pairs. It is called once: by the
// goroutine, or by OpenRing if that fails.
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

// ringConn is the node's end of a sender's connection. blocks and ended are under the ring's mu.
type ringConn struct {
	r  *ring
	qp pair
	// blocks is final once ended is true: the sender compares it with what was acknowledged.
	blocks uint64
	ended  bool
}

// Connect implements memnode.DeviceRing. The card is answered behind feed: if the worker has posted
// buffers, the stream has places when the sender's first block comes.
//
// The sender may READ all of the node's memory over it, and nothing else: it needs one word of it,
// behind its blocks. Errors leave nothing behind. A crash of the sender leaves the end, which goes
// with the connection of its process.
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
	case promises(r.mtu, remote.mtu) != r.p:
		least := min(r.p.MTU, 128<<remote.mtu)
		return nil, nil, fmt.Errorf("ring %d has blocks of %d bytes, and the sender's port an MTU of %d: "+
			"a pool for both has to be made with an MTU of %d at most: %w",
			r.o.Number, r.p.MTU, 128<<remote.mtu, least, rdma.ErrNotSupported)
	case i >= len(r.streams):
		return nil, nil, fmt.Errorf("ring %d has %d streams: %w", r.o.Number, len(r.streams), rdma.ErrAccess)
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
//
// The order is that of mailbox.end, for the same reason. A block that came in is counted, or never
// lands: the device is done with the queue pair when close returns.
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

// Landed implements memnode.RingConn. It is asked for when acknowledgments fail to come: see
// Endpoint.mayAppend.
func (c *ringConn) Landed() (blocks uint64, ended bool) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.blocks, c.ended
}
