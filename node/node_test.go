package node_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

func mem(t testing.TB, nodes int, bytes uint64) *shm.Fabric {
	t.Helper()
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: bytes, Clients: 8}, node.Serve)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func open(t testing.TB, f rdma.Fabric) rdma.Endpoint {
	t.Helper()
	ep, err := f.Open(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close() })
	return ep
}

// TestPlace: every item has r distinct nodes, copies on a node are numbered without gaps, and loads
// are even.
func TestPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 20).Draw(t, "nodes")
		r := rapid.IntRange(1, nodes).Draw(t, "replicas")
		items := rapid.IntRange(0, 200).Draw(t, "items")
		placed := node.Place(items, r, nodes, items)
		if len(placed) != items {
			t.Fatalf("%d of %d items are placed", len(placed), items)
		}
		primaries, next := make([]int, nodes), make([]int, nodes)
		for _, rs := range placed {
			seen := map[int]bool{}
			for _, x := range rs {
				if seen[x.Node] || x.Index != next[x.Node] {
					t.Fatalf("%v: node %d twice, or not its item %d", rs, x.Node, next[x.Node])
				}
				seen[x.Node] = true
				next[x.Node]++
			}
			primaries[rs[0].Node]++
		}
		for n := range nodes {
			if primaries[n] > items/nodes+1 || next[n] > items*r/nodes+2 {
				t.Fatalf("node %d of %d is primary of %d and holds %d of %d items", n, nodes, primaries[n], next[n],
					items)
			}
		}
	})
}

// TestPlaceCapacity: full nodes take nothing more, and the list ends when fewer than r have room.
func TestPlaceCapacity(t *testing.T) {
	placed := node.Place(100, 2, 3, 4)
	if len(placed) != 6 {
		t.Errorf("3 nodes with room for 4 take %d items twice, want 6", len(placed))
	}
}

func space(nodes int) *node.Space {
	return &node.Space{Base: 4096, RegionBytes: 64 << 10, BlockBytes: 8 << 10, Replicas: min(2, nodes),
		Place: node.Place(4, min(2, nodes), nodes, 4)}
}

// TestUnits: pointers and places in the space are each other's inverse.
func TestUnits(t *testing.T) {
	s := space(3)
	objects := 0
	for unit := range s.Units() + 10 {
		b, off, ok := s.BlockOf(unit)
		if !ok {
			continue
		}
		objects++
		if i := int(off-s.BitmapBytes()) / node.Unit; s.Object(b, i, 1) != unit {
			t.Fatalf("unit %d lies in %v at %d, where unit %d is", unit, b, off, s.Object(b, i, 1))
		}
		if a := s.UnitAt(unit, 1); a.Offset() < s.Base || a.Offset()+node.Unit > s.Base+4*s.RegionBytes {
			t.Fatalf("unit %d is at %v", unit, a)
		}
	}
	if want := 4 * s.Blocks() * s.Objects(1); objects != want {
		t.Errorf("%d units lie in blocks, want %d", objects, want)
	}
}

func alloc(ep rdma.Endpoint, s *node.Space, region, class int, options ...uint64) (rdma.Request, error) {
	r := rdma.Request{Proc: node.ProcAlloc, Arg: [6]uint64{s.Table(region, 0).Offset(), uint64(s.Blocks()),
		s.Bitmap(node.Block{Region: region}, 0).Offset(), s.BlockBytes, uint64(class), 3}}
	for _, o := range options {
		r.Arg[5] |= o
	}
	err := ep.Call(s.Table(region, 0).Node(), &r, rdma.Forever)
	return r, err
}

// TestAlloc: blocks are handed out once each, to the caller, until there are none.
func TestAlloc(t *testing.T) {
	f, s := mem(t, 3, 1<<20), space(3)
	a, b := open(t, f), open(t, f)
	owners := map[uint64]bool{}
	for i := range s.Blocks() {
		ep := a
		if i%2 == 1 {
			ep = b
		}
		r, err := alloc(ep, s, 0, 5)
		if err != nil {
			t.Fatal(err)
		}
		if e := node.Entry(r.Ret[1]); owners[r.Ret[0]] || e.Owner() != ep.Client() || e.Class() != 5 {
			t.Fatalf("block %d again, or %v instead of client %d", r.Ret[0], e, ep.Client())
		}
		owners[r.Ret[0]] = true
	}
	if _, err := alloc(a, s, 0, 5); !errors.Is(err, rdma.ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
}

// TestUncounted: without the count a block is what it is with it.
func TestUncounted(t *testing.T) {
	f, s := mem(t, 3, 1<<20), space(3)
	ep := open(t, f)
	counted, err := alloc(ep, s, 0, 5)
	if err != nil || counted.Ret[2] != uint64(s.Blocks()) {
		t.Fatalf("%d blocks free of %d: %v", counted.Ret[2], s.Blocks(), err)
	}
	r, err := alloc(ep, s, 0, 5, node.Uncounted)
	if e := node.Entry(r.Ret[1]); err != nil || r.Ret[2] != 0 || e.Owner() != ep.Client() || e.Class() != 5 {
		t.Fatalf("%d blocks free, %v: %v", r.Ret[2], e, err)
	}
}

// TestServeRefuses: a request that reaches beyond the node's memory, or is none, changes nothing.
func TestServeRefuses(t *testing.T) {
	f := mem(t, 1, 1<<20)
	ep := open(t, f)
	rapid.Check(t, func(t *rapid.T) {
		r := rdma.Request{Proc: rdma.Proc(rapid.IntRange(0, 4).Draw(t, "proc"))}
		for i := range r.Arg {
			r.Arg[i] = rapid.OneOf(rapid.Uint64(), rapid.Uint64Max(1<<21)).Draw(t, "arg")
		}
		ep.Call(0, &r, rdma.Forever) // whatever it answers, it must not reach beyond the memory
	})
}

// TestObject: a node hands out objects of its own blocks, each once until it is freed.
func TestObject(t *testing.T) {
	f, s := mem(t, 1, 1<<20), space(1)
	ep := open(t, f)
	const units, class = 3, 2
	take := func() (rdma.Request, error) {
		r := rdma.Request{Proc: node.ProcObject, Arg: [6]uint64{s.Table(0, 0).Offset(), uint64(s.Blocks()),
			s.Bitmap(node.Block{}, 0).Offset(), s.BlockBytes, class<<32 | uint64(s.Objects(units)),
			s.BitmapBytes()<<32 | units*node.Unit}}
		err := ep.Call(0, &r, rdma.Forever)
		return r, err
	}
	seen := map[[2]uint64]bool{}
	for range s.Blocks() * s.Objects(units) {
		r, err := take()
		if err != nil || seen[[2]uint64(r.Ret[:2])] {
			t.Fatalf("object %v, %v", r.Ret, err)
		}
		seen[[2]uint64(r.Ret[:2])] = true
	}
	if _, err := take(); !errors.Is(err, rdma.ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	// Hints at an object that was used twice, before it is free and behind that.
	const object, used = 5, 2
	blk := node.Block{Index: 1}
	at := s.UnitAt(s.Object(blk, object, units), 0)
	for _, mark := range []uint64{0, used - 1, used} {
		b := ep.Batch()
		p := b.Alloc(24)
		clear(p)
		binary.LittleEndian.PutUint64(p, mark)
		binary.LittleEndian.PutUint32(p[16:], used)
		b.Write(at, p)
		b.FetchAdd(s.Bitmap(blk, 0), 1<<object)
		if err := rdma.Do(ep, b, rdma.Forever); err != nil {
			t.Fatal(err)
		}
		b.Release()
		r, err := take()
		if mark != used && !errors.Is(err, rdma.ErrFull) {
			t.Fatalf("mark %d of an object that was used %d times: got %v, %v, want ErrFull", mark, used, r.Ret, err)
		}
		if mark == used && (err != nil || r.Ret[0] != 1 || r.Ret[1] != object || r.Ret[2] != used) {
			t.Fatalf("got object %v, %v, want %d of block 1", r.Ret, err, object)
		}
	}
}

func TestHeader(t *testing.T) {
	f := mem(t, 2, 1<<20)
	ep := open(t, f)
	if _, err := node.ReadHeader(ep, 2); !errors.Is(err, node.ErrNoStore) {
		t.Fatalf("an empty pool: %v", err)
	}
	h := node.Header{Store: "some", Version: 3, Params: []byte(`{"a":1}`)}
	if err := node.WriteHeader(f, ep, h); err != nil {
		t.Fatal(err)
	}
	got, err := node.ReadHeader(ep, 2)
	if err != nil || got.Store != h.Store || string(got.Params) != string(h.Params) || got.Nodes != 2 ||
		got.Size != 1<<20 {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := got.Expect("other", 3); !errors.Is(err, node.ErrOtherStore) {
		t.Errorf("got %v, want ErrOtherStore", err)
	}
	for version, says := range map[uint32]string{2: "newer than version 2", 4: "older than version 4"} {
		if err := got.Expect("some", version); !errors.Is(err, node.ErrOtherVersion) ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want ErrOtherVersion", err)
		}
	}
	if err := got.Expect("some", 3); err != nil {
		t.Error(err)
	}
	f.KillNode(0)
	if got, err := node.ReadHeader(ep, 2); err != nil || got.Node != 1 {
		t.Errorf("with node 0 down: %+v, %v", got, err)
	}
	big := node.Header{Params: make([]byte, node.HeaderBytes)}
	if err := node.WriteHeader(f, ep, big); !errors.Is(err, rdma.ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
}

// overtaken is the memory of a node that serves another request while the memory for a request is
// backed.
type overtaken struct {
	rdma.Memory
	other *rdma.Request
}

func (m *overtaken) Commit(off, n uint64) error {
	if r := m.other; r != nil {
		m.other = nil
		if err := node.Serve(m, r); err != nil {
			return err
		}
	}
	return m.Memory.Commit(off, n)
}

// plain is memory of this process.
type plain []uint64

func (m plain) Node() int              { return 0 }
func (m plain) Size() uint64           { return uint64(8 * len(m)) }
func (m plain) Load(off uint64) uint64 { return m[off/8] }
func (m plain) CompareSwap(off, expect, value uint64) uint64 {
	found := m[off/8]
	if found == expect {
		m[off/8] = value
	}
	return found
}
func (m plain) FetchAdd(off, n uint64) uint64 { m[off/8] += n; return m[off/8] - n }
func (m plain) Commit(off, n uint64) error    { return nil }

// TestGrow: each item of an array is handed out once, up to its end.
func TestGrow(t *testing.T) {
	m := &overtaken{Memory: make(plain, 200)}
	ask := func() *rdma.Request {
		return &rdma.Request{Proc: node.ProcGrow, Arg: [6]uint64{0, 64, 24, 10, 4}}
	}
	one, other := ask(), ask()
	m.other = other
	if err := node.Serve(m, one); err != nil {
		t.Fatal(err)
	}
	if other.Ret != [6]uint64{0, 4} || one.Ret != [6]uint64{4, 4} {
		t.Errorf("two requests got %v and %v", other.Ret, one.Ret)
	}
	if err := node.Serve(m, one); err != nil || one.Ret != [6]uint64{8, 2} {
		t.Errorf("the last ones are %v (%v)", one.Ret, err)
	}
	if err := node.Serve(m, one); !errors.Is(err, rdma.ErrFull) {
		t.Errorf("a full array: %v", err)
	}
	for _, arg := range [][6]uint64{{4, 64, 24, 10, 4}, {1600, 64, 24, 10, 4}, {0, 64, 24, 10, 0},
		{0, 64, 24, 1 << 60, 4}} {
		if err := node.Serve(m, &rdma.Request{Proc: node.ProcGrow, Arg: arg}); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("%v: %v", arg, err)
		}
	}
}
