package stores

import (
	"fmt"
	"strings"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/telemetry"
)

// Every store counts what its protocol does, by names that do not change, and no other client's
// operations.
func TestCounts(t *testing.T) {
	const keys = 50
	for _, name := range Names() {
		p, err := Create("mem:", name, Params{Records: 1000})
		must(t, err)
		kind, err := Lookup(name)
		must(t, err)
		ep, err := p.Fabric.Open("counts")
		must(t, err)
		s, err := kind.Open(ep, Options{Fabric: p.Fabric}) // the pool's is that of the format
		must(t, err)
		for i := range keys {
			key := fmt.Appendf(nil, "key%d", i)
			must(t, s.Insert(key, key))
			must(t, s.Update(key, key))
			_, err := s.Get(key)
			must(t, err)
		}
		at := map[string]uint64{}
		counts := s.(client.Countable).Counts(nil)
		paths := uint64(0)
		for _, c := range counts {
			if _, twice := at[c.Name]; twice || c.Name == "" {
				t.Errorf("%s: counter %q comes twice", name, c.Name)
			}
			at[c.Name] = c.Count
			if strings.HasPrefix(c.Name, "paths of ") {
				paths += c.Count
			}
		}
		want := map[string]uint64{}
		switch name {
		case "fusee", "fusee-cr":
			want = map[string]uint64{"won by rule 1": 2 * keys, "lost": 0, "cache hits": 2 * keys}
		case "fusee-nc":
			want = map[string]uint64{"won by rule 1": 2 * keys, "cache hits": 0, "cache misses": 2 * keys}
		case "swarm", "swarm-apart":
			want = map[string]uint64{"guesses wrong": 0, "index accesses": keys}
			// more, where the process stood still: what is cached is read again
			if hits := at["cache hits"]; hits < 2*keys {
				t.Errorf("%s: %d cache hits, want %d at least", name, hits, 2*keys)
			}
		}
		for what, n := range want {
			if at[what] != n {
				t.Errorf("%s: %d %s, want %d", name, at[what], what, n)
			}
		}
		if name == "rcuckoo" && paths != keys {
			t.Errorf("%d paths for %d INSERTs", paths, keys)
		}
		room := make([]telemetry.Counter, 0, len(counts))
		if n := testing.AllocsPerRun(10, func() { room = s.(client.Countable).Counts(room[:0]) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		for i, c := range room {
			if c.Name != counts[i].Name {
				t.Errorf("%s: counter %d is %q now, and was %q", name, i, c.Name, counts[i].Name)
			}
		}
		must(t, s.Close())
		must(t, ep.Close())
		must(t, p.Close())
	}
}
