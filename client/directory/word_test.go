package directory

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestWords: a word tells its parts, and rises with each step of a replica.
func TestWords(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		round := rapid.Uint64Range(1, maxRound-1).Draw(r, "round")
		p, q := rapid.Uint16().Draw(r, "pointer"), rapid.Uint16().Draw(r, "other pointer")
		for _, w := range []Word{promise(round, p), accept(round, p)} {
			since, sure := w.since()
			if w.round() != round || w.pointer() != p || sure != (w.accepted() || p == 0) ||
				sure && p != 0 && since != round {
				r.Fatalf("%#x of round %d and buffer %d: accepted since %d, which is known: %v", w, round, p, since,
					sure)
			}
		}
		if !(accept(round-1, p) < promise(round, q) && promise(round, q) < accept(round, p)) {
			r.Fatalf("words of rounds %d and %d do not rise", round-1, round)
		}
	})
}

func drawValue(r *rapid.T) *value {
	v := &value{round: rapid.Uint64Range(1, maxRound).Draw(r, "round"), n: rapid.IntRange(0, Slots).Draw(r, "entries"),
		changes: rapid.Uint64().Draw(r, "changes")}
	for i := range v.ids {
		v.ids[i] = rapid.Uint64().Draw(r, "id")
	}
	for i := range v.n {
		v.entries[i] = Entry{rapid.Uint64().Draw(r, "hash"), rapid.Uint64().Draw(r, "location")}
	}
	return v
}

// TestValues: a value survives its buffer; one of another bucket is none of it, nor is one of which
// any word is another's.
func TestValues(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		v, bucket := drawValue(r), rapid.Uint64Range(0, maxBuckets-1).Draw(r, "bucket")
		p := make([]byte, BufferBytes)
		used := len(v.encode(p, bucket))
		var got value
		q, ok := whole(p, bucket)
		if !ok || len(q) != used {
			r.Fatalf("%+v is not whole", v)
		}
		if got.decode(q); got != *v {
			r.Fatalf("%+v became %+v", v, got)
		}
		if _, ok := whole(p, bucket^1<<rapid.IntRange(0, 35).Draw(r, "bit")); ok {
			r.Fatalf("a value of bucket %d is taken for another's", bucket)
		}
		old := make([]byte, BufferBytes)
		drawValue(r).encode(old, bucket)
		word := 8 * rapid.IntRange(0, used/8-1).Draw(r, "word")
		if !bytes.Equal(p[word:word+8], old[word:word+8]) {
			copy(p[word:], old[word:word+8])
			if _, ok := whole(p, bucket); ok {
				r.Fatalf("a torn value is taken for one, at byte %d", word)
			}
		}
	})
}

// FuzzWhole: whatever lies in memory is a value, or it is not.
func FuzzWhole(f *testing.F) {
	v := value{round: 7, n: 2, changes: 9}
	p := make([]byte, BufferBytes)
	v.encode(p, 3)
	f.Add(p, uint64(3))
	f.Add(make([]byte, BufferBytes), uint64(0))
	f.Fuzz(func(t *testing.T, p []byte, bucket uint64) {
		if len(p) != BufferBytes {
			return
		}
		q, ok := whole(p, bucket)
		if !ok {
			return
		}
		var v value
		v.decode(q)
		again := v.encode(make([]byte, BufferBytes), bucket)
		if !bytes.Equal(again, q) {
			t.Errorf("%x is taken for %+v, which is %x", q, v, again)
		}
	})
}

// TestRemembered: of so many changes the last ones are known.
func TestRemembered(t *testing.T) {
	var v value
	for n := uint64(1); n <= 3*remembered; n++ {
		v.add(1000 + n)
		for id := uint64(1); id <= n; id++ {
			if v.has(1000+id) != (id+remembered > n) {
				t.Fatalf("behind %d changes change %d is known: %v", n, id, v.has(1000+id))
			}
			if v.tells(1000+id, id) != (id+remembered > n) {
				t.Fatalf("behind %d changes it is known of those from %d on: %v", n, id, v.tells(1000+id, id))
			}
		}
	}
	if v.has(0) {
		t.Error("no change is known as one")
	}
}
