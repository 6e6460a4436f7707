package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
)

// defaultMTU is the payload of a packet of most RNICs, at the most.
const defaultMTU = 4096

// rings are those of a fabric. A ring is in it from OpenRing to Close, and its number at its node
// is taken as long.
type rings struct {
	sync.RWMutex
	at map[rdma.RingAddr]*ring
}

// ring is a worker's. Senders are other goroutines: each takes a place under mu, and fills it in
// without. It is for mem: pools: memory and senders are of one process. An APPEND takes this way,
// inside the sender's Post:
//
//	land   finds the ring, and cuts the entry into blocks of MTU bytes
//	place  gives the next block its place, under mu
//	       the block is copied, without mu
//	Landed says that it can land no more, and lets Count settle its buffer
//
// Blocks of one sender take their places in the order of its posts. Nothing tells the owner that
// one has landed: it reads its buffers.
type ring struct {
	e    *Endpoint
	addr rdma.RingAddr

	mu sync.Mutex
	// queue counts a place as in flight from Place to Landed. Blocks are copied without mu, so that
	// one that takes long holds up no other.
	queue *rdma.RingQueue
	// closed is set under mu before Flying is read: so no place is given out behind.
	closed bool
}

// Rings returns what a pool of one process promises of rings. The error wraps
// rdma.ErrNotSupported on a file. There is one stream: rdma.RingPromises.Streams is 0.
func (e *Endpoint) Rings() (rdma.RingPromises, error) {
	if e.fabric.faults {
		return rdma.RingPromises{}, fmt.Errorf("append to rings in shared memory: %w", rdma.ErrNotSupported)
	}
	return rdma.RingPromises{MTU: e.fabric.MTU, Counts: true}, nil
}

// OpenRing opens a ring. Errors wrap rdma.ErrExists when the number is taken at the node,
// rdma.ErrAccess when the options are out of range, rdma.ErrRevoked or rdma.ErrStale when the
// worker was fenced off, rdma.ErrNotSupported, and rdma.ErrClosed.
func (e *Endpoint) OpenRing(o rdma.RingOptions) (rdma.Ring, error) {
	r, err := e.openRing(o)
	if err != nil {
		return nil, fmt.Errorf("client %d of %s: %w", e.id, e.fabric.name, err)
	}
	return r, nil
}

func (e *Endpoint) openRing(o rdma.RingOptions) (*ring, error) {
	if _, err := e.Rings(); err != nil {
		return nil, err
	}
	o, err := rdma.CheckRing(o, len(e.lost))
	if err != nil {
		return nil, err
	}
	if e.closed || e.fabric.closing.Load() {
		return nil, fmt.Errorf("open a ring: %w", rdma.ErrClosed)
	}
	r := &ring{e: e, addr: rdma.RingAt(o.Node, o.Number), queue: rdma.NewRingQueue(o)}
	all := &e.fabric.rings
	all.Lock()
	defer all.Unlock()
	if err := e.barred(); err != nil { // Revoke ends the rings that it finds behind this
		return nil, err
	}
	if all.at[r.addr] != nil {
		return nil, fmt.Errorf("%s: %w", r.addr, rdma.ErrExists)
	}
	all.at[r.addr] = r
	return r, nil
}

// Addr returns where to append to the ring.
func (r *ring) Addr() rdma.RingAddr { return r.addr }

// Post adds buffers to the ring, all of them or none. They lie within the node's memory, as the
// queue checks, so that blocks need no check of their own. What they hold is overwritten from now
// on.
func (r *ring) Post(buffers ...rdma.Span) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.e.fabric.closing.Load() {
		return fmt.Errorf("post buffers to %s: %w", r.addr, rdma.ErrClosed)
	}
	return r.queue.Post(buffers, r.e.size, r.e.fabric.MTU)
}

// Count returns how far the ring is. A buffer is settled when it is full and all its blocks have
// landed: the owner may read it without one landing under its eyes.
func (r *ring) Count() (rdma.RingCount, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.e.fabric.closing.Load() {
		return rdma.RingCount{}, fmt.Errorf("count %s: %w", r.addr, rdma.ErrClosed)
	}
	return r.queue.Count(), nil
}

// Close waits for the blocks that are being copied: their senders are in a Post, and do not stop
// there. It gives up after patience, with an error that wraps rdma.ErrTimeout; no block takes a
// place any more by then, and the number is free. Again, it does nothing.
func (r *ring) Close() error {
	all := &r.e.fabric.rings
	all.Lock()
	if all.at[r.addr] == r {
		delete(all.at, r.addr)
	}
	all.Unlock()
	for until := now() + patience; r.flying() > 0; time.Sleep(time.Microsecond) {
		if now() > until {
			return fmt.Errorf("close %s: blocks have been landing for %v: %w", r.addr, patience, rdma.ErrTimeout)
		}
	}
	return nil
}

// endRings ends the rings of a client that leaves or is fenced off. A sender of which the block
// is landing is in a Post of its own, and does not wait for this. Rings of a later life of the
// identity stay. A ring that is being opened is either found here, or its OpenRing sees the
// fence: see openRing.
func (f *Fabric) endRings(c rdma.ClientID, life uint64) (err error) {
	var own []*ring
	f.rings.RLock()
	for _, r := range f.rings.at {
		if r.e.id == c && r.e.life <= life {
			own = append(own, r)
		}
	}
	f.rings.RUnlock()
	for _, r := range own {
		err = errors.Join(err, r.Close())
	}
	return err
}

// flying ends the ring, and returns how many blocks are being copied. closed is set each time, so
// that the first call of Close ends it.
func (r *ring) flying() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.queue.Flying()
}

// place takes the next place for a block of n bytes, which the caller has to report as landed.
// The error wraps rdma.ErrNoRing once the ring has ended, or rdma.ErrRingDry.
func (r *ring) place(n int) (rdma.RingPlace, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return rdma.RingPlace{}, rdma.ErrNoRing
	}
	return r.queue.Place(n)
}

// appends executes an APPEND. fail calls it, as it calls send.
func (e *Endpoint) appends(op *rdma.Op) {
	if err := e.land(op); err != nil {
		op.Fail(err)
	}
}

// land copies an entry to its places, a block at a time. Between two blocks it gives way to other
// senders at random, so that blocks come to lie apart here, too, where each copy takes no time to
// speak of. The sender's Post is announced, so that fencing the sender off waits for its blocks.
// An entry of which a later block finds no place has left the earlier ones. Errors wrap
// rdma.ErrMessageSize, rdma.ErrNoRing and rdma.ErrRingDry.
func (e *Endpoint) land(op *rdma.Op) error {
	if n := len(op.Buf); n < 1 || n > rdma.MaxMessage {
		return rdma.ErrMessageSize
	}
	all := &e.fabric.rings
	all.RLock()
	r := all.at[rdma.RingAddr(op.Addr)]
	all.RUnlock()
	if r == nil {
		return rdma.ErrNoRing
	}
	// The ring is at the node that the op names: its address says so.
	memory := unsafe.Add(e.memory, uint64(op.Addr.Node())*e.stride)
	for p := op.Buf; ; {
		n := min(len(p), e.fabric.MTU)
		at, err := r.place(n)
		if err != nil {
			return err
		}
		memcopy.Store(unsafe.Add(memory, at.Offset), p[:n])
		// Without mu: it is the one call of the queue that is safe beside others.
		r.queue.Landed(at)
		if p = p[n:]; len(p) == 0 {
			return nil
		}
		if e.luck.Uint64()&1 == 0 {
			runtime.Gosched()
		}
	}
}

// breaks seeds where the worker's blocks come apart. The worker's own generator is not used: its
// draws belong to the worker.
func (e *Endpoint) breaks() { e.luck = *rand.NewPCG(^e.fabric.Seed, e.life<<16|uint64(e.id)) }
