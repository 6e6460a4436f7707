// Package ycsb holds workload files: YCSB's own and those of the papers. They are property files; the first line of
// each is a comment that says what it is.
package ycsb

import (
	"embed"
	"errors"
	"io/fs"
	"os"
	"strings"
)

// Files are the workload files, by their names.
//
//go:embed fusee-* rcuckoo-* rowan-* rtx-* swarm-* workload*
var Files embed.FS

// Read returns the text of the property file with that path. A name without a slash that is no file may be one of ours.
func Read(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(name, `/\`) {
		if ours, missing := Files.ReadFile(name); missing == nil {
			return ours, nil
		}
	}
	return text, err
}

// Names lists the workload files, sorted.
func Names() []string {
	entries, err := Files.ReadDir(".")
	if err != nil {
		panic(err) // the root of an embedded folder is always there
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// Title returns the first line of a workload file, without the comment's mark.
func Title(name string) string {
	text, err := Files.ReadFile(name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(strings.TrimPrefix(line, "#"))
}
