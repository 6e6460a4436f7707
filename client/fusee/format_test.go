package fusee

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// encoded returns the bytes of an object in whole units, as a reader gets them.
func encoded(f *fields) []byte {
	p := make([]byte, unitsFor(len(f.key), len(f.value))*node.Unit)
	f.encode(p[:objectBytes(len(f.key), len(f.value))])
	return p
}

func TestObjectRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := fields{
			incarnation: rapid.Uint32().Draw(t, "incarnation"), writer: rdma.ClientID(rapid.Uint16().Draw(t, "writer")),
			seq: rapid.Uint64Max(1<<48-1).Draw(t, "seq"), op: opcode(rapid.IntRange(1, 3).Draw(t, "op")),
			key:   rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "key"),
			value: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value"),
		}
		p := encoded(&f)
		g, ok := decode(p)
		if !ok || g.incarnation != f.incarnation || g.writer != f.writer || g.seq != f.seq || g.op != f.op ||
			!bytes.Equal(g.key, f.key) || !bytes.Equal(g.value, f.value) {
			t.Fatalf("%+v came back as %+v, %v", f, g, ok)
		}
		if at := logAt(len(f.key), len(f.value)) + opBytes; at%8 != 0 {
			t.Fatalf("the log's old value lies at %d", at)
		}
	})
}

// TestObjectTears: an object of which any words are an earlier one's is not complete, whatever its
// pair.
func TestObjectTears(t *testing.T) {
	old := fields{incarnation: 7, writer: 1, seq: 8, op: opInsert,
		key: []byte("key"), value: bytes.Repeat([]byte("a"), 100)}
	rapid.Check(t, func(t *rapid.T) {
		now := old
		now.incarnation, now.seq = 8, 9
		now.value = rapid.SliceOfN(rapid.Byte(), 100, 100).Draw(t, "value")
		was, is := encoded(&old), encoded(&now)
		torn := append([]byte(nil), is...)
		mixed := false
		for w := 0; w*8 < len(torn); w++ {
			if rapid.Bool().Draw(t, "old word") {
				copy(torn[w*8:w*8+8], was[w*8:])
			}
		}
		sum := logAt(3, 100) + opBytes
		mixed = !bytes.Equal(torn[:sum], is[:sum]) && !bytes.Equal(torn[:sum], was[:sum])
		if _, ok := decode(torn); ok == mixed {
			t.Fatalf("torn: %v, complete: %v", mixed, ok)
		}
	})
}

// FuzzObject: whatever lies in the pool, decoding it neither panics nor reaches beyond it.
func FuzzObject(f *testing.F) {
	f.Add([]byte(nil), uint64(0))
	f.Add(encoded(&fields{incarnation: 1, op: opInsert, key: []byte("k"), value: []byte("v")}), uint64(1)<<48)
	l := &layout{Params: Params{TagBits: race.MaxTagBits}}
	f.Fuzz(func(t *testing.T, p []byte, word uint64) {
		g, ok := decode(p)
		if ok && len(g.key)+len(g.value)+headerBytes+logBytes > len(p) {
			t.Fatalf("%d bytes hold a key of %d and a value of %d", len(p), len(g.key), len(g.value))
		}
		if _, held := l.pairOf(race.Word(word), p); held && !ok {
			t.Fatal("an incomplete object is a slot's pair")
		}
	})
}

// FuzzWord: whatever a slot holds, following it leads into a block or to an error.
func FuzzWord(f *testing.F) {
	l, err := newLayout(small(3, 2, 2), 3, 1<<40)
	if err != nil {
		f.Fatal(err)
	}
	x := pool(f, 3, small(3, 2, 2))
	c := worker(f, x, Options{}, nil)
	f.Add(uint64(0))
	f.Add(uint64(race.Pack(1, 3, l.space.Object(node.Block{}, 0, 3), 1)))
	f.Add(^uint64(0))
	f.Fuzz(func(t *testing.T, w uint64) {
		b := c.ep.Batch()
		defer b.Release()
		if _, err := c.readPair(b, race.Word(w)); err != nil {
			return
		}
		if err := c.do("test", b); err != nil {
			t.Fatalf("%v: %v", race.Word(w), err)
		}
	})
}

// FuzzParams: opening a pool with any parameters in its header is an error or works.
func FuzzParams(f *testing.F) {
	f.Add([]byte(`{"index_replicas":2,"data_replicas":2,"subtables":1,"index_groups":2,"regions":1,`+
		`"region_bytes":65536,"block_bytes":4096,"clients":1,"tag_bits":13}`), 3, uint64(1<<20))
	f.Add([]byte(`{"index_replicas":-1}`), 0, uint64(0))
	f.Fuzz(func(t *testing.T, params []byte, nodes int, size uint64) {
		l, err := parseParams(params, nodes, size)
		if err == nil && (l.bytes > size || l.space.Blocks() < 1 || l.classes.largest() < 1) {
			t.Fatalf("%s gives %+v", params, l)
		}
	})
}

func TestClasses(t *testing.T) {
	for _, block := range []uint64{4 << 10, 8 << 10, 32 << 10, 1 << 20, 16 << 20} {
		s := node.Space{RegionBytes: 2*block + 4096, BlockBytes: block}
		c := makeClasses(&s)
		if len(c.units) > maxClasses {
			t.Errorf("blocks of %d bytes make %d classes", block, len(c.units))
		}
		for n := 1; n <= c.largest(); n++ {
			units := c.units[c.of[n]]
			if units < n || n > 8 && (units-n)*8 > n {
				t.Errorf("blocks of %d: %d units take an object of %d", block, n, units)
			}
		}
		for i, units := range c.units {
			if n := c.objects[i]; n < 1 || uint64(n*units*node.Unit)+s.BitmapBytes() > block ||
				uint64(n) > s.BitmapBytes()*8 {
				t.Errorf("blocks of %d: %d objects of %d units", block, n, units)
			}
		}
	}
}
