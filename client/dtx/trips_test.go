package dtx

import (
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
)

// counted is a worker with checks of what its transactions cost.
type counted struct {
	*Worker
	t testing.TB
}

func (w counted) want(what string, trips, reads, writes, atomics uint64, f func(tx *Tx) error) {
	w.t.Helper()
	must(w.t, w.settle())
	n := trace.Trips(w.ep, func() { must(w.t, w.Run(f)) })
	if n.Trips != trips || n.Reads != reads || n.Writes != writes || n.Atomics != atomics {
		w.t.Errorf("%d nodes: %s took %d trips, %d READs, %d WRITEs, %d atomics, want %d, %d, %d, %d", w.Nodes, what,
			n.Trips, n.Reads, n.Writes, n.Atomics, trips, reads, writes, atomics)
	}
}

func (w counted) seen(r Ref) Version {
	w.t.Helper()
	must(w.t, w.Run(func(tx *Tx) error { return readAll(tx, r) }))
	v, ok := w.Seen(r)
	if !ok {
		w.t.Errorf("%v was not seen", r)
	}
	return v
}

// TestTripsOfReads asserts what reads and early locks take on the critical path, and their verbs.
func TestTripsOfReads(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		f, l := pool(t, Shape{Nodes: nodes, Roots: 3})
		w := counted{worker(t, f, l, Options{}), t}
		a, b, c := l.Root(0), l.Root(1), l.Root(2)
		must(t, set(w.Worker, "there", a, b, c))
		va, vb := w.seen(a), w.seen(b)
		w.want("read", 1, 1, 0, 0, func(tx *Tx) error { return readAll(tx, a, a) })
		w.want("read of two", 3, 3, 0, 0, func(tx *Tx) error { return readAll(tx, a, b) })
		w.want("read of three", 5, 3+1+2, 0, 0, func(tx *Tx) error { return readAll(tx, a, b, c) })
		w.want("read of two, one of which was seen", 2, 3, 0, 0,
			func(tx *Tx) error { tx.Guess(b, vb); return readAll(tx, a, b) })
		w.want("read of two, with the way there", 2, 2, 0, 0, func(tx *Tx) error {
			if err := readAll(tx, a); err != nil {
				return err
			}
			tx.Relax(a)
			return readAll(tx, b)
		})
		w.want("lock of what was seen", 1, 1, 0, 2, func(tx *Tx) error { tx.Guess(a, va); return tx.Lock(a) })
		w.want("lock of two that were seen", 2, 2, 0, 4, func(tx *Tx) error {
			tx.Guess(a, va)
			tx.Guess(b, vb)
			if err := tx.Lock(a); err != nil {
				return err
			}
			return tx.Lock(b)
		})
	}
}

// TestTrips asserts what transactions that change something take: read, lock, log, write and
// unlock.
func TestTrips(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		f, l := pool(t, Shape{Nodes: nodes, Roots: 3})
		w := counted{worker(t, f, l, Options{}), t}
		a, b, c := l.Root(0), l.Root(1), l.Root(2)
		must(t, set(w.Worker, "there", a, b, c))
		made, err := create(w.Worker, "made")
		must(t, err)
		w.want("write of one", 4, 1, 2, 2, func(tx *Tx) error { return writeAll(tx, a) })
		va := w.seen(a)
		w.want("write of what was seen and locked", 3, 1, 2, 2, func(tx *Tx) error {
			tx.Guess(a, va)
			if err := tx.Lock(a); err != nil {
				return err
			}
			return writeAll(tx, a)
		})
		w.want("write of one that was locked", 4, 1, 2, 2, func(tx *Tx) error {
			if err := tx.Lock(a); err != nil {
				return err
			}
			return writeAll(tx, a)
		})
		w.want("write of one, with a read of another", 3+4, 3+1, 2, 2, func(tx *Tx) error {
			if err := readAll(tx, b); err != nil {
				return err
			}
			return writeAll(tx, a)
		})
		w.want("write of two", 3+3, 3, 3, 4, func(tx *Tx) error { return writeAll(tx, a, b) })
		w.want("free and make", 1+3, 1, 3, 4, func(tx *Tx) error {
			if err := tx.Free(made); err != nil {
				return err
			}
			_, err := tx.NewOn(nodeOf(l, made), []byte("made"))
			return err
		})
		w.want("validation of the caller's", 1+4, 1+1, 2, 2, func(tx *Tx) error {
			var op *rdma.Op
			at, bytes := l.Object(c)
			tx.Check(func(b *rdma.Batch) { op = b.Read(at, bytes) }, func() bool {
				_, data, ok := Decode(op.Buf, c)
				return ok && string(data) == "there"
			})
			return writeAll(tx, a)
		})
	}
}

func readAll(tx *Tx, objects ...Ref) error {
	for _, r := range objects {
		if _, err := tx.Read(r); err != nil {
			return err
		}
	}
	return nil
}

func writeAll(tx *Tx, objects ...Ref) error {
	for _, r := range objects {
		if err := tx.Write(r, []byte("there")); err != nil {
			return err
		}
	}
	return nil
}

// TestAllocations: nothing is allocated in steady state.
func TestAllocations(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 2, Roots: 2})
	w := worker(t, f, l, Options{})
	data := make([]byte, 1000)
	change := func(tx *Tx) error {
		_, err := tx.Read(l.Root(0))
		if err == nil {
			err = tx.Write(l.Root(1), data)
		}
		return err
	}
	must(t, w.Run(func(tx *Tx) error { return tx.Write(l.Root(0), data) }))
	turnover := func(tx *Tx) error {
		r, err := tx.NewOn(0, data[:8])
		if err != nil {
			return err
		}
		return tx.Free(r)
	}
	for name, f := range map[string]func(tx *Tx) error{
		"read":           func(tx *Tx) error { _, err := tx.Read(l.Root(0)); return err },
		"read and write": change, "make and free": turnover,
	} {
		for range 100 {
			must(t, w.Run(f))
		}
		if n := testing.AllocsPerRun(500, func() { must(t, w.Run(f)) }); n > 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
