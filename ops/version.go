package ops

import (
	"fmt"
	"io"
	"runtime"
	"strconv"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/version"
	"github.com/farkv/farkv/ops/table"
)

// Build is what a program was built from, and the versions of what it reads and speaks.
type Build struct {
	Program string            `json:"program"`
	Commit  string            `json:"commit"` // "unknown" where the build does not know
	Go      string            `json:"go"`
	Wire    int               `json:"wire"`    // between programs and memory nodes
	Control int               `json:"control"` // of the messages that make and manage pools
	Formats map[string]uint32 `json:"formats"` // of each store's pools
}

// ThisBuild describes the program that calls it.
func ThisBuild(program string) *Build {
	b := &Build{Program: program, Commit: version.Commit(), Go: runtime.Version(), Formats: map[string]uint32{},
		Wire: version.Wire, Control: version.Control}
	for _, k := range stores.Kinds() {
		b.Formats[k.Name] = k.Version
	}
	return b
}

// String is the build in a line, without the formats.
func (b *Build) String() string {
	return fmt.Sprintf("%s %s, wire %d, control %d", b.Program, b.Commit, b.Wire, b.Control)
}

// Print implements Result.
func (b *Build) Print(w io.Writer) {
	fmt.Fprintf(w, "%s %s, built with %s for %s/%s\n\n", b.Program, b.Commit, b.Go, runtime.GOOS, runtime.GOARCH)
	rows := [][]string{{"speaks and reads", "version"}, {"wire", strconv.Itoa(b.Wire)},
		{"control", strconv.Itoa(b.Control)}}
	for _, name := range stores.Names() {
		rows = append(rows, []string{"format of " + name, strconv.FormatUint(uint64(b.Formats[name]), 10)})
	}
	table.Print(w, rows)
}
