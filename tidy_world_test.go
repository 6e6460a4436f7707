package farkv_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// virtual reports whether a folder's code also runs in virtual time, so that only its Endpoint
// gives it time, sleep, randomness and tasks.
func virtual(dir string) bool {
	switch {
	case storeOf(dir) != "":
		return true
	case under(dir, "node/cluster"):
		return !under(dir, "node/cluster/consul") && !under(dir, "node/cluster/local") // servers and processes are real
	}
	return dir == "workloads" || under(dir, "node/rowan")
}

// outside are packages, with those below them, that reach around the Endpoint.
var outside = []string{
	"sync", "context", "net", "os", "syscall", "math/rand", "crypto/rand", "hash/maphash", "golang.org/x/sync",
	"golang.org/x/sys",
}

// permits reports whether a folder may import a package that reaches outside.
func permits(dir, pkg string) bool {
	switch pkg {
	case "math/rand/v2": // for the type of Env.Rand
		return true
	case "sync": // a lock under which no verb, wait or sleep happens
		return under(dir, "node/rowan")
	case "sync/atomic": // a word that a server's tasks share; by which a signal asks the worker loop to stop
		return under(dir, "node/rowan") || dir == "workloads"
	}
	return false
}

// names of packages of which only some may be used (only) or some may not (not).
var names = map[string]struct{ only, not []string }{
	"time": {only: []string{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute",
		"Hour"}},
	"math/rand/v2": {only: []string{"Rand"}},
	"maps":         {not: []string{"All", "Keys", "Values"}},
}

// world keeps code that runs in virtual time from reaching around its Endpoint. Test files are
// free.
func (h *codebase) world() {
	for _, s := range h.sources {
		if s.test || !virtual(s.dir) {
			continue
		}
		local := map[string]string{} // what the file calls the packages in names
		for _, i := range s.file.Imports {
			p := importPath(i)
			if slices.ContainsFunc(outside, func(o string) bool { return under(p, o) }) && !permits(s.dir, p) {
				h.report(s, i.Pos(), "imports %s: here only the Endpoint gives time, randomness and tasks", p)
			}
			if _, ok := names[p]; !ok {
				continue
			}
			name := path.Base(strings.TrimSuffix(p, "/v2"))
			if i.Name != nil {
				name = i.Name.Name
			}
			if name == "." {
				h.report(s, i.Pos(), "imports %s by a dot, which hides what it uses of it", p)
			}
			local[name] = p
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if what := concurrent(n); what != "" {
				h.report(s, n.Pos(), "%s: here tasks come from Env.Go and are waited for through the Endpoint", what)
			}
			h.selected(s, local, n)
			return true
		})
	}
}

// concurrent names what n uses of Go's own concurrency.
func concurrent(n ast.Node) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "go statement"
	case *ast.SelectStmt:
		return "select"
	case *ast.ChanType:
		return "channel"
	case *ast.SendStmt:
		return "send on a channel"
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			return "receive from a channel"
		}
	}
	return ""
}

// selected checks the use of a name of a package.
func (h *codebase) selected(s *source, local map[string]string, n ast.Node) {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return
	}
	p, ok := local[x.Name]
	if !ok {
		return
	}
	if r := names[p]; slices.Contains(r.not, sel.Sel.Name) || r.only != nil && !slices.Contains(r.only, sel.Sel.Name) {
		h.report(s, n.Pos(), "uses %s.%s: here only the Endpoint gives time and randomness, and order comes "+
			"from no map", p, sel.Sel.Name)
	}
}

// mapRanges finds loops over maps in code that runs in virtual time: their order differs between
// runs.
func (h *codebase) mapRanges(exports types.Importer) {
	files := map[string][]*source{}
	for _, s := range h.sources {
		if !s.test && virtual(s.dir) {
			files[s.dir] = append(files[s.dir], s)
		}
	}
	for dir, sources := range files {
		var syntax []*ast.File
		for _, s := range sources {
			syntax = append(syntax, s.file)
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
		// Errors are for the compiler to tell: files of several systems are looked at together.
		c := types.Config{Importer: exports, Error: func(error) {}}
		c.Check(module+"/"+dir, h.fset, syntax, info)
		for _, s := range sources {
			h.mapLoops(s, info)
		}
	}
}

func (h *codebase) mapLoops(s *source, info *types.Info) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		loop, ok := n.(*ast.RangeStmt)
		if !ok {
			return true
		}
		switch t := info.TypeOf(loop.X); {
		case t == nil || t == types.Typ[types.Invalid]:
			h.report(s, n.Pos(), "cannot tell what this loop ranges over: does the package build?")
		case unordered(t):
			h.report(s, n.Pos(), "range over a map: its order differs between runs; keep a slice beside it")
		}
		return true
	})
}

// unordered reports whether t is a map or a channel, or a type parameter that may be one.
func unordered(t types.Type) bool {
	switch t := t.Underlying().(type) {
	case *types.Map, *types.Chan:
		return true
	case *types.Interface:
		for i := range t.NumEmbeddeds() {
			if unordered(t.EmbeddedType(i)) {
				return true
			}
		}
	case *types.Union:
		for i := range t.Len() {
			if unordered(t.Term(i).Type()) {
				return true
			}
		}
	}
	return false
}

// exportData imports packages from what the go command has compiled.
func exportData() (types.Importer, error) {
	cmd := exec.Command("go", "list", "-e", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		pkg, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files[pkg] = file
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(pkg string) (io.ReadCloser, error) {
		if files[pkg] == "" {
			return nil, errors.New(pkg + " does not build")
		}
		return os.Open(files[pkg])
	}), nil
}
