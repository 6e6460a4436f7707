package farkv_test

import (
	"path"
	"slices"
	"strings"
)

// topLevel is what the root of the module may hold, beside dot files and what git ignores.
var topLevel = []string{
	"go.mod", "node", "client", "workloads", "tui", "ops", "ansible", "reports", "README.md",
	"go.sum", "Makefile", "LICENSE",
}

func (h *codebase) topFolders() {
	for _, e := range h.top {
		name, kind := e.Name(), path.Ext(e.Name())
		ignored := name == "bin" || slices.Contains([]string{".test", ".prof", ".out"}, kind) ||
			kind == "" && !e.IsDir() // what go build leaves
		tidy := strings.HasPrefix(name, "tidy_") && strings.HasSuffix(name, "_test.go")
		if !ignored && !tidy && name[0] != '.' && !slices.Contains(topLevel, name) {
			h.violations = append(h.violations, name+": the top level is fixed: "+strings.Join(topLevel, " "))
		}
	}
}

// layer is how high a package stands; it imports what stands no higher.
func (h *codebase) layer(dir string) int {
	switch {
	case dir == "node/rdma":
		return 0
	case under(dir, "node"):
		return 1
	case under(dir, "client"):
		return 2
	case !h.mains[dir]:
		return 3
	}
	return 4
}

// imports calls f for each import of a package of ours by a file that is no test.
func (h *codebase) imports(f func(s *source, dir string, report func(format string, a ...any))) {
	for _, s := range h.sources {
		if s.test {
			continue
		}
		for _, i := range s.file.Imports {
			if dir, ok := ours(importPath(i)); ok {
				f(s, dir, func(format string, a ...any) { h.report(s, i.Pos(), format, a...) })
			}
		}
	}
}

// arrows keeps imports from pointing upward.
func (h *codebase) arrows() {
	h.imports(func(s *source, dir string, report func(string, ...any)) {
		switch {
		case s.dir == "node/rdma":
			report("node/rdma imports nothing of ours, and here %s", dir)
		case h.layer(dir) > h.layer(s.dir):
			report("imports %s, which stands above it: arrows run "+
				"node/rdma <- node/* <- client/* <- workloads, ops, tui, reports <- the mains", dir)
		}
	})
}

// fabrics keeps the names of fabrics where addresses are turned into them. Virtual time has no
// address: package simulate runs in it.
func (h *codebase) fabrics() {
	h.imports(func(s *source, dir string, report func(string, ...any)) {
		for _, fabric := range []string{"shm", "tcp", "ibverbs", "sim"} {
			fabric = "node/rdma/" + fabric
			knows := under(s.dir, fabric) || s.dir == "node/fabrics" || h.mains[s.dir] || h.suites[s.dir] ||
				fabric == "node/rdma/sim" && s.dir == "workloads/simulate"
			if under(dir, fabric) && !knows {
				report("names the fabric %s: take an rdma.Fabric, or an address and node/fabrics", dir)
			}
		}
	})
}

// ladder are the packages that the fabrics of node processes stand on, side by side, each above
// those before it.
var ladder = []string{"node/rdma/transport", "node/rdma/control", "node/rdma/memnode", "node/rdma/tcp"}

// rungs keeps each step of the ladder from the ones above it.
func (h *codebase) rungs() {
	h.imports(func(s *source, dir string, report func(string, ...any)) {
		if at := slices.Index(ladder, s.dir); at >= 0 && slices.Index(ladder, dir) > at {
			report("imports %s, which stands above it: each stands on those before it of %s", dir,
				strings.Join(ladder, ", "))
		}
	})
}

// storeOf returns the store that a folder belongs to; "" where it belongs to none.
func storeOf(dir string) string {
	rest, ok := strings.CutPrefix(dir, "client/")
	name, _, _ := strings.Cut(rest, "/")
	if !ok || name == "stores" {
		return ""
	}
	return name
}

// parts are what stores share, and no stores.
var parts = []string{"race", "quorum", "directory", "buffers", "locations", "kit", "chunks", "rtx", "dtx"}

// mayImport reports whether one store may stand on another.
func mayImport(store, other string) bool { return store == other || slices.Contains(parts, other) }

// stores keeps stores apart from each other, and the list of them in one place.
func (h *codebase) stores() {
	h.imports(func(s *source, dir string, report func(string, ...any)) {
		other := storeOf(dir)
		switch store := storeOf(s.dir); {
		case other == "" || under(s.dir, "client/stores"):
		case store == "":
			report("imports the store %s: only client/stores knows the stores, ask its table", dir)
		case !mayImport(store, other):
			report("store %s imports store %s: stores share node, client and parts that are no stores", store, other)
		}
	})
}
