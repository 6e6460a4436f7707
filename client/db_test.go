package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var background = context.Background()

// script is a source of workers with stores that do what the test says.
type script struct {
	open                        func() error          // nil: it succeeds
	answer                      func(op string) error // of every operation
	value                       []byte                // of every Get, the same memory each time
	shut, fence                 error                 // of closing a store, and of fencing one off
	leave                       func()                // while a store is closed; nil: at once
	opened, closed, busy, crowd atomic.Int64

	mu  sync.Mutex
	log []string
}

func (s *script) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, what)
}

func (s *script) Open() (client.Store, rdma.Endpoint, error) {
	if s.open != nil {
		if err := s.open(); err != nil {
			return nil, nil, err
		}
	}
	s.opened.Add(1)
	return scripted{s}, endpoint{script: s}, nil
}

func (s *script) Close() error { s.note("workers"); return nil }

func (s *script) RevokeLife(rdma.Client) error { s.note("fenced"); return s.fence }

type endpoint struct {
	rdma.Endpoint
	*script
}

func (e endpoint) Close() error { e.note("endpoint"); e.closed.Add(1); return nil }

func (e endpoint) Client() rdma.ClientID { return 7 }

func (e endpoint) Life() uint64 { return 1 }

type scripted struct{ *script }

func (s scripted) do(op string) error {
	for n := s.busy.Add(1); ; {
		if most := s.crowd.Load(); n <= most || s.crowd.CompareAndSwap(most, n) {
			break
		}
	}
	defer s.busy.Add(-1)
	if s.answer == nil {
		return nil
	}
	return s.answer(op)
}

func (s scripted) Get([]byte) ([]byte, error) { return s.value, s.do("get") }
func (s scripted) Insert(_, _ []byte) error   { return s.do("insert") }
func (s scripted) Update(_, _ []byte) error   { return s.do("update") }
func (s scripted) Delete([]byte) error        { return s.do("delete") }

func (s scripted) Close() error {
	if s.leave != nil {
		s.leave()
	}
	s.note("store")
	return s.shut
}

func newDB(t *testing.T, w client.Workers, n int) *client.DB {
	t.Helper()
	db, err := client.NewDB(w, client.Options{Workers: n})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestDBOverAPool(t *testing.T) {
	pool, err := stores.Create("mem:", "fusee", stores.Params{Records: 1000})
	if err != nil {
		t.Fatal(err)
	}
	db, err := pool.DB(stores.DBOptions{Workers: 4})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() { useOwnKey(t, db, fmt.Appendf(nil, "key%d", g)) })
	}
	all.Wait()
	workers := slices.DeleteFunc(pool.Fabric.Clients(), func(c rdma.Client) bool { return c.Name == "keeper" })
	if n := len(workers); n < 1 || n > 4 {
		t.Errorf("%d clients are attached for 4 workers", n)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	if _, err := pool.Fabric.Open("late"); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("the pool is open after Close: %v", err)
	}
}

// useOwnKey does everything with a key that no other worker uses.
func useOwnKey(t *testing.T, db *client.DB, key []byte) {
	want := func(what string, err, target error) {
		if !errors.Is(err, target) {
			t.Errorf("%s %s: %v, want %v", what, key, err, target)
		}
	}
	want("delete", db.Delete(background, key), client.ErrNotFound)
	want("update", db.Update(background, key, nil), client.ErrNotFound)
	for i := range 50 {
		value := fmt.Appendf(nil, "%s=%d", key, i)
		want("put", db.Put(background, key, value), nil)
		want("insert", db.Insert(background, key, value), client.ErrExists)
		got, err := db.Get(background, key)
		if want("get", err, nil); string(got) != string(value) {
			t.Errorf("get %s: %q, want %q", key, got, value)
		}
	}
	want("update", db.Update(background, key, []byte("last")), nil)
	want("delete", db.Delete(background, key), nil)
	_, err := db.Get(background, key)
	want("get", err, client.ErrNotFound)
}

func TestGetReturnsACopy(t *testing.T) {
	s := &script{value: []byte("first")}
	db := newDB(t, s, 1)
	got, err := db.Get(background, nil)
	if copy(s.value, "other"); err != nil || string(got) != "first" {
		t.Errorf("%q, %v", got, err)
	}
	s.value = []byte{}
	if got, err = db.Get(background, nil); err != nil || got == nil || len(got) != 0 {
		t.Errorf("an empty value: %v, %v", got, err)
	}
}

func TestWorkersAreBoundedAndLazy(t *testing.T) {
	gate := make(chan struct{})
	s := &script{answer: func(string) error { <-gate; return nil }}
	db := newDB(t, s, 3)
	if n := s.opened.Load(); n != 1 {
		t.Errorf("%d workers before any operation", n)
	}
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			if err := db.Delete(background, nil); err != nil {
				t.Error(err)
			}
		})
	}
	for range 12 {
		gate <- struct{}{}
	}
	all.Wait()
	if s.opened.Load() > 3 || s.crowd.Load() > 3 {
		t.Errorf("%d workers, %d operations at a time, want 3 at most", s.opened.Load(), s.crowd.Load())
	}
}

func TestContext(t *testing.T) {
	began, gate := make(chan struct{}), make(chan struct{})
	s := &script{answer: func(string) error { close(began); <-gate; return client.ErrExists }}
	db := newDB(t, s, 1)
	ctx, cancel := context.WithCancel(background)
	result := make(chan error)
	go func() { result <- db.Insert(ctx, nil, nil) }()
	<-began
	waiting, stop := context.WithCancel(background)
	go func() { result <- db.Insert(waiting, nil, nil) }()
	stop()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a worker: %v", err)
	}
	cancel()
	close(gate)
	if err := <-result; !errors.Is(err, client.ErrExists) {
		t.Errorf("an operation that had begun: %v", err)
	}
	if err := db.Insert(ctx, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that had ended: %v", err)
	}
}

func TestPut(t *testing.T) {
	var ops []string
	missing := 2
	s := &script{answer: func(op string) error {
		ops = append(ops, op)
		if op == "insert" {
			return fmt.Errorf("%s: %w", op, client.ErrExists)
		}
		if missing--; missing >= 0 {
			return fmt.Errorf("%s: %w", op, client.ErrNotFound)
		}
		return nil
	}}
	db := newDB(t, s, 1)
	if err := db.Put(background, nil, nil); err != nil {
		t.Error(err)
	}
	if got := strings.Join(ops, " "); got != "update insert update insert update" {
		t.Error(got)
	}
	missing = 1 << 30
	err := db.Put(background, []byte("k"), nil)
	if !errors.Is(err, rdma.ErrTimeout) || errors.Is(err, client.ErrExists) || errors.Is(err, client.ErrNotFound) {
		t.Errorf("a key that comes and goes: %v", err)
	}
	ctx, cancel := context.WithCancel(background)
	s.answer = func(op string) error {
		if op == "insert" {
			cancel()
			return client.ErrExists
		}
		return client.ErrNotFound
	}
	if err := db.Put(ctx, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ends between two turns: %v", err)
	}
	s.answer = func(string) error { return client.ErrUncertain }
	if err := db.Put(background, nil, nil); !errors.Is(err, client.ErrUncertain) {
		t.Errorf("an outcome that is unknown: %v", err)
	}
}

func TestCloseWaits(t *testing.T) {
	began, gate := make(chan struct{}), make(chan struct{})
	s := &script{answer: func(string) error { close(began); <-gate; return nil }}
	db := newDB(t, s, 1)
	first, second, closed := make(chan error), make(chan error), make(chan error, 2)
	go func() { first <- db.Update(background, nil, nil) }()
	<-began
	go func() { second <- db.Update(background, nil, nil) }()
	for range 2 {
		go func() { closed <- db.Close() }()
	}
	if err := <-second; !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("an operation that waits for a worker: %v", err)
	}
	select {
	case err := <-closed:
		t.Errorf("Close did not wait for an operation: %v", err)
	default:
	}
	close(gate)
	if err := <-first; err != nil {
		t.Errorf("an operation in progress: %v", err)
	}
	for range 2 {
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(s.log, " "); got != "store endpoint workers" {
		t.Errorf("closed %s", got)
	}
	if _, err := db.Get(background, nil); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestUncertain gives up a worker with a write of unknown outcome, since others may wait for it. A
// worker that can be closed is closed, and one that cannot is fenced off, even if that fails
// halfway.
func TestUncertain(t *testing.T) {
	for _, c := range []struct {
		shut, fence error
		want        string
	}{
		{nil, nil, "store endpoint"},
		{client.ErrUncertain, nil, "store fenced endpoint"},
		{client.ErrUncertain, rdma.ErrNodeDown, "store fenced endpoint"},
		{rdma.ErrAccess, nil, "store endpoint"},
	} {
		s := &script{answer: func(string) error { return client.ErrUncertain }, shut: c.shut, fence: c.fence}
		db := newDB(t, s, 1)
		if err := db.Update(background, nil, nil); !errors.Is(err, client.ErrUncertain) {
			t.Errorf("the answer is %v", err)
		}
		s.answer = nil
		if err := db.Update(background, nil, nil); err != nil || s.opened.Load() != 2 {
			t.Errorf("the next operation: %v, by worker %d", err, s.opened.Load())
		}
		eventually(t, "the first worker has left", func() bool { return s.closed.Load() == 1 })
		s.mu.Lock()
		if got := strings.Join(s.log, " "); got != c.want {
			t.Errorf("closing ends in %v, fencing off in %v: %s, want %s", c.shut, c.fence, got, c.want)
		}
		s.mu.Unlock()
		if err := db.Close(); !errors.Is(err, c.shut) {
			t.Errorf("close: %v", err)
		}
	}
}

var eventually = wait.Until

// TestUncertainDelaysNoOperation has a worker take its time to leave, as it does while nodes and
// registry are out of reach: the operation that it failed ends before, and others go on. Close
// waits for it.
func TestUncertainDelaysNoOperation(t *testing.T) {
	gate := make(chan struct{})
	s := &script{answer: func(string) error { return client.ErrUncertain }}
	s.leave = func() { <-gate }
	open := sync.OnceFunc(func() { close(gate) })
	late := time.AfterFunc(time.Minute, func() { t.Error("operations wait for workers that leave"); open() })
	defer late.Stop()
	db := newDB(t, s, 1)
	for i := range 3 {
		if err := db.Update(background, nil, nil); !errors.Is(err, client.ErrUncertain) || int(s.opened.Load()) != i+1 {
			t.Errorf("operation %d: %v, by worker %d", i, err, s.opened.Load())
		}
	}
	closed := make(chan error)
	go func() { closed <- db.Close() }()
	select {
	case err := <-closed:
		t.Errorf("closed while workers leave: %v", err)
	case <-time.After(50 * time.Millisecond):
		defer func() {
			if err := <-closed; err != nil || s.closed.Load() != 3 {
				t.Errorf("close: %v; %d workers have left", err, s.closed.Load())
			}
		}()
	}
	open()
}

func TestNoWorker(t *testing.T) {
	s := &script{open: func() error { return rdma.ErrFull }}
	if db, err := client.NewDB(s, client.Options{}); !errors.Is(err, client.ErrFull) || db != nil {
		t.Errorf("%v, %v", db, err)
	}
	if len(s.log) != 1 || s.log[0] != "workers" {
		t.Errorf("closed %v", s.log)
	}
}

func TestNoFurtherWorker(t *testing.T) {
	began, gate := make(chan struct{}), make(chan struct{})
	s := &script{answer: func(string) error { close(began); <-gate; return nil }}
	s.open = func() error {
		if s.opened.Load() > 0 {
			return rdma.ErrFull
		}
		return nil
	}
	db := newDB(t, s, 2)
	first := make(chan error)
	go func() { first <- db.Delete(background, nil) }()
	<-began
	if err := db.Delete(background, nil); !errors.Is(err, client.ErrFull) {
		t.Errorf("no place for a second worker: %v", err)
	}
	close(gate)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// TestReopen: an operation that needs another worker while the pool's registry is out of reach
// waits for it, no longer than its context.
func TestReopen(t *testing.T) {
	left := 3
	s := &script{answer: func(string) error { return client.ErrUncertain }}
	db := newDB(t, s, 1)
	if err := db.Update(background, nil, nil); !errors.Is(err, client.ErrUncertain) {
		t.Errorf("the answer is %v", err)
	}
	s.answer = nil
	s.open = func() error {
		if left--; left >= 0 {
			return rdma.ErrUnreachable
		}
		return nil
	}
	if err := db.Update(background, nil, nil); err != nil || left != -1 {
		t.Errorf("the next operation: %v, with %d failures to come", err, left)
	}
	s.answer = func(string) error { return client.ErrUncertain }
	if err := db.Update(background, nil, nil); !errors.Is(err, client.ErrUncertain) {
		t.Errorf("the answer is %v", err)
	}
	ctx, cancel := context.WithCancel(background)
	s.open = func() error { cancel(); return rdma.ErrUnreachable }
	if err := db.Update(ctx, nil, nil); !errors.Is(err, rdma.ErrUnreachable) {
		t.Errorf("without a worker: %v", err)
	}
	s.open = nil
}

// A worker that was fenced off while it was idle is replaced, and another worker repeats the
// operation that found out. An operation of unknown outcome is not repeated, nor one that a new
// worker cannot do either.
func TestFencedWorkerIsReplaced(t *testing.T) {
	pool, err := stores.Create("mem:", "fusee", stores.Params{Records: 1000})
	if err != nil {
		t.Fatal(err)
	}
	db, err := pool.DB(stores.DBOptions{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Put(background, []byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	if err := pool.Fabric.Revoke(pool.Fabric.Clients()[0].ID); err != nil {
		t.Fatal(err)
	}
	if v, err := db.Get(background, []byte("k")); err != nil || string(v) != "v" {
		t.Errorf("behind the fence: %q, %v", v, err)
	}
}

func TestFencedOperations(t *testing.T) {
	errUncertain := fmt.Errorf("%w: %w", client.ErrUncertain, rdma.ErrRevoked)
	for _, c := range []struct {
		first, second error // of an idle worker, and of a new one
		want          error
		opened        int32
	}{
		{rdma.ErrRevoked, nil, nil, 2},
		{rdma.ErrRevoked, rdma.ErrRevoked, rdma.ErrRevoked, 2},
		{errUncertain, nil, client.ErrUncertain, 1},
		{rdma.ErrAccess, nil, rdma.ErrAccess, 1},
	} {
		s := &script{}
		answers := []error{c.first, c.second}
		s.answer = func(string) error {
			err := answers[0]
			answers = answers[1:]
			return err
		}
		db := newDB(t, s, 1)
		if err := db.Update(background, nil, nil); !errors.Is(err, c.want) {
			t.Errorf("%v, then %v: the answer is %v", c.first, c.second, err)
		}
		if n := int32(s.opened.Load()); n != c.opened {
			t.Errorf("%v, then %v: %d workers were opened", c.first, c.second, n)
		}
	}
}

func TestOpenDB(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	made, err := stores.Create("shm:pool", "fusee-nc", stores.Params{Records: 1000})
	if errors.Is(err, rdma.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if made.Kind.Name != "fusee" || made.Address != "shm:pool" {
		t.Errorf("made %s at %s", made.Kind.Name, made.Address)
	}
	if err := made.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 2 { // the second finds what the first left
		db, err := stores.OpenDB("pool", stores.DBOptions{Name: "app", Workers: 2})
		if err != nil {
			t.Fatal(err)
		}
		err = db.Insert(background, []byte("k"), []byte("v"))
		if i == 0 && err != nil || i == 1 && !errors.Is(err, client.ErrExists) {
			t.Errorf("insert %d: %v", i, err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := stores.OpenDB("nosuch", stores.DBOptions{}); !errors.Is(err, fabrics.ErrNoPool) {
		t.Error(err)
	}
	if _, err := stores.Create("mem:", "nosuch", stores.Params{}); !errors.Is(err, stores.ErrUnknown) {
		t.Error(err)
	}
	for _, p := range []stores.Params{{Nodes: 2, IndexReplicas: 3}, {Nodes: 2, DataReplicas: 3}, {DataReplicas: -1}} {
		if _, err := stores.Create("mem:", "fusee", p); !errors.Is(err, stores.ErrParams) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	empty, err := fabrics.Create("shm:empty", fabrics.Geometry{Nodes: 1, Memory: 1 << 16, Clients: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	if _, err := stores.Open("empty"); err == nil || !strings.Contains(err.Error(), "shm:empty") {
		t.Errorf("a pool without a store: %v", err)
	}
}
