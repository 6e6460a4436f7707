package fusee

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/reports/eval/evaltest"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/check/teeth"
)

func TestMain(m *testing.M) { evaltest.Main(m) }

// TestFusee does the quick size of the report; its longest parts, four fifths of it, with
// FARKV_REPORTS=all.
func TestFusee(t *testing.T) {
	if teeth.UnderRace {
		evaltest.Run(t, Paper, "latency") // several runs at a time
		return
	}
	parts := evaltest.But(Paper, "clients", "nodes", "ratio", "cache", "replicas", "allocation", "crash")
	r := evaltest.Run(t, Paper, parts...)
	if len(r.Parts) != len(parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	evaltest.Agrees(t, Paper, evaltest.Audit(t, r))
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
	if evaltest.AllParts() {
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

// lineWidth is what the lines of a report have, at most.
const lineWidth = 120

func TestSameSeedSameReport(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	text := func(markdown bool) string {
		r := evaltest.Run(t, Paper, "elasticity", "latency")
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
		if n := len([]rune(line)); n > lineWidth+1 && line[0] != '{' && !strings.Contains(line, "  ") {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
}

func TestUnknownPart(t *testing.T) {
	_, err := Paper.Report(context.Background(), eval.Options{Quick: true, Only: []string{"pairs", "nosuch"}})
	if use := (*workloads.UsageError)(nil); !errors.As(err, &use) ||
		!strings.Contains(err.Error(), `unknown part "nosuch": there are `) ||
		strings.ContainsAny(err.Error(), "[]") || !strings.Contains(err.Error(), "pairs, ") {
		t.Error(err)
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if r, err := Paper.Report(ctx, eval.Options{Quick: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", r, err)
	}
}
