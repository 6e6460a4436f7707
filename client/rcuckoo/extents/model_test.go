package extents

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// extentModel is a model of a table around real extents. Each key has two rows of its own, and a
// lock that is a field of the model. Workers write rows in the order in which operations do. The
// model, in place of a redo, has what a worker is about to write.
type extentModel struct {
	t      *testing.T
	seed   uint64
	l      *table.Layout
	v      *sim.Sim
	owners []*owner
	keys   []*held
	wrote  map[table.Ref]string // values
	named  map[table.Ref]bool   // uses that rows had, or were to have
	stats  Stats
	full   int
	old    int // refs that were out of date when readers followed them
}

// owner is a worker.
type owner struct {
	*extentModel
	me      int
	w       *sim.Worker
	x       *Client
	at      *held // locked
	pending *pending
}

// held is a key, and what its rows are while no worker has locked it.
type held struct {
	locked bool
	key    []byte
	at     table.Place
	rows   [2]table.Row // of first and second; the same when these are
	ref    table.Ref
	in     int // which row has it; -1: none
}

// pending is what a redo would have: rows in the order in which they are written, and the use
// that ends.
type pending struct {
	after held
	rows  []int
	ended table.Ref
}

func modelParams() table.Params {
	p := small()
	p.Shards, p.Rows, p.Entries, p.Slabs, p.SlabExtents, p.Clients = 1, 300, 2, 4, 5, 40
	return p
}

// classedModelParams are parameters of a pool with three classes.
func classedModelParams() table.Params {
	p := modelParams()
	p.ExtentBytes, p.Classes = 232, 3
	return p
}

func newExtentModel(t *testing.T, seed uint64, p table.Params, o sim.Options, workers, keys int) *extentModel {
	e := &extentModel{t: t, seed: seed, l: lay(t, p, 1), wrote: map[table.Ref]string{}, named: map[table.Ref]bool{}}
	o.Memory, o.Handler = e.l.Bytes, node.Serve
	e.v = sim.New(o)
	for i := range workers {
		e.owners = append(e.owners, &owner{extentModel: e, me: i})
	}
	taken := map[uint32]bool{}
	for n := 0; len(e.keys) < keys; n++ {
		k := &held{key: fmt.Appendf(nil, "key%d", n), in: -1}
		k.at = e.l.Place(k.key)
		if taken[k.at.First] || taken[k.at.Second] {
			continue
		}
		taken[k.at.First], taken[k.at.Second] = true, true
		k.rows[0] = make(table.Row, e.l.RowBytes)
		if k.rows[1] = k.rows[0]; k.at.First != k.at.Second {
			k.rows[1] = make(table.Row, e.l.RowBytes)
		}
		e.keys = append(e.keys, k)
	}
	return e
}

func (e *extentModel) fail(format string, args ...any) {
	e.t.Errorf("seed %d: %s", e.seed, fmt.Sprintf(format, args...))
}

func (k *held) row(i int) uint32 { return [2]uint32{k.at.First, k.at.Second}[i] }

// start lets a worker do so many operations.
func (o *owner) start(ops int) {
	o.w = o.v.Go(fmt.Sprintf("worker %d", o.me), func(ep rdma.Endpoint) {
		o.x = openExtents(o.l, ep)
		for range ops {
			if err := o.op(ep); err != nil {
				if !errors.Is(err, rdma.ErrClosed) { // it is unwound
					o.fail("worker %d: %v", o.me, err)
				}
				return
			}
		}
		hand := o.x.claimedIn(0)
		n, err := o.x.Leave(0, ep.Client())
		if errors.Is(err, rdma.ErrClosed) {
			return
		}
		if err != nil || n != hand {
			o.fail("worker %d gives %d extents back, of %d: %v", o.me, n, hand, err)
		}
		o.count()
	})
	o.w.WhenCrashed(o.count)
}

func (o *owner) count() {
	if o.x != nil {
		o.stats.Scans += o.x.stats.Scans
		o.stats.Handed += o.x.stats.Handed
		o.stats.Claims += o.x.stats.Claims
		o.stats.Missed += o.x.stats.Missed
		o.stats.Carved += o.x.stats.Carved
		o.stats.Collided += o.x.stats.Collided
	}
}

// op replaces, deletes or moves a key.
func (o *owner) op(ep rdma.Endpoint) error {
	k := o.keys[ep.Rand().IntN(len(o.keys))]
	if k.locked {
		ep.Sleep(5 * time.Microsecond)
		return nil
	}
	k.locked, o.at = true, k
	err := o.change(ep, k)
	k.locked, o.at = err != nil, nil
	return err
}

func (o *owner) change(ep rdma.Endpoint, k *held) error {
	switch n := ep.Rand().IntN(10); {
	case k.in < 0 || n < 6:
		return o.put(ep, k, n == 0)
	case n < 8:
		return o.write(ep, k, func(after *held) []int {
			o.l.Drop(after.rows[k.in], 0)
			after.in, after.ref = -1, table.Ref{}
			return []int{k.in}
		})
	case k.at.First != k.at.Second:
		return o.move(ep, k)
	}
	return nil
}

func (o *owner) move(ep rdma.Endpoint, k *held) error {
	return o.write(ep, k, func(after *held) []int {
		after.in = 1 - k.in
		o.l.Put(after.rows[after.in], 0, o.l.Entry(k.rows[k.in], 0))
		o.l.Drop(after.rows[k.in], 0)
		return []int{after.in, k.in}
	})
}

func (o *owner) put(ep rdma.Endpoint, k *held, comesToNothing bool) error {
	digits := ep.Rand().IntN(60)
	if o.l.Classes > 1 {
		digits = []int{5, 60, 150}[(len(o.wrote)/8+ep.Rand().IntN(2))%3] // there is more of one size for a while
	}
	value := fmt.Sprintf("%d.%d.%d.%0*d", o.seed, o.me, len(o.wrote), digits, 7)
	r, err := o.x.Take(0, len(k.key), len(value), ep.Now()+o.x.timeout)
	if errors.Is(err, client.ErrFull) {
		o.full++
		ep.Sleep(20 * time.Microsecond)
		return nil
	}
	if err != nil {
		return err
	}
	if o.named[table.Ref{Extent: r.Extent, Stamp: r.Stamp}] {
		return fmt.Errorf("use %+v is named already", r)
	}
	o.wrote[r] = value
	b := ep.Batch()
	o.l.AddValue(b, 0, r, k.key, []byte(value))
	err = rdma.Do(ep, b, time.Second)
	b.Release()
	if err != nil {
		return err
	}
	if comesToNothing {
		o.x.Give(0, r)
		return nil
	}
	o.named[table.Ref{Extent: r.Extent, Stamp: r.Stamp}] = true
	return o.write(ep, k, func(after *held) []int {
		after.in, after.ref = max(k.in, 0), r
		o.l.Put(after.rows[after.in], 0, o.l.Named(make([]byte, o.l.EntryBytes), k.key, r))
		return []int{after.in}
	})
}

// write changes rows of a key, and marks the use that ends.
func (o *owner) write(ep rdma.Endpoint, k *held, change func(after *held) []int) error {
	after := *k
	after.rows[0] = append(table.Row(nil), k.rows[0]...)
	if after.rows[1] = after.rows[0]; k.at.First != k.at.Second {
		after.rows[1] = append(table.Row(nil), k.rows[1]...)
	}
	rows := change(&after)
	p := &pending{after: after, rows: rows}
	if k.in >= 0 && k.ref != after.ref {
		p.ended = k.ref
	}
	for _, i := range rows {
		sealNext(o.l.Form, after.rows[i], 0, k.row(i))
	}
	o.pending = p
	b := ep.Batch()
	b.Chain()
	for _, i := range rows {
		out := b.Alloc(o.l.RowBytes)
		copy(out, after.rows[i])
		b.Write(o.l.RowAt(o.l.Leads[0], k.row(i)), out)
	}
	if p.ended.Stamp > 0 {
		o.l.AddMark(b, 0, p.ended)
	}
	err := rdma.Do(ep, b, time.Second)
	b.Release()
	if err != nil {
		return err
	}
	if p.ended.Stamp > 0 {
		o.x.Ended(0, p.ended)
	}
	*k, o.pending = after, nil // locked still
	return nil
}

// repair completes the operation of a dead worker, and frees what it had claimed. It does each
// twice, as after the crash of a master that had not yet reported the recovery.
func (o *owner) repair(ep rdma.Endpoint) error {
	if err := o.v.Revoke(o.w.Client()); err != nil {
		return err
	}
	for range 2 {
		if err := o.rollForward(ep); err != nil {
			return err
		}
	}
	if o.pending != nil {
		*o.at = o.pending.after
	}
	if o.at != nil {
		o.at.locked = false
	}
	for range 2 {
		n, err := openExtents(o.l, ep).Leave(0, o.w.Client())
		if err != nil {
			return err
		}
		o.stats.Rescued += uint64(n)
	}
	return nil
}

func (o *owner) rollForward(ep rdma.Endpoint) error {
	p := o.pending
	if p == nil {
		return nil
	}
	for _, i := range p.rows {
		if err := o.repairRow(ep, o.at.row(i), p.after.rows[i]); err != nil {
			return err
		}
	}
	if p.ended.Stamp > 0 {
		return o.repairMark(ep, p.ended)
	}
	return nil
}

func (o *owner) repairRow(ep rdma.Endpoint, n uint32, want table.Row) error {
	b := ep.Batch()
	defer b.Release()
	read := b.Read(o.l.RowAt(o.l.Leads[0], n), o.l.RowBytes)
	if err := rdma.Do(ep, b, time.Second); err != nil {
		return err
	}
	if r := table.Row(read.Buf); o.l.Valid(r, 0, n) && o.l.Version(r) >= o.l.Version(want) {
		return nil
	}
	w := ep.Batch()
	defer w.Release()
	out := w.Alloc(len(want))
	copy(out, want)
	w.Write(o.l.RowAt(o.l.Leads[0], n), out)
	return rdma.Do(ep, w, time.Second)
}

func (o *owner) repairMark(ep rdma.Endpoint, r table.Ref) error {
	b := ep.Batch()
	defer b.Release()
	o.l.AddMark(b, 0, r)
	return rdma.Do(ep, b, time.Second)
}

// read reads a key as a GET does: the extent that a row names has the value, or the row does not
// name it any more.
func (e *extentModel) read(ep rdma.Endpoint, k *held) error {
	var before table.Ref
	for range 100 {
		b := ep.Batch()
		first, second := b.Read(e.l.RowAt(e.l.Leads[0], k.at.First), e.l.RowBytes),
			b.Read(e.l.RowAt(e.l.Leads[0], k.at.Second), e.l.RowBytes)
		if err := rdma.Do(ep, b, time.Second); err != nil {
			return err
		}
		var r table.Ref
		for i, op := range []*rdma.Op{first, second} {
			if p := table.Row(op.Buf); e.l.Valid(p, 0, k.row(i)) && e.l.Find(p, k.key) >= 0 {
				r = e.l.Ref(e.l.Entry(p, e.l.Find(p, k.key)))
			}
		}
		b.Release()
		if r.Stamp == 0 {
			return nil
		}
		if r == before {
			return fmt.Errorf("a row names %+v all the time, which is not there", r)
		}
		if before.Stamp > 0 {
			e.old++
		}
		b = ep.Batch()
		op := e.l.AddRead(b, e.l.Leads[0], r, k.key)
		if err := rdma.Do(ep, b, time.Second); err != nil {
			return err
		}
		value, ok := e.l.ValueOf(op.Buf, 0, r, k.key)
		got := string(value)
		b.Release()
		if ok {
			if got != e.wrote[r] {
				return fmt.Errorf("%+v is %q, and was written as %q", r, got, e.wrote[r])
			}
			return nil
		}
		before = r
	}
	return errors.New("the key changes all the time")
}

// run plays a seed: three workers, one of which leaves early, a reader, and a keeper that repairs
// what worker 0 leaves.
func (e *extentModel) run(crash uint64) (sent uint64) {
	defer e.v.Close()
	rng := rand.New(rand.NewPCG(e.seed, 3))
	for i, o := range e.owners {
		o.start([]int{30, 40, 12}[i])
	}
	first := e.owners[0]
	if crash > 0 {
		e.v.CrashAt(first.w, crash)
	}
	e.v.Go("reader", func(ep rdma.Endpoint) {
		for !e.over() {
			if err := e.read(ep, e.keys[rng.IntN(len(e.keys))]); err != nil {
				e.fail("%v", err)
				return
			}
		}
	})
	e.v.Go("keeper", func(ep rdma.Endpoint) {
		for !first.w.Crashed() && !first.w.Finished() {
			ep.Sleep(20 * time.Microsecond)
		}
		if first.w.Finished() {
			return
		}
		if err := first.repair(ep); err != nil {
			e.fail("repair: %v", err)
		}
	})
	if err := e.v.Run(); err != nil {
		e.fail("%v", err)
		return 0
	}
	e.audit()
	return first.w.Sent()
}

func (e *extentModel) over() bool {
	for _, o := range e.owners {
		if !o.w.Finished() && !o.w.Crashed() {
			return false
		}
	}
	return true
}

// audit checks that each extent is either named by one row, with its value, or free; and that all
// extents of a unit are free if none of them is named.
func (e *extentModel) audit() {
	ep, err := e.v.Open("audit")
	must(e.t, err)
	named, units := map[uint64]bool{}, map[uint64]bool{}
	for _, k := range e.keys {
		if err := e.read(ep, k); err != nil {
			e.fail("%s: %v", k.key, err)
		}
		if k.in >= 0 {
			if named[k.ref.Extent] {
				e.fail("extent %d has two keys", k.ref.Extent)
			}
			named[k.ref.Extent] = true
			unit, _ := e.l.UnitOf(k.ref.Extent)
			units[unit] = true
		}
	}
	x := openExtents(e.l, ep)
	free := map[uint64]bool{}
	for {
		r, err := takeNow(x, 0, e.l.ExtentBytes)
		if errors.Is(err, client.ErrFull) {
			break
		}
		if err != nil {
			e.fail("%v", err)
			return
		}
		unit, _ := e.l.UnitOf(r.Extent)
		if free[unit] || units[unit] {
			e.fail("unit %d is handed out, taken before: %v, named: %v", unit, free[unit], units[unit])
			return
		}
		free[unit] = true
	}
	if all := int(e.l.AllUnits()); len(free)+len(units) != all {
		e.fail("%d units are free and %d in use, of %d", len(free), len(units), all)
	}
}
