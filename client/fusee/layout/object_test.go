package layout

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// encoded returns the bytes of an object in whole units, as a reader gets them.
func encoded(f *Fields) []byte {
	p := make([]byte, UnitsFor(len(f.Key), len(f.Value))*node.Unit)
	f.Encode(p[:ObjectBytes(len(f.Key), len(f.Value))])
	return p
}

func TestObjectRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Fields{
			Incarnation: rapid.Uint32().Draw(t, "incarnation"), Writer: rdma.ClientID(rapid.Uint16().Draw(t, "writer")),
			Seq: rapid.Uint64Max(1<<48-1).Draw(t, "seq"), Op: Opcode(rapid.IntRange(1, 3).Draw(t, "op")),
			Key:   rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "key"),
			Value: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value"),
		}
		p := encoded(&f)
		g, ok := Decode(p)
		if !ok || g.Incarnation != f.Incarnation || g.Writer != f.Writer || g.Seq != f.Seq || g.Op != f.Op ||
			!bytes.Equal(g.Key, f.Key) || !bytes.Equal(g.Value, f.Value) {
			t.Fatalf("%+v came back as %+v, %v", f, g, ok)
		}
		if at := LogAt(len(f.Key), len(f.Value)) + OpBytes; at%8 != 0 {
			t.Fatalf("the log's old value lies at %d", at)
		}
	})
}

// TestObjectTears: an object of which any words are an earlier one's is not complete, whatever its
// pair.
func TestObjectTears(t *testing.T) {
	old := Fields{Incarnation: 7, Writer: 1, Seq: 8, Op: OpInsert,
		Key: []byte("key"), Value: bytes.Repeat([]byte("a"), 100)}
	rapid.Check(t, func(t *rapid.T) {
		now := old
		now.Incarnation, now.Seq = 8, 9
		now.Value = rapid.SliceOfN(rapid.Byte(), 100, 100).Draw(t, "value")
		was, is := encoded(&old), encoded(&now)
		torn := append([]byte(nil), is...)
		mixed := false
		for w := 0; w*8 < len(torn); w++ {
			if rapid.Bool().Draw(t, "old word") {
				copy(torn[w*8:w*8+8], was[w*8:])
			}
		}
		sum := LogAt(3, 100) + OpBytes
		mixed = !bytes.Equal(torn[:sum], is[:sum]) && !bytes.Equal(torn[:sum], was[:sum])
		if _, ok := Decode(torn); ok == mixed {
			t.Fatalf("torn: %v, complete: %v", mixed, ok)
		}
	})
}

// FuzzObject: whatever lies in the pool, decoding it neither panics nor reaches beyond it.
func FuzzObject(f *testing.F) {
	f.Add([]byte(nil), uint64(0))
	f.Add(encoded(&Fields{Incarnation: 1, Op: OpInsert, Key: []byte("k"), Value: []byte("v")}), uint64(1)<<48)
	l := &Layout{Params: Params{TagBits: race.MaxTagBits}}
	f.Fuzz(func(t *testing.T, p []byte, word uint64) {
		g, ok := Decode(p)
		if ok && len(g.Key)+len(g.Value)+HeaderBytes+logBytes > len(p) {
			t.Fatalf("%d bytes hold a key of %d and a value of %d", len(p), len(g.Key), len(g.Value))
		}
		if _, held := l.PairOf(race.Word(word), p); held && !ok {
			t.Fatal("an incomplete object is a slot's pair")
		}
	})
}
