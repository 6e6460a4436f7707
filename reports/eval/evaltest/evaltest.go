// Package evaltest checks the reports of papers: what each owes its reader, and that the quick size
// agrees with the full one.
package evaltest

import (
	"context"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/farkv/farkv/reports/eval"
	"go.uber.org/goleak"
)

// Main runs the tests of a paper, and fails when goroutines are left.
func Main(m *testing.M) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // virtual time leaves much garbage
	}
	goleak.VerifyTestMain(m)
}

// Run does the quick size of some parts of a report, or of all.
func Run(t *testing.T, p *eval.Paper, only ...string) *eval.Report {
	t.Helper()
	r, err := p.Report(context.Background(), eval.Options{Quick: true, Only: only, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Audit checks what every report owes its reader: rows under their headings, a criterion of each
// statement, and of what differs a reason with its experiment, or that it is not known. It returns
// the outcomes by the statements' names.
func Audit(t *testing.T, r *eval.Report) map[string]eval.Outcome {
	t.Helper()
	outcomes := map[string]eval.Outcome{}
	for _, p := range r.Parts {
		if len(p.Rows) == 0 || len(p.Claims)+len(p.Notes) == 0 {
			t.Errorf("%s has %d rows and %d claims", p.Name, len(p.Rows), len(p.Claims))
		}
		for _, row := range p.Rows {
			if len(row) > len(p.Header) {
				t.Errorf("%s: a row has %d cells under %d headings", p.Name, len(row), len(p.Header))
			}
		}
		for _, c := range p.Claims {
			if _, twice := outcomes[c.About]; twice {
				t.Errorf("%s is spoken of twice", c.About)
			}
			outcomes[c.About] = c.Outcome
			if c.Ours == "" || (c.Printed == "") == (c.When == "") && c.Fitted == "" {
				t.Errorf("%s: ours %q, printed %q, holds when %q", c.About, c.Ours, c.Printed, c.When)
			}
			if (c.Outcome == eval.Holds) != (c.Why == "") {
				t.Errorf("%s: %s, why %q", c.About, c.Outcome, c.Why)
			}
			if c.Outcome == eval.Differs && c.Shown == strings.HasPrefix(c.Why, "Why is not known.") {
				t.Errorf("%s: shown %t, why %q", c.About, c.Shown, c.Why)
			}
		}
	}
	return outcomes
}

// AllParts reports whether $FARKV_REPORTS asks for the quick size of all parts: without it the
// longest are left out. It is read in tests, so that the go command knows what a cached result
// depends on.
func AllParts() bool { return os.Getenv("FARKV_REPORTS") == "all" }

// But lists a paper's parts without some, unless all are asked for.
func But(p *eval.Paper, long ...string) (parts []string) {
	for _, part := range p.Parts {
		if AllParts() || !slices.Contains(long, part[0]) {
			parts = append(parts, part[0])
		}
	}
	return parts
}

// unrun is the outcome of a statement that the full size has not been run for since its criterion
// changed.
const unrun = "?"

// FullFile is the file of a paper's verdicts at the full size, a line each: a statement's name and
// its outcome.
const FullFile = "testdata/full.txt"

// Agrees checks that the quick size says of each of the paper's statements, or of those of the
// parts that were run, what the full size said, or that it is too small to tell, and that it does
// tell some.
func Agrees(t *testing.T, p *eval.Paper, quick map[string]eval.Outcome) {
	t.Helper()
	text, err := os.ReadFile(FullFile)
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
		case !ran && !AllParts(), q == eval.TooSmall:
		case outcome == unrun:
			t.Errorf("%s: %q, and the full size has not been run: see TestFull, or list it as unproven", about, q)
		case q != eval.Outcome(outcome):
			t.Errorf("%s: %q, and %q at the full size", about, q, outcome)
		default:
			told++
		}
	}
	for about := range p.Figures {
		if !known[about] {
			t.Errorf("%s has no line for %s: see TestFull", FullFile, about)
		}
	}
	if told < len(quick)/4 {
		t.Errorf("the quick size tells %d of %d verdicts", told, len(quick))
	}
}
