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

// rings are those of a fabric.
type rings struct {
	sync.RWMutex
	at map[rdma.RingAddr]*ring
}

// ring is a worker's. Senders are other goroutines: each takes a place under mu, and fills it in
// without.
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

// Rings returns what a pool of one process promises of rings.
func (e *Endpoint) Rings() (rdma.RingPromises, error) {
	if e.fabric.faults {
		return rdma.RingPromises{}, fmt.Errorf("append to rings in shared memory: %w", rdma.ErrNotSupported)
	}
	return rdma.RingPromises{MTU: e.fabric.MTU, Counts: true}, nil
}

// OpenRing opens a ring.
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

func (r *ring) Addr() rdma.RingAddr { return r.addr }

func (r *ring) Post(buffers ...rdma.Span) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.e.fabric.closing.Load() {
		return fmt.Errorf("post buffers to %s: %w", r.addr, rdma.ErrClosed)
	}
	return r.queue.Post(buffers, r.e.size, r.e.fabric.MTU)
}

func (r *ring) Count() (rdma.RingCount, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.e.fabric.closing.Load() {
		return rdma.RingCount{}, fmt.Errorf("count %s: %w", r.addr, rdma.ErrClosed)
	}
	return r.queue.Count(), nil
}

// Close waits for the blocks that are being copied: their senders are in a Post, and do not stop
// there.
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

// endRings ends the rings of a client that leaves or is fenced off. A sender of which the block is
// landing is in a Post of its own, and does not wait for this.
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

// flying ends the ring, and returns how many blocks are being copied.
func (r *ring) flying() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.queue.Flying()
}

func (r *ring) place(n int) (rdma.RingPlace, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return rdma.RingPlace{}, rdma.ErrNoRing
	}
	return r.queue.Place(n)
}

// appends executes an APPEND.
func (e *Endpoint) appends(op *rdma.Op) {
	if err := e.land(op); err != nil {
		op.Fail(err)
	}
}

// land copies an entry to its places, a block at a time. Between two blocks it gives way to other
// senders at random, so that blocks come to lie apart here, too, where each copy takes no time to
// speak of. The sender's Post is announced, so that fencing the sender off waits for its blocks. An
// entry of which a later block finds no place has left the earlier ones.
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
	memory := unsafe.Add(e.memory, uint64(op.Addr.Node())*e.stride)
	for p := op.Buf; ; {
		n := min(len(p), e.fabric.MTU)
		at, err := r.place(n)
		if err != nil {
			return err
		}
		memcopy.Store(unsafe.Add(memory, at.Offset), p[:n])
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
