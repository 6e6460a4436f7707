package farkv_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// A function fits a screen and a file a sitting; the limits leave room for what is clearer in one
// piece.
const (
	functionLines, functionLimit = 70, 80
	fileLines, fileLimit         = 500, 600
)

func (h *codebase) sizes() {
	for _, s := range h.sources {
		if ast.IsGenerated(s.file) {
			continue
		}
		if s.lines > fileLimit {
			h.report(s, s.file.Package, "%d lines: a file has about %d, %d at most", s.lines, fileLines, fileLimit)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := h.fset.Position(f.End()).Line - h.fset.Position(f.Pos()).Line + 1; n > functionLimit {
				h.report(s, f.Pos(), "%s has %d lines: a function has about %d, %d at most",
					f.Name.Name, n, functionLines, functionLimit)
			}
		}
	}
}

// A paragraph is easier to read in short lines than code is to break.
const commentColumns, codeColumns = 100, 120

func (h *codebase) columns() {
	for _, s := range h.sources {
		number := 0
		for line := range strings.Lines(s.text) {
			number++
			limit := codeColumns
			if strings.HasPrefix(strings.TrimSpace(line), "//") {
				limit = commentColumns
			}
			line = strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\t", "    ")
			if n := utf8.RuneCountInString(line); n > limit {
				h.report(s, h.fset.File(s.file.Package).LineStart(number), "%d columns, more than %d", n, limit)
			}
		}
	}
}

// persons are words for persons, which programs are not.
var persons = regexp.MustCompile(`(?i)\b(who|whom|who` + `ever|some` + `one|(no|some|any|every)body)\b`)

// A type fits in a head, and a package is one part of a paper.
const typeMethods, packageLines = 50, 3500

// extents keeps types to so many methods, and packages to so many lines, both outside tests; lines
// of comments and blank ones do not count.
func (h *codebase) extents() {
	methods, lines, first := map[string]int{}, map[string]int{}, map[string]*source{}
	for _, s := range h.sources {
		if s.test || h.suites[s.dir] {
			continue
		}
		first[s.dir] = cmp.Or(first[s.dir], s)
		for line := range strings.Lines(s.text) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				lines[s.dir]++
			}
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				methods[s.dir+"."+receiver(f).Name]++
			}
		}
	}
	for name, n := range methods {
		if n > typeMethods {
			h.violations = append(h.violations, fmt.Sprintf("%s has %d methods, more than %d", name, n, typeMethods))
		}
	}
	for dir, n := range lines {
		if n > packageLines {
			s := first[dir]
			h.report(s, s.file.Package, "the package has %d lines of code, more than %d", n, packageLines)
		}
	}
}

// vague are names of files that tell nothing of what is in them.
var vague = []string{"util", "utils", "helper", "helpers", "common", "misc"}

// unfinished are words of comments by which work is put off.
var unfinished = regexp.MustCompile(`\b(` + "TO" + `DO|FIX` + `ME|X` + `XX)\b`)

func (h *codebase) names() {
	for _, s := range h.sources {
		name := strings.TrimSuffix(strings.TrimSuffix(path.Base(s.path), ".go"), "_test")
		if slices.Contains(vague, name) {
			h.report(s, s.file.Package, "a file is named after what it does")
		}
		for _, group := range s.file.Comments {
			for _, c := range group.List {
				if word := unfinished.FindString(c.Text); word != "" {
					h.report(s, c.Pos(), "%s: finish it, or write an issue", word)
				}
				if word := persons.FindString(c.Text); word != "" {
					h.report(s, c.Pos(), "%q: programs are not persons", word)
				}
			}
		}
	}
}

// docs keeps a comment at every package and every exported name that is not in a test.
func (h *codebase) docs() {
	first := map[string]*source{}
	documented := map[string]bool{}
	for _, s := range h.sources {
		if s.test {
			continue
		}
		if first[s.dir] == nil {
			first[s.dir] = s
		}
		if text := s.file.Doc.Text(); text != "" {
			documented[s.dir] = true
			if want := "Package " + s.file.Name.Name + " "; s.file.Name.Name != "main" &&
				!strings.HasPrefix(text, want) {
				h.report(s, s.file.Doc.Pos(), "the package's comment begins with %q", want)
			}
		}
		for _, d := range s.file.Decls {
			h.documented(s, d)
		}
	}
	for dir, s := range first {
		if !documented[dir] {
			h.report(s, s.file.Package, "package %s has no doc comment: say what it is for", s.file.Name.Name)
		}
	}
}

// evident are methods of interfaces of the standard library, which say what the methods do.
var evident = []string{
	"String", "Error", "Unwrap", "Is", "As", "Format", "GoString", "Len", "Less", "Swap", "Push", "Pop",
	"MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText",
}

func (h *codebase) documented(s *source, d ast.Decl) {
	missing := func(name *ast.Ident, docs ...*ast.CommentGroup) {
		if name.IsExported() && !slices.ContainsFunc(docs, func(g *ast.CommentGroup) bool { return g.Text() != "" }) {
			h.report(s, name.Pos(), "%s has no doc comment", name.Name)
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			missing(d.Name, d.Doc)
		} else if receiver(d).IsExported() && !slices.Contains(evident, d.Name.Name) {
			missing(d.Name, d.Doc)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				missing(spec.Name, d.Doc, spec.Doc, spec.Comment)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					missing(name, d.Doc, spec.Doc, spec.Comment)
				}
			}
		}
	}
}

// receiver returns the name of a method's type, without pointer and type parameters.
func receiver(d *ast.FuncDecl) *ast.Ident {
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.ParenExpr:
			t = x.X
		case *ast.Ident:
			return x
		default:
			return &ast.Ident{Name: "_"}
		}
	}
}
