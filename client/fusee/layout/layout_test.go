package layout

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// FuzzParams: opening a pool with any parameters in its header is an error or works.
func FuzzParams(f *testing.F) {
	f.Add([]byte(`{"index_replicas":2,"data_replicas":2,"subtables":1,"index_groups":2,"regions":1,`+
		`"region_bytes":65536,"block_bytes":4096,"clients":1,"tag_bits":13}`), 3, uint64(1<<20))
	f.Add([]byte(`{"index_replicas":-1}`), 0, uint64(0))
	f.Fuzz(func(t *testing.T, params []byte, nodes int, size uint64) {
		l, err := ParseParams(params, nodes, size)
		if err == nil && (l.Bytes > size || l.Space.Blocks() < 1 || l.Classes.Largest() < 1) {
			t.Fatalf("%s gives %+v", params, l)
		}
	})
}

func TestClasses(t *testing.T) {
	for _, block := range []uint64{4 << 10, 8 << 10, 32 << 10, 1 << 20, 16 << 20} {
		s := node.Space{RegionBytes: 2*block + 4096, BlockBytes: block}
		c := makeClasses(&s)
		if len(c.Units) > maxClasses {
			t.Errorf("blocks of %d bytes make %d classes", block, len(c.Units))
		}
		for n := 1; n <= c.Largest(); n++ {
			units := c.Units[c.Of[n]]
			if units < n || n > 8 && (units-n)*8 > n {
				t.Errorf("blocks of %d: %d units take an object of %d", block, n, units)
			}
		}
		for i, units := range c.Units {
			if n := c.Objects[i]; n < 1 || uint64(n*units*node.Unit)+s.BitmapBytes() > block ||
				uint64(n) > s.BitmapBytes()*8 {
				t.Errorf("blocks of %d: %d objects of %d units", block, n, units)
			}
		}
	}
}

// TestSizes: whatever the caller asks for, Size returns a pool that fits, or an error.
func TestSizes(t *testing.T) {
	for _, nodes := range []int{1, 2, 3, 5, 16} {
		for _, records := range []uint64{1, 1000, 1e6, 1e9} {
			for _, memory := range []uint64{0, 1 << 20, 64 << 20, 1 << 34} {
				s := Shape{Nodes: nodes, Memory: memory, Records: records, PairBytes: 1024,
					IndexReplicas: min(3, nodes), DataReplicas: min(2, nodes), Clients: 64}
				p, bytes, err := Size(s)
				if err != nil {
					if records < 1e9 && memory == 0 || !errors.Is(err, rdma.ErrFull) && !errors.Is(err, ErrParams) {
						t.Errorf("%+v: %v", s, err)
					}
					continue
				}
				if l, err := New(p, nodes, bytes); err != nil || memory > 0 && bytes != memory {
					t.Errorf("%+v makes %+v of %d bytes: %v", s, p, bytes, err)
				} else if memory > 64<<20 && l.Bytes < memory/2 {
					t.Errorf("%+v: of %d bytes only %d are used", s, memory, l.Bytes)
				}
			}
		}
	}
}

// TestManySizes: a pool for few workers has blocks for pairs of many sizes, and one for short pairs
// no more than its data ask for.
func TestManySizes(t *testing.T) {
	for _, c := range []struct{ pairBytes, least, most int }{{1000, 650, 1400}, {80, 250, 600}} {
		s := Shape{Nodes: 2, Records: 500, PairBytes: c.pairBytes, IndexReplicas: 1, DataReplicas: 1, Clients: 64,
			Workers: 4}
		p, bytes, err := Size(s)
		if err != nil {
			t.Fatal(err)
		}
		l, err := New(p, s.Nodes, bytes)
		if err != nil {
			t.Fatal(err)
		}
		if n := l.Regions * l.Space.Blocks(); n < c.least || n > c.most {
			t.Errorf("pairs of %d bytes: %d blocks of %d bytes, want %d to %d", c.pairBytes, n, l.BlockBytes, c.least,
				c.most)
		}
	}
}
