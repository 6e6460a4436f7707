package rtx

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// steady are transactions that are run again and again.
var steady = []struct {
	name string
	log  bool
	run  func(tx *Tx, data []byte, a, b Ref, last *Ref) error
}{
	{"read", false, func(tx *Tx, data []byte, a, b Ref, last *Ref) error { _, err := tx.Read(a); return err }},
	{"write", false, func(tx *Tx, data []byte, a, b Ref, last *Ref) error { return tx.Write(a, data) }},
	{"locked write", false, func(tx *Tx, data []byte, a, b Ref, last *Ref) error {
		if err := tx.Lock(a); err != nil {
			return err
		}
		return tx.Write(a, data)
	}},
	{"write with a log", true, func(tx *Tx, data []byte, a, b Ref, last *Ref) error { return tx.Write(a, data) }},
	{"write of two", false, func(tx *Tx, data []byte, a, b Ref, last *Ref) error {
		if err := tx.Write(a, data); err != nil {
			return err
		}
		return tx.Write(b, data)
	}},
	{"free and make", false, func(tx *Tx, data []byte, a, b Ref, last *Ref) error {
		old, err := *last, error(nil)
		if *last, err = tx.New(data); err != nil || old == 0 {
			return err
		}
		return tx.Free(old)
	}},
}

// prepared returns a function that runs a transaction of steady.
func prepared(t testing.TB, i int) (w *Worker, run func() error) {
	f, l := pool(t, Shape{Nodes: 1, Roots: 2, Objects: 64, Sizes: []int{1024}, Memory: 64 << 20, Clients: 8})
	w = worker(t, f, l, Options{Log: steady[i].log, Quarantine: time.Microsecond})
	a, b, data := l.Root(0), l.Root(1), make([]byte, 1024)
	var last Ref
	must(t, set(w, string(data), a, b))
	closure := func(tx *Tx) error { return steady[i].run(tx, data, a, b, &last) }
	return w, func() error { return w.Run(closure) }
}

// TestAllocations: in steady state a transaction allocates nothing.
func TestAllocations(t *testing.T) {
	for i, s := range steady {
		_, run := prepared(t, i)
		for range 2000 {
			must(t, run())
		}
		if n := testing.AllocsPerRun(2000, func() { must(t, run()) }); n > 0 {
			t.Errorf("%s allocates %v times", s.name, n)
		}
	}
}

// BenchmarkRun runs transactions over objects of 1 KB, and beside them the bare batches of a read.
func BenchmarkRun(b *testing.B) {
	for i, s := range steady {
		b.Run(s.name, func(b *testing.B) {
			_, run := prepared(b, i)
			b.ReportAllocs()
			for b.Loop() {
				if err := run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("floor of read", func(b *testing.B) {
		w, _ := prepared(b, 0)
		r := w.Root(0)
		for b.Loop() {
			first := w.ep.Batch()
			meta := first.Read(w.Meta(r), MetaBytes)
			err := rdma.Do(w.ep, first, time.Second)
			m := MetaOf(meta.Buf)
			first.Release()
			second := w.ep.Batch()
			second.Read(w.buffer(m.Pointer), w.bufferBytes(m.Pointer.class()))
			second.Read(w.Meta(r), MetaBytes)
			err = errors.Join(err, rdma.Do(w.ep, second, time.Second))
			second.Release()
			if err != nil {
				b.Fatal(fmt.Errorf("floor: %w", err))
			}
		}
	})
}
