// Package teeth breaks a package's rules one at a time, and expects its tests to notice: a test that has never failed
// proves nothing. A broken copy is compiled from the package's own source through the go command's overlay, so that the
// package knows nothing of it.
package teeth

import (
	"cmp"
	"encoding/json"
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

// Run expects each mutant to be noticed. As many are compiled at a time as there are processors.
func (s Suite) Run(t *testing.T, mutants []Mutant) {
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.Rule, " ", "_"), func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			s.run(t, m)
		})
	}
}

func (s Suite) run(t *testing.T, m Mutant) {
	args := []string{"test", "-count=1", "-failfast", "-timeout=5m", "-vet=off", "-ldflags=-s -w", "-overlay=" + m.overlay(t), "-run=^" + cmp.Or(m.Test, s.Test), "."}
	cmd := exec.Command("go", slices.Concat(args, s.Flags)...)
	cmd.Env = append(os.Environ(), s.Env...)
	out, err := cmd.CombinedOutput()
	text := string(out)
	switch seen := s.seen(text); {
	case err == nil:
		t.Fatal("nothing failed without this rule")
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		t.Fatalf("the mutant does not compile:\n%s", out)
	case seen == "" || s.Vain != nil && s.Vain.MatchString(text):
		t.Fatalf("the tests failed, but not by seeing something wrong:\n%s", out)
	default:
		t.Logf("%.200s", seen)
	}
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
