package teeth

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"regexp"
	"strings"
)

// A pattern is what Mutant.At says, parsed.
type pattern struct {
	expr  ast.Expr
	stmts []ast.Stmt // if there is no expr: a run of statements, or of clauses
}

// bindings are what wildcards stand for: a node, or a list of nodes. Names of fields begin with a
// dot.
type bindings map[string][]ast.Node

// While they are parsed wildcards are identifiers.
const (
	anyName = "wildcard_"
	anyNode = "wildcards_"
)

var wildcard = regexp.MustCompile(`\$(\*?)(\w+)`)

// parsePattern reads an expression, else statements, else clauses of a switch; what is to be
// deleted is no expression.
func parsePattern(text string, deleted bool) (*pattern, error) {
	text = wildcard.ReplaceAllStringFunc(text, func(w string) string {
		if name, ok := strings.CutPrefix(w, "$*"); ok {
			return anyNode + name
		}
		return anyName + w[1:]
	})
	if x, err := parser.ParseExpr(text); err == nil && !deleted {
		return &pattern{expr: x}, nil
	}
	var failed error
	for _, frame := range []string{"{\n%s\n}", "{ switch {\n%s\n} }"} {
		body := fmt.Sprintf(frame, text)
		f, err := parser.ParseFile(token.NewFileSet(), "", "package p; func _() "+body, parser.SkipObjectResolution)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		list := f.Decls[0].(*ast.FuncDecl).Body.List
		if strings.Contains(frame, "switch") {
			list = list[0].(*ast.SwitchStmt).Body.List
		}
		if len(list) > 0 {
			return &pattern{stmts: list}, nil
		}
	}
	return nil, fmt.Errorf("%q is neither an expression nor statements nor clauses: %w", text, failed)
}

// span is where a match lies in the source.
type span struct {
	from, to token.Pos
	bound    bindings
}

// find returns the pattern's matches in a declaration, in the order of the source.
func (p *pattern) find(in ast.Node) []span {
	var found []span
	ast.Inspect(in, func(n ast.Node) bool {
		if p.expr != nil {
			if m := (matcher{bindings{}}); is[ast.Expr](n) && m.same(reflect.ValueOf(p.expr), reflect.ValueOf(n)) {
				found = append(found, span{n.Pos(), n.End(), m.bound})
			}
			return true
		}
		for list := p.list(n); len(list) > 0; list = list[1:] {
			if s, ok := p.prefix(list); ok {
				found = append(found, s)
			}
		}
		return true
	})
	return found
}

func is[T any](x any) bool {
	_, ok := x.(T)
	return ok
}

// list returns the list in which a run may begin. A single statement need not be in one: it is its
// own.
func (p *pattern) list(n ast.Node) []ast.Stmt {
	if len(p.stmts) == 1 {
		if one, ok := n.(ast.Stmt); ok {
			return []ast.Stmt{one}
		}
		return nil
	}
	switch n := n.(type) {
	case *ast.BlockStmt:
		return n.List
	case *ast.CaseClause:
		return n.Body
	case *ast.CommClause:
		return n.Body
	}
	return nil
}

// prefix matches the shortest run at the beginning of a list. If the pattern ends with a clause
// without statements, the run ends with a clause's head.
func (p *pattern) prefix(list []ast.Stmt) (span, bool) {
	end, ok := p.stmts[len(p.stmts)-1].(*ast.CaseClause)
	heads := ok && len(end.Body) == 0
	for n := 1; n <= len(list); n++ {
		run, m := list[:n:n], matcher{bindings{}}
		to := run[n-1].End()
		if c, ok := run[n-1].(*ast.CaseClause); ok && heads {
			head := *c
			head.Body = nil
			run, to = append(run[:n-1:n-1], &head), c.Colon+1
		}
		if m.same(reflect.ValueOf(p.stmts), reflect.ValueOf(run)) {
			return span{list[0].Pos(), to, m.bound}, true
		}
	}
	return span{}, false
}

// A matcher compares a pattern's nodes with a source's, and binds the wildcards on its way.
type matcher struct{ bound bindings }

// Where a node lies in its text is not compared.
var position = reflect.TypeFor[token.Pos]()

// same compares two values of the same static type.
func (m *matcher) same(p, n reflect.Value) bool {
	switch p.Kind() {
	case reflect.Interface, reflect.Pointer:
		if p.IsNil() || n.IsNil() {
			return p.IsNil() && n.IsNil()
		}
		if p.Kind() == reflect.Interface {
			p, n = p.Elem(), n.Elem()
		}
		return m.node(p.Interface(), n.Interface(), "") || p.Type() == n.Type() && m.fields(p, n)
	case reflect.Slice:
		return m.list(p, n)
	}
	return p.Equal(n)
}

// node compares nodes that a wildcard stands for, or may.
func (m *matcher) node(p, n any, prefix string) bool {
	x, ok := p.(ast.Node)
	if !ok {
		return false
	}
	if name, ok := wild(x, anyNode); ok {
		e, ok := n.(ast.Expr)
		return ok && m.bind(name, e)
	}
	id, ok := n.(*ast.Ident)
	if !ok || !is[*ast.Ident](p) {
		return false
	}
	if name, ok := wild(x, anyName); ok {
		return m.bind(prefix+name, id)
	}
	return p.(*ast.Ident).Name == id.Name
}

// wild returns the name of a wildcard of a kind.
func wild(n ast.Node, kind string) (string, bool) {
	switch x := n.(type) {
	case *ast.Ident:
		return strings.CutPrefix(x.Name, kind)
	case *ast.ExprStmt:
		return wild(x.X, kind)
	}
	return "", false
}

// fields compares nodes of one type.
func (m *matcher) fields(p, n reflect.Value) bool {
	switch x := p.Interface().(type) {
	case *ast.Ident:
		return false
	case *ast.SelectorExpr:
		y := n.Interface().(*ast.SelectorExpr)
		return m.same(reflect.ValueOf(&x.X).Elem(), reflect.ValueOf(&y.X).Elem()) && m.node(x.Sel, y.Sel, ".")
	case *ast.KeyValueExpr:
		y := n.Interface().(*ast.KeyValueExpr)
		if _, ok := wild(x.Key, anyName); ok {
			value := func(kv *ast.KeyValueExpr) reflect.Value { return reflect.ValueOf(&kv.Value).Elem() }
			return m.node(x.Key, y.Key, ".") && m.same(value(x), value(y))
		}
	case *ast.CallExpr:
		if y := n.Interface().(*ast.CallExpr); x.Ellipsis.IsValid() != y.Ellipsis.IsValid() {
			return false
		}
	}
	p, n = p.Elem(), n.Elem()
	if p.Kind() != reflect.Struct {
		return false
	}
	for i := range p.NumField() {
		if p.Field(i).Type() != position && !m.same(p.Field(i), n.Field(i)) {
			return false
		}
	}
	return true
}

// list compares lists, of which the pattern's may have wildcards that stand for several elements.
func (m *matcher) list(p, n reflect.Value) bool {
	if p.Len() == 0 {
		return n.Len() == 0
	}
	if name, ok := wild(p.Index(0).Interface().(ast.Node), anyNode); ok {
		for k := 0; k <= n.Len(); k++ {
			var nodes []ast.Node
			for i := range k {
				nodes = append(nodes, n.Index(i).Interface().(ast.Node))
			}
			before := maps.Clone(m.bound)
			if m.bind(name, nodes...) && m.list(p.Slice(1, p.Len()), n.Slice(k, n.Len())) {
				return true
			}
			m.bound = before
		}
		return false
	}
	return n.Len() > 0 && m.same(p.Index(0), n.Index(0)) && m.list(p.Slice(1, p.Len()), n.Slice(1, n.Len()))
}

// bind has a wildcard stand for nodes, and reports whether it stood for no others.
func (m *matcher) bind(name string, nodes ...ast.Node) bool {
	if name == "_" || name == "._" {
		return true
	}
	old, ok := m.bound[name]
	if !ok {
		m.bound[name] = nodes
		return true
	}
	exactly := matcher{bindings{}}
	return exactly.list(reflect.ValueOf(old), reflect.ValueOf(nodes))
}
