package rowan_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/server"
	"github.com/farkv/farkv/workloads/check"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// real is a cluster of goroutines.
type real struct {
	*cluster
	t       testing.TB
	place   *place
	serving sync.WaitGroup
	over    atomic.Bool
	ends    []func() // by node, what ends its server, where others may begin
}

// place is where a cluster runs.
type place struct {
	clients rdma.Fabric
	servers []rdma.Fabric // by node, each beside it
	end     func() error
}

// inMem is a process.
func inMem(o kv.Options) (*place, error) {
	f, err := shm.NewMem(shm.Geometry{Nodes: servers, Memory: o.Size() + 2*floorBytes, Clients: 64}, nil)
	if err != nil {
		return nil, err
	}
	f.MTU = mtu
	return &place{clients: f, servers: slices.Repeat([]rdma.Fabric{f}, servers), end: f.Close}, nil
}

// newReal starts a cluster. Its servers end with the test.
func newReal(t testing.TB, o kv.Options, in func(kv.Options) (*place, error)) *real {
	o = fit(o)
	c, err := newCluster(o)
	if err != nil {
		t.Fatal(err)
	}
	p, err := in(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &real{cluster: c, t: t, place: p}
	for n := range servers {
		ep := r.endpoint(p.servers[n], fmt.Sprint("server ", n))
		srv, err := server.Open(ep, c.configs(), o, n)
		if err != nil {
			t.Fatal(err)
		}
		c.running[n] = srv
		r.serving.Go(func() {
			defer ep.Close()
			if err := srv.Run(ep); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(r.end)
	return r
}

// end ends the servers, once.
func (r *real) end() {
	if r.place == nil {
		return
	}
	r.stop()
	r.over.Store(true)
	r.serving.Wait()
	if err := r.place.end(); err != nil {
		r.t.Error(err)
	}
	r.place = nil
}

func (r *real) endpoint(f rdma.Fabric, name string) rdma.Endpoint {
	ep, err := f.Open(name)
	if err != nil {
		r.t.Fatal(err)
	}
	return ep
}

// client returns a client, and what ends it.
func (r *real) client() (client.Store, rdma.Endpoint, func()) {
	ep := r.endpoint(r.place.clients, "client")
	s, err := r.open(ep, patience)
	if err != nil {
		r.t.Fatal(err)
	}
	return s, ep, func() {
		if err := s.Close(); err != nil {
			r.t.Error(err)
		}
		ep.Close()
	}
}

// TestMem: goroutines on shared memory see a history that is linearizable, and leave the same on
// all replicas.
func TestMem(t *testing.T) { testReal(t, kv.Kinds(), inMem) }

func testReal(t *testing.T, kinds []kv.Kind, in func(kv.Options) (*place, error)) {
	each(t, kinds, func(t *testing.T, k kv.Kind) { history(t, small(k), in) })
}

func history(t *testing.T, o kv.Options, in func(kv.Options) (*place, error)) {
	o.FullAfter = patience / 2
	c := newReal(t, o, in)
	c.keys = 20
	var group sync.WaitGroup
	for i := range 4 {
		store, ep, end := c.client()
		rec := check.NewRecorder(i, store, ep.Now)
		c.recorders = append(c.recorders, rec)
		group.Go(func() {
			defer end()
			c.play(ep, rec, plan{worker: i, ops: 2000, keys: c.keys, sizes: []int{8, 100, 500, maxValue}, writes: 70})
		})
	}
	group.Wait()
	c.judge()
	for _, srv := range c.running {
		if stats := srv.Stats(); stats.Cleaned == 0 || stats.Moved == 0 {
			t.Errorf("no segment was cleaned: %+v", stats)
		}
	}
}

// judge has another client read all keys, ends the servers, and checks that what clients saw is
// linearizable, and that all replicas have the same.
func (r *real) judge() {
	r.t.Helper()
	store, ep, end := r.client()
	last := check.NewRecorder(len(r.recorders), store, ep.Now)
	r.recorders = append(r.recorders, last)
	state := r.final(last, r.keys)
	end()
	r.stop()
	r.over.Store(true)
	r.serving.Wait()
	audit := r.endpoint(r.place.clients, "audit")
	defer audit.Close()
	err := errors.Join(r.wrong, r.audit(audit, state, r.keys), check.Linearizable(r.history(), check.Options{}))
	if err != nil {
		r.t.Error(err)
	}
}

// TestContract: answers are exact, whatever lengths keys and values have.
func TestContract(t *testing.T) { testContract(t, kv.Kinds(), inMem) }

func testContract(t *testing.T, kinds []kv.Kind, in func(kv.Options) (*place, error)) {
	each(t, kinds, func(t *testing.T, k kv.Kind) { contract(t, k, in) })
}

func contract(t *testing.T, k kv.Kind, in func(kv.Options) (*place, error)) {
	o := small(k)
	o.FullAfter = patience / 2
	c := newReal(t, o, in)
	s, _, end := c.client()
	defer end()
	want := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	get := func(key, value []byte) {
		t.Helper()
		got, err := s.Get(key)
		if want("get", err, nil); !bytes.Equal(got, value) {
			t.Errorf("get %.20q: %d bytes, want %d", key, len(got), len(value))
		}
	}
	for _, key := range [][]byte{nil, []byte("k"), bytes.Repeat([]byte("long"), 25)} {
		_, err := s.Get(key)
		want("get of none", err, client.ErrNotFound)
		want("update of none", s.Update(key, []byte("x")), client.ErrNotFound)
		want("delete of none", s.Delete(key), client.ErrNotFound)
		for _, n := range []int{0, 1, 7, 8, 100, mtu, 1000, 1500 - len(key)} {
			value := check.MakeValue(nil, 1, n+1, max(n, 8))[:n]
			want("insert", s.Insert(key, value), nil)
			get(key, value)
			want("insert again", s.Insert(key, value), client.ErrExists)
			want("update", s.Update(key, value[:n/2]), nil)
			get(key, value[:n/2])
			want("delete", s.Delete(key), nil)
			_, err = s.Get(key)
			want("get of deleted", err, client.ErrNotFound)
			want("delete again", s.Delete(key), client.ErrNotFound)
		}
		want("too much", s.Insert(key, make([]byte, 1501-len(key))), client.ErrTooLarge)
	}
	want("too long", s.Insert(make([]byte, 101), nil), client.ErrTooLarge)
}
