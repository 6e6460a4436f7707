// Package teeth breaks a package's rules one at a time, and expects its tests to notice: a test that has never failed
// proves nothing. A broken copy is compiled from the package's own source through the go command's overlay, so that the
// package knows nothing of it.
package teeth

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Mutant is the package that is tested, with one rule broken.
type Mutant struct {
	Rule     string
	File     string // of the package, or a path from its folder
	Old, New string // the one place of the file that says Old says New
	Test     string // which must fail: the rest of a -run pattern that begins with ^; "": the suite's
	Seed     int    // $FARKV_SEED of a run of one seed that shows it, tried before the suite's many; 0: there is none
}

// Table makes mutants of rows with their fields in order. Tests are named whole.
func Table(rows [][5]string) []Mutant {
	var all []Mutant
	for _, r := range rows {
		all = append(all, Mutant{Rule: r[0], File: r[1], Old: r[2], New: r[3], Test: r[4] + "$"})
	}
	return all
}

// Suite says how the tests of a broken copy are run, and what they say then.
type Suite struct {
	Test  string   // that must fail where a mutant names none
	Flags []string // of the copy's test program
	Env   []string
	Seen  *regexp.Regexp // in a line of who has seen the breach; nil: in any that a test reports
	Vain  *regexp.Regexp // what a test says that fails for another reason; nil: none does
}

var reported = regexp.MustCompile(`^ +\w+_test\.go:\d+: `)

// Check checks that the rules are where the mutants say: cheap enough to be done always, so that they cannot rot unseen.
func Check(t *testing.T, mutants []Mutant) {
	t.Helper()
	for _, m := range mutants {
		m.source(t)
	}
}

func (m Mutant) source(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile(m.File)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.Old); n != 1 {
		t.Errorf("%s: %s has %d places that read %q, want one: the mutant needs an update", m.Rule, m.File, n, m.Old)
	}
	return string(source)
}

// Run expects each mutant to be noticed. It takes minutes, and so it waits to be asked for by $FARKV_LONG, which the copies
// do not see. As many are compiled at a time as there are processors. With $FARKV_SHARE of n/m only each m-th is tried, from the
// n-th on, which begins at 0.
func (s Suite) Run(t *testing.T, mutants []Mutant) {
	t.Helper()
	if os.Getenv("FARKV_LONG") != "1" || UnderRace {
		t.Skip("compiles a copy of the package for each rule, for minutes; run with FARKV_LONG=1, and without -race")
	}
	from, step := share(t)
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, m := range mutants {
		if i%step != from {
			continue
		}
		t.Run(strings.ReplaceAll(m.Rule, " ", "_"), func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			s.run(t, m)
		})
	}
}

// share returns which mutants are tried.
func share(t *testing.T) (from, step int) {
	t.Helper()
	s := cmp.Or(os.Getenv("FARKV_SHARE"), "0/1")
	if _, err := fmt.Sscanf(s, "%d/%d", &from, &step); err != nil || from < 0 || from >= step {
		t.Fatalf("FARKV_SHARE=%s: want n/m, such as 0/4, with n below m", s)
	}
	return from, step
}

// fast compiles in two thirds of the time, since most copies fail at once: without inlining, and what debuggers read.
var fast = []string{"test", "-count=1", "-failfast", "-timeout=5m", "-vet=off", "-gcflags=-l", "-ldflags=-s -w"}

func (s Suite) run(t *testing.T, m Mutant) {
	args := slices.Concat(fast, []string{"-overlay=" + m.overlay(t), "-run=^" + cmp.Or(m.Test, s.Test), "."}, s.Flags)
	env := slices.Concat(os.Environ(), s.Env, []string{"FARKV_LONG=0"})
	out, err := "", error(nil)
	if m.Seed != 0 {
		if out, err = run(args, append(env, fmt.Sprint("FARKV_SEED=", m.Seed), "FARKV_SEEDS=1")); err == nil {
			t.Logf("seed %d does not show it any more, which costs time: the next lines may name one that does", m.Seed)
		}
	}
	if err == nil {
		out, err = run(args, env)
	}
	switch seen := s.seen(out); {
	case err == nil:
		t.Fatal("nothing failed without this rule")
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		t.Fatalf("the mutant does not compile:\n%s", out)
	case seen == "" || s.Vain != nil && s.Vain.MatchString(out):
		t.Fatalf("the tests failed, but not by seeing something wrong:\n%s", out)
	default:
		t.Logf("%.200s", seen)
	}
}

func run(args, env []string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// overlay writes the broken file, and what tells the go command to take it; it returns the latter's name.
func (m Mutant) overlay(t *testing.T) string {
	source := m.source(t)
	dir := t.TempDir()
	broken, list := filepath.Join(dir, filepath.Base(m.File)), filepath.Join(dir, "overlay.json")
	here, err := filepath.Abs(m.File)
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{here: broken}})
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{broken: strings.Replace(source, m.Old, m.New, 1), list: string(overlay)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// seen returns the first line that says what was seen.
func (s Suite) seen(out string) string {
	for line := range strings.Lines(out) {
		if cmp.Or(s.Seen, reported).MatchString(line) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
