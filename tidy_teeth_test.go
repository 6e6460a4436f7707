package farkv_test

import (
	"errors"
	"go/types"
	"strings"
	"testing"
	"testing/fstest"
)

// nothing imports no package: the sources below need none to be typed.
type nothing struct{}

func (nothing) Import(string) (*types.Package, error) { return nil, errors.New("not here") }

// inspect applies every rule to a module of the given files.
func inspect(t *testing.T, files map[string]string) []string {
	t.Helper()
	root := fstest.MapFS{}
	for p, text := range files {
		root[p] = &fstest.MapFile{Data: []byte(text)}
	}
	h, err := readCodebase(root)
	if err != nil {
		t.Fatal(err)
	}
	h.topFolders()
	h.arrows()
	h.fabrics()
	h.rungs()
	h.stores()
	h.world()
	h.mapRanges(nothing{})
	h.sizes()
	h.columns()
	h.extents()
	h.names()
	h.docs()
	h.readmes()
	return h.sorted()
}

// at makes a file with the given imports and body in the right package for its folder.
func at(p, imports, body string) map[string]string {
	dir := p[:max(strings.LastIndexByte(p, '/'), 0)]
	name := dir[strings.LastIndexByte(dir, '/')+1:]
	if strings.HasPrefix(p, "ops/farkv/") {
		name = "main"
	}
	var b strings.Builder
	b.WriteString("// Package " + name + " is an example.\npackage " + name + "\n")
	for i := range strings.FieldsSeq(imports) {
		if strings.HasPrefix(i, "./") {
			i = module + i[1:]
		}
		b.WriteString("import \"" + i + "\"\n")
	}
	return map[string]string{p: b.String() + body + "\n"}
}

const store = "client/fusee/insert.go"

var violations = []struct {
	files map[string]string
	want  string
}{
	// Folders of the top level, and imports.
	{map[string]string{"internal/x": ""}, "internal: the top level is fixed"},
	{map[string]string{"notes.md": ""}, "notes.md: the top level is fixed"},
	{at("internal/x.go", "", ""), "internal: the top level is fixed"},
	{at("node/rdma/x.go", "./node", ""), "node/rdma/x.go:3: node/rdma imports nothing of ours, and here node"},
	{at("node/rdma/tcp/x.go", "./client", ""), "imports client, which stands above it"},
	{at("node/pmem/x.go", "./ops", ""), "imports ops, which stands above it"},
	{at("client/x.go", "./workloads/check", ""), "imports workloads/check, which stands above it"},
	{at("workloads/x.go", "./client/stores ./node/rdma/sim", ""), "names the fabric node/rdma/sim"},
	{at("ops/up.go", "./node/rdma/shm", ""), "names the fabric node/rdma/shm"},
	{at(store, "./node/rdma/shm", ""), "names the fabric node/rdma/shm"},
	{at("node/rdma/trace/x.go", "./node/rdma/shm", ""), "names the fabric node/rdma/shm"},
	{at("node/rdma/ibverbs/x.go", "./node/rdma/tcp", ""), "names the fabric node/rdma/tcp"},
	{at("node/rdma/transport/x.go", "./node/rdma/control", ""), "imports node/rdma/control, which stands above it"},
	{at("node/rdma/control/x.go", "./node/rdma/memnode", ""), "imports node/rdma/memnode, which stands above it"},
	// Stores.
	{at("client/x.go", "./client/fusee", ""), "only client/stores knows the stores"},
	{at("ops/check.go", "./client/fusee", ""), "only client/stores knows the stores"},
	{at("ops/farkv/main.go", "./client/fusee", ""), "only client/stores knows the stores"},
	{at(store, "./client/swarm", ""), "store fusee imports store swarm"},
	{at(store, "./client/sherman", ""), "store fusee imports store sherman"},
	// The world outside.
	{at(store, "sync", ""), "imports sync: here only the Endpoint"},
	{at(store, "sync/atomic", ""), "imports sync/atomic"},
	{at(store, "golang.org/x/sync/errgroup", ""), "imports golang.org/x/sync/errgroup"},
	{at(store, "context", ""), "imports context"},
	{at(store, "net/http", ""), "imports net/http"},
	{at(store, "os", ""), "imports os"},
	{at(store, "math/rand", ""), "imports math/rand"},
	{at(store, "crypto/rand", ""), "imports crypto/rand"},
	{at("client/race/x.go", "context", ""), "imports context"},
	{at("node/cluster/x.go", "sync/atomic", ""), "imports sync/atomic"},
	{at("node/cluster/x.go", "sync", ""), "imports sync"},
	{at("workloads/loop.go", "context", ""), "imports context"},
	{at(store, "time", "var t = time.Now()"), "uses time.Now"},
	{at(store, "time", "func f() { <-time.After(1) }"), "uses time.After"},
	{at(store, "time", "var f = time.Sleep"), "uses time.Sleep"},
	{at(store, "time", "type t struct { t *time.Timer }"), "uses time.Timer"},
	{map[string]string{store: "// Package fusee x.\npackage fusee\nimport clock \"time\"\nvar t = clock.Now()"},
		"uses time.Now"},
	{map[string]string{store: "// Package fusee x.\npackage fusee\nimport . \"time\"\nvar t = Now()"},
		"imports time by a dot"},
	{at(store, "math/rand/v2", "var n = rand.IntN(3)"), "uses math/rand/v2.IntN"},
	{at(store, "math/rand/v2", "var r = rand.New(nil)"), "uses math/rand/v2.New"},
	{at(store, "maps", "func f(m map[int]int) { for range maps.Keys(m) {} }"), "uses maps.Keys"},
	{at(store, "", "func f() { go f() }"), "go statement"},
	{at(store, "", "func f() { select {} }"), "select"},
	{at(store, "", "func f(c chan int) {}"), "channel"},
	{at(store, "", "var c = make(chan int)"), "channel"},
	{at(store, "./node", "func f() { node.C <- 1 }"), "send on a channel"},
	{at(store, "./node", "func f() { <-node.C }"), "receive from a channel"},
	{at(store, "", "func f(m map[int]int) { for range m {} }"), "insert.go:3: range over a map"},
	{at(store, "", "type m map[int]int\nfunc f(s struct{ m m }) { for range s.m {} }"), "range over a map"},
	{at(store, "", "func f[M ~map[K]V, K comparable, V any](m M) { for range m {} }"), "range over a map"},
	{at("workloads/zipf.go", "", "func f(m map[int]int) { for range m {} }"), "range over a map"},
	{at(store, "./node", "func f() { for range node.M {} }"), "cannot tell what this loop ranges over"},
	// Style.
	{at(store, "", "func f() {\n"+strings.Repeat("f()\n", 79)+"}"), "f has 81 lines"},
	{at("client/fusee/x_test.go", "", "func f() {\n"+strings.Repeat("f()\n", 79)+"}"), "f has 81 lines"},
	{at(store, "", strings.Repeat("\n", 600)), "603 lines: a file has about 500"},
	{at(store, "", "\t// "+strings.Repeat("a", 94)), ":3: 101 columns, more than 100"},
	{at(store, "", "\tvar a = `"+strings.Repeat("a", 108)+"`"), ":3: 122 columns, more than 120"},
	{at(store, "", strings.Repeat("func (t) M() {}\n", 51)), "client/fusee.t has 51 methods"},
	{at(store, "", strings.Repeat("var _ = 1\n", 3500)), "the package has 3501 lines of code"},
	{at(store, "", "// f is for some"+"one.\nfunc f() {}"), "programs are not persons"},
	{at("client/fusee/utils.go", "", ""), "a file is named after what it does"},
	{at("ops/helpers_test.go", "", ""), "a file is named after what it does"},
	{at(store, "", "// TO"+"DO: think"), "TO" + "DO: finish it"},
	{at("ops/x_test.go", "", "func f() {\n/* FIX"+"ME */ }"), "FIX" + "ME: finish it"},
	{map[string]string{store: "package fusee\n"}, "package fusee has no doc comment"},
	{map[string]string{store: "// Fusee.\npackage fusee\n"}, `begins with "Package fusee "`},
	{at(store, "", "func F() {}"), "F has no doc comment"},
	{at(store, "", "type T int"), "T has no doc comment"},
	{at(store, "", "// T is.\ntype T[K any] struct{}\nfunc (t *T[K]) M() {}"), "M has no doc comment"},
	{at(store, "", "const A = 1"), "A has no doc comment"},
	{at(store, "", "var a, B int"), "B has no doc comment"},
	// READMEs.
	{map[string]string{"README.md": strings.Repeat("word\n", 2501)}, "README.md: more than 2500 words"},
	{map[string]string{"README.md": "", "ops/x.go": "// Package ops x.\npackage ops"}, "ops: has no README.md"},
	{map[string]string{"README.md": "[ops](ops/README.md)"}, "README.md: a link to ops/README.md, which is not there"},
	{map[string]string{"README.md": "# One\n[two](#two)"}, "README.md: a link to #two, where there is no such heading"},
	{map[string]string{"README.md": "", "ops/README.md": strings.Repeat("a", 121)},
		"ops/README.md: a line of more than 120 columns"},
}

// Every rule is seen to fire.
func TestViolations(t *testing.T) {
	for _, tt := range violations {
		if got := inspect(t, tt.files); !strings.Contains(strings.Join(got, "\n"), tt.want) {
			t.Errorf("want %q of\n%v\ngot %q", tt.want, tt.files, got)
		}
	}
}

// What is allowed is not reported.
func TestNoViolation(t *testing.T) {
	loop := "func f(m map[int]int) { for range m {} }"
	for _, files := range []map[string]string{
		{"README.md": "", "farkv": "", "bin/farkv": "", ".ci/run": "", "ops.test": "", "cpu.prof": "",
			"tidy_test.go": "package x"},
		at("README.md", "", ""),
		{"README.md": "[a](ops/README.md#a-bs-c)\n", "ops/README.md": "## A `b`'s c\n"},
		{"README.md": strings.Repeat("word\n", 2500)},
		at("node/fabrics/x.go", "./node/rdma ./node/rdma/shm", ""),
		at("node/rdma/ibverbs/x.go", "./node/rdma/transport ./node/rdma/control ./node/rdma/memnode", ""),
		at("node/rdma/shm/x.go", "./node/rdma sync os time", "var t = time.Now()\n"+loop),
		at("ops/farkv/main.go", "./ops ./tui ./node/rdma/sim", ""),
		at("workloads/check/storetest/x.go", "testing ./node/rdma/sim ./node/rdma/shm ./client", ""),
		at("client/fusee/x_test.go", "./node/rdma/sim ./workloads/check ./client/swarm sync time",
			"var T = time.Now()\n"+loop),
		at("client/stores/x.go", "./client/fusee ./client/swarm sync os", loop),
		at("client/x.go", "./node sync context", "func f() { go f() }\n"+loop),
		at(store, "./client ./client/race ./client/fusee/inner ./node ./node/rdma", ""),
		at("client/sherman/x.go", "./client/rtx ./client/race", ""),
		at("client/rowan/x.go", "./node/rowan ./node/cluster", ""),
		at("node/rowan/x.go", "sync sync/atomic", ""),
		at("node/cluster/consul/x.go", "sync context net time", "var t = time.Now()"),
		at("node/cluster/local/x.go", "sync context os time", "var t = time.Now()"),
		at("workloads/loop.go", "./client sync/atomic", ""),
		at("workloads/runner/x.go", "sync context", loop),
		at(store, "time math/rand/v2 maps", "const d = 3 * time.Second\n"+
			"func f(d time.Duration, r *rand.Rand) { maps.Clone(x) }"),
		at(store, "", "func f(s []int, n int) { for range s {}; for range n {}; for range f2 {} }\n"+
			"func f2(func() bool) {}"),
		at(store, "", "func f() {\n"+strings.Repeat("f()\n", 78)+"}"),
		at(store, "", "// E are errors.\nvar (\n\tA int\n\tB int // more\n)\n\ntype t int\n\nfunc (t) M() {}"),
		at(store, "", "// T is.\ntype T int\n\nfunc (T) String() string { return \"\" }"),
		at("client/fusee/x_test.go", "", "func TestX() {}"),
		at(store, "", "\t// "+strings.Repeat("a", 93)+"\nvar a = `"+strings.Repeat("ä", 110)+"`"),
		at("client/fusee/x_test.go", "", strings.Repeat("func (t) M() {}\n", 51)),
	} {
		if got := inspect(t, files); len(got) > 0 {
			t.Errorf("got %q of\n%v", got, files)
		}
	}
}
