package swarm

import (
	"math/bits"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const year = 365 * 24 * time.Hour

func drawLayout(r *rapid.T) Layout {
	words := rapid.SampledFrom([]int{1, 2, 3, 16, 64, 1000, 1 << 16}).Draw(r, "words")
	writers := rapid.IntRange(words, min(words<<maxGroupBits, 1<<24)).Draw(r, "writers")
	l, err := NewLayout(Shape{Replicas: 3, Words: words, Locks: rapid.IntRange(0, writers).Draw(r, "locks"),
		Writers: writers, MaxValue: 100})
	if err != nil {
		r.Fatal(err)
	}
	return l
}

// TestWords: a stamp survives its word, and words and stamps compare as (i, writer, flag) does.
func TestWords(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l := drawLayout(r)
		type tuple struct {
			i   uint64
			tid int
			v   stamp
		}
		draw := func(name string) tuple {
			return tuple{rapid.Uint64Range(1, l.maxI()-1).Draw(r, name),
				rapid.IntRange(0, l.Writers-1).Draw(r, name+" tid"), stamp(rapid.IntRange(0, 1).Draw(r, name+" flag"))}
		}
		a, b := draw("a"), draw("b")
		if rapid.Bool().Draw(r, "close") {
			b.i = a.i
		}
		sa, sb := l.stamp(a.i, a.tid)|a.v, l.stamp(b.i, b.tid)|b.v
		pointer := rapid.Uint16().Draw(r, "pointer")
		w := sa.word(pointer)
		if l.iOf(sa) != a.i || l.tidOf(sa) != a.tid || sa.verified() != (a.v != 0) || sa.place() != a.tid%l.Words ||
			sa.top() {
			r.Fatalf("%+v became i %d of writer %d at place %d, verified: %v, tombstone: %v", a, l.iOf(sa),
				l.tidOf(sa), sa.place(), sa.verified(), sa.top())
		}
		if stampOf(w, sa.place()) != sa || pointerOf(w) != pointer || w == 0 {
			r.Fatalf("word %x of stamp %x is read as %x with pointer %x", w, sa, stampOf(w, sa.place()), pointerOf(w))
		}
		if (sa < sb) != less(a.i, b.i, uint64(a.tid), uint64(b.tid), uint64(a.v), uint64(b.v)) {
			r.Fatalf("%+v is stamp %x, %+v is %x", a, sa, b, sb)
		}
		if sa.place() == sb.place() && sa != sb && (w < sb.word(0)) != (sa < sb) &&
			w>>pointerBits != sb.word(0)>>pointerBits {
			r.Fatalf("words %x and %x compare unlike their stamps", w, sb.word(0))
		}
		top := stampOf(tombstone, sa.place())
		if !top.top() || top <= sa || top.word(pointer) != tombstone || !top.verified() {
			r.Fatalf("the tombstone's stamp is %x, another one's %x", top, sa)
		}
	})
}

// less compares (a i, a tid's rank, a flag) with b's: of equal i the group and then the place
// decide, which is the number's order.
func less(pairs ...uint64) bool {
	for n := 0; n < len(pairs); n += 2 {
		if pairs[n] != pairs[n+1] {
			return pairs[n] < pairs[n+1]
		}
	}
	return false
}

// TestTimestampsLast: in every shape i counts for more than eight years, and time behind its end is
// not taken for another.
func TestTimestampsLast(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l := drawLayout(r)
		if n := bits.Len64(l.maxI()); n+l.groupBits != stampBits {
			r.Fatalf("i has %d bits, the group %d", n, l.groupBits)
		}
		for _, at := range []time.Duration{8 * year, 9 * year} {
			if i := l.ticks(at); i >= l.maxI() || l.iOf(l.stamp(i, l.Writers-1)) != i || i != uint64(at/l.tick()) {
				r.Fatalf("after %v i is %d of %d", at, i, l.maxI())
			}
		}
		if l.ticks(200*year) < l.maxI() || l.ticks(-year) != 1 || l.ticks(0) != 1 {
			r.Fatalf("after 200 years i is %d of %d, before the epoch %d", l.ticks(200*year), l.maxI(), l.ticks(-year))
		}
	})
}

func TestShapes(t *testing.T) {
	good := Shape{Replicas: 3, Words: 4, Locks: 4, Writers: 6, MaxValue: 100}
	l, err := NewLayout(good)
	must(t, err)
	if l.Bytes(false) != 64 || l.Bytes(true) != 64+16+104 || l.BufferBytes() != 24+104 || l.Majority() != 2 ||
		l.groupBits != 1 {
		t.Errorf("layout %+v: %d, %d and %d bytes", l, l.Bytes(false), l.Bytes(true), l.BufferBytes())
	}
	for _, change := range []func(*Shape){
		func(s *Shape) { s.Replicas = 2 }, func(s *Shape) { s.Replicas = 9 }, func(s *Shape) { s.Replicas = 0 },
		func(s *Shape) { s.Words = 0 }, func(s *Shape) { s.Words = 7 }, func(s *Shape) { s.Writers = 0 },
		func(s *Shape) { s.Locks = 7 }, func(s *Shape) { s.Locks = -1 }, func(s *Shape) { s.MaxValue = -1 },
		func(s *Shape) { s.MaxValue = 1 << 30 }, func(s *Shape) { s.Words, s.Writers = 1, 1<<17+1 },
	} {
		bad := good
		change(&bad)
		_, err := NewLayout(bad)
		wantError(t, err, ErrShape)
	}
}

// FuzzBuffers: what a buffer or the place of a value holds is either what was written for that
// stamp, or nothing.
func FuzzBuffers(f *testing.F) {
	p := make([]byte, bufferHeader+40)
	encodeBuffer(p, 1, 2, []byte("some value"))
	f.Add(p, uint64(1), uint64(2))
	q := make([]byte, inPlaceHeader+10)
	encodeInPlace(q, 7, []byte("some value"))
	f.Add(q, uint64(7), uint64(7))
	f.Fuzz(func(t *testing.T, p []byte, hash, mark uint64) {
		if len(p) >= bufferHeader {
			if v, ok := decodeBuffer(p, hash, stamp(mark)); ok {
				again := make([]byte, bufferHeader+len(v))
				encodeBuffer(again, hash, stamp(mark), v)
				if string(again) != string(p[:len(again)]) {
					t.Errorf("%x is taken for %x", p, again)
				}
			}
		}
		if len(p) >= inPlaceHeader {
			if v, ok := decodeInPlace(p, Word(mark)); ok {
				again := make([]byte, inPlaceHeader+len(v))
				encodeInPlace(again, Word(mark), v)
				if string(again) != string(p[:len(again)]) {
					t.Errorf("%x is taken for %x", p, again)
				}
			}
		}
	})
}

// TestTornBuffers: no mixture of two values is read, and none by another's stamp, key or word.
func TestTornBuffers(t *testing.T) {
	a, b := []byte("a value of some words, the first"), []byte("another value of so many words..")
	p, q := make([]byte, bufferHeader+len(a)), make([]byte, bufferHeader+len(b))
	encodeBuffer(p, 1, 10, a)
	encodeBuffer(q, 1, 10, b)
	x, y := make([]byte, inPlaceHeader+len(a)), make([]byte, inPlaceHeader+len(b))
	encodeInPlace(x, 5, a)
	encodeInPlace(y, 5, b)
	for cut := 8; cut < len(p); cut += 8 {
		torn := append(append([]byte(nil), p[:cut]...), q[cut:]...)
		if v, ok := decodeBuffer(torn, 1, 10); ok {
			t.Errorf("cut at %d: %q", cut, v)
		}
		if cut < len(x) {
			torn = append(append([]byte(nil), x[:cut]...), y[cut:]...)
			if v, ok := decodeInPlace(torn, 5); ok {
				t.Errorf("in place, cut at %d: %q", cut, v)
			}
		}
	}
	if _, ok := decodeBuffer(p, 2, 10); ok {
		t.Error("a buffer of another key is taken")
	}
	if _, ok := decodeBuffer(p, 1, 12); ok {
		t.Error("a buffer of another stamp is taken")
	}
	if v, ok := decodeBuffer(p, 1, 10|verified); !ok || string(v) != string(a) {
		t.Error("a buffer is lost when its tuple is verified")
	}
	if _, ok := decodeInPlace(x, 6); ok {
		t.Error("a value in place is taken for another word's")
	}
}
