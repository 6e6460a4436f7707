package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// Name is the fabric's, in addresses and in pools' records.
const Name = "rdma"

// Device is an open device of a memory node: its Config.Device. It is safe for concurrent use. It
// serves the pools of its node, one registration each.
type Device struct{ a adapter }

var _ memnode.Device = (*Device)(nil)

// Fabric implements memnode.Device.
func (d *Device) Fabric() string { return Name }

// Port names the device and the port of it that serves.
func (d *Device) Port() (device string, port int) { return d.a.at() }

// Close closes the device; nothing is registered with it any more.
func (d *Device) Close() error { return d.a.close() }

// region is a node's memory that its device serves.
//
// The memory is the node's own mapping, and stays mapped until Close has returned. Device and
// processor share it: verbs of workers go past this process, and atomics of the node's procedures
// go through region.
type region struct {
	a    adapter
	base uint64
	at   unsafe.Pointer // base
	size uint64
	// mem has one key for all: a worker may do what its queue pair's access says.
	mem memory

	mu sync.Mutex // one caller at a time
	// Nodes' ends post nothing, so that cq only ever has the completions of self.
	cq   completions // of the nodes' ends, and of its own
	self self

	rings sync.WaitGroup // goroutines of rings, which end when these are closed
}

// Register implements memnode.Device. The node calls it once for each pool, and the pool's memory
// is not served before. The error wraps rdma.ErrFull where the process may not lock so much.
func (d *Device) Register(base unsafe.Pointer, size uint64) (memnode.Registration, error) {
	r := &region{a: d.a, base: uint64(uintptr(base)), at: base, size: size}
	if err := r.open(base); err != nil {
		return nil, fmt.Errorf("register %d bytes: %w", size, errors.Join(err, r.Close()))
	}
	return r, nil
}

// open makes memory, queue and connection in this order, in the reverse of which Close ends them.
// What it made by the time of an error is for Close.
func (r *region) open(base unsafe.Pointer) (err error) {
	if r.mem, err = r.a.register(base, r.size, true); err != nil {
		return err
	}
	if r.cq, err = r.a.completions(selfDepth); err != nil {
		return err
	}
	return r.self.open(r)
}

// Close implements memnode.Registration. The connections of workers and rings have ended before.
// Memory is the last that is given up: until then a device may write to it. A ring's goroutine
// closes its own receive queues, whose places are in this memory: it is waited for, which takes
// ringSlice.
func (r *region) Close() error {
	r.rings.Wait()
	err := r.self.close()
	if r.cq != nil {
		err = errors.Join(err, r.cq.close())
	}
	if r.mem != nil {
		err = errors.Join(err, r.mem.close())
	}
	return err
}

// Connect implements memnode.Registration: it makes the node's end of a worker's connection. What
// may be done over it is decided by the queue pair: by its access, and by the one device that is
// connected to it. The key is the same for all workers.
//
// This end is connected before the card goes out: the worker connects its own behind that, and
// finds an end that answers. The caller sees to it that a fence that comes later finds the
// connection: see memnode's session.attach.
func (r *region) Connect(offer []byte, readOnly bool) ([]byte, memnode.DeviceConn, error) {
	remote, err := parseCard(offer)
	if err != nil {
		return nil, nil, err
	}
	may := accessAll
	if readOnly {
		may = accessRead
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := r.cq.pair(1, may) // this end posts nothing
	if err != nil {
		return nil, nil, err
	}
	if err := p.connect(remote); err != nil {
		return nil, nil, errors.Join(err, p.close())
	}
	c := p.card()
	c.base = r.base
	_, c.key = r.mem.keys()
	return c.bytes(), &conn{r, p}, nil
}

// conn is the node's end of a worker's connection.
type conn struct {
	r *region
	p pair
}

// End implements memnode.DeviceConn.
//
// It is what a fence relies on: once the queue pair is destroyed the device executes nothing more
// of what came over it. mu is held since the region's queue has one caller at a time.
func (c *conn) End() {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if err := c.p.close(); err != nil {
		// The caller goes on as if nothing could land any more. Better no node than a wrong one.
		panic(fmt.Sprintf("ibverbs: a queue pair that was fenced off is not gone: %v", err))
	}
}

// CompareSwap implements memnode.Registration. It goes through the device since a processor's
// atomics are not atomic with those. Offsets were checked by the caller.
func (r *region) CompareSwap(off, expect, value uint64) uint64 {
	return r.atomic(request{op: uint8(rdma.CompareSwap), remote: r.base + off, a: expect, b: value})
}

// FetchAdd implements memnode.Registration.
func (r *region) FetchAdd(off, n uint64) uint64 {
	return r.atomic(request{op: uint8(rdma.FetchAdd), remote: r.base + off, a: n})
}

// self is a node's connection to its own memory, for atomics of its procedures. near posts, and far
// has the access. Both are of the same device: a device's atomics are atomic with each other only
// within it.
type self struct {
	near, far pair
	word      *uint64 // where the device puts the word before
	mem       memory
}

const (
	// It is more than the one request that is ever in flight.
	selfDepth = 16
	// selfPatience bounds the wait for a device that answers nothing: an atomic on this machine
	// takes microseconds.
	selfPatience = 10 * time.Second
)

// The ends tell each other their cards without a node in between. What was made by the time of an
// error is for close.
func (s *self) open(r *region) (err error) {
	s.word = new(uint64)
	if s.mem, err = r.a.register(unsafe.Pointer(s.word), 8, false); err != nil {
		return err
	}
	if s.near, err = r.cq.pair(selfDepth, accessNone); err != nil {
		return err
	}
	if s.far, err = r.cq.pair(1, accessAll); err != nil {
		return err
	}
	return errors.Join(s.near.connect(s.far.card()), s.far.connect(s.near.card()))
}

// Queue pairs end before the memory that the device writes results to.
func (s *self) close() (err error) {
	for _, p := range []pair{s.near, s.far} {
		if p != nil {
			err = errors.Join(err, p.close())
		}
	}
	if s.mem != nil {
		err = errors.Join(err, s.mem.close())
	}
	return err
}

// atomic executes one atomic through the device, and returns the word before. A device that does
// not do it any more takes the node with it: a procedure cannot report the failure, and half of it
// may be done. One at a time: word is where the device puts the result of each.
func (r *region) atomic(q request) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	local, _ := r.self.mem.keys()
	_, remote := r.mem.keys()
	q.local, q.n, q.key, q.flags = uint64(uintptr(unsafe.Pointer(r.self.word))), 8, local, flagSignal
	g := []group{{pair: r.self.near.handle(), key: remote, n: 1}}
	r.cq.post(g, []request{q})
	if g[0].taken != 1 {
		panic(fmt.Sprintf("ibverbs: the node's device takes no atomic of its own: errno %d", g[0].errno))
	}
	var done [1]completion
	for until := realtime.Now() + selfPatience; r.cq.poll(done[:], 20*time.Microsecond) == 0; {
		if realtime.Now() > until {
			panic(fmt.Sprintf("ibverbs: the node's device has not done an atomic of its own for %v", selfPatience))
		}
	}
	if done[0].status != statusSuccess {
		panic(fmt.Sprintf("ibverbs: an atomic of the node's own failed: %v", done[0].err()))
	}
	return *r.self.word
}
