package directory

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// arena hands out buffers behind a directory. There is one segment for all buckets of a node, so
// that as many buffers as possible are used again by another client. The arena knows the owner of
// each buffer.
type arena struct {
	*Layout
	mu     sync.Mutex
	free   [][]uint16 // by node: the one that was free for longest comes first
	owned  []map[uint16]bool
	limit  int
	breach error // a client gave a buffer that it did not own
	last   []Entry
}

func newArena(l *Layout, limit int) *arena {
	a := &arena{Layout: l, limit: limit, free: make([][]uint16, l.Nodes), owned: make([]map[uint16]bool, l.Nodes)}
	for n := range l.Nodes {
		a.owned[n] = map[uint16]bool{}
		for p := range limit {
			a.free[n] = append(a.free[n], uint16(p+1))
		}
	}
	return a
}

func (a *arena) memory() uint64 {
	return (a.Base + a.Bytes() + uint64(a.limit+1)*BufferBytes + 4095) &^ 4095
}

func (a *arena) Allocate(node int, segment uint64) (uint16, rdma.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free[node]) == 0 {
		return 0, 0, fmt.Errorf("node %d: %w", node, client.ErrFull)
	}
	p := a.free[node][0]
	a.free[node] = a.free[node][1:]
	a.owned[node][p] = true
	return p, a.Resolve(node, segment, p), nil
}

func (a *arena) Give(node int, segment uint64, pointer uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if pointer == 0 {
		return
	}
	if !a.owned[node][pointer] {
		a.breach = errors.Join(a.breach, fmt.Errorf("buffer %d of node %d is used twice", pointer, node))
	}
	delete(a.owned[node], pointer)
	a.free[node] = append(a.free[node], pointer)
}

func (a *arena) Resolve(node int, segment uint64, pointer uint16) rdma.Addr {
	return rdma.At(node, a.Base+a.Bytes()+uint64(pointer)*BufferBytes)
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

// pool makes a directory in memory of this process.
func pool(t testing.TB, s Shape, buffers int) (*shm.Fabric, *arena) {
	t.Helper()
	l, err := NewLayout(s)
	must(t, err)
	a := newArena(l, buffers)
	f, err := shm.NewMem(shm.Geometry{Nodes: s.Nodes, Memory: a.memory(), Clients: 64}, nil)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	for n := range s.Nodes {
		must(t, f.Commit(n, 0, f.Size()))
	}
	return f, a
}

func worker(t testing.TB, f rdma.Fabric, a *arena, o Options) *Client {
	t.Helper()
	ep, err := f.Open(t.Name())
	must(t, err)
	c := Open(ep, a.Layout, a, o)
	t.Cleanup(func() {
		c.Close()
		ep.Close()
	})
	return c
}

// index is a client as a client.Store of the keys "key-0", "key-1", ..., of which each two have the
// same hash.
type index struct {
	*Client
	worker, changes int
	buckets         int // that keys lie in
}

func (x *index) hash(key []byte) (hash, number uint64) {
	if _, err := fmt.Sscanf(string(key), "key-%d", &number); err != nil {
		panic(err)
	}
	return number/2%uint64(x.buckets)*(^uint64(0)/uint64(x.buckets)+1) + number/2, number
}

// The location of a value is the value, with the key's number in place of its size.
const sizeMask = 1<<24 - 1

func location(value []byte, number uint64) uint64 { return le.Uint64(value)&^sizeMask | number }

func of(entries []Entry, hash, number uint64) int {
	for i, e := range entries {
		if e.Hash == hash && e.Location&sizeMask == number {
			return i
		}
	}
	return -1
}

func (x *index) Get(key []byte) ([]byte, error) {
	hash, number := x.hash(key)
	entries, err := x.Lookup(hash)
	if err != nil {
		return nil, err
	}
	if i := of(entries, hash, number); i >= 0 {
		return le.AppendUint64(nil, entries[i].Location&^sizeMask|8), nil
	}
	return nil, client.ErrNotFound
}

// modify changes the bucket of a key as f does that gets the place of the key's entry, or -1.
func (x *index) modify(key []byte, f func(entries []Entry, i int, hash, number uint64) ([]Entry, error)) error {
	x.changes++
	hash, number := x.hash(key)
	return x.Change(hash, uint64(x.changes)<<16|uint64(x.worker+1), func(entries []Entry) ([]Entry, error) {
		return f(entries, of(entries, hash, number), hash, number)
	})
}

func (x *index) Insert(key, value []byte) error {
	return x.modify(key, func(entries []Entry, i int, hash, number uint64) ([]Entry, error) {
		if i >= 0 {
			return nil, client.ErrExists
		}
		return append(entries, Entry{hash, location(value, number)}), nil
	})
}

func (x *index) Update(key, value []byte) error {
	return x.modify(key, func(entries []Entry, i int, hash, number uint64) ([]Entry, error) {
		if i < 0 {
			return nil, client.ErrNotFound
		}
		entries[i].Location = location(value, number)
		return entries, nil
	})
}

func (x *index) Delete(key []byte) error {
	return x.modify(key, func(entries []Entry, i int, hash, number uint64) ([]Entry, error) {
		if i < 0 {
			return nil, client.ErrNotFound
		}
		return append(entries[:i], entries[i+1:]...), nil
	})
}

func (x *index) Close() error {
	x.Client.Close()
	return nil
}

var ids uint64

// put is a change that adds an entry.
func put(c *Client, hash, location uint64) error {
	ids++
	return c.Change(hash, ids, func(bucket []Entry) ([]Entry, error) {
		return append(bucket, Entry{hash, location}), nil
	})
}

// touch changes a bucket so that it does not grow, however often. Each time it is another client's
// change.
func touch(c *Client, hash uint64) error {
	ids++
	return touchAs(c, hash, ids)
}

func touchAs(c *Client, hash, id uint64) error {
	return c.Change(hash, id, func(bucket []Entry) ([]Entry, error) {
		for i := range bucket {
			if bucket[i].Hash == hash {
				bucket[i].Location++
				return bucket, nil
			}
		}
		return append(bucket, Entry{hash, 0}), nil
	})
}

// poison fills the memory of each batch, which another batch used before, with bytes that no client
// wrote.
type poison struct{ rdma.Endpoint }

func (p poison) Batch() *rdma.Batch {
	b := p.Endpoint.Batch()
	m := b.Alloc(3 * slotBytes)
	for i := range m {
		m[i] = 1
	}
	b.Release()
	return p.Endpoint.Batch()
}

// hook calls a function before a step is posted, once.
type hook struct {
	rdma.Endpoint
	before map[rdma.Step]func()
}

func (h *hook) Post(b *rdma.Batch) error {
	if f := h.before[b.Step()]; f != nil {
		h.before[b.Step()] = nil
		f()
	}
	return h.Endpoint.Post(b)
}

// hooked is a worker, and what is called before its steps.
func hooked(t testing.TB, f rdma.Fabric, a *arena, o Options) (*Client, map[rdma.Step]func()) {
	t.Helper()
	ep, err := f.Open(t.Name())
	must(t, err)
	h := &hook{ep, map[rdma.Step]func(){}}
	c := Open(h, a.Layout, a, o)
	t.Cleanup(func() {
		c.Close()
		ep.Close()
	})
	return c, h.before
}
