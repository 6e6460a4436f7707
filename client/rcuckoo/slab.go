package rcuckoo

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// extents are those that a client owns. It takes them from slabs of its own, so that nobody is asked (section 3.1), and finds
// out which are free again by reading the marks of a whole slab at once, when it has none left (section 3.2.2). Who owns a slab
// is in its word of the shard's table, which nodes hand out and clients pass on, all by atomics: see node.Entry.
type extents struct {
	*layout
	ep      rdma.Endpoint
	id      rdma.ClientID
	timeout time.Duration
	step    func(name string) // told what is posted next
	stocks  []stock           // of each shard
	stats   ExtentStats
}

// ExtentStats count what a client did for its memory. They only grow.
type ExtentStats struct {
	Scans   uint64 // slabs whose marks it read
	Handed  uint64 // slabs that it got from nodes
	Adopted uint64 // slabs that it got from clients that left, or died
	Rescued uint64 // extents there that no row named, and that bore no mark
}

// stock is what a client has in a shard.
type stock struct {
	looked bool // it knows which slabs are its own
	slabs  []*slab
	of     map[int]*slab
	hand   []uint64 // extents that were taken, and given back unused: first to be taken again
	free   []uint64 // from head on; the one that has been free for longest first, as its readers have had most time
	head   int
	cursor int // slab of the next scan
}

// slab is one that a client owns. Of its extents those up to checked are known: their stamps, and whether they are idle, which
// means in the stock's lists.
type slab struct {
	index   int
	checked int
	stamps  []uint64
	idle    []bool
}

// worthIt is the part of a client's extents that scans are to find free: with fewer they would have to be made too often, and
// the client rather asks for another slab.
const worthIt = 16

func newExtents(l *layout, ep rdma.Endpoint, timeout time.Duration, step func(string)) *extents {
	x := &extents{layout: l, ep: ep, id: ep.Client(), timeout: timeout, step: step, stocks: make([]stock, l.Shards)}
	for i := range x.stocks {
		x.stocks[i].of = map[int]*slab{}
	}
	return x
}

// take returns an extent of a shard for a value of so many bytes, with the stamp of its use. It is the client's until a row
// names it. The error wraps client.ErrFull when there is none.
func (x *extents) take(shard, length int) (ref, error) {
	st := &x.stocks[shard]
	if st.left() == 0 {
		if err := x.refill(shard); err != nil {
			return ref{}, fmt.Errorf("take an extent of shard %d: %w", shard, err)
		}
	}
	e := st.pop()
	slab, i := x.slabOf(e)
	s := st.of[slab]
	s.idle[i] = false
	s.stamps[i]++
	return ref{extent: e, length: length, stamp: s.stamps[i]}, nil
}

// give takes an extent back that no row names, nor will: its operation came to nothing. It is taken again next, so that a client
// that dies leaves one such extent in a shard at most.
func (x *extents) give(shard int, r ref) {
	if s, i := x.own(shard, r); s != nil {
		s.idle[i] = true
		x.stocks[shard].hand = append(x.stocks[shard].hand, r.extent)
	}
}

// ended tells that this client has marked a use. If the extent is its own it need not read that.
func (x *extents) ended(shard int, r ref) {
	if s, i := x.own(shard, r); s != nil {
		s.idle[i] = true
		x.stocks[shard].push(r.extent)
	}
}

// own returns the client's slab that a use is in, if it is the last one of its extent.
func (x *extents) own(shard int, r ref) (*slab, int) {
	slab, i := x.slabOf(r.extent)
	s := x.stocks[shard].of[slab]
	if s == nil || i >= s.checked || s.idle[i] || s.stamps[i] != r.stamp {
		return nil, 0
	}
	return s, i
}

func (st *stock) left() int { return len(st.hand) + len(st.free) - st.head }

func (st *stock) pop() (e uint64) {
	if n := len(st.hand); n > 0 {
		e = st.hand[n-1]
		st.hand = st.hand[:n-1]
		return e
	}
	e = st.free[st.head]
	st.head++
	return e
}

func (st *stock) push(e uint64) {
	if st.head > 64 && 2*st.head > len(st.free) {
		st.free = st.free[:copy(st.free, st.free[st.head:])]
		st.head = 0
	}
	st.free = append(st.free, e)
}

// keep adds a slab, of which the first extents are known: none were used.
func (st *stock) keep(x *extents, index, checked int) {
	s := &slab{index: index, checked: checked, stamps: make([]uint64, x.SlabExtents), idle: make([]bool, x.SlabExtents)}
	st.slabs = append(st.slabs, s)
	st.of[index] = s
	for i := range checked {
		s.idle[i] = true
		st.push(uint64(index*x.SlabExtents + i))
	}
}

// refill finds extents for a stock that has none: those that others have marked, those of a new slab, and those of slabs whose
// owners are gone.
func (x *extents) refill(shard int) error {
	st := &x.stocks[shard]
	until := x.ep.Now() + x.timeout
	if !st.looked {
		if err := x.look(shard); err != nil {
			return err
		}
	}
	for _, s := range st.slabs {
		if err := x.check(shard, s, until); err != nil {
			return err
		}
	}
	if err := x.scan(shard, until); err != nil || st.left()*worthIt > len(st.slabs)*x.SlabExtents {
		return err
	}
	err := x.handed(shard)
	if !errors.Is(err, rdma.ErrFull) || st.left() > 0 {
		if errors.Is(err, rdma.ErrFull) {
			return nil
		}
		return err
	}
	return x.adopt(shard, until)
}

// scan reads the marks of the client's slabs, in turn, until it has found enough.
func (x *extents) scan(shard int, until time.Duration) error {
	st := &x.stocks[shard]
	for range st.slabs {
		if st.left()*worthIt > len(st.slabs)*x.SlabExtents {
			return nil
		}
		if st.cursor++; st.cursor >= len(st.slabs) {
			st.cursor = 0
		}
		s := st.slabs[st.cursor]
		b := x.ep.Batch()
		marks := b.Read(x.slabAt(shard, s.index), x.SlabExtents*markBytes)
		if err := x.do("scan marks", b, until); err != nil {
			b.Release()
			return fmt.Errorf("scan slab %d: %w", s.index, err)
		}
		x.stats.Scans++
		for i, stamp := range s.stamps[:s.checked] {
			if !s.idle[i] && le.Uint64(marks.Buf[i*markBytes:]) == stamp {
				s.idle[i] = true
				st.push(uint64(s.index*x.SlabExtents + i))
			}
		}
		b.Release()
	}
	return nil
}

// handed asks the node for a slab that was never used. A crash behind that leaves a slab of the client's, with nothing in it.
func (x *extents) handed(shard int) error {
	home, index := x.home(shard)
	r := rdma.Request{Proc: node.ProcAlloc}
	r.Arg = [6]uint64{x.owners.of(index), uint64(x.Slabs), x.slabs.of(index), x.slab, 0, uint64(x.id) % uint64(x.Slabs)}
	x.step("ask for a slab")
	if err := x.ep.Call(home, &r, x.timeout); err != nil {
		if !errors.Is(err, rdma.ErrFull) {
			x.stocks[shard].looked = false // it may have been handed out
		}
		return fmt.Errorf("ask node %d for a slab: %w", home, err)
	}
	x.stats.Handed++
	x.stocks[shard].keep(x, int(r.Ret[0]), x.SlabExtents)
	return nil
}

// do posts a batch and waits for it, as long as there is time.
func (x *extents) do(step string, b *rdma.Batch, until time.Duration) error {
	x.step(step)
	return rdma.Do(x.ep, b, max(until-x.ep.Now(), 0))
}
