package table

import (
	"strings"
	"testing"
)

func TestPrint(t *testing.T) {
	var out strings.Builder
	Print(&out, [][]string{{"name", "took", "note"}, {"a", "1.5 µs", "x"}, {"longer", "10 ns"}}, 2)
	want := "name      took  note\na       1.5 µs  x\nlonger   10 ns\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
