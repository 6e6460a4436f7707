package rtx

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/workloads/check/teeth"
)

const memMemory = 4 << 20

// virtual skips a test of many runs in virtual time under the race detector, which finds nothing
// where one task runs at a time, and makes these 30 times slower.
func virtual(t testing.TB) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
}

// pool makes a pool of memory of this process, with as many roots as the shape says.
func pool(t testing.TB, s Shape) (rdma.Fabric, *Layout) {
	t.Helper()
	if s.Nodes == 0 {
		s.Nodes = 2
	}
	if s.Memory == 0 {
		s.Memory = memMemory
	}
	if s.Clients == 0 {
		s.Clients = 32
	}
	if s.Sizes == nil {
		s.Sizes = []int{64, 1024}
	}
	l, err := NewLayout(s)
	must(t, err)
	f, err := shm.NewMem(shm.Geometry{Nodes: s.Nodes, Memory: s.Memory, Clients: s.Clients}, node.Serve)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	must(t, Prepare(f, l))
	return f, l
}

func worker(t testing.TB, f rdma.Fabric, l *Layout, o Options) *Worker {
	t.Helper()
	ep, err := f.Open("worker")
	must(t, err)
	return open(t, ep, l, o)
}

func open(t testing.TB, ep rdma.Endpoint, l *Layout, o Options) *Worker {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second // of other work of the machine, too
	}
	w, err := Open(ep, l, o)
	must(t, err)
	return w
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper() // which reads the stack: benchmarks call must
		t.Fatal(err)
	}
}

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want an error wrapping %v", err, want)
	}
}

// set writes objects, all to the same data.
func set(w *Worker, data string, objects ...Ref) error {
	return w.Run(func(tx *Tx) error {
		for _, r := range objects {
			if err := tx.Write(r, []byte(data)); err != nil {
				return err
			}
		}
		return nil
	})
}

// get reads objects.
func get(w *Worker, objects ...Ref) (data []string, err error) {
	err = w.Run(func(tx *Tx) error {
		data = data[:0]
		for _, r := range objects {
			p, err := tx.Read(r)
			if err != nil {
				return err
			}
			data = append(data, string(p))
		}
		return nil
	})
	return data, err
}

func wantData(t testing.TB, w *Worker, want string, objects ...Ref) {
	t.Helper()
	got, err := get(w, objects...)
	if fmt.Sprint(got) != want || err != nil {
		t.Errorf("got %v, %v, want %s", got, err, want)
	}
}

// create makes an object.
func create(w *Worker, data string) (r Ref, err error) {
	err = w.Run(func(tx *Tx) error {
		r, err = tx.New([]byte(data))
		return err
	})
	return r, err
}
