package board

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A mutant is this package with one rule broken. The suites must notice: a checker that has never failed proves nothing.
// Each is compiled from the package's own source through the go command's overlay, so that the package knows nothing of
// it.
type mutant struct {
	rule     string
	file     string
	old, new string
	test     string // which must fail
}

const (
	quorumSim = "TestQuorumSim"
	guardSim  = "TestGuardSim"
	boardSim  = "TestBoardSim"
)

var mutants = []mutant{
	{"an acceptor accepts nothing below its promise", "acceptor.go",
		"if b.Compare(s.promised) < 0 {\n\t\treturn &Answer{Promised: s.promised}\n\t}\n\tmore", "more", quorumSim},
	{"majorities meet", "propose.go", "return p.nodes/2 + 1 }", "return max(p.nodes/2, 1) }", quorumSim},
	{"a read knows that what it returns was chosen", "propose.go",
		"if !slices.ContainsFunc(answers, func(a *Answer) bool { return a.Entries[0].Ballot != first.Ballot }) {", "if true {", quorumSim},
	{"who was overtaken is not told that it lost", "propose.go",
		"case !proposed || s.Version <= version:", "case !proposed || s.Version != version+1:", quorumSim},
	{"a lease counts from the moment of asking", "guard.go", "r := request{g.round, now}", "r := request{g.round, now + g.lease/8}", guardSim},
	{"who expels waits for clocks, too", "lease.go", "lease + lease/7", "lease + lease/8", guardSim},
	{"a node looks again before it answers", "guard_sim_test.go", "if m.Serves(m.now()) {\n\t\t\t\t\t\t\tm.served++", "if true {\n\t\t\t\t\t\t\tm.served++", guardSim},
	{"candidates wait for clocks", "master.go", "+ ExpelWait(m.Lease)", "+ m.Lease", boardSim},
	{"a lost master is fenced off", "master.go", "err = b.o.Revoke(rdma.Client{ID: m.Owner, Life: m.Life})", "err = nil", boardSim},
	{"lives grow", "claim.go", "me.Life = old.Life + 1", "me.Life = max(old.Life, 1)", boardSim},
	{"claims in doubt are settled", "claim.go", "if b.isMine(r, d.life) {", "if b.isMine(r, 0) {", boardSim},
}

// more are shown when FARKV_TEETH is "all": compiling them takes a minute.
var more = []mutant{
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
	{"an expelled node is granted nothing", "guard.go", "g.expelled[peer] == 0", "g.expelled[peer] != 1<<63", guardSim},
	{"an expelled node that knows it stops", "guard.go", "case g.expelled[g.self] != 0:", "case g.self < 0:", guardSim},
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
}

func TestTeeth(t *testing.T) {
	if testing.Short() || underRace { // the copies are compiled without the race detector: it would show nothing more
		t.Skip("compiles a copy of the package for each rule; run without -short and -race")
	}
	shown := mutants
	if os.Getenv("FARKV_TEETH") == "all" {
		shown = slices.Concat(mutants, more)
	} else {
		t.Logf("%d rules of %d; FARKV_TEETH=all shows all", len(mutants), len(mutants)+len(more))
	}
	for _, m := range shown {
		t.Run(strings.ReplaceAll(m.rule, " ", "_"), func(t *testing.T) {
			t.Parallel()
			m.run(t)
		})
	}
}

// verdict is what a test says of what it saw.
var verdict = regexp.MustCompile(`(?m)^ +\w+_test\.go:\d+: .*$`)

func (m mutant) run(t *testing.T) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		t.Fatalf("%s has %d places that read %q, want one: the mutant needs an update", m.file, n, m.old)
	}
	dir := t.TempDir()
	broken, list := filepath.Join(dir, m.file), filepath.Join(dir, "overlay.json")
	here, err := filepath.Abs(m.file)
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{here: broken}})
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{broken: strings.Replace(string(source), m.old, m.new, 1), list: string(overlay)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-count=1", "-timeout=2m", "-vet=off", "-overlay="+list, "-run=^"+m.test+"$", ".")
	cmd.Env = append(os.Environ(), "FARKV_SEEDS=5000", "FARKV_SEED=1")
	out, err := cmd.CombinedOutput()
	switch seen := verdict.Find(out); {
	case err == nil:
		t.Fatalf("nothing failed without this rule")
	case strings.Contains(string(out), "[build failed]") || strings.Contains(string(out), "[setup failed]"):
		t.Fatalf("the mutant does not compile:\n%s", out)
	case seen == nil || strings.Contains(string(out), "panic: ") || strings.Contains(string(out), "too few"):
		t.Fatalf("the suites failed, but not by seeing something wrong:\n%s", out)
	default:
		t.Logf("%.200s", strings.TrimSpace(string(seen)))
	}
}
