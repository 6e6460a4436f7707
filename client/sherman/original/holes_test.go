package original

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/farkv/farkv/client"
)

// nodeOn reads a node.
func nodeOn(t testing.TB, s *Store, r ref) []byte {
	t.Helper()
	s.span()
	b, p, err := s.read(stepReadLeaf, s.trees.at(r), s.nodeBytes)
	must(t, err)
	defer b.Release()
	return bytes.Clone(p)
}

// TestTornAcrossSplit: a READ of a leaf that tears across a split has the header from before it,
// and slots from behind it. It does not have the keys that moved, and must not say so. (The
// two-level versions of the paper agree: each entry's own are equal, and so may be those at the
// ends of the node.)
func TestTornAcrossSplit(t *testing.T) {
	f := memPool(t, 1, small(1, 1000, 8))
	s := storeOn(t, f, Options{})
	key := func(i int) []byte { return fmt.Appendf(nil, "key%02d", i) }
	n := 0
	for ; n < s.slots; n++ {
		must(t, s.Insert(key(2*n), []byte("before")))
	}
	r := makeRef(0, 0)
	before := nodeOn(t, s, r)
	must(t, s.Insert(key(1), []byte("splits")))
	after := nodeOn(t, s, r)
	for name, p := range map[string][]byte{
		"header from before, slots from behind": append(bytes.Clone(before[:s.body]), after[s.body:]...),
		"header from behind, slots from before": append(bytes.Clone(after[:s.body]), before[s.body:]...),
	} {
		l, ok := s.readLeaf(p, r)
		if !ok {
			t.Fatalf("%s: no header is whole", name)
		}
		for i := range n {
			if l.beyond(key(2 * i)) {
				continue
			}
			done, there, err := s.look(&l, key(2*i))
			must(t, err)
			if done && !there {
				t.Errorf("%s: %s is not there", name, key(2*i))
			}
		}
		if done, there, _ := s.look(&l, key(1)); name[:16] == "header from befo" && done && there {
			t.Errorf("%s: it has a key that is newer than its header", name)
		}
	}
	whole, _ := s.readHeader(after, r)
	// Any words of one and of the other: what is found is what was there, and what is not found was
	// not.
	for seed := range 2000 {
		p := bytes.Clone(before)
		for i := 0; i < len(p); i += 8 {
			if (seed*2654435761>>(i/8%23))&1 == 1 {
				copy(p[i:i+8], after[i:])
			}
		}
		l, ok := s.readLeaf(p, r)
		if ok && l.sibling != 0 && !bytes.Equal(l.upper, whole.upper) || ok && l.sibling == 0 && !l.last {
			t.Errorf("words %d: a header that was never written: up to %q, sibling %v", seed, l.upper, l.sibling)
		}
		for i := range n {
			if !ok || l.beyond(key(2*i)) {
				continue
			}
			done, there, err := s.look(&l, key(2*i))
			must(t, err)
			if done && (!there || string(s.out) != "before") {
				t.Errorf("words %d: %s is %v, %q", seed, key(2*i), there, s.out)
			}
		}
	}
}

// TestTornSlot: any words of an UPDATE that a client did not come to finish are mended to the value
// before, or to the new one, for values of all lengths.
func TestTornSlot(t *testing.T) {
	f := memPool(t, 1, small(1, 1000, 100))
	s := storeOn(t, f, Options{})
	r, key := makeRef(0, 0), []byte("key")
	values := [][]byte{{}, []byte("a"), []byte("abcd"), []byte("abcdefg"), []byte("abcdefgh"), []byte("12345678"),
		bytes.Repeat([]byte("x"), 50)}
	for _, old := range values {
		for _, now := range values {
			must(t, s.Insert(key, old))
			before := nodeOn(t, s, r)
			must(t, s.Update(key, now))
			after := nodeOn(t, s, r)
			l, _ := s.readLeaf(after, r)
			at := l.offset(l.find(key))
			lb, _ := s.readLeaf(before, r)
			_, kind := inlineWord(now[:min(len(now), Inline)])
			if len(now) > Inline {
				kind = slotBeside
			}
			for cut := range 4 { // which of the words have landed: in front, the value's, or both
				if cut == 1 && lb.kind(l.find(key)) != l.kind(l.find(key)) {
					continue // the value's word is written first
				}
				p := bytes.Clone(before)
				if cut&1 != 0 {
					copy(p[at:at+8], after[at:])
				}
				if cut&2 != 0 {
					copy(p[at+s.slot-8:at+s.slot], after[at+s.slot-8:])
				}
				b := s.ep.Batch()
				must(t, s.mend(b, p, r, makeLock(1, opUpdate, kind, 0, r)))
				b.Release()
				m, ok := s.readLeaf(p, r)
				i := m.find(key)
				if !ok || i < 0 || !m.whole(i) || m.value(i) != l.value(i) && m.value(i) != lb.value(i) ||
					m.value(i) == l.value(i) && m.kind(i) != l.kind(i) && lb.value(i) != l.value(i) ||
					m.kind(i) != l.kind(i) && m.kind(i) != lb.kind(i) {
					t.Errorf("%q to %q, words %b: slot %d is %x, kind %d", old, now, cut, i, m.value(i), m.kind(i))
				}
			}
			must(t, s.Delete(key))
		}
	}
}

// TestStaleHandOver: the holder of a lock hands it over, and is recovered, which
// releases the lock. It is not the next worker's then.
func TestStaleHandOver(t *testing.T) {
	f := memPool(t, 1, small(1, 1000, 8))
	turns := NewLocalLocks(DefaultHands)
	s, other := storeOn(t, f, Options{Turns: turns}), storeOn(t, f, Options{})
	must(t, s.Insert([]byte("key"), []byte("1")))
	r := makeRef(0, 0)
	_, err := other.lock(r, opMend, 0) // another process has it
	must(t, err)
	var gone Waiter
	turns.Join(&gone, uint64(s.lockAt(r)))
	done := false
	s.decideBy = s.ep.Now() + 1<<40
	turns.Join(&s.turn, uint64(s.lockAt(r)))
	turns.Leave(&gone, uint64(makeLock(60, opMend, 0, 0, r)))
	word, err := s.awaitTurn()
	must(t, err)
	s.held = held{r: r, at: s.lockAt(r), word: makeLock(s.id, opMend, 0, 9, r)}
	s.span()
	if done, err = s.takeOver(word); done || err != nil {
		t.Errorf("it has a lock of another process: %v", err)
	}
	turns.Leave(&s.turn, 0)
	must(t, other.unlock())
}

// TestFull: a pool without memory for a split says so and stays readable, and DELETEs make room.
func TestFull(t *testing.T) {
	p := small(1, 10, 60)
	p.Nodes, p.Blocks = 12, 40
	f := memPool(t, 1, p)
	s := storeOn(t, f, Options{})
	var keys []string
	full := map[bool]bool{}
	for i := 0; i < 400; i++ {
		k, long := fmt.Sprintf("key%03d", i*37%400), i%3 == 0
		err := s.Insert([]byte(k), bytes.Repeat([]byte("v"), 5+40*(1-min(i%3, 1))))
		if errors.Is(err, client.ErrFull) {
			full[long] = true
			continue
		}
		must(t, err)
		keys = append(keys, k)
	}
	if !full[true] || len(keys) < 40 {
		t.Errorf("%d keys, full: %v", len(keys), full)
	}
	for _, k := range keys {
		_, err := s.Get([]byte(k))
		must(t, err)
	}
	for _, k := range keys[:len(keys)/2] {
		must(t, s.Delete([]byte(k)))
	}
	for _, k := range keys[:len(keys)/4] {
		must(t, s.Insert([]byte(k), []byte("again")))
	}
	checkAfterClose(t, f, s, len(keys)/2+len(keys)/4+len(keys)%2)
}

// TestLarge: keys and values over the limit, and pools that cannot be.
func TestLarge(t *testing.T) {
	f := memPool(t, 1, small(1, 100, 60))
	s := storeOn(t, f, Options{})
	wantError(t, s.Insert(make([]byte, 33), nil), client.ErrTooLarge)
	wantError(t, s.Insert([]byte("key"), make([]byte, 61)), client.ErrTooLarge)
	_, err := Open(s.ep, Options{Timeout: 1 << 60})
	wantError(t, err, ErrParams)
	wantError(t, Make(f, Params{}), ErrParams)
	if _, _, err := Size(Shape{KeyBytes: 300}); !errors.Is(err, ErrParams) {
		t.Errorf("keys of 300 bytes: %v", err)
	}
}
