package reports

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/workloads"
)

func TestMain(m *testing.M) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // virtual time leaves much garbage
	}
	goleak.VerifyTestMain(m)
}

func report(t *testing.T, p *Paper, only ...string) *Report {
	t.Helper()
	r, err := p.Report(context.Background(), Options{Quick: true, Only: only, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// audit checks what every report owes its reader: rows under their headings, a criterion of each
// statement, and of what differs a reason with its experiment, or that it is not known. It returns
// the outcomes by the statements' names.
func audit(t *testing.T, r *Report) map[string]Outcome {
	t.Helper()
	outcomes := map[string]Outcome{}
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
			if (c.Outcome == Holds) != (c.Why == "") {
				t.Errorf("%s: %s, why %q", c.About, c.Outcome, c.Why)
			}
			if c.Outcome == Differs && c.Shown == strings.HasPrefix(c.Why, "Why is not known.") {
				t.Errorf("%s: shown %t, why %q", c.About, c.Shown, c.Why)
			}
		}
	}
	return outcomes
}

// allParts reports whether $FARKV_REPORTS asks for the quick size of all parts: without it the
// longest are left out. It is read in tests, so that the go command knows what a cached result
// depends on.
func allParts() bool { return os.Getenv("FARKV_REPORTS") == "all" }

// but lists a paper's parts without some, unless all are asked for.
func but(p *Paper, long ...string) (parts []string) {
	for _, part := range p.Parts {
		if allParts() || !slices.Contains(long, part[0]) {
			parts = append(parts, part[0])
		}
	}
	return parts
}

// TestFusee does the quick size of the report; its longest parts, four fifths of it, with
// FARKV_REPORTS=all.
func TestFusee(t *testing.T) {
	if raced {
		report(t, Fusee, "latency") // several runs at a time
		return
	}
	parts := but(Fusee, "clients", "nodes", "ratio", "cache", "replicas", "allocation", "crash")
	r := report(t, Fusee, parts...)
	if len(r.Parts) != len(parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	agrees(t, Fusee, audit(t, r))
	value := func(part string, row int, column string) float64 {
		t.Helper()
		for _, p := range r.Parts {
			for i, name := range p.Header {
				if p.Name == part && name == column {
					return p.Rows[row][i].Value
				}
			}
		}
		t.Fatalf("%s has no %s", part, column)
		return 0
	}
	// The figures behind some of the claims, by weaker measures.
	if allParts() {
		a, c := value("allocation", 2, "A")/value("allocation", 0, "A"),
			value("allocation", 2, "C")/value("allocation", 0, "C")
		if a > 0.5 || c < 0.9 {
			t.Errorf("node-centric allocation leaves %.2f of A and %.2f of C", a, c)
		}
		if before, after := value("crash", 3, "throughput"), value("crash", 8, "throughput"); after > 0.6*before {
			t.Errorf("a crash of one of two nodes leaves %v of %v", after, before)
		}
	}
	if big, small := value("pairs", 0, "throughput"), value("pairs", 1, "throughput"); small < 1.3*big {
		t.Errorf("%v with pairs of 1,024 B, %v with half of that", big, small)
	}
}

func TestSameSeedSameReport(t *testing.T) {
	if raced {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	text := func(markdown bool) string {
		r := report(t, Fusee, "elasticity", "latency")
		if r.Markdown = markdown; r.Parts[0].Name != "latency" || len(r.Parts) != 2 {
			t.Fatalf("the parts are %v", r.Parts)
		}
		var b bytes.Buffer
		r.Print(&b)
		j, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return b.String() + string(j)
	}
	one, other := text(true), text(true)
	if one != other {
		t.Errorf("the same seed gives\n%s\nand\n%s", one, other)
	}
	for _, want := range []string{"\n## latency: ", "\n| replicas | INSERT |", "\n| --- | --:",
		"\n- **HOLDS** FUSEE 6.4", `"name":"elasticity"`} {
		if !strings.Contains(one, want) {
			t.Errorf("no %q in\n%s", want, one)
		}
	}
	for line := range strings.Lines(text(false)) {
		if n := len([]rune(line)); n > most+1 && line[0] != '{' && !strings.Contains(line, "  ") {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
}

func TestUnknownPart(t *testing.T) {
	_, err := Fusee.Report(context.Background(), Options{Quick: true, Only: []string{"pairs", "nosuch"}})
	if use := (*workloads.UsageError)(nil); !errors.As(err, &use) ||
		!strings.Contains(err.Error(), `unknown part "nosuch": there are `) ||
		strings.ContainsAny(err.Error(), "[]") || !strings.Contains(err.Error(), "pairs, ") {
		t.Error(err)
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if r, err := Fusee.Report(ctx, Options{Quick: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", r, err)
	}
}
