// Package teeth breaks a package's rules one at a time, and expects its tests to notice: a test
// that has never failed proves nothing. A broken copy is compiled from the package's own source
// through the go command's overlay, so that the package knows nothing of it.
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

// Mutant is the package that is tested, with one rule broken: in one declaration, at the one place
// like At, which is replaced by Do. Both are Go in which $name stands for any identifier and $*name
// for any expression; in a list, $*name stands for any number of statements or other elements:
//
//	At: "if $err := $f.Fence($*epoch); $err != nil { $*body }",
//	Do: "if $err := error(nil); $err != nil { $*body }"
//
// A wildcard that occurs twice stands for the same twice, and $_ for anything each time. A $name
// behind a dot or before a field's colon is apart from a $name elsewhere, as fields are from
// variables. The names are for the reader: the mutant survives when what they stand for is renamed.
// At is an expression, else statements, else clauses of a switch; "case $x:" alone is the head of a
// clause, whatever that executes. A mutant that does not apply, or does not compile, fails the
// cheap part of Run.
type Mutant struct {
	Rule string
	Pkg  string // the folder of the package that is broken, from that of the tested one; "": the tested one itself
	In   string // function, T.method, type, variable or constant, also of the package's tests
	At   string
	Nth  string // n/m: the n-th of m places like At, from 1 on; "": there is one
	Do   string // "" deletes the statements
	Test string // which must fail, or TEST/SUBTEST with the beginning of the subtest's name; "": the suite's
	Seed int    // $FARKV_SEED of a run of one seed that shows it, tried before the suite's many; 0: there is none
}

// Suite says how the tests of a broken copy are run, and what they say then.
type Suite struct {
	Test  string   // that must fail where a mutant names none
	Flags []string // of the copy's test program
	Env   []string
	Seen  *regexp.Regexp // in a line that reports the breach; nil: in any that a test reports
	Vain  *regexp.Regexp // what a test says that fails for another reason; nil: none does
	More  []Mutant       // those that are broken only if $FARKV_TEETH is all: compiling the package takes long
}

var reported = regexp.MustCompile(`^ +\w+_test\.go:\d+: `)

// Run checks that each mutant applies to the source as it is, changes it, and compiles: cheap
// enough to be done always, so that none rots unseen. Then it expects the tests to notice each,
// which takes minutes, and so waits to be asked for by $FARKV_LONG, which the copies do not see. As
// many are compiled at a time as there are processors. With $FARKV_SHARE of n/m only each m-th is
// tried, from the n-th on, which begins at 0.
func (s Suite) Run(t *testing.T, mutants []Mutant) {
	t.Helper()
	broken := s.check(t, slices.Concat(mutants, s.More))
	if os.Getenv("FARKV_LONG") != "1" || UnderRace {
		return
	}
	if os.Getenv("FARKV_TEETH") != "all" {
		broken = broken[:len(mutants)]
	}
	from, step := share(t)
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, c := range broken {
		if i%step != from {
			continue
		}
		t.Run(strings.ReplaceAll(c.Rule, " ", "_"), func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			s.run(t, c)
		})
	}
}

// broken is a mutant with the file that it changes.
type broken struct {
	*Mutant
	file string
	text []byte
}

// check applies mutants.
func (s Suite) check(t *testing.T, mutants []Mutant) []broken {
	t.Helper()
	var all []broken
	sources := map[string]*source{}
	for i := range mutants {
		m := &mutants[i]
		src, ok := sources[m.Pkg]
		if !ok {
			var err error
			if src, err = readSource(cmp.Or(m.Pkg, ".")); err != nil {
				t.Fatal(err)
			}
			sources[m.Pkg] = src
		}
		file, text, err := src.apply(m)
		if err == nil && !UnderRace { // of which the imports are not compiled otherwise
			err = src.compile(file, text)
		}
		if err != nil {
			t.Errorf("%s: the mutant needs an update: %v", m.Rule, err)
		}
		all = append(all, broken{m, file, text})
	}
	if t.Failed() {
		t.FailNow()
	}
	return all
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

// fast compiles in two thirds of the time, since most copies fail at once: without inlining, and
// what debuggers read.
var fast = []string{"test", "-count=1", "-failfast", "-timeout=5m", "-vet=off", "-gcflags=-l", "-ldflags=-s -w"}

func (s Suite) run(t *testing.T, m broken) {
	args := slices.Concat(fast, []string{"-overlay=" + m.overlay(t), "-run=" + only(cmp.Or(m.Test, s.Test)), "."},
		s.Flags)
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

// only returns the -run pattern of a test, or of those of its subtests that have the given prefix.
func only(test string) string {
	test, sub, ok := strings.Cut(test, "/")
	if !ok {
		return "^" + test + "$"
	}
	return "^" + test + "$/^" + sub
}

// overlay writes the broken file, and what tells the go command to take it; it returns the latter's
// name.
func (m broken) overlay(t *testing.T) string {
	dir := t.TempDir()
	file, list := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json")
	here, err := filepath.Abs(m.file)
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{here: file}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{file: m.text, list: overlay} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
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
