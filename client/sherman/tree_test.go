package sherman

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTree grows a tree by random INSERTs, in order and in none, changes and empties it, and compares it with a map all the
// while, by GETs and by scans.
func TestTree(t *testing.T) {
	for _, c := range []struct {
		name, format string
		ordered      bool
		cache        int
	}{
		{"random", RTX, false, DefaultCache}, {"ordered", RTX, true, DefaultCache}, {"no cache", RTX, false, 0},
		{"small cache", RTX, false, 8 << 10}, {"DTX", DTX, false, DefaultCache}, {"DTX, ordered, small cache", DTX, true, 8 << 10},
		{"DTX, no cache", DTX, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 3000
			f := memPool(t, small(c.format, 3, n, 100))
			s, other := storeOn(t, f, Options{CacheBytes: new(c.cache)}), storeOn(t, f, Options{CacheBytes: new(c.cache)})
			rng := rand.New(rand.NewPCG(1, 2))
			model := map[string]string{}
			var keys []string
			key := func(i int) string {
				if c.ordered {
					return fmt.Sprintf("key%06d", i)
				}
				return fmt.Sprintf("key%06d", rng.IntN(1e6))
			}
			value := func() string {
				return string(bytes.Repeat([]byte{byte('a' + rng.IntN(26))}, rng.IntN(20)+rng.IntN(2)*80))
			}
			for i := range n {
				k, v := key(i), value()
				err := s.Insert([]byte(k), []byte(v))
				if _, there := model[k]; there {
					wantError(t, err, errExists)
					continue
				}
				must(t, err)
				model[k], keys = v, append(keys, k)
				if i == n/10 { // what it remembers is outdated on all levels soon
					for _, k := range keys {
						_, err := other.Get([]byte(k))
						must(t, err)
					}
				}
			}
			slices.Sort(keys)
			facts := checked(t, f, len(keys))
			if facts["levels"] < 3 {
				t.Errorf("a tree of %d levels", facts["levels"])
			}
			compare(t, other, model, keys)
			for i, k := range keys {
				if i%3 == 0 {
					model[k] = value()
					must(t, other.Update([]byte(k), []byte(model[k])))
				}
			}
			compare(t, s, model, keys)
			rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			for _, k := range keys[:len(keys)*9/10] {
				must(t, s.Delete([]byte(k)))
				delete(model, k)
			}
			keys = keys[len(keys)*9/10:]
			slices.Sort(keys)
			after := checked(t, f, len(keys))
			compare(t, other, model, keys)
			t.Logf("%v, and with a tenth of the keys %v, %+v", facts, after, s.stats)
			for _, k := range keys {
				must(t, other.Delete([]byte(k)))
			}
			if facts := checked(t, f, 0); facts["leaves"] != 1 || facts["levels"] != 1 {
				t.Errorf("an empty tree: %v", facts)
			}
			compare(t, s, nil, nil)
		})
	}
}

// compare compares a tree with what it should have; keys is in order.
func compare(t *testing.T, s *Store, model map[string]string, keys []string) {
	t.Helper()
	for _, k := range keys {
		if v, err := s.Get([]byte(k)); err != nil || string(v) != model[k] {
			t.Fatalf("%s is %q, %v, want %q", k, v, err, model[k])
		}
	}
	for _, k := range []string{"", "a", "key", "key1", "z", "key555555x"} {
		if _, there := model[k]; there {
			continue
		}
		_, err := s.Get([]byte(k))
		wantError(t, err, errNotFound)
		wantError(t, s.Update([]byte(k), nil), errNotFound)
		wantError(t, s.Update([]byte(k), make([]byte, 50)), errNotFound)
		wantError(t, s.Delete([]byte(k)), errNotFound)
	}
	for _, from := range []string{"", "key3", "key999", "zzz", string(bytes.Repeat([]byte("k"), 300))} {
		for _, n := range []int{-1, 0, 1, 7, 100, len(keys), len(keys) + 1, 1 << 40} {
			first, _ := slices.BinarySearch(keys, from)
			want := keys[first:]
			if n < len(want) {
				want = want[:max(n, 0)]
			}
			var got []string
			must(t, s.Scan([]byte(from), n, func(k, v []byte) bool {
				if model[string(k)] != string(v) {
					t.Errorf("the scan has %s: %q, want %q", k, v, model[string(k)])
				}
				got = append(got, string(k))
				return true
			}))
			if !slices.Equal(got, want) {
				t.Fatalf("a scan of %d from %.10q has %d keys, want %d", n, from, len(got), len(want))
			}
		}
	}
	seen := 0
	must(t, s.Scan(nil, 1<<30, func(_, _ []byte) bool { seen++; return seen < 3 }))
	if seen != min(3, len(keys)) {
		t.Errorf("a scan that is stopped behind the third pair has %d", seen)
	}
}
