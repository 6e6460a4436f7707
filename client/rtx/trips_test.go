package rtx

import (
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
)

// TestTrips asserts what transactions take on the critical path, and the verbs of Table 2.
// A read takes the metadata, and then the data with the metadata again. The data of a second object
// comes with the metadata of the first one.
func TestTrips(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		f, l := pool(t, Shape{Nodes: nodes, Roots: 3, Objects: 64})
		w, logged := worker(t, f, l, Options{}), worker(t, f, l, Options{Log: true})
		a, b, c := l.Root(0), l.Root(1), l.Root(2)
		must(t, set(w, "there", a, b, c))
		must(t, set(w, "there", a)) // it has a buffer on each node
		must(t, set(w, "there", b))
		must(t, set(w, "there", c))
		must(t, set(logged, "there", a))
		made, err := create(w, "made")
		must(t, err)
		must(t, w.settle())
		must(t, logged.settle())
		count := func(what string, w *Worker, trips, reads, writes, atomics uint64, f func(tx *Tx) error) {
			t.Helper()
			n := trace.Trips(w.ep, func() { must(t, w.Run(f)); must(t, w.land()) })
			if n.Trips != trips || n.Reads != reads || n.Writes != writes || n.Atomics != atomics {
				t.Errorf("%d nodes: %s took %d trips, %d READs, %d WRITEs, %d atomics, want %d, %d, %d, %d", nodes,
					what, n.Trips, n.Reads, n.Writes, n.Atomics, trips, reads, writes, atomics)
			}
		}
		count("read", w, 2, 3, 0, 0, func(tx *Tx) error { return readAll(tx, a, a) })
		count("read of two", w, 4, 7, 0, 0, func(tx *Tx) error { return readAll(tx, a, b) })
		// The lock's release is in the background; here it is waited for, which is a trip more.
		count("write of one", w, 2+2+1, 3, 1, 3, func(tx *Tx) error { return writeAll(tx, a) })
		count("write of one that was locked", w, 2+1+1, 3, 1, 3, func(tx *Tx) error {
			if err := tx.Lock(a); err != nil {
				return err
			}
			return writeAll(tx, a)
		})
		count("write of one, with a read of another", w, 4+3+1, 7+1, 1, 3, func(tx *Tx) error {
			if err := readAll(tx, b); err != nil {
				return err
			}
			return writeAll(tx, a)
		})
		count("free and make", w, 2+4, 3, 2, 3*2+2, func(tx *Tx) error {
			if err := tx.Free(made); err != nil {
				return err
			}
			_, err := tx.NewOn(l.Meta(made).Node(), []byte("made"))
			return err
		})
		// Lock and write, decide, swap, unlock. OPT1 saves one trip, the log, and two atomics.
		count("write of two", w, 4+4, 7, 3, 3*2+2, func(tx *Tx) error { return writeAll(tx, a, b) })
		count("write of two, with a read of another", w, 6+5, 12+1, 3, 3*2+2, func(tx *Tx) error {
			if err := readAll(tx, c); err != nil {
				return err
			}
			return writeAll(tx, a, b)
		})
		count("write of one with a log", logged, 2+4, 3, 2, 3+2, func(tx *Tx) error { return writeAll(tx, a) })
		count("write to be seen", w, 2+2+1, 3, 1, 3, func(tx *Tx) error { return writeAll(tx, a) })
		seen, _ := w.Seen(a)
		count("read of what was seen", w, 1, 2, 0, 0, func(tx *Tx) error { tx.Guess(a, seen); return readAll(tx, a) })
		count("write of what was seen", w, 1+2+1, 2, 1, 3,
			func(tx *Tx) error { tx.Guess(a, seen); return writeAll(tx, a) })
		count("read of what was seen wrongly", w, 2, 4, 0, 0,
			func(tx *Tx) error { tx.Guess(a, seen); return readAll(tx, a) })
		seen, _ = w.Seen(a)
		count("write of what was seen and locked", w, 1+1+1, 2, 1, 3, func(tx *Tx) error {
			tx.Guess(a, seen)
			if err := tx.Lock(a); err != nil {
				return err
			}
			return writeAll(tx, a)
		})
		count("validation of the caller's", w, 4+3+1, 7+1+1, 1, 3, func(tx *Tx) error {
			var op *rdma.Op
			tx.Check(func(b *rdma.Batch) { op = b.Read(l.Meta(c), MetaBytes) },
				func() bool { return !MetaOf(op.Buf).Lock.Held() })
			if err := readAll(tx, b); err != nil {
				return err
			}
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
