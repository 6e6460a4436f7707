package buffers

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each; the test that is named must notice.
var mutants = teeth.Table([][5]string{
	{"a stack's tag rises", "space.go", "return (s>>16+1)<<16 | stack(pointer)", "return s>>16<<16 | stack(pointer)", "TestSameBundleAgain"},
	{"a bundle is taken by a CAS that succeeded", "worker.go", "case swapped:\n", "default:\n", "TestOneOwnerInVirtualTime"},
	{"what a CAS did not give back is kept", "worker.go", "l.top = stack(cas.Result)\n\t\tl.put(l.out...)", "l.top = stack(cas.Result)", "TestOneOwner"},
	{"what is given back is no longer the worker's", "worker.go", "\tl.head += n + 1\n", "", "TestOneOwner"},
	{"the bundle itself is free once", "worker.go", "l.free = append(list, pointer)", "l.free = append(list, pointer, pointer)", "TestOneOwner"},
	{"the bundle is not in its own list", "worker.go", "encodeBundle(p, l.top.pointer(), l.out[:n])", "encodeBundle(p, l.top.pointer(), l.out[1:n+1])", "TestOneOwner"},
	{"the oldest is used first", "worker.go", "\tp := l.free[l.head]\n\tl.head++\n", "\tp := l.free[len(l.free)-1]\n\tl.free = l.free[:len(l.free)-1]\n", "TestFull"},
	{"nobody hoards", "worker.go", "if l.len() > w.mostKept() {", "if l.len() > 1<<20 {", "TestGivenBack"},
	{"what others gave back is taken first", "worker.go", "if ok, err := w.pop(l); ok || err != nil {", "if ok, err := false, error(nil); ok || err != nil {", "TestGivenBack"},
	{"a bundle has its checksum", "space.go", "le.Uint64(p) != xxhash.Sum64(p[8:bundleBytes(n)])", "false", "TestDamagedStack"},
	{"pointers begin at 1", "worker.go", "l.put(uint16(first + i + 1))", "l.put(uint16(first + i))", "TestFull"},
	{"what a worker has is its own for one epoch", "worker.go", "\tif w.epoch != w.member.Epoch {", "\tif w.epoch > w.member.Epoch {", "TestSweep"},
	{"what is replaced under a busy view is nobody's", "worker.go", "\tif w.busy() {\n\t\tw.stats", "\tif w.busy() && pointer == 0 {\n\t\tw.stats", "TestSweep"},
	{"under a busy view only new buffers are taken", "worker.go", "if !busy {\n\t\tif ok", "if busy = false; !busy {\n\t\tif ok", "TestSweep"},
	{"a worker under a busy view gives nothing back", "worker.go", "\tif w.busy() {\n\t\tw.abandon()\n\t\treturn nil\n", "\tif w.busy() && w.ep == nil {\n\t\tw.abandon()\n\t\treturn nil\n", "TestSweep"},
	{"what is free is no garbage", "sweep.go", "if !known[p] && !named(p) {", "if !named(p) {", "TestSweep"},
	{"what is named is no garbage", "sweep.go", "if !known[p] && !named(p) {", "if !known[p] {", "TestSweep"},
	{"all garbage is given back", "sweep.go", "for l.len() > 0 {", "if l.len() > 0 {", "TestSweep"},
	{"earlier epochs are fenced off", "sweep_test.go", "m.f.Fence(busy.Epoch)", "m.f.Fence(v.Epoch)", "TestSweep"},
	{"what was handed out is counted before the epoch begins", "sweep_test.go", "garbage, err := m.s.Garbage(0,", "m.s.Count(0)\n\t\tgarbage, err := m.s.Garbage(0,", "TestSweep"},
	{"a sweep is asked for again in the same epoch", "worker.go", "\t\tw.Ask(l.node)\n",
		"\t\tif w.stats.Lost++; w.stats.Lost == 1 {\n\t\t\tw.Ask(l.node)\n\t\t}\n", "TestAskedAgain"},
	{"what failed half way is nobody's", "worker.go", "\tcase b.Err() != nil:\n\t\tw.stats.Lost += uint64(len(l.out))\n", "\tcase b.Err() != nil:\n\t\tl.put(l.out...)\n", "TestPushFails"},
	{"who closes waits for one timeout", "worker.go", "if err := w.await(min(began+w.timeout, now+w.timeout/turns)); err != nil {", "if err := w.await(began + 9*w.timeout); err != nil {", "TestCloseIsBounded"},
	{"a chunk ends with its array", "../../node/serve.go", "n := min(want, items-used)", "n := want", "TestFull"},
})

func TestMutants(t *testing.T) { teeth.Check(t, mutants) }

func TestTeeth(t *testing.T) {
	teeth.Suite{}.Run(t, mutants)
}
