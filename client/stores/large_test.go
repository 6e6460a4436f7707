package stores

import (
	"slices"
	"strings"
	"testing"
)

// The error for a pair beyond a store's format has the limit, and names a store with pools that can
// be made for the pair.
func TestTooLarge(t *testing.T) {
	fusee, err := Lookup("fusee")
	if err != nil {
		t.Fatal(err)
	}
	hint := fusee.TooLarge(20_000)
	for _, want := range []string{"fusee's format takes 16264 bytes", "--pair-bytes 20000"} {
		if !strings.Contains(hint, want) {
			t.Errorf("no %q in %q", want, hint)
		}
	}
	others := Taking(20_000)
	if len(others) == 0 || slices.Contains(others, "fusee") || slices.Contains(others, "raw") {
		t.Errorf("%q take pairs of 20,000 bytes", others)
	}
	for _, name := range others {
		p := kinds[name].Size(Params{PairBytes: 20_000, Records: 100})
		if err := p.Check(kinds[name]); err != nil || !strings.Contains(hint, name) {
			t.Errorf("%s: %v; %q", name, err, hint)
		}
	}
	if hint := fusee.TooLarge(1000); !strings.Contains(hint, "--store fusee --pair-bytes 1000") {
		t.Errorf("%q", hint)
	}
	rcuckoo, err := Lookup("rcuckoo")
	if err != nil {
		t.Fatal(err)
	}
	if hint := rcuckoo.TooLarge(2000); strings.Contains(hint, "key-bytes") {
		t.Errorf("of a value that is too large: %q", hint)
	}
	if hint := fusee.TooLarge(1 << 30); !strings.Contains(hint, "no store takes 1073741824") {
		t.Errorf("%q", hint)
	}
}
