package stores

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// TestFill compares what stores say of how full their index is with the pairs that are in it:
// exactly in a small pool, and within 15 % where a sample is taken. All begin empty, and memory
// fills with the pairs.
func TestFill(t *testing.T) {
	t.Parallel()
	if teeth.UnderRace {
		t.Skip("one worker at a time; run without -race")
	}
	for _, name := range Names() {
		for _, records := range []uint64{500, 40_000} {
			t.Run(fmt.Sprint(name, records), func(t *testing.T) { fill(t, name, records) })
		}
	}
}

func fill(t *testing.T, name string, records uint64) {
	k, err := Lookup(name)
	if err != nil || k.Fill == nil {
		t.Fatalf("%s does not tell how full its pools are: %v", name, err)
	}
	// The timeout is long because the tasks of three servers wait for two busy processors.
	p, err := Create("mem:", name, Params{Nodes: 3, Records: records, Clients: 16, PairBytes: 64,
		Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	f := p.Fabric
	defer f.Close()
	empty, err := k.Fill(f)
	if err != nil || len(empty) < 2 {
		t.Fatalf("an empty pool: %v, %v", empty, err)
	}
	for _, e := range empty {
		if e.Used != 0 || e.All == 0 {
			t.Errorf("an empty pool: %+v", e)
		}
	}
	s, ep, err := p.Worker("fill", Options{})
	if err != nil {
		t.Fatal(err)
	}
	pairs := records * 3 / 5
	for i := range pairs {
		if err := s.Insert(fmt.Appendf(nil, "key%d", i), make([]byte, 40)); err != nil {
			t.Fatalf("pair %d: %v", i, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := ep.Close(); err != nil {
		t.Error(err)
	}
	all, err := k.Fill(f)
	if err != nil {
		t.Fatal(err)
	}
	if k.Serve != nil { // the index is its servers'
		all = append([]Fill{{Used: pairs, All: records, Sampled: records > 10_000}}, all...)
	}
	index := all[0]
	if index.Sampled != (records > 10_000) {
		t.Errorf("of %d records a sample is %v: %+v", records, index.Sampled, index)
	}
	switch {
	case !index.Sampled && index.Used != pairs:
		t.Errorf("%d pairs: %+v", pairs, index)
	case index.Sampled && k.Serve == nil:
		room := places(t, p)
		if got := float64(index.Used) / float64(index.All) * room; math.Abs(got/float64(pairs)-1) > 0.15 {
			t.Errorf("%d pairs in %.0f places, and it tells of %.0f: %+v", pairs, room, got, index)
		}
	}
	for _, e := range all[1:] {
		if e.Used == 0 || e.Used > e.All {
			t.Errorf("with %d pairs: %+v", pairs, e)
		}
	}
}

// places returns how many pairs the whole index has places for, as the pool's use of memory has it.
func places(t *testing.T, p *Pool) float64 {
	t.Helper()
	uses, err := p.Kind.Usage(p.Fabric)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range uses {
		switch {
		case u.Name == "index slots", u.Name == "entries":
			return float64(u.Count)
		case strings.HasPrefix(u.Name, "directory buckets"):
			return float64(u.Count) * 16
		}
	}
	t.Fatalf("no index in %v", uses)
	return 0
}
