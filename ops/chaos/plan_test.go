package chaos

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParsePlan(t *testing.T) {
	plan, err := ParsePlan(strings.NewReader(`# after  kind  target  duration
0s node 1
20s	client 7   # its process
5s master
1m stop node:1 5s
1m stop client:7
1m stop master 1s
2s slow=20ms 0 3s
2s slow any

20s cut 1 5s
20s cut 0,2
20s cut clients,1
20s node any
20s client`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"0s node 1", "20s client 7", "5s master master", "1m0s stop node:1 5s", "1m0s stop client:7 5s",
		"1m0s stop master 1s",
		"2s slow=20ms 0 3s", "2s slow any", "20s cut 1 5s", "20s cut 0,2 5s", "20s cut clients,1 5s", "20s node any",
		"20s client any",
	}
	var got []string
	for _, p := range plan {
		got = append(got, p.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if p := plan[6]; p.Slow != 20*time.Millisecond || p.For != 3*time.Second || p.Any || p.Nodes[0] != 0 {
		t.Errorf("%+v", p)
	}
}

func TestPlansThatAreWrong(t *testing.T) {
	for text, says := range map[string]string{
		"":                        "it has no breaks",
		"# nothing":               "it has no breaks",
		"20s node 1\nnode 1":      `line 2: after "node"`,
		"-1s node 1":              `after "-1s": want a time such as 5s`,
		"48h node 1":              "up to 24h",
		"20s":                     "1 fields: want AFTER KIND",
		"20s node 1 5s":           "crash node 1 for 5s: want up to",
		"20s node any 5s":         "it is for good",
		"20s node 1 5s more":      "5 fields",
		"20s fire 1":              `kind "fire": want node, client, master, stop, slow or cut`,
		"20s node one":            `node "one": want a number, or any`,
		"20s node 1,2":            "crash nodes 1,2 makes no sense",
		"20s node 70000":          "want a number",
		"20s client 0":            "makes no sense",
		"20s client 1,2":          "want one client",
		"20s master 3":            "it has no number",
		"20s stop 1":              "want node:NUMBER, client:NUMBER, master or any",
		"20s stop node:1,2":       "makes no sense",
		"20s cut clients,1,2":     "makes no sense",
		"20s cut ,":               "want a number",
		"20s cut 1 1h":            "up to 10m",
		"20s slow=1h 1":           "up to 500ms",
		"20s cut=5s 1":            "only slow takes a time",
		"20s slow 1 0s":           `duration "0s"`,
		strings.Repeat("x", 2000): "line 1: bufio.Scanner: token too long",
		strings.Repeat("1s master\n", maxPlanLines+1): "want up to 10000 breaks",
	} {
		if plan, err := ParsePlan(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40q: %v, %v; want %q", text, plan, err, says)
		}
	}
}

// FuzzParsePlan: what is understood is written so that it is understood as the same.
func FuzzParsePlan(f *testing.F) {
	for _, seed := range []string{"20s node 1", "5s master", "1m stop client:7 5s", "2s slow=10ms any 3s",
		"20s cut clients,1 # no", "0s cut 0,2"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		plan, err := ParsePlan(strings.NewReader(text))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("an error of several lines: %v", err)
			}
			return
		}
		var lines []string
		for _, p := range plan {
			lines = append(lines, p.String())
			if p.After < 0 || p.For < 0 || p.Slow < 0 || !p.Any && p.complete() != nil {
				t.Fatalf("%q became %+v", text, p)
			}
		}
		again, err := ParsePlan(strings.NewReader(strings.Join(lines, "\n")))
		if err != nil || len(again) != len(plan) {
			t.Fatalf("%q: %v", lines, err)
		}
		for i, p := range again {
			if p.String() != lines[i] {
				t.Errorf("%q is read as %q", lines[i], p.String())
			}
		}
	})
}

func TestCutsAndKinds(t *testing.T) {
	for text, want := range map[string]string{"1": "node 1", "0,2": "nodes 0,2", "clients,1": "clients,1"} {
		if got, err := ParseCut(text); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "any", "clients", "x", "1,"} {
		if got, err := ParseCut(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
	if got, err := ParseKinds([]string{"node", " cut", "node"}); err != nil || !slices.Equal(got, []BreakKind{BreakNode,
		BreakCut}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ParseKinds([]string{"fire"}); err == nil {
		t.Error("fire is a kind")
	}
}
