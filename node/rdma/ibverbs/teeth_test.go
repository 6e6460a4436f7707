package ibverbs

import (
	"os"
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// polling is what progress does before it looks at the clock.
const polling = `	for {
		e.did.Polls++
		n := e.cq.poll(e.found[:], max(0, spin))
		e.did.Completions += uint64(n)
		for _, c := range e.found[:n] {
			e.landed(c)
		}
		if n < len(e.found) {
			break
		}
		spin = 0
	}
`

var mutants = teeth.Table([][5]string{
	{"a fence that the device does not keep is kept", "post.go", "|| !e.fabric.lim.fences && p.unordered())", ")", "TestUnfencedDevice"},
	{"and waits for atomics, too", "post.go", "Verb != rdma.Write {", "Verb == rdma.Read {", "TestUnfencedDevice"},
	{"a device that tells nothing is given up", "endpoint.go", "now-p.slow.since > giveUp:", "now-p.slow.since > 100*giveUp:", "TestDeadDevice"},
	{"a result is taken while the node serves", "complete.go", "until, _ := e.fabric.Served(p.node); now >= until", "until, _ := e.fabric.Served(p.node); now < 0 && until > 0", "TestHeldBack"},
	{"which counts behind the completion", "complete.go", polling + "	now := wall.Boot() // behind the completions: see settle\n", "	now := wall.Boot()\n" + polling, "TestLeaseEndsMeanwhile"},
	{"a fence ends connections", "../tcp/conn.go", "	c.ended = c.ended || end\n	c.detach()\n", "	c.ended = c.ended || end\n	if end {\n		c.detach()\n	}\n", "TestLate"},
	{"nor behind the connection", "../tcp/device.go", "if c.ended || c.barred(&a.rights) != statusOK {", "if c.barred(&a.rights) != statusOK {", "TestLate"},
	{"a new connection is in the place of the last", "../tcp/device.go", "old, ok := c.attached[who]; ok && what != attachAsk", "old, ok := c.attached[who]; ok && what == attachEnd", "TestLate"},
	{"a stale verb does not land later", "endpoint.go", "if err := e.Detach(p.node); err != nil {", "if err := error(nil); err != nil {", "TestLate"},
	{"connections are given back", "endpoint.go", "err == nil && connection == p.connection {\n			_ =", "err == nil && connection == p.connection && p.qp != nil {\n			_ =", "TestConnectionsAreGivenBack"},
	{"completions have a connection", "endpoint.go", "	p.times++ //", "	//", "TestStaleCompletions"},
	{"what is dropped has failed", "endpoint.go", "		e.fail(p.at(p.head), why)\n	}\n	p.ripe = p.tail", "		e.over(p.at(p.head))\n	}\n	p.ripe = p.tail", "TestStatuses"},
	{"what waits fails, too", "endpoint.go", "	e.failWaiting(p, why)\n}\n\nfunc", "}\n\nfunc", "TestStatuses"},
	{"fences are posted", "post.go", "		q.flags = flagFence\n", "", "TestFenceBehindMasked"},
	{"and held behind masked verbs", "post.go", "p.masked > 0 || !e", "!e", "TestFenceBehindMasked"},
	{"until the last one is over", "complete.go", "		p.masked--\n", "		p.masked = 0\n", "TestFenceBehindMasked"},
	{"a guess learns", "complete.go", "	f.guess = op.Result\n", "", "TestMaskedResults"},
	{"a guess keeps to the bits compared", "complete.go", "op.Result == f.guess || (op.Result^op.Expect)&op.CompareMask != 0", "op.Result == f.guess", "TestMaskedResults"},
	{"a swap keeps to its bits", "post.go", "f.guess&^op.SwapMask|op.Value&op.SwapMask", "op.Value", "TestMaskedResults"},
	{"a wrong guess is a trip", "complete.go", "	f.batch.Stalled(1)\n", "", "TestMaskedWorkers"},
	{"a completion is its request's, too", "complete.go", "		p.ripe = seq + 1\n", "		p.ripe = seq\n", "TestDepths"},
	{"what failed has not succeeded", "complete.go", "	p.ripe = seq // those", "	p.ripe = seq + 1 // those", "TestStatuses"},
	{"what was in front has", "complete.go", "	p.ripe = seq // those in front of it have no completions of their own: they succeeded\n", "", "TestStatuses"},
	{"what is staged is copied back", "complete.go", "		copy(op.Buf[f.off:f.off+f.n], f.stage.p)\n", "", "TestDepths"},
	{"each part has its place", "complete.go", "copy(op.Buf[f.off:f.off+f.n], f.stage.p)", "copy(op.Buf[:f.n], f.stage.p)", "TestDepths"},
	{"all parts count", "post.go", "	f.n = n - f.off\n", "	f.n = (n - f.off) * (1 - n>>21)\n", "TestDepths"},
	{"an op is over when its parts are", "post.go", "f.off > 0 && seq != p.head", "false", "TestNoMemoryForParts"},
	{"who joins looks at his connections", "endpoint.go", "		e.check(p)\n	}\n	return v, nil", "	}\n	return v, nil", "TestJoinLooks"},
	{"who strays is stopped", "complete.go", `		p.lost = fmt.Errorf("connection to node %d is down since %w", p.node, why)` + "\n", "", "TestStatuses"},
	{"a fence that is heard of ends verbs", "endpoint.go", "	case fence > p.epoch || p.epoch != e.Epoch():", "	case fence > p.epoch && fence < 0:", "TestJoinLooks"},
	{"a connection is of one life of the process's", "endpoint.go", "	case connection != p.connection:", "	case connection == 0:", "TestLate"},
	{"a silent node is asked", "endpoint.go", "		if err := e.MayPost(p.node); err != nil {", "		if err := error(nil); err != nil {", "TestSilentDevice"},
	{"readers only read", "node.go", "	if readOnly {\n		may = accessRead\n	}\n", "	_ = readOnly\n", "TestReaders"},
	{"what a device refuses of a post is known", "post.go", "		if g := &e.groups[i]; g.taken < g.n {", "		if g := &e.groups[i]; g.taken > g.n {", "TestPartlyPosted"},
	{"rings go on where numbers begin anew", "fabric.go", "	o.Depth = 1 << (bits.Len(uint(o.Depth)) - 1)", "	_ = bits.Len", "TestDepths"},
	{"a queue does not grow without end", "post.go", "if p.next >= len(p.waiting)-p.next {", "if p.next == len(p.waiting) {", "TestBacklog"},
	{"nobody waits for what was not posted", "complete.go", "if err := e.Usable(); e.closed {", "if err := e.Usable(); false {", "TestClosedEndpoint"},
	{"completions of dropped connections make room", "post.go", "	if e.dropped {", "	if false {", "TestStaleCompletions"},
})

// few are broken unless $FARKV_TEETH is all: where a mistake would be the worst.
var few = map[string]bool{
	"a result is taken while the node serves": true, "a fence ends connections": true, "what failed has not succeeded": true,
}

func TestRules(t *testing.T) {
	if *host != "" {
		t.Skip("reads the package's source, which is not in a guest; run without -rdma")
	}
	teeth.Check(t, mutants)
}

func TestTeeth(t *testing.T) {
	if *host != "" {
		t.Skip("compiles copies of the package's source, which is not in a guest; run without -rdma")
	}
	broken := mutants
	if os.Getenv("FARKV_TEETH") != "all" {
		broken = nil
		for _, m := range mutants {
			if few[m.Rule] {
				broken = append(broken, m)
			}
		}
	}
	teeth.Suite{Vain: regexp.MustCompile(`panic: test timed out`)}.Run(t, broken)
}
