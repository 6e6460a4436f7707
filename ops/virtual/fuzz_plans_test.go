package virtual

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads/check/explore"
)

// TestPlans plays what farkv sim fuzz has found wrong, and is right now.
func TestPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/plans-*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no plans: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "plans-"), ".txt")
		t.Run(name, func(t *testing.T) {
			k, err := stores.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			explore.Plans(t, subject(k, nil), explore.File(t, file)...)
		})
	}
}

// TestNothingJudged: of runs of which none could be judged nothing is said to be right.
func TestNothingJudged(t *testing.T) {
	for _, c := range []struct {
		runs, undecided uint64
		want            string
	}{{20, 0, "nothing is wrong\n"}, {20, 3, "nothing is wrong in what was judged\n"}, {20, 20, "nothing was judged\n"},
		{0, 1, "nothing was judged\n"}} {
		var out strings.Builder
		(&Fuzzed{Store: "fusee", Recovers: true, Runs: c.runs, Undecided: c.undecided}).Print(&out)
		if !strings.HasSuffix(out.String(), "\n"+c.want) && out.String() != c.want {
			t.Errorf("%d of %d runs undecided: %s", c.undecided, c.runs, &out)
		}
	}
}
