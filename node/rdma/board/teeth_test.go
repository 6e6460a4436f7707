package board

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

const (
	quorumSim = "TestQuorumSim"
	guardSim  = "TestGuardSim"
	boardSim  = "TestBoardSim"
)

var mutants = teeth.Table([][5]string{
	{"an acceptor accepts nothing below its promise", "acceptor.go",
		"if b.Compare(s.promised) < 0 {\n\t\treturn &Answer{Promised: s.promised}\n\t}\n\tmore", "more", quorumSim},
	{"majorities meet", "propose.go", "return p.nodes/2 + 1 }", "return max(p.nodes/2, 1) }", quorumSim},
	{"a read knows that what it returns was chosen", "propose.go",
		"if !slices.ContainsFunc(answers, func(a *Answer) bool { return a.Entries[0].Ballot != first.Ballot }) {", "if true {", quorumSim},
	{"who was overtaken is not told that it lost", "propose.go",
		"case !proposed || s.Version <= version:", "case !proposed || s.Version != version+1:", quorumSim},
	{"a lease counts from the moment of asking", "guard.go", "r := request{g.round, now}", "r := request{g.round, now + g.lease/8}", guardSim},
	{"who expels waits for clocks, too", "lease.go", "lease + lease/7", "lease + lease/8", guardSim},
	{"a node looks again before it answers", "guard_sim_test.go", "if m.serves() {\n\t\t\t\t\t\t\tm.served++", "if true {\n\t\t\t\t\t\t\tm.served++", guardSim},
	{"candidates wait for clocks", "master.go", "+ ExpelWait(m.Lease)", "+ m.Lease", boardSim},
	{"a lost master is fenced off", "master.go", "err = b.o.Revoke(rdma.Client{ID: m.Owner, Life: m.Life})", "err = nil", boardSim},
	{"lives grow", "claim.go", "me.Life = old.Life + 1", "me.Life = max(old.Life, 1)", boardSim},
	{"claims in doubt are settled", "claim.go", "if b.isMine(r, d.life) {", "if b.isMine(r, 0) {", boardSim},
})

// more are shown when FARKV_TEETH is "all": compiling them takes a minute.
var more = teeth.Table([][5]string{
	{"an acceptor keeps what it promised", "acceptor.go", "s.promised = b\n\treturn", "return", quorumSim},
	{"what was accepted last goes on", "propose.go", "Compare(latest.Ballot) > 0", "Compare(latest.Ballot) < 0", quorumSim},
	{"a list does, too", "propose.go", "|| i > 0 && a.Entries[at].Ballot != first.Ballot {", "|| i < 0 {", quorumSim},
	{"a reader knows that what it returns was chosen", "propose.go", "if votes[e.Ballot] >= p.majority() {", "if votes[e.Ballot] > 0 {", "TestReader"},
	{"ballots are not used twice", "propose.go", "p.counter++\n", "p.counter = max(p.counter, 1)\n", quorumSim},
	{"what stays as it is must be accepted anew", "propose.go",
		"next := change(latest.State)\n", "next := change(latest.State)\n\tif next.Version == latest.State.Version {\n\t\treturn next, nil\n\t}\n", quorumSim},
	{"a Swap is told by its writer", "propose.go", "return who == writer, nil", "return who != \"\", nil", quorumSim},
	{"the writers before are in their order", "ballot.go", "return s.Past[ago-1], true", "return s.Past[len(s.Past)-1], true", quorumSim},
	{"a node serves by a majority's leases", "guard.go", "at[len(at)-(n/2+1)]", "at[len(at)-max(n/2, 1)]", guardSim},
	{"an expelled node is granted nothing", "guard.go", " && !g.expelled[peer]", "", guardSim},
	{"an expelled node that knows it stops", "guard.go", "case g.expelled[g.self]:", "case g.self < 0:", guardSim},
	{"who expels waits", "lease.go", "lease + lease/7", "0 * lease", guardSim},
	{"a version that changed begins the wait anew", "master.go", "if version > b.seen.version {", "if b.seen.version == 0 {", boardSim},
	{"clocks of others are not read", "master.go", "return t, ok && t.life == m.Life && t.epoch == m.Epoch", "return t, ok || m.Owner > 0", boardSim},
	{"an owner counts from before it wrote", "master.go", "next.Until = b.o.Now() + next.Lease // others", "next.Until = b.o.Now() + 2*next.Lease // others", boardSim},
	{"epochs grow when a tenure ends, too", "master.go",
		"m.Owner, m.Life, m.Until, m.Turn = 0, 0, 0, m.Turn+1", "m.Owner, m.Life, m.Until, m.Epoch = 0, 0, 0, 1", boardSim},
	{"a claim is told from another's", "claim.go", "&& r.InUse && r.Process == b.o.Process", "&& r.InUse", boardSim},
	{"a process tries an identity once at a time", "claim.go", "&& !b.busy[id] && b.held[id] == 0", "", boardSim},
	{"a claim that may still land is made one that cannot", "claim.go", "if version != d.version {", "if !b.isMine(r, d.life) {", boardSim},
	{"a successor keeps its identity", "clients.go", "if r.Life != c.Life || !r.InUse {", "if !r.InUse {", boardSim},
	{"who was fenced off stays until it is forgotten", "clients.go", "if r.Fenced {\n\t\t\ttodo", "if r.Life == 0 {\n\t\t\ttodo", "TestClients"},
	{"one that is held is not forgotten", "clients.go", "if held {", "if held && r.Life == 0 {", "TestClients"},
	{"nodes are expelled in the epoch that was meant", "view.go",
		"if r.state() != (rdma.State{Epoch: epoch, Busy: true}) {", "if !r.Busy {", "TestView"},
	{"members change in the epoch that was meant", "view.go",
		"if r.state() != (rdma.State{Epoch: epoch, Busy: true}) || ", "if ", "TestView"},
	{"a state is compared", "view.go", "if r.state() != from {", "if r.Epoch > to.Epoch {", "TestView"},
})

func TestRules(t *testing.T) { teeth.Check(t, slices.Concat(mutants, more)) }

func TestTeeth(t *testing.T) {
	shown := mutants
	if os.Getenv("FARKV_TEETH") == "all" {
		shown = slices.Concat(mutants, more)
	} else {
		t.Logf("%d rules of %d; FARKV_TEETH=all shows all", len(mutants), len(mutants)+len(more))
	}
	teeth.Suite{
		Env:  []string{"FARKV_SEEDS=5000", "FARKV_SEED=1"},
		Vain: regexp.MustCompile(`panic: |too few`),
	}.Run(t, shown)
}
