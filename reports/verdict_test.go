package reports

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// full is the file of a paper's verdicts at the full size, a line each: a statement's name and its
// outcome.
func full(p *Paper) string { return filepath.Join("testdata", "full-"+strings.ToLower(p.Name)+".txt") }

// unrun is the outcome of a statement that the full size has not been run for since its criterion
// changed.
const unrun = "?"

// agrees checks that the quick size says of each of the paper's statements, or of those of the
// parts that were run, what the full size said, or that it is too small to tell, and that it does
// tell some.
func agrees(t *testing.T, p *Paper, quick map[string]Outcome) {
	t.Helper()
	text, err := os.ReadFile(full(p))
	if err != nil {
		t.Fatal(err)
	}
	told, known := 0, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		about, outcome, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(about, "#") {
			continue
		}
		known[about] = true
		switch q, ran := quick[about]; {
		case !ran && !allParts(), q == TooSmall:
		case outcome == unrun:
			t.Errorf("%s: %q, and the full size has not been run: see TestFull, or list it as unproven", about, q)
		case q != Outcome(outcome):
			t.Errorf("%s: %q, and %q at the full size", about, q, outcome)
		default:
			told++
		}
	}
	for about := range p.Figures {
		if !known[about] {
			t.Errorf("%s has no line for %s: see TestFull", full(p), about)
		}
	}
	if told < len(quick)/4 {
		t.Errorf("the quick size tells %d of %d verdicts", told, len(quick))
	}
}

// TestFull makes the files of verdicts at the full size, which takes some ten minutes a paper on
// two cores that are idle:
//
//	FARKV_LONG=1 go test ./reports -run TestFull -timeout 3h
//
// It is to be done again whenever a report, a store, or the simulator is changed in what it
// measures.
func TestFull(t *testing.T) {
	if os.Getenv("FARKV_LONG") == "" {
		t.Skip("takes half an hour: set FARKV_LONG=1")
	}
	for _, p := range Papers {
		t.Run(p.Name, func(t *testing.T) {
			r, err := p.Report(context.Background(), Options{Seed: 1, Say: t.Logf})
			if err != nil {
				t.Fatal(err)
			}
			outcomes := audit(t, r)
			text := "# Made by FARKV_LONG=1 go test ./reports -run TestFull\n"
			for _, about := range slices.Sorted(maps.Keys(outcomes)) {
				text += fmt.Sprintf("%s %s\n", about, outcomes[about])
			}
			if err := os.WriteFile(full(p), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestPrinted(t *testing.T) {
	for _, x := range []struct {
		ours      float64
		text      string
		met, near bool
	}{
		{2.44, "2.4", true, true}, {2.45, "2.4", true, true}, {2.46, "2.4", false, true}, {2.7, "2.4", false, false},
		{3.4, "3", true, true}, {3.6, "3", false, true}, {4, "3", false, false}, {1030.4, "1030", true, true},
		{1031, "1030", false, true},
		{-9.4, "-9", true, true}, {-16, "-9", false, false},
	} {
		unit := map[bool]string{true: "%"}[x.ours < 0]
		if got := printed(x.ours, x.text, unit); got != (test{x.met, x.near}) {
			t.Errorf("%g printed as %s: %+v", x.ours, x.text, got)
		}
	}
	if got := printed(45.6+2.9, "45.6", "%"); got.met || !got.near {
		t.Errorf("2.9 percent off: %+v", got)
	}
	if got := printed(45.6+3.2, "45.6", "%"); got.met || got.near {
		t.Errorf("3.2 percent off: %+v", got)
	}
}

func TestTests(t *testing.T) {
	yes, no, nearly, barely := test{true, false}, test{false, false}, test{false, true}, test{true, true}
	for _, x := range []struct {
		got, want test
	}{
		{more(2, 1), yes}, {more(1, 2), no}, {more(1.03, 1), barely}, {less(1.03, 1), nearly}, {less(-2, -1), yes},
		{is(true), yes},
		{inside(1, 0.5, 2), yes}, {inside(1.97, 0.5, 2), barely}, {inside(3, 0.5, 2), no}, {similar(1.3, 1, 0.15), no},
		{similar(1, 1, 0.15), yes},
		{all(yes, yes), yes}, {all(yes, barely), barely}, {all(barely, nearly), nearly}, {all(yes, nearly), nearly},
		{all(barely, no), no}, {all(nearly, no), no},
	} {
		if x.got != x.want {
			t.Errorf("%+v, want %+v", x.got, x.want)
		}
	}
}

// TestClaim: what is fitted counts for nothing, the quick size says when it is too small, and a
// reason is shown or not known.
func TestClaim(t *testing.T) {
	figures := map[string]Figure{
		"fit": {Printed: "2.0", Fitted: "the link was chosen so"}, "number": {Printed: "2.0"},
		"words": {When: "it is so"}, "few": {When: "it is so"},
	}
	for _, quick := range []bool{false, true} {
		p := &Part{paper: &Paper{Figures: figures}, quick: quick}
		if quick {
			p.small = map[string]string{"few": "There are few."}
		}
		p.same("fit", 2, unknown(""))
		p.same("number", 2, unknown(""))
		p.same("number", 3, because("with half of it", "2.01", printed(2.01, "2.0", "")))
		p.same("number", 3, because("with half of it", "2.9", printed(2.9, "2.0", "")))
		p.claim("words", is(true), "so", unknown(""))
		p.claim("few", is(false), "so", unknown("It may be %d.", 5))
		want := []Verdict{
			{Outcome: Fitted, Why: "It does not count: the link was chosen so."},
			{Outcome: Holds},
			{Outcome: Differs, Why: "It holds with half of it: 2.01.", Shown: true},
			{Outcome: Differs, Why: "Why is not known. It still differs with half of it: 2.9."},
			{Outcome: Holds},
			{Outcome: Differs, Why: "Why is not known. It may be 5."},
		}
		if quick {
			want[1] = Verdict{Outcome: TooSmall,
				Why: "The quick size is not exact enough: this is too near to where the verdict turns."}
			want[5] = Verdict{Outcome: TooSmall, Why: "There are few."}
		}
		for i, v := range p.Claims {
			if v.Outcome != want[i].Outcome || v.Why != want[i].Why || v.Shown != want[i].Shown {
				t.Errorf("quick %t: %d is %s, %t: %s", quick, i, v.Outcome, v.Shown, v.Why)
			}
		}
	}
}
