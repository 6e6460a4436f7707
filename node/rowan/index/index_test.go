package index_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rowan/index"
)

func at(i int) uint64 { return logBase + uint64(i)*logStride }

func noWait() {}

// Hashes of keys in these tests: different ones, and the same one of all keys that are equal modulo
// 5.
func ownHash(key int) uint64    { return uint64(key) * 0x2545f4914f6cdd1d }
func sharedHash(key int) uint64 { return ownHash(key % 5) }

// TestModel does what bytes say, at random, and compares with a map.
func TestModel(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		steps := make([]byte, 3*600)
		for i := range steps {
			steps[i] = byte(rng.Uint32())
		}
		if wrong := model(steps); wrong != "" {
			t.Fatalf("seed %d: %s", seed, wrong)
		}
	}
}

func FuzzModel(f *testing.F) {
	f.Add([]byte("\x10\x00\x01\x00\x02\x01\x00\x01\x02\x03\x01"))
	f.Fuzz(func(t *testing.T, steps []byte) {
		if wrong := model(steps); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// model does a step by three bytes: what, of which key, of which version. The first three say how
// many items are expected, and which hashes keys have.
func model(steps []byte) string {
	const keys = 96
	if len(steps) < 3 {
		return ""
	}
	hash := ownHash
	if steps[1]%4 == 0 {
		hash = sharedHash
	}
	l := newLog(int(steps[0])%64, len(steps), hash)
	var newest [keys]*entry
	for i := 3; i+3 <= len(steps); i += 3 {
		key, version := int(steps[i+1])%keys, int(steps[i+2])
		old := newest[key]
		switch what := steps[i] % 8; what {
		case 0, 1, 2, 3, 4:
			a := l.append(key, version, what > 2)
			l.put(a, noWait)
			if old == nil || version > old.version {
				newest[key] = l.at(a)
			}
		case 5:
			if l.move(key, noWait); old != nil {
				newest[key] = l.at(at(int(l.used.Load()) - 1))
			}
		case 6:
			if removed := l.remove(key, noWait); removed != (old != nil && old.deleted) {
				return fmt.Sprintf("step %d: removed the tombstone of key %d: %v", i, key, removed)
			} else if removed {
				newest[key] = nil
			}
		case 7: // what the index does not name is not replaced, removed, or indexed twice
			for a := range l.used.Load() {
				if e := &l.entries[a]; e == newest[e.key] {
					if l.put(at(int(a)), noWait) {
						return fmt.Sprintf("step %d: indexed %#x once more", i, at(int(a)))
					}
				} else if l.x.Replace(hash(e.key), at(int(a)), 1) || l.x.Remove(hash(e.key), at(int(a))) {
					return fmt.Sprintf("step %d: changed the item of %#x, which is none", i, at(int(a)))
				}
			}
		}
		if found := l.find(key); (found == 0) != (newest[key] == nil) || found != 0 && l.at(found) != newest[key] {
			return fmt.Sprintf("step %d: found %#x of key %d", i, found, key)
		}
	}
	for key, e := range newest {
		if found := l.find(key); (found == 0) != (e == nil) || found != 0 && l.at(found) != e {
			return fmt.Sprintf("in the end: found %#x of key %d", found, key)
		}
	}
	return l.accounts()
}

// TestChain fills one chain beyond its buckets, and empties it in all orders of a kind: from each
// place on.
func TestChain(t *testing.T) {
	x := index.New(0)
	for n := range 24 {
		for from := range max(n, 1) {
			var want []uint64
			for i := range n {
				if !x.Insert(ownHash(i), at(i), nil) {
					t.Fatalf("item %d of %d is refused", i, n)
				}
				want = append(want, at(i))
			}
			for i := range n {
				got := x.Chain(0, nil)
				slices.Sort(got)
				if !slices.Equal(got, want) || x.Len() != len(want) {
					t.Fatalf("%d of %d removed from %d on: %x and %d, want %x", i, n, from, got, x.Len(), want)
				}
				key := (from + i) % n
				if !slices.Equal(x.Lookup(ownHash(key), nil), []uint64{at(key)}) {
					t.Fatalf("item %d of %d, removed from %d on, is not found", key, n, from)
				}
				remove := func() bool { return x.Remove(ownHash(key), at(key)) }
				if i%2 == 1 { // by its address
					remove = func() bool { return x.Drop(0, at(key)) }
				}
				if x.Drop(0, at(n)) || !remove() || remove() {
					t.Fatalf("item %d of %d, removed from %d on, is not there", key, n, from)
				}
				want = slices.DeleteFunc(want, func(a uint64) bool { return a == at(key) })
			}
			if got := x.Chain(0, nil); len(got) != 0 {
				t.Fatalf("%x are left of %d", got, n)
			}
		}
	}
}

// TestBytes compares what an index says that it has with the heap, and bounds it: empty; with as
// many items as expected, and with ten times as many; and after all of these were removed and
// inserted again, many times.
func TestBytes(t *testing.T) {
	const expected = 60_000 // so that the heap's other memory, tens of KB, is little beside it
	var room [8]uint64
	before := heap()
	x := index.New(expected)
	bounded := func(items int, most float64) {
		t.Helper()
		got := x.Bytes()
		if use := float64(heap() - before); float64(got) < use*0.97 || float64(got) > use*1.03 {
			t.Errorf("%d items: %d bytes, and %.0f of the heap", items, got, use)
		}
		if per := float64(got) / float64(items); per > most {
			t.Errorf("%.1f bytes for each of %d items, want at most %.1f", per, items, most)
		}
	}
	insert := func(i int) {
		if hash := ownHash(i); !x.Insert(hash, at(i), x.Lookup(hash, room[:0])) {
			t.Fatalf("item %d is refused", i)
		}
	}
	bounded(expected, 13.1)
	for i := range expected {
		insert(i)
	}
	bounded(expected, 15.5)
	for i := expected; i < 10*expected; i++ {
		insert(i)
	}
	bounded(10*expected, 14)
	full := x.Bytes()
	for round := range 2 {
		for i := range 10 * expected {
			if !x.Remove(ownHash(i), at(i)) {
				t.Fatalf("round %d: item %d is not there", round, i)
			}
		}
		for i := range 10 * expected {
			insert(i)
		}
	}
	if x.Len() != 10*expected || x.Bytes() != full {
		t.Errorf("the same %d items have %d bytes now, %d before", x.Len(), x.Bytes(), full)
	}
	runtime.KeepAlive(x)
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC() // what pools hold is free behind two
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestSpread fills indexes with keys that have hashes with common bits, like those of one shard and
// one worker. It counts the buckets, and the items of other keys that are found.
func TestSpread(t *testing.T) {
	const items = 20_000
	for name, hash := range map[string]func(i uint64) uint64{
		"the remainder": func(i uint64) uint64 { return (i*0x9e3779b97f4a7c15)/384*384 + 77 },
		"a low byte":    func(i uint64) uint64 { return i*0x9e3779b97f4a7c15<<8 | 0x5c },
		"a high byte":   func(i uint64) uint64 { return i*0x9e3779b97f4a7c15>>8 | 0x5c<<56 },
		"all but 16":    func(i uint64) uint64 { return i * 3 },
	} {
		x := index.New(items)
		longest, others := 0, 0
		for i := range uint64(items) {
			others += len(x.Lookup(hash(i), nil))
			x.Insert(hash(i), 64+i*64, x.Lookup(hash(i), nil))
		}
		for i := range x.Chains() {
			longest = max(longest, len(x.Chain(i, nil)))
		}
		// Of 4,000 chains with 5 on average. One in 26,000 lookups finds another key's item, half
		// as many on the way.
		if longest > 20 || others > 8 {
			t.Errorf("hashes that have %s in common: %d items in a chain, %d lookups found others", name, longest,
				others)
		}
	}
}

// TestAddresses has the lowest and the highest address in items with all tags, the one of no bit
// among them.
func TestAddresses(t *testing.T) {
	x := index.New(1)
	for hash := range uint64(200_000) {
		for _, at := range []uint64{1, 1<<48 - 1} {
			if !x.Insert(hash, at, nil) || !slices.Equal(x.Lookup(hash, nil), []uint64{at}) || !x.Remove(hash, at) {
				t.Fatalf("hash %d at %#x: found %x", hash, at, x.Lookup(hash, nil))
			}
		}
	}
	for name, f := range map[string]func(at uint64){
		"Insert":      func(at uint64) { x.Insert(1, at, nil) },
		"Replace":     func(at uint64) { x.Replace(1, 64, at) },
		"Replace old": func(at uint64) { x.Replace(1, at, 64) },
		"Remove":      func(at uint64) { x.Remove(1, at) },
	} {
		for _, at := range []uint64{0, 1 << 48} {
			if !panics(func() { f(at) }) {
				t.Errorf("%s takes %#x for an address", name, at)
			}
		}
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// TestInsertRefused names the cases in which an insert meets items of the same tag.
func TestInsertRefused(t *testing.T) {
	x := index.New(1)
	seen := x.Lookup(1, nil)
	if !x.Insert(1, 64, seen) || x.Insert(1, 128, seen) {
		t.Error("of two inserts that saw nothing not only one is done")
	}
	seen = x.Lookup(1, nil)
	x.Replace(1, 64, 192)
	if x.Insert(1, 128, seen) {
		t.Error("an item that was moved meanwhile is taken for the one that was seen")
	}
	seen = x.Lookup(1, nil)
	x.Remove(1, 192)
	if !x.Insert(1, 128, seen) {
		t.Error("an item that was removed is in the way")
	}
	if !x.Insert(1, 256, x.Lookup(1, nil)) {
		t.Error("another key's item is in the way, though it was seen")
	}
}

// TestUpdateFails has comparisons fail, which changes nothing.
func TestUpdateFails(t *testing.T) {
	x := index.New(1)
	x.Insert(1, 64, nil)
	broken := errors.New("the node is down")
	_, _, err := x.Update(1, 128, func(uint64) (index.Relation, error) { return index.Older, broken })
	if got := x.Lookup(1, nil); !errors.Is(err, broken) || !slices.Equal(got, []uint64{64}) {
		t.Errorf("the index names %x: %v", got, err)
	}
}

// TestAllocations has operations, and comparisons with what they capture, on an index of a steady
// size.
func TestAllocations(t *testing.T) {
	const keys = 10_000
	l := newLog(keys/3, keys, ownHash)
	for key := range keys {
		l.put(l.append(key, 1, false), noWait)
	}
	var room [8]uint64
	key := 0
	if n := testing.AllocsPerRun(20_000, func() {
		key = (key + 1) % keys
		hash, old := ownHash(key), at(key)
		named, updated, err := l.x.Update(hash, old+1, func(a uint64) (index.Relation, error) {
			if a == old {
				return index.Older, nil
			}
			return index.OtherKey, nil
		})
		if named != old || !updated || err != nil || !l.x.Replace(hash, old+1, old) || !l.x.Remove(hash, old) ||
			!l.x.Insert(hash, old, l.x.Lookup(hash, room[:0])) {
			t.Fatalf("key %d: %#x, %v, %v", key, named, updated, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a round, want none", n)
	}
}
