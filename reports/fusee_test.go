package reports

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/workloads"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func report(t *testing.T, p *Paper, only ...string) *Report {
	t.Helper()
	r, err := p.Report(context.Background(), Options{Quick: true, Only: only, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// audit checks what every report owes its reader: rows under their headings, and of what differs, why. It returns the
// verdicts by what the paper says.
func audit(t *testing.T, r *Report) map[string]Verdict {
	t.Helper()
	claims := map[string]Verdict{}
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
			claims[c.Section+c.Says] = c
			if c.Ours == "" || !c.Holds && c.Why == "" {
				t.Errorf("%s: %q: ours %q, why %q", p.Name, c.Says, c.Ours, c.Why)
			}
		}
	}
	return claims
}

// holding checks that what the paper says about some things holds, whatever the size.
func holding(t *testing.T, p *Paper, claims map[string]Verdict, abouts ...string) {
	t.Helper()
	for _, about := range abouts {
		f := p.Figures[about]
		if c := claims[f.Section+f.Says]; !c.Holds {
			t.Errorf("%s does not hold any more: ours %s: %s", about, c.Ours, c.Why)
		}
	}
}

// complete checks that every figure is spoken of.
func complete(t *testing.T, p *Paper, claims map[string]Verdict) {
	t.Helper()
	for about, f := range p.Figures {
		if _, ok := claims[f.Section+f.Says]; !ok {
			t.Errorf("no part speaks of %s", about)
		}
	}
}

// TestFusee does the quick size of the whole report. What of the paper has to hold at any size is listed; of what may
// differ the report has to say why.
func TestFusee(t *testing.T) {
	if raced {
		report(t, Fusee, "latency", "elasticity")
		return
	}
	r := report(t, Fusee)
	if len(r.Parts) != len(Fusee.Parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	claims := audit(t, r)
	complete(t, Fusee, claims)
	holding(t, Fusee, claims,
		"clients", "nodes-up", "pairs-why", "ratio", "allocation-a", "latency-cr", "latency-snapshot", "latency-search",
		"latency-nc", "replicas-d5", "crash", "elasticity-up", "elasticity-back")
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
	if a, c := value("allocation", 2, "A")/value("allocation", 0, "A"), value("allocation", 2, "C")/value("allocation", 0, "C"); a > 0.5 || c < 0.9 {
		t.Errorf("node-centric allocation leaves %.2f of A and %.2f of C", a, c)
	}
	if before, after := value("crash", 3, "throughput"), value("crash", 8, "throughput"); after > 0.6*before {
		t.Errorf("a crash of one of two nodes leaves %v of %v", after, before)
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
		r := report(t, Fusee, "elasticity", "pairs")
		if r.Markdown = markdown; r.Parts[0].Name != "pairs" || len(r.Parts) != 2 {
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
	for _, want := range []string{"\n## pairs: ", "\n| 512 B  |", "\n| ------ | --", "\n- **HOLDS** FUSEE 6.3", `"name":"elasticity"`} {
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
	if use := (*workloads.UseError)(nil); !errors.As(err, &use) || !strings.Contains(err.Error(), `unknown part "nosuch"`) {
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
