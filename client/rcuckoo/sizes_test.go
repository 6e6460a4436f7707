package rcuckoo

import (
	"fmt"
	"testing"

	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
)

// TestSmallValues: in a pool of small pairs the extents, the marks and what clients have claimed
// take at most three times the bytes of the pairs. With one class each pair takes as much as the
// largest one.
func TestSmallValues(t *testing.T) {
	const n, value, most = 10_000, 40, 3
	for classes, within := range map[bool]bool{true: true, false: false} {
		p, _, err := table.Size(table.Shape{Nodes: 1, Records: n, ValueBytes: 1152, Clients: 8})
		must(t, err)
		if !classes {
			p.Classes = 0
		}
		f := memPool(t, 1, p)
		s := storeOn(t, f, session.Options{})
		live := 0
		for i := range n {
			key := fmt.Appendf(nil, "user%d", i)
			must(t, s.Insert(key, make([]byte, value)))
			live += len(key) + value
		}
		handed, err := table.Handed(s.session.Table, s.session.EP, 0)
		must(t, err)
		took := int(handed * s.session.Table.SlabBytes)
		t.Logf("classes: %v: %d bytes of pairs take %d of slabs", classes, live, took)
		if (took <= most*live) != within {
			t.Errorf("classes: %v: %d bytes of pairs take %d", classes, live, took)
		}
		must(t, s.Close())
		judge(t, f)
	}
}

// TestSizesComeAndGo: a pool made for a number of the largest pairs has room for as many of any
// sizes. Four clients fill it with one size, empty it, and fill it with another.
func TestSizesComeAndGo(t *testing.T) {
	const n = 1000
	p, _, err := table.Size(table.Shape{Nodes: 1, Records: n, ValueBytes: 1152, Clients: 4})
	must(t, err)
	f := memPool(t, 1, p)
	var stores []*Store
	for range 3 {
		stores = append(stores, storeOn(t, f, session.Options{}))
	}
	for turn, sizes := range [][]int{{9}, {1152}, {300}, {9, 1152, 100, 600}, {1152}, {20, 40, 80, 150}} {
		for i := range n {
			if err := stores[i%3].Insert(fmt.Appendf(nil, "%d", i), make([]byte, sizes[i%len(sizes)])); err != nil {
				t.Fatalf("turn %d, pair %d: %v", turn, i, err)
			}
		}
		for i := range n {
			must(t, stores[(i+turn)%3].Delete(fmt.Appendf(nil, "%d", i)))
		}
	}
	for _, s := range stores {
		must(t, s.Close())
	}
	r, err := Check(f)
	must(t, err)
	if len(r.Damage)+len(r.Waiting) > 0 {
		t.Errorf("%+v", r)
	}
}

// TestVersions: pools without classes have the version that older clients, which know no classes,
// read.
func TestVersions(t *testing.T) {
	for classes, want := range []uint32{table.OldestVersion, table.OldestVersion, table.FormatVersion} {
		p := extentPool(1)
		p.Classes = classes
		f := memPool(t, 1, p)
		ep, err := f.Open("reader")
		must(t, err)
		h, err := node.ReadHeader(ep, 1)
		if err != nil || h.Version != want {
			t.Errorf("%d classes: version %d, %v", classes, h.Version, err)
		}
		must(t, ep.Close())
	}
}
