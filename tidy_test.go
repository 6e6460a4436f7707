// Package farkv_test checks the module's own rules: which packages may import which, what a store
// may use of the standard library, how large files and functions may be, and style. Each violation
// is one line that says what to do instead.
package farkv_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/farkv/farkv"

func TestTidy(t *testing.T) {
	h, err := readCodebase(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	if len(h.sources) < 20 {
		t.Fatalf("only %d Go files found: is this the root of the module?", len(h.sources))
	}
	exports, err := exportData()
	if err != nil {
		t.Fatal(err)
	}
	h.topFolders()
	h.arrows()
	h.fabrics()
	h.rungs()
	h.stores()
	h.world()
	h.mapRanges(exports)
	h.sizes()
	h.columns()
	h.extents()
	h.names()
	h.docs()
	h.readmes()
	for _, b := range h.sorted() {
		t.Error(b)
	}
}

// source is one Go file.
type source struct {
	path, dir string // from the root of the module
	file      *ast.File
	text      string
	lines     int
	test      bool
}

// codebase is every Go file of the module, and what was found wrong with them.
type codebase struct {
	root       fs.FS
	fset       *token.FileSet
	top        []fs.DirEntry // the top level
	sources    []*source
	pages      map[string]string // texts of the files of Markdown
	mains      map[string]bool   // folders of commands
	suites     map[string]bool   // folders of test suites: packages that import testing; they count as test files
	violations []string
}

func readCodebase(root fs.FS) (*codebase, error) {
	h := &codebase{root: root, fset: token.NewFileSet(), mains: map[string]bool{}, suites: map[string]bool{}}
	entries, err := fs.ReadDir(root, ".")
	if err != nil {
		return nil, err
	}
	h.top = entries
	if h.pages, err = readPages(root); err != nil {
		return nil, err
	}
	err = fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && p != "." && (strings.ContainsAny(name[:1], "._") || name == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || path.Ext(p) != ".go" {
			return nil
		}
		text, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		return h.add(p, text)
	})
	return h, err
}

func (h *codebase) add(p string, text []byte) error {
	f, err := parser.ParseFile(h.fset, p, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	s := &source{
		path: p, dir: path.Dir(p), file: f, text: string(text), lines: strings.Count(string(text), "\n"),
		test: strings.HasSuffix(p, "_test.go"),
	}
	h.sources = append(h.sources, s)
	if !s.test && f.Name.Name == "main" {
		h.mains[s.dir] = true
	}
	if !s.test && slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return importPath(i) == "testing" }) {
		h.suites[s.dir] = true
	}
	return nil
}

func importPath(i *ast.ImportSpec) string {
	p, _ := strconv.Unquote(i.Path.Value) // the parser took it
	return p
}

// ours returns the folder that an import path of this module means.
func ours(importPath string) (dir string, ok bool) { return strings.CutPrefix(importPath, module+"/") }

// under reports whether dir is the folder above, or lies in it.
func under(dir, above string) bool { return dir == above || strings.HasPrefix(dir, above+"/") }

// report adds a violation at a node of s.
func (h *codebase) report(s *source, at token.Pos, format string, a ...any) {
	h.violations = append(h.violations,
		fmt.Sprintf("%s:%d: %s", s.path, h.fset.Position(at).Line, fmt.Sprintf(format, a...)))
}

// sorted returns the violations by file and line.
func (h *codebase) sorted() []string {
	slices.SortFunc(h.violations, func(a, b string) int {
		pa, la := place(a)
		pb, lb := place(b)
		return cmp.Or(cmp.Compare(pa, pb), cmp.Compare(la, lb), cmp.Compare(a, b))
	})
	return slices.Compact(h.violations)
}

func place(violation string) (file string, line int) {
	file, rest, _ := strings.Cut(violation, ":")
	number, _, _ := strings.Cut(rest, ":")
	line, _ = strconv.Atoi(number)
	return file, line
}
