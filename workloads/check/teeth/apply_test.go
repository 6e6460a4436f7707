package teeth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sample is the source that these tests change.
const sample = `package sample

import "errors"

const most = 2

type queue struct {
	items, spare []int // a comment stays
	closed       bool
}

var errClosed = errors.New("closed")

func (q *queue) put(x int) error {
	if q.closed {
		return errClosed
	}
	if len(q.items) > most || x < 0 && !q.closed {
		q.drop(x)
		q.drop(x)
	}
	items := q.items
	q.items = append(items, x)
	switch {
	case x == 0:
		q.spare = nil
	case q.closed:
		q.items, q.spare = q.spare, q.items
	}
	return nil
}

func (q queue) drop(x int) { _ = queue{closed: x > 0} }
`

// read makes a package of the sample and of what else is given.
func read(t *testing.T, more string) *source {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"go.mod": "module sample\n\ngo 1.26\n", "a.go": sample, "b.go": "package sample\n" + more,
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := readSource(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestApply(t *testing.T) {
	s := read(t, "")
	for _, c := range []struct {
		mutant   Mutant
		old, now string // what changes in the text
	}{
		{Mutant{In: "most", At: "2", Do: "3"}, "most = 2", "most = 3"},
		{Mutant{In: "queue.put", At: "$x < 0 && $*rest", Do: "$*rest"}, "x < 0 && !q.closed", "!q.closed"},
		{Mutant{In: "queue.put", At: "$err.$is", Nth: "1/13", Do: "!$err.$is"}, "if q.closed", "if !q.closed"},
		{Mutant{In: "queue.put", At: "$q.$drop($x); $q.$drop($x)", Do: "$q.$drop($x)"},
			"q.drop(x)\n\t\tq.drop(x)", "q.drop(x)"},
		{Mutant{In: "queue.put", At: "$q.$drop($*x)", Nth: "2/2"}, "q.drop(x)\n\t}", "\n\t}"},
		{Mutant{In: "queue.put", At: "if $*any { $*body; $q.$drop($x) }", Do: "$*body"},
			"if len(q.items) > most || x < 0 && !q.closed {\n\t\tq.drop(x)\n\t\tq.drop(x)\n\t}", "q.drop(x)"},
		{Mutant{In: "queue.put", At: "$q.$items = append($items, $*_)", Do: "$q.$items = $items[:0]"},
			"append(items, x)", "items[:0]"},
		{Mutant{In: "queue.put", At: "$q.$a, $q.$b = $q.$b, $q.$a"}, "q.items, q.spare = q.spare, q.items", ""},
		{Mutant{In: "queue.put", At: "case $x == 0:", Do: "case $x == 1, $x == 2:"},
			"case x == 0:", "case x == 1, x == 2:"},
		{Mutant{In: "queue.put", At: "case $q.$closed: $*body", Do: "default: $*body"}, "case q.closed:", "default:"},
		{Mutant{In: "queue.put", At: "case $x == 0: $*body; case $_.$_:", Do: "case $x == 0:"},
			"x == 0:\n\t\tq.spare = nil\n\tcase q.closed:", "x == 0:"},
		{Mutant{In: "queue.drop", At: "$queue{$closed: $*x}", Do: "$queue{$closed: !($*x)}"},
			"closed: x > 0", "closed: !(x > 0)"},
	} {
		file, text, err := s.apply(&c.mutant)
		if err == nil {
			err = s.compile(file, text)
		}
		if err != nil {
			t.Errorf("%s: %v", c.mutant.At, err)
			continue
		}
		want := strings.Replace(sample, c.old, c.now, 1)
		if strings.Join(strings.Fields(string(text)), " ") != strings.Join(strings.Fields(want), " ") {
			t.Errorf("%s makes it\n%s", c.mutant.At, text)
		}
	}
}

// Whatever does not fit the source any more is an error that says so.
func TestLoud(t *testing.T) {
	s := read(t, "func twice() {}\nfunc init() {}\nfunc init() {}\n")
	for _, c := range []struct{ in, at, nth, do, want string }{
		{"queue.put", "$x < 1", "", "false", "queue.put has 0 places like $x < 1, want 1"},
		{"queue.put", "$q.$drop($x)", "", "$q.$put($x)", "has 2 places like $q.$drop($x), want 1"},
		{"queue.put", "$q.$drop($x)", "1/3", "$q.$put($x)", "has 2 places like $q.$drop($x), want 3"},
		{"queue.put", "$q.$drop($q)", "", "", "has 0 places"},
		{"queue.put", "$q.$drop($x)", "2", "", `"2" is no place of several`},
		{"queue.put", "$q.$drop($x)", "3/2", "", `"3/2" is no place of several`},
		{"queue.put", "$x < 0", "", "$x <", "does not parse"},
		{"queue.put", "$x < 0", "", "$y < 0", "nothing is bound to $y"},
		{"queue.put", "$x < 0", "", "$x < 0", "changes nothing"},
		{"queue.put", "$x <", "", "false", "neither an expression nor statements nor clauses"},
		{"queue.put", "$x < 0", "", `$x < "0"`, "mismatched types"},
		{"queue.put", "$items := $q.$items", "", "", "undefined: items"},
		{"queue.put", "append($items, $x)", "", "nil", "declared and not used: items"},
		{"errClosed", `errors.New("closed")`, "", "nil", "imported and not used"},
		{"queue.get", "$x", "", "0", "has 0 declarations of queue.get, want one"},
		{"init", "$x", "", "0", "has 2 declarations of init, want one"},
	} {
		file, text, err := s.apply(&Mutant{In: c.in, At: c.at, Nth: c.nth, Do: c.do})
		if err == nil {
			err = s.compile(file, text)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %s becomes %q: got %v, want: %s", c.at, c.in, c.do, err, c.want)
		}
	}
}

func TestOnly(t *testing.T) {
	for test, want := range map[string]string{
		"TestA": "^TestA$", "Test(A|B)": "^Test(A|B)$", "TestA/3_replicas": "^TestA$/^3_replicas",
	} {
		if got := only(test); got != want {
			t.Errorf("%s: got %s, want %s", test, got, want)
		}
	}
}
