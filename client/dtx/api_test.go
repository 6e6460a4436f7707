package dtx

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// TestShapes: shapes that no pool can have are refused.
func TestShapes(t *testing.T) {
	good := Shape{Nodes: 2, Memory: 1 << 20, Clients: 8, Roots: 1, Sizes: []int{8, 1024}}
	l, err := NewLayout(good)
	must(t, err)
	if l.Tables() == 0 || l.Writes != 16 || l.Chunk < 1024 || l.RootBytes != 1024 || l.Log < 16*1024 {
		t.Errorf("%+v", l)
	}
	for name, change := range map[string]func(s *Shape){
		"no nodes":           func(s *Shape) { s.Nodes = 0 },
		"no clients":         func(s *Shape) { s.Clients = 0 },
		"too many clients":   func(s *Shape) { s.Clients = 1 << 16 },
		"no sizes":           func(s *Shape) { s.Sizes = nil },
		"a size of nothing":  func(s *Shape) { s.Sizes = []int{0} },
		"sizes out of order": func(s *Shape) { s.Sizes = []int{9, 8} },
		"nine sizes":         func(s *Shape) { s.Sizes = []int{1, 2, 3, 4, 5, 6, 7, 8, 9} },
		"no memory":          func(s *Shape) { s.Memory = 1 << 12 },
		"no room for data":   func(s *Shape) { s.Sizes = []int{2 << 20} },
		"too much memory":    func(s *Shape) { s.Memory = 1 << 49 },
		"too many places":    func(s *Shape) { s.Memory, s.Nodes = 1<<47, 100 },
	} {
		s := good
		change(&s)
		if _, err := NewLayout(s); !errors.Is(err, ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPlaces: no two things lie at the same place, and each is found again by its name.
func TestPlaces(t *testing.T) {
	l, err := NewLayout(Shape{Nodes: 3, Memory: 1 << 18, Clients: 8, Roots: 5, RootBytes: 200,
		Sizes: []int{8, 100, 1024}})
	must(t, err)
	seen := map[rdma.Addr]string{}
	place := func(at rdma.Addr, n int, what string) {
		if at.Offset()+uint64(n) > 1<<18 {
			t.Errorf("%s lies at %v", what, at)
		}
		if l.Describe(at) == "" {
			t.Errorf("%s at %v is not described", what, at)
		}
		for i := 0; i < n; i += 8 {
			if other, ok := seen[at.Add(uint64(i))]; ok {
				t.Fatalf("%s and %s lie at %v", what, other, at.Add(uint64(i)))
			}
			seen[at.Add(uint64(i))] = what
		}
	}
	for c := range rdma.ClientID(9) {
		place(l.log(c), int(l.logBytes), fmt.Sprint("log ", c))
	}
	for i := range 5 {
		at, n := l.Object(l.Root(i))
		place(at, n, fmt.Sprint("root ", i))
		if !l.valid(l.Root(i)) || l.Room(l.Root(i)) != 200 ||
			!strings.Contains(l.Describe(at), fmt.Sprint("root ", i)) {
			t.Errorf("root %d is %s", i, l.Describe(at))
		}
	}
	for n := range 3 {
		for k := range int(l.chunks.Count) {
			place(l.chunks.Word(n, k), 8, "entry")
			class := k % 3
			for i := range l.perChunk(class) {
				r := l.placeOf(n, k, class, i) | 7<<lifeShift
				at, room := l.Object(r)
				place(at, room, r.String())
				if gn, gk, gi := l.chunkOf(r); gn != n || gk != k || gi != i || r.life() != 7 || !l.valid(r) ||
					l.valid(r+1) && room > unitBytes {
					t.Fatalf("object %d of chunk %d of node %d is %d of %d of %d", i, k, n, gi, gk, gn)
				}
			}
		}
	}
	if l.valid(0) || l.valid(1<<classShift-1) || l.valid(l.Root(0)|1<<lifeShift) {
		t.Error("what names nothing is an object")
	}
}

// TestErrors: what a transaction cannot do ends in its error.
func TestErrors(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2, RootBytes: 64, Writes: 2, Log: 600})
	w := worker(t, f, l, Options{})
	a, b := l.Root(0), l.Root(1)
	_, err := get(w, a)
	wantError(t, err, ErrNoObject)
	wantError(t, w.Run(func(tx *Tx) error { return tx.Free(a) }), ErrNoObject)
	wantError(t, w.Run(func(tx *Tx) error { return tx.Lock(0) }), ErrNoObject)
	wantError(t, set(w, string(make([]byte, 65)), a), client.ErrTooLarge)
	_, err = create(w, string(make([]byte, 1025)))
	wantError(t, err, client.ErrTooLarge)
	c, err := create(w, "c")
	must(t, err)
	wantError(t, set(w, "", a, b, c), ErrTooMany)
	_, err = create(w, string(make([]byte, 1000)))
	wantError(t, err, ErrTooMany)
	wantError(t, w.Run(func(tx *Tx) error { _, err := tx.NewOn(2, nil); return err }), rdma.ErrAccess)
	var roomy Ref
	must(t, w.Run(func(tx *Tx) error { roomy, err = tx.NewRoom(1, nil, 500); return err }))
	if l.Room(roomy) != 1024 || nodeOf(l, roomy) != 1 {
		t.Errorf("%v has room for %d on node %d", roomy, l.Room(roomy), nodeOf(l, roomy))
	}
	must(t, set(w, string(make([]byte, 400)), roomy))
	must(t, set(w, "a", a))
	must(t, w.Run(func(tx *Tx) error { // made and freed
		r, err := tx.New([]byte("x"))
		return errors.Join(err, tx.Free(r), tx.Write(b, []byte("b")))
	}))
	wantData(t, w, "[a b]", a, b)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a closure's panic is lost")
			}
		}()
		_ = w.Run(func(tx *Tx) error {
			if err := errors.Join(tx.Lock(a), tx.Write(a, nil)); err != nil {
				return err
			}
			panic("closure")
		})
	}()
	wantData(t, w, "[a b]", a, b)
	if n := len(w.Counts(nil)); n != 9 {
		t.Errorf("%d counters", n)
	}
}

// TestNoLivelock: transactions of which each reads what the others change come to
// an end.
func TestNoLivelock(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	must(t, set(worker(t, f, l, Options{}), "there", l.Root(0), l.Root(1)))
	done := make(chan error)
	for i := range 2 {
		w := worker(t, f, l, Options{})
		go func() {
			for range 300 {
				err := w.Run(func(tx *Tx) error {
					_, err := tx.Read(l.Root(i))
					return errors.Join(err, tx.Write(l.Root(1-i), []byte("there")))
				})
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	must(t, errors.Join(<-done, <-done))
}
