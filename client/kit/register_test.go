package kit_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/workloads/check/wait"
)

// The store is a few registers, each a word on some nodes: the value, the writer's identity, and
// its number, so that no word comes back. A write CASes the first backup, which decides, then the
// others, then the primary, which is all that readers see.
const (
	registers = 6
	replicas  = 2
	spares    = 1
	clients   = 8
	timeout   = 20 * time.Second // of an operation: a master takes a few leases, on a busy machine more

	ceilings = node.HeaderBytes
	table    = ceilings + 8*clients
)

type word uint64

func pack(value uint16, c rdma.ClientID, number uint64) word {
	return word(value)<<48 | word(c)<<32 | word(number)
}

func (w word) value() uint16           { return uint16(w >> 48) }
func (w word) writer() rdma.ClientID   { return rdma.ClientID(w >> 32) }
func originals(n int) [][]node.Replica { return node.Place(registers, replicas, n-spares, registers) }

// worker is one worker's view of the store.
type worker struct {
	ep         rdma.Endpoint
	nodes      int
	originals  [][]node.Replica
	member     *kit.Member
	placement  [][]node.Replica
	numbers    *kit.Numbers
	unresolved kit.Unresolved[*write]
	until      time.Duration // of the operation at work
}

// write is one of a register.
type write struct {
	register int
	old, new word
	epoch    uint64 // of the view in which it was sent
	known    bool   // whether it took effect
	took     bool
}

func open(ep rdma.Endpoint, nodes int) (*worker, error) {
	w := &worker{ep: ep, nodes: nodes, originals: originals(nodes), until: ep.Now() + timeout}
	var err error
	if w.member, err = kit.Join(ep); err != nil {
		return nil, err
	}
	w.applyView(&w.member.View)
	w.member.Follow(w.applyView)
	w.numbers, err = kit.OpenNumbers(w.ceiling(ep.Client()), 100)
	return w, err
}

func (w *worker) applyView(v *rdma.View) { w.placement, _ = kit.Place(v, w.originals) }

func (w *worker) ceiling(c rdma.ClientID) kit.Ceiling {
	e := &kit.Everywhere{Batch: w.ep.Batch, Do: w.do}
	for _, n := range kit.Holders(&w.member.View, w.nodes-spares) {
		e.At = append(e.At, rdma.At(n, ceilings+8*uint64(c-1)))
	}
	return e
}

func (w *worker) do(step rdma.Step, b *rdma.Batch) error { return rdma.Do(w.ep, b.As(step), timeout) }

func (w *worker) retry(p kit.Pause) kit.Retry {
	return kit.Retry{Env: w.ep, Pause: p, Over: func() bool { return w.ep.Now() > w.until }}
}

func (w *worker) at(register, replica int) rdma.Addr {
	r := w.placement[register][replica]
	return rdma.At(r.Node, table+8*uint64(r.Index))
}

func (w *worker) readWord(register, replica int) (word, error) {
	b := w.ep.Batch()
	defer b.Release()
	op := b.Read(w.at(register, replica), 8)
	if err := w.do("read", b); err != nil {
		return 0, err
	}
	return word(binary.LittleEndian.Uint64(op.Buf)), nil
}

func (w *worker) swap(register, replica int, old, now word) (bool, error) {
	b := w.ep.Batch()
	defer b.Release()
	op := b.CompareSwap(w.at(register, replica), uint64(old), uint64(now))
	err := w.do("swap", b)
	return err == nil && op.Swapped(), err
}

// interrupted reports whether the next view may do better.
func interrupted(err error) bool {
	return errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrNodeDown)
}

var errTimeout = fmt.Errorf("the operation %w", rdma.ErrTimeout)

// awaitIdleView waits until the pool's view is idle, and a later one if verbs failed in this one.
// Then it is known what became of the worker's writes.
func (w *worker) awaitIdleView(failed error) error {
	epoch := w.member.Epoch
	if failed != nil {
		epoch++
	}
	if ok, err := w.member.AwaitIdle(epoch, w.retry(kit.WhileBusy)); err != nil || !ok {
		return cmp.Or(err, errTimeout)
	}
	var err error
	w.unresolved.Resolve(func(op **write) bool {
		o := *op
		now, e := w.readWord(o.register, 0)
		if err = cmp.Or(err, e); e == nil && w.member.Epoch > o.epoch {
			o.known, o.took = true, now != o.old // what is there instead of it came behind it, or might have
		}
		return o.known
	})
	return err
}

func (w *worker) Read(register int) (v uint16, err error) {
	w.until = w.ep.Now() + timeout
	for {
		now, err := w.readWord(register, 0)
		if err == nil || !interrupted(err) {
			return now.value(), err
		}
		if err := w.awaitIdleView(err); err != nil {
			return 0, err
		}
	}
}

// moment is about what another writer needs.
var moment = kit.Spread(time.Microsecond, kit.Doubling(2*time.Microsecond, time.Millisecond))

func (w *worker) Write(register int, value uint16) error {
	w.until = w.ep.Now() + timeout
	var failed error
	for r := w.retry(moment); ; {
		if err := w.awaitIdleView(failed); err != nil && !interrupted(err) {
			return err
		}
		o := &write{register: register}
		err := w.try(o, value)
		for failed = err; interrupted(failed) && !o.known && o.new != 0; {
			if failed = w.awaitIdleView(failed); failed != nil && !interrupted(failed) {
				return fmt.Errorf("%w: %w", client.ErrUncertain, failed)
			}
		}
		switch {
		case err == nil && o.took, o.known && o.took:
			return nil
		case err != nil && !interrupted(err):
			return err
		case !r.Again():
			return errTimeout
		}
	}
}

// try is a write within one view. It has not begun when o.new is zero; otherwise an error leaves it
// unresolved.
func (w *worker) try(o *write, value uint16) (err error) {
	if o.old, err = w.readWord(o.register, 0); err != nil {
		return err
	}
	if err := w.numbers.Use(w.numbers.Used() + 1); err != nil {
		return err
	}
	o.new, o.epoch = pack(value, w.ep.Client(), w.numbers.Used()), w.member.Epoch
	all := len(w.placement[o.register])
	for i := range all { // the primary last
		ok, err := w.swap(o.register, (i+1)%all, o.old, o.new)
		if err != nil {
			w.unresolved.Keep(o)
			return err
		}
		if !ok { // another client's write is under way
			o.new = 0
			return nil
		}
	}
	o.took = true
	return nil
}

// recoverer is the master's half.
type recoverer struct{ *worker }

var _ cluster.Recoverer = recoverer{}

func (m recoverer) Spares() []int          { return kit.Spares(m.nodes, spares) }
func (m recoverer) Sweep(rdma.View) error  { return nil }
func (m recoverer) Mend(v rdma.View) error { return m.finish(v, func(word) bool { return true }) }

// Recover ends the writes of a dead client that its first backups have.
func (m recoverer) Recover(v rdma.View, dead rdma.ClientID) error {
	return m.finish(v, func(w word) bool { return w.writer() == dead })
}

// finish makes all replicas equal of registers that concern the caller. Under a busy view the
// primary's word will do: if the primary is one that was a backup, nothing older was ever read. A
// dead client's is the first backup's, which decided.
func (m recoverer) finish(v rdma.View, concerns func(word) bool) error {
	m.member.Enter(v)
	for register, place := range m.placement {
		words := make([]word, len(place))
		for r := range words {
			var err error
			if words[r], err = m.readWord(register, r); err != nil {
				return err
			}
		}
		decided := words[min(1, len(words)-1)]
		if v.Busy {
			decided = words[0]
		}
		for r := len(words) - 1; r >= 0 && concerns(decided); r-- {
			if words[r] == decided {
				continue
			}
			if _, err := m.swap(register, r, words[r], decided); err != nil {
				return err
			}
		}
	}
	return nil
}

// Restore copies words, and the ceilings, to where they lay on the dead node.
func (m recoverer) Restore(v rdma.View, dead, spare int) error {
	m.member.Enter(v)
	b := m.ep.Batch()
	defer b.Release()
	put := func(at uint64, w word) {
		p := b.Alloc(8)
		binary.LittleEndian.PutUint64(p, uint64(w))
		b.Write(rdma.At(spare, at), p)
	}
	for register, o := range m.originals {
		if index, ok := kit.IndexOn(o, v.Original(dead)); ok {
			w, err := m.readWord(register, 0)
			if err != nil {
				return err
			}
			put(table+8*uint64(index), w)
		}
	}
	for c := range rdma.ClientID(clients) {
		most := uint64(0)
		if err := m.ceiling(c + 1).Read(func(word uint64) { most = max(most, word) }); err != nil {
			return err
		}
		put(ceilings+8*uint64(c), word(most))
	}
	return m.do("restore", b)
}

// keep makes a pool with a keeper, and returns what opens a worker in it.
func keep(t *testing.T, nodes int) (f *shm.Fabric, work func() *worker) {
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: 1 << 16, Clients: clients}, node.Serve)
	must(t, err)
	work = func() *worker {
		ep, err := f.Open("worker")
		must(t, err)
		w, err := open(ep, nodes)
		must(t, err)
		return w
	}
	ep, err := f.Open("keeper")
	must(t, err)
	mend := func(ep rdma.Endpoint) (cluster.Recoverer, error) {
		w, err := open(ep, nodes)
		return recoverer{w}, err
	}
	var stop atomic.Bool
	kept := make(chan error, 1)
	go func() {
		kept <- cluster.Keep(ep, f, mend, cluster.Options{Lease: 100 * time.Millisecond, Stop: stop.Load})
	}()
	t.Cleanup(func() {
		stop.Store(true)
		must(t, errors.Join(<-kept, f.Close()))
	})
	return f, work
}

// write writes all registers, from a value on, and reads them.
func (w *worker) writeAll(t *testing.T, from uint16) {
	t.Helper()
	for i := range registers {
		must(t, w.Write(i, from+uint16(i)))
		if v, err := w.Read(i); v != from+uint16(i) || err != nil {
			t.Errorf("register %d is %d, %v, not %d", i, v, err, from+uint16(i))
		}
	}
	if n := len(w.unresolved); n > 0 {
		t.Errorf("%d writes are unresolved", n)
	}
}

// TestClientDies: a client dies in the midst of a write for which others wait, until the master has
// ended it. The identity's next holder begins above its numbers.
func TestClientDies(t *testing.T) {
	f, work := keep(t, 4)
	w, victim := work(), work()
	w.writeAll(t, 10)
	old, err := victim.readWord(2, 0)
	must(t, err)
	must(t, victim.numbers.Use(7))
	if ok, err := victim.swap(2, 1, old, pack(99, victim.ep.Client(), 7)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	must(t, f.Revoke(victim.ep.Client()))
	must(t, victim.ep.Close())
	w.writeAll(t, 20)
	until(t, "its identity is free", func() bool {
		return !slices.ContainsFunc(f.Clients(), func(c rdma.Client) bool { return c.ID == victim.ep.Client() })
	})
	successor := work()
	if successor.ep.Client() != victim.ep.Client() || successor.numbers.Used() < 7 {
		t.Errorf("client %d begins above %d, behind client %d, which used 7", successor.ep.Client(),
			successor.numbers.Used(), victim.ep.Client())
	}
}

// killer kills a node at the first CAS that goes there.
type killer struct {
	rdma.Endpoint
	kill func(node int) error
	node int
}

func (k *killer) Post(b *rdma.Batch) error {
	if op := b.Op(0); k.kill != nil && op.Verb == rdma.CompareSwap && op.Addr.Node() == k.node {
		if err := k.kill(k.node); err != nil {
			return err
		}
		k.kill = nil
	}
	return k.Endpoint.Post(b)
}

// TestNodeDies: a node dies in the midst of a write, the primary's or the backup's, and a spare
// takes its place. The write takes effect once, and all replicas are there again.
func TestNodeDies(t *testing.T) {
	for r := range replicas {
		t.Run(fmt.Sprintf("replica %d", r), func(t *testing.T) { testNodeDies(t, r) })
	}
}

func testNodeDies(t *testing.T, replica int) {
	f, work := keep(t, 4)
	w := work()
	w.writeAll(t, 10)
	dead := w.placement[3][replica].Node
	w.ep = &killer{w.ep, f.KillNode, dead}
	used := w.numbers.Used()
	must(t, w.Write(3, 13))
	// what the backup has was written; of a dead backup nothing is left
	if n := w.numbers.Used() - used; n != 1+uint64(replica) {
		t.Errorf("the write was sent %d times", n)
	}
	for i := range registers {
		if v, err := w.Read(i); v != 10+uint16(i) || err != nil {
			t.Errorf("register %d is %d, %v", i, v, err)
		}
	}
	w.writeAll(t, 20)
	until(t, "a spare stands for the node", func() bool {
		v := f.View()
		return !v.Busy && slices.ContainsFunc(v.Members, func(m rdma.Member) bool { return int(m.Replaces) == dead+1 })
	})
	w.writeAll(t, 30)
	late := work()
	for i := range registers {
		if len(late.placement[i]) != replicas {
			t.Errorf("register %d lies at %v", i, late.placement[i])
		}
		for r := range late.placement[i] {
			if v, err := late.readWord(i, r); v.value() != 30+uint16(i) || err != nil {
				t.Errorf("replica %d of register %d is %d, %v", r, i, v.value(), err)
			}
		}
	}
}

var until = wait.Until

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
