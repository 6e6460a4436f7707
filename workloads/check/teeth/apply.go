package teeth

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/format"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// source is the package that mutants change.
type source struct {
	dir      string
	test     bool // of the test files, too
	files    []string
	fset     *token.FileSet
	parsed   []*ast.File
	text     map[string][]byte
	packages types.Importer // of what it imports; nil: not known yet
}

// readSource parses the files of a folder that are compiled here, tests included.
func readSource(dir string) (*source, error) {
	p, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	s := &source{dir: dir, fset: token.NewFileSet(), text: map[string][]byte{}}
	for _, list := range [][]string{p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles} {
		for _, name := range list {
			name = filepath.Join(dir, name)
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			f, err := parser.ParseFile(s.fset, name, text, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			s.files, s.parsed, s.text[name] = append(s.files, name), append(s.parsed, f), text
		}
	}
	return s, nil
}

// declaration returns the one function ("f"), method ("T.m"), type, variable or constant of a name.
func (s *source) declaration(name string) (file string, found ast.Node, err error) {
	n := 0
	for i, f := range s.parsed {
		for _, d := range f.Decls {
			for _, d := range declared(d, name) {
				n++
				file, found = s.files[i], d
			}
		}
	}
	if n != 1 {
		return "", nil, fmt.Errorf("%s has %d declarations of %s, want one", s.dir, n, name)
	}
	return file, found, nil
}

// declared returns what a declaration declares as name.
func declared(d ast.Decl, name string) []ast.Node {
	switch d := d.(type) {
	case *ast.FuncDecl:
		full := d.Name.Name
		if d.Recv != nil {
			full = receiver(d.Recv.List[0].Type) + "." + full
		}
		if full == name {
			return []ast.Node{d}
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.Name == name {
					return []ast.Node{spec}
				}
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					if id.Name == name {
						return []ast.Node{spec}
					}
				}
			}
		}
	}
	return nil
}

// receiver returns the name of a method's type.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// apply returns the file that a mutant changes, and its text then.
func (s *source) apply(m *Mutant) (file string, changed []byte, err error) {
	p, err := parsePattern(m.At, m.Do == "")
	if err != nil {
		return "", nil, err
	}
	file, decl, err := s.declaration(m.In)
	if err != nil {
		return "", nil, err
	}
	nth, total := 1, 1
	if m.Nth != "" {
		if _, err := fmt.Sscanf(m.Nth, "%d/%d", &nth, &total); err != nil || nth < 1 || nth > total {
			return "", nil, fmt.Errorf("%q is no place of several, such as 2/3", m.Nth)
		}
	}
	found := p.find(decl)
	if len(found) != total {
		return "", nil, fmt.Errorf("%s has %d places like %s, want %d", m.In, len(found), m.At, total)
	}
	place, text := found[nth-1], s.text[file]
	do, err := s.fill(m.Do, text, place.bound)
	if err != nil {
		return "", nil, err
	}
	from, to := s.offset(place.from), s.offset(place.to)
	changed, err = format.Source(bytes.Join([][]byte{text[:from], []byte(do), text[to:]}, nil))
	if err != nil {
		return "", nil, fmt.Errorf("%s does not parse with %s: %w", m.In, do, err)
	}
	if bytes.Equal(text, changed) {
		return "", nil, fmt.Errorf("%s changes nothing", m.Do)
	}
	return file, changed, nil
}

func (s *source) offset(p token.Pos) int { return s.fset.Position(p).Offset }

// fill puts the source text of what wildcards stand for into a template.
func (s *source) fill(template string, text []byte, bound bindings) (string, error) {
	var b strings.Builder
	at := 0
	for _, w := range wildcard.FindAllStringSubmatchIndex(template, -1) {
		name := template[w[4]:w[5]]
		names := []string{name, "." + name}
		if w[0] > 0 && template[w[0]-1] == '.' {
			names[0], names[1] = names[1], names[0]
		}
		nodes, ok := bound[names[0]]
		if !ok {
			nodes, ok = bound[names[1]]
		}
		if !ok {
			return "", fmt.Errorf("nothing is bound to $%s of %s", name, template)
		}
		b.WriteString(template[at:w[0]])
		if len(nodes) > 0 {
			b.Write(text[s.offset(nodes[0].Pos()):s.offset(nodes[len(nodes)-1].End())])
		}
		at = w[1]
	}
	b.WriteString(template[at:])
	return b.String(), nil
}

// compile checks the types of a file that was changed. Of the package's other files only the
// declarations are read.
func (s *source) compile(file string, changed []byte) error {
	test := strings.HasSuffix(file, "_test.go")
	if s.packages == nil || test && !s.test {
		if err := s.imports(test); err != nil {
			return err
		}
	}
	f, err := parser.ParseFile(s.fset, file, changed, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	files := []*ast.File{f}
	for i, name := range s.files {
		if name == file || s.parsed[i].Name.Name != f.Name.Name || strings.HasSuffix(name, "_test.go") && !test {
			continue
		}
		files = append(files, withoutBodies(s.parsed[i]))
	}
	var failed error
	conf := types.Config{Importer: s.packages, FakeImportC: true, Error: func(err error) {
		if e, ok := err.(types.Error); ok && e.Pos >= f.FileStart && e.Pos <= f.FileEnd {
			failed = errors.Join(failed, err)
		}
	}}
	_, _ = conf.Check(s.dir, s.fset, files, nil) // conf.Error has heard of it
	return failed
}

// withoutBodies returns a copy of a file in which functions have no bodies.
func withoutBodies(f *ast.File) *ast.File {
	bare := *f
	bare.Decls = nil
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			head := *fn
			head.Body = nil
			d = &head
		}
		bare.Decls = append(bare.Decls, d)
	}
	return &bare
}

// imports asks the go command for the compiled packages that the source imports.
func (s *source) imports(test bool) error {
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	if s.test = test; test {
		args = append(args, "-test")
	}
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Dir, cmd.Stderr = s.dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", cmd, err)
	}
	compiled := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if path, file, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(file, "[") {
			compiled[path] = file
		}
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) }
	s.packages = importer.ForCompiler(s.fset, "gc", open)
	return nil
}
