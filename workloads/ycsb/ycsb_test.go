package ycsb

import (
	"os"
	"strings"
	"testing"

	"github.com/farkv/farkv/workloads"
)

// Every spelling of one of YCSB's own workloads is the same one, on all command lines.
func TestSpellings(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, letter := range strings.Split("abcdef", "") {
		want, err := Files.ReadFile("workload" + letter)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{letter, "workload" + letter, "ycsb-" + letter} {
			for what, resolve := range map[string]func(string) (*Workload, error){"Find": Find, "Read": Read} {
				w, err := resolve(name)
				if err != nil || w.Core != letter || string(w.Text) != string(want) || w.Title() == "" {
					t.Errorf("%s %s: %+v, %v", what, name, w, err)
				}
			}
		}
	}
	for _, name := range Names() {
		w, err := Find(name)
		if core := strings.TrimPrefix(name, "workload"); err != nil || w.Name != name ||
			(w.Core == core) == (core == name) || Title(name) == "" {
			t.Errorf("%s: %+v, %v", name, w, err)
		}
	}
}

// A file counts more than a workload of ours, except that a short name is no file's where a
// workload is wanted, and a folder is no file.
func TestFilesFirst(t *testing.T) {
	t.Chdir(t.TempDir())
	const text = "# mine\nrecordcount=7\n"
	for _, name := range []string{"a", "workloada", "ycsb-a", "mine"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if w, err := Read(name); err != nil || string(w.Text) != text || w.Core != "" || w.Title() != "" {
			t.Errorf("Read %s: %+v, %v", name, w, err)
		}
		w, err := Find(name)
		if own := name == "a" || name == "ycsb-a"; err != nil || (string(w.Text) == text) == own {
			t.Errorf("Find %s: %+v, %v", name, w, err)
		}
	}
	for _, name := range []string{"b", "workloadb"} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
		if w, err := Read(name); err != nil || w.Core != "b" {
			t.Errorf("Read %s, a folder: %+v, %v", name, w, err)
		}
	}
}

func TestUnknown(t *testing.T) {
	for name, says := range map[string]string{
		"worklodb": "did you mean workloadb? want", "ycsb-g": "ycsb-g is neither a property file nor",
		"":        " is neither",
		"no/such": "no/such is neither", "fuse-a": "did you mean fusee-a?", "g": "g is neither",
		".": "is a directory: want",
	} {
		_, err := Find(name)
		if _, misuse := err.(*workloads.UsageError); !misuse || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
