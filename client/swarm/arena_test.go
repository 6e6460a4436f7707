package swarm

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// arena lays objects out, and behind them segments of out-of-place buffers, which it hands out one
// after the other and never again; or as package buffers does, when it recycles.
type arena struct {
	Layout
	nodes int
	keys  int
	used  [][segments]atomic.Uint32 // by node
	limit uint32                    // buffers of a segment
	space *buffers.Space            // nil when it does not recycle
}

const segments = 2

func newArena(l Layout, nodes, keys int, limit uint32) *arena {
	return &arena{Layout: l, nodes: nodes, keys: keys, used: make([][segments]atomic.Uint32, nodes), limit: limit}
}

// recycle makes an arena recycle its buffers.
func (a *arena) recycle() *arena {
	a.space = &buffers.Space{Base: a.segmentAt(0), Segments: segments, Buffers: int(a.limit), Bytes: a.BufferBytes()}
	return a
}

func (a *arena) slot() uint64   { return uint64(a.Bytes(true)) }
func (a *arena) memory() uint64 { return (a.segmentAt(segments+1) + 4095) &^ 4095 }

func (a *arena) segmentAt(n uint64) uint64 {
	return a.slot()*uint64(a.keys) + n*uint64(a.limit)*uint64(a.BufferBytes())
}

// object is the n-th key's. With more nodes than replicas its nodes follow from its number.
func (a *arena) object(n int) Object {
	o := Object{InPlace: n % a.Replicas, Hash: uint64(n)*0x9e3779b97f4a7c15 + uint64(n)}
	for r := range a.Replicas {
		o.At[r] = rdma.At((n+r)%a.nodes, a.slot()*uint64(n))
	}
	return o
}

func (a *arena) Allocate(node int, hash uint64) (uint16, rdma.Addr, error) {
	n := a.used[node][hash%segments].Add(1) - 1
	if n >= a.limit {
		return 0, 0, fmt.Errorf("segment of node %d: %w", node, client.ErrFull)
	}
	return uint16(n) + 1, a.Resolve(node, hash, uint16(n)+1), nil
}

func (a *arena) Give(int, uint64, uint16) {}

func (a *arena) Resolve(node int, hash uint64, pointer uint16) rdma.Addr {
	return rdma.At(node, a.segmentAt(hash%segments)+uint64(pointer-1)*uint64(a.BufferBytes()))
}

// registers is a client as a client.Store of the keys "key-0", "key-1", ...: an INSERT is a first
// write.
type registers struct {
	*Client
	keys    []Register
	buffers *buffers.Worker // nil: the arena's
}

func (a *arena) open(ep rdma.Endpoint, o Options) (*registers, error) {
	var alloc buffers.Allocator = a
	var w *buffers.Worker
	if a.space != nil {
		w = a.space.Open(ep, a.nodes, time.Second)
		alloc = w
	}
	if o.Member != nil {
		w.Follow(o.Member)
	}
	c, err := Open(ep, a.Layout, alloc, o)
	if err != nil {
		return nil, err
	}
	s := &registers{Client: c, buffers: w}
	for n := range a.keys {
		s.keys = append(s.keys, NewRegister(a.object(n), 0))
	}
	return s, nil
}

func (s *registers) register(key []byte) *Register {
	var n int
	if _, err := fmt.Sscanf(string(key), "key-%d", &n); err != nil {
		panic(err)
	}
	if m := s.opt.Member; m != nil && m.Epoch > s.keys[n].epoch+1 { // as if an index named it
		s.keys[n].Known(m.Epoch)
	}
	return &s.keys[n]
}

// answer is an error as a Store has it.
func answer(err error) error {
	if errors.Is(err, ErrGone) || errors.Is(err, ErrEmpty) {
		return fmt.Errorf("%w: %w", client.ErrNotFound, err)
	}
	return err
}

// outdated reports whether an operation must begin again with an object of the present epoch, and
// may.
func outdated(err error) bool {
	return errors.Is(err, ErrOutdated) && !errors.Is(err, client.ErrUncertain)
}

func (s *registers) Get(key []byte) ([]byte, error) {
	v, err := s.Read(s.register(key))
	for outdated(err) {
		v, err = s.Read(s.register(key))
	}
	return v, answer(err)
}

func (s *registers) Insert(key, value []byte) error { return s.Write(s.register(key), value) }
func (s *registers) Update(key, value []byte) error {
	err := s.Write(s.register(key), value)
	for outdated(err) {
		err = s.Write(s.register(key), value)
	}
	return answer(err)
}
func (s *registers) Delete(key []byte) error { return s.Client.Delete(s.register(key)) }
func (s *registers) Close() error {
	s.Client.Close()
	if s.buffers != nil {
		return s.buffers.Close()
	}
	return nil
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper() // which reads the stack: benchmarks call must
		t.Fatal(err)
	}
}

func wantError(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got %v, want an error wrapping %v", got, want)
	}
}

// pool makes objects in memory of this process.
func pool(t testing.TB, s Shape, nodes, keys int, limit uint32) (*shm.Fabric, *arena) {
	t.Helper()
	l, err := NewLayout(s)
	must(t, err)
	a := newArena(l, nodes, keys, limit)
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: a.memory(), Clients: 64}, node.Serve)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	for n := range nodes {
		must(t, f.Commit(n, 0, f.Size()))
	}
	return f, a
}

func worker(t testing.TB, f rdma.Fabric, a *arena, o Options) *registers {
	t.Helper()
	ep, err := f.Open(t.Name())
	must(t, err)
	s, err := a.open(ep, o)
	must(t, err)
	t.Cleanup(func() {
		s.Close()
		ep.Close()
	})
	return s
}
