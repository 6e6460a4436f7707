package shm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
)

// slot returns the line of client c, from 1 to the pool's number of clients.
func (h *header) slot(c rdma.ClientID) *slot {
	return (*slot)(unsafe.Add(unsafe.Pointer(h), slotOffset(c)))
}

// Open returns an endpoint with a free identity. Those of workers that died without closing are
// not free: they may own memory. The error wraps rdma.ErrFull when there is none. It takes the
// lowest that is free. The look at the state, ahead of the lock, only saves system calls: claim
// looks again. An identity that another process takes in between is passed over.
func (f *Fabric) Open(name string) (_ rdma.Endpoint, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.guard(&err)()
	if f.closing.Load() {
		return nil, fmt.Errorf("open %s as %s: %w", f.name, name, rdma.ErrClosed)
	}
	for i := 1; i <= f.g.Clients; i++ {
		c := rdma.ClientID(i)
		if inUse(atomic.LoadUint64(&f.head.slot(c).state)) {
			continue
		}
		ok, err := f.claim(c, name)
		if err != nil {
			return nil, fmt.Errorf("open %s as %s: %w", f.name, name, err)
		}
		if ok {
			f.users++
			return f.endpoint(c, f.head.slot(c)), nil
		}
	}
	dead := 0
	for _, c := range f.Clients() {
		if !c.Alive {
			dead++
		}
	}
	return nil, fmt.Errorf("open %s as %s: %d of %d clients are attached and %d dead ones wait for recovery: %w",
		f.name, name, f.g.Clients-dead, f.g.Clients, dead, rdma.ErrFull)
}

// claim begins a life in slot c. A crash before the state is set leaves the slot free; one behind
// it, a dead client. The lock is taken first, and all below is written under it. The state is
// last, and begins the life in one store. Name and pid that are there before are of no life.
// False: another worker has it, or had it in between. fence and stale stay as they are: the fence
// is of an earlier life.
func (f *Fabric) claim(c rdma.ClientID, name string) (bool, error) {
	ok, err := f.lives.take(c)
	if !ok || err != nil {
		return false, err
	}
	s := f.head.slot(c)
	state := atomic.LoadUint64(&s.state)
	if inUse(state) {
		return false, f.lives.drop(c)
	}
	s.name = [24]byte{}
	copy(s.name[:], name)
	if turn := atomic.LoadUint64(&s.busy); turn%2 != 0 { // last holder died in a Post: fences would wait for the next
		atomic.StoreUint64(&s.busy, turn+1)
	}
	// It also takes back an order to crash that the last holder did not live to obey.
	atomic.StoreUint64(&s.pid, uint64(os.Getpid()))
	atomic.StoreUint64(&s.state, (life(state)+1)<<1|1)
	return true, nil
}

// The caller holds mu, has counted the user, and has begun the life in s. joined is the epoch
// that is current by then: verbs of a worker that was just opened are refused by the fence of any
// later one.
func (f *Fabric) endpoint(c rdma.ClientID, s *slot) *Endpoint {
	e := &Endpoint{
		fabric: f, id: c, slot: s, lost: make([]error, f.g.Nodes), members: f.head.members[:f.g.Nodes],
		memory: unsafe.Add(unsafe.Pointer(f.head), f.g.first()), size: f.g.registered(), stride: f.g.stride(),
	}
	e.life = life(atomic.LoadUint64(&e.slot.state))
	// a fence of a later epoch raises the slot's behind this
	e.joined = viewWord(atomic.LoadUint64(&f.head.state)).epoch()
	e.rand = rand.New(rand.NewPCG(f.Seed, e.life<<16|uint64(c))) // not its predecessor's draws again
	e.turn = atomic.LoadUint64(&e.slot.busy)
	e.Init(nil)
	workers.Add(1)
	if !f.faults {
		e.Appending()
		e.breaks()
	}
	return e
}

// Peek returns an endpoint without an identity: it has a slot of its own that no other process
// sees. Nothing fences it off, and nothing waits for its READs. The error wraps rdma.ErrClosed.
func (f *Fabric) Peek(name string) (rdma.Endpoint, error) {
	e, err := f.nameless(name)
	if err != nil {
		return nil, err
	}
	return rdma.ReadOnly(e), nil
}

// Tell returns an endpoint like Peek's that may write behind the store's memory: see rdma.Teller.
// Its WRITEs there are not fenced off either.
func (f *Fabric) Tell(name string) (rdma.Endpoint, error) {
	e, err := f.nameless(name)
	if err != nil {
		return nil, err
	}
	return rdma.ReadOnlyBelow(e, f.Size()), nil
}

// nameless returns an endpoint without an identity. Its slot is of the first life, with nothing
// fenced, and no other worker has a pointer to it.
func (f *Fabric) nameless(name string) (_ *Endpoint, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.guard(&err)()
	if f.closing.Load() {
		return nil, fmt.Errorf("open %s as %s: %w", f.name, name, rdma.ErrClosed)
	}
	f.users++
	return f.endpoint(0, &slot{state: 1<<1 | 1}), nil
}

// leave ends e's life, and its tenure as master. A client that was fenced off stays listed until
// Forget. The state is written before the lock is dropped: a process that sees the lock free, and
// the slot in use, takes the client for dead. A crash between the two leaves a slot that is free,
// and a lock that the kernel drops.
func (f *Fabric) leave(e *Endpoint) error {
	if e.id == 0 {
		return nil
	}
	f.endLife(e)
	return f.lives.drop(e.id)
}

// endLife ends the tenure before the identity becomes free: else a successor would be taken for
// the master. Of a client that was fenced off the state stays, so that it is listed as dead.
func (f *Fabric) endLife(e *Endpoint) {
	defer f.guard(nil)() // of a pool that was truncated there is nothing to leave
	f.head.endTenure(e.id)
	if atomic.LoadUint64(&e.slot.fence) < e.life {
		atomic.StoreUint64(&e.slot.state, e.life<<1)
	}
}

// Clients lists the identities in use. One that was fenced off counts as dead. Each line is read by
// itself: the list is no snapshot. A client is dead when its slot is in use and the kernel has
// dropped its lock, by whatever its process ended.
func (f *Fabric) Clients() (all []rdma.Client) {
	defer f.guard(nil)()
	for i := 1; i <= f.g.Clients; i++ {
		c := rdma.ClientID(i)
		s := f.head.slot(c)
		state := atomic.LoadUint64(&s.state)
		if !inUse(state) {
			continue
		}
		held, err := f.lives.held(c)
		// A client of which the kernel does not tell counts as alive: to recover what a live one
		// owns does harm.
		held = held || err != nil
		if !held && atomic.LoadUint64(&s.state) != state {
			continue // it has just left, and did not die
		}
		alive := held && atomic.LoadUint64(&s.fence) < life(state)
		name, _, _ := bytes.Cut(s.name[:], []byte{0})
		all = append(all, rdma.Client{
			ID: c, Name: printable(name), Life: life(state), PID: int(uint32(atomic.LoadUint64(&s.pid))),
			Alive: alive, Held: held,
		})
	}
	return all
}

// printable keeps odd bytes of a name from an operator's terminal.
func printable(name []byte) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(string(name), "?"))
}

// Identity 0, which is the lock of the configuration, is none. The error wraps rdma.ErrAccess.
func (g Geometry) known(c rdma.ClientID) error {
	if c < 1 || int(c) > g.Clients {
		return fmt.Errorf("pool has clients 1 to %d: %w", g.Clients, rdma.ErrAccess)
	}
	return nil
}

// Revoke fences a client off. A process that was stopped in the midst of a Post keeps it from
// returning nil: after 10 s the error wraps rdma.ErrTimeout, and the client is fenced off all the
// same. A slot that is free has no holder to fence off. When it returns nil, no verb of the
// client can land any more, and its rings have ended.
func (f *Fabric) Revoke(c rdma.ClientID) (err error) {
	defer f.guard(&err)()
	if err := f.g.known(c); err != nil {
		return fmt.Errorf("revoke client %d: %w", c, err)
	}
	state := atomic.LoadUint64(&f.head.slot(c).state)
	if !inUse(state) {
		return nil
	}
	return f.revoke(c, life(state))
}

// RevokeLife fences off the holder that Clients described. It does no harm to a later holder: the
// fence is compared with lives. It may wait for the Post of that one, which changes nothing.
func (f *Fabric) RevokeLife(c rdma.Client) (err error) {
	defer f.guard(&err)()
	if err := f.g.known(c.ID); err != nil {
		return fmt.Errorf("revoke client %d: %w", c.ID, err)
	}
	return f.revoke(c.ID, c.Life)
}

// The fence only grows, and is raised first: behind it either the client sees it in enter, or
// drain sees the client's busy word. A crash in between leaves a client that posts nothing more,
// and perhaps one Post that is still landing: a process that goes on has to call it again. Rings
// are ended behind the drain. A call that timed out may be repeated: all that it does then
// is to wait.
func (f *Fabric) revoke(c rdma.ClientID, life uint64) error {
	s := f.head.slot(c)
	for old := atomic.LoadUint64(&s.fence); old < life; old = atomic.LoadUint64(&s.fence) {
		atomic.CompareAndSwapUint64(&s.fence, old, life)
	}
	if err := errors.Join(f.drain(c), f.endRings(c, life)); err != nil {
		return fmt.Errorf("revoke client %d: %w", c, err)
	}
	return nil
}

// drain waits until the verbs that c is executing are over, or the kernel says that c is gone: it
// drops a process's locks only when the last of its threads has ended. It waits for one Post at
// most: a busy word that has changed is of a later one, which enter has checked against the
// fence. The pauses between its looks grow from 1 us to 1 ms. An endpoint that has no slot in the
// mapping is not waited for.
func (f *Fabric) drain(c rdma.ClientID) error {
	s := f.head.slot(c)
	turn := atomic.LoadUint64(&s.busy)
	if turn%2 == 0 {
		return nil
	}
	pause := time.Microsecond
	// The lock is asked for in each turn: a worker that was killed since changes no busy word.
	for until := now() + patience; now() < until; pause = min(2*pause, time.Millisecond) {
		if atomic.LoadUint64(&s.busy) != turn {
			return nil
		}
		if held, err := f.lives.held(c); err == nil && !held {
			return nil
		}
		time.Sleep(pause)
	}
	return fmt.Errorf("client %d has been in one Post for %v: %w", c, patience, rdma.ErrTimeout)
}

// Forget frees the identity of a client that died, or was fenced off and closed, once nothing of
// it is left. No life begins in the slot meanwhile, since that takes the lock that is held here.
// The tenure ends before the state is written: see endTenure. A crash between the two leaves the
// identity listed, without a tenure. A slot of another life is left alone, and that is no error:
// it was forgotten before. The error wraps rdma.ErrHeld while the holder is attached.
func (f *Fabric) Forget(c rdma.Client) (err error) {
	defer f.guard(&err)()
	if err := f.g.known(c.ID); err != nil {
		return fmt.Errorf("forget client %d: %w", c.ID, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.head.slot(c.ID)
	if life(atomic.LoadUint64(&s.state)) != c.Life {
		return nil
	}
	ok, err := f.lives.take(c.ID)
	if err != nil {
		return fmt.Errorf("forget client %d: %w", c.ID, err)
	}
	if !ok {
		return fmt.Errorf("forget client %d: %w", c.ID, rdma.ErrHeld)
	}
	if life(atomic.LoadUint64(&s.state)) == c.Life {
		f.head.endTenure(c.ID)
		atomic.StoreUint64(&s.state, c.Life<<1)
	}
	return f.lives.drop(c.ID)
}
