// Package ycsb holds workload files: YCSB's own and those of the papers. They are property files;
// the first line of each is a comment that says what it is.
package ycsb

import (
	"embed"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/workloads"
)

// Files are the workload files, by their names.
//
//go:embed fusee-* rcuckoo-* rowan-* rtx-* swarm-* workload*
var Files embed.FS

// Workload is a workload file.
type Workload struct {
	Name string // of a file of ours, or the path of another
	Core string // "a" to "f": the letter of YCSB's own; "" of all others
	Text []byte // its properties
}

// Properties returns those of a workload, with some set anew. Errors are workloads.UsageErrors.
func (w *Workload) Properties(anew map[string]string) (*properties.Properties, error) {
	p, err := properties.Load(w.Text, properties.UTF8)
	if err != nil {
		return nil, workloads.Usagef("workload %s: %v", w.Name, err)
	}
	for name, value := range anew {
		if err := Set(p, name, value); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Set sets a property. An error, of a value that refers to itself, is a workloads.UsageError.
func Set(p *properties.Properties, name, value string) error {
	if _, _, err := p.Set(name, value); err != nil {
		return workloads.Usagef("property %s=%s: %v", name, value, err)
	}
	return nil
}

// Spellings says what Find and Read take beside the path of a file.
const Spellings = "a to f (or workloada, ycsb-a), or one that 'go-ycsb help workloads' lists"

// Find returns the workload that a name means on a command line. A letter from a to f, with "ycsb-"
// before it or not, is always YCSB's own. Any other name is the path of a property file, or, where
// there is no such file, the name of one of ours. An error is a workloads.UsageError.
func Find(name string) (*Workload, error) {
	if w := short(name); w != nil {
		return w, nil
	}
	return Read(name)
}

// Read is Find for the names of property files: where there is a file of that name, it counts more
// than ours.
func Read(name string) (*Workload, error) {
	text, err := os.ReadFile(name)
	if err == nil {
		return &Workload{Name: name, Text: text}, nil
	}
	if w := short(name); w != nil {
		return w, nil
	}
	if w := ours(name); w != nil {
		return w, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, workloads.Usagef("%s is neither a property file nor a workload of ours: %swant a file, %s", name,
			workloads.DidYouMean(name, words()), Spellings)
	}
	return nil, workloads.Usagef("%v: want a file, %s", err, Spellings)
}

// short returns the workload of a short name, such as a or ycsb-a, or nil.
func short(name string) *Workload {
	letter := strings.TrimPrefix(name, "ycsb-")
	if len(letter) != 1 {
		return nil
	}
	return ours("workload" + letter)
}

// ours returns the workload of ours with that name, or nil.
func ours(name string) *Workload {
	text, err := Files.ReadFile(name)
	if err != nil {
		return nil
	}
	w := &Workload{Name: name, Text: text}
	if letter, ok := strings.CutPrefix(name, "workload"); ok {
		w.Core = letter
	}
	return w
}

// words are the names that a misspelt one may stand for.
func words() (all []string) {
	for _, name := range Names() {
		all = append(all, name)
		if letter, ok := strings.CutPrefix(name, "workload"); ok {
			all = append(all, "ycsb-"+letter)
		}
	}
	return all
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

// Title returns the first line of one of our workload files, without the comment's mark; "" of
// others.
func Title(name string) string {
	w := ours(name)
	if w == nil {
		return ""
	}
	return w.Title()
}

// Title returns the first line of a workload of ours, without the comment's mark; "" of others.
func (w *Workload) Title() string {
	text, err := Files.ReadFile(w.Name)
	if err != nil || string(text) != string(w.Text) {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(strings.TrimPrefix(line, "#"))
}
