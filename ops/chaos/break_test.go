package chaos

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/daemon"
	"github.com/farkv/farkv/workloads/runner"
)

// tokened makes a pool on nodes of this process that have a token and one that permits to read,
// both in files.
func tokened(t *testing.T, nodes int) (addr string, files map[string]string) {
	t.Helper()
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	files = map[string]string{}
	for _, name := range []string{fabrics.EnvToken, fabrics.EnvReadToken} {
		files[name] = filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(files[name], []byte("a token of some length: "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range nodes {
		addr += "," + serve(t, daemon.NodeConfig{
			Listen: "127.0.0.1:0", Memory: 64 << 20, Overcommit: true, Fabric: "tcp",
			TokenFile:     files[fabrics.EnvToken],
			ReadTokenFile: files[fabrics.EnvReadToken], Drain: time.Millisecond,
			Log: slog.New(slog.DiscardHandler),
		})
	}
	addr = "tcp:" + addr[1:]
	t.Setenv(fabrics.EnvToken, files[fabrics.EnvToken])
	if _, err := ops.Up(addr, "fusee", stores.Params{Records: 1000, Nodes: nodes, DataReplicas: 2,
		IndexReplicas: 2}); err != nil {
		t.Fatal(err)
	}
	return addr, files
}

// serve runs a node until the test ends, and returns its address.
func serve(t *testing.T, c daemon.NodeConfig) string {
	t.Helper()
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- daemon.ServeNode(t.Context(), c, func(s *daemon.Serving) error {
			ready <- s.Address
			return nil
		})
	}()
	select {
	case addr := <-ready:
		return addr
	case err := <-ended:
		t.Fatalf("it does not serve: %v", err)
		return ""
	}
}

// TestBreakNeedsTheFullToken: a token that permits to read breaks nothing.
func TestBreakNeedsTheFullToken(t *testing.T) {
	addr, files := tokened(t, 3)
	slow := Break{Kind: BreakSlow, Target: Target{Nodes: []int{1}}, For: 20 * time.Millisecond}
	if _, err := BreakFor(t.Context(), addr, slow, false, func(*Broken) {}); err != nil {
		t.Errorf("with the full token: %v", err)
	}
	t.Setenv(fabrics.EnvToken, "")
	t.Setenv(fabrics.EnvReadToken, files[fabrics.EnvReadToken])
	_, one := BreakFor(t.Context(), addr, slow, false, func(*Broken) {})
	_, scheduled := RunSchedule(t.Context(), addr, Schedule{Kinds: []BreakKind{BreakSlow}, Every: time.Millisecond,
		For: time.Second})
	_, client := CrashClient(addr, 1, "")
	_, node := CrashNode(addr, 1, false)
	for what, err := range map[string]error{"slow": one, "a schedule": scheduled, "a client": client, "a node": node} {
		if !errors.Is(err, rdma.ErrAccess) || !strings.Contains(err.Error(),
			"hint: the token that $FARKV_READ_TOKEN_FILE names allows reading") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestBreaker: what is for a time is noted, seen by others, and ended by Close; nodes that were not
// started here are not stopped.
func TestBreaker(t *testing.T) {
	addr, _ := tokened(t, 3)
	b, err := NewBreaker(addr)
	if err != nil {
		t.Fatal(err)
	}
	var noted []telemetry.Event
	b.Note = func(e telemetry.Event) { noted = append(noted, e) }
	done, err := b.Break(t.Context(), Break{Kind: BreakCut, Target: Target{Nodes: []int{0, 2}}, For: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	s, err := ops.Status(addr)
	if err != nil || s.Nodes[0].Broken != "cut off from node 2" || s.Nodes[2].Broken != "cut off from node 0" ||
		s.Nodes[1].Broken != "" {
		t.Errorf("%v: %+v", err, s)
	}
	if waits := b.waits(done); waits != "the end of the break" {
		t.Errorf("the pool waits for %q", waits)
	}
	for _, w := range []Break{
		{Kind: BreakStop, Target: Target{Nodes: []int{0}}}, {Kind: BreakNode, Target: Target{Nodes: []int{0}}},
		{Kind: BreakSlow, Target: Target{Nodes: []int{3}}}, {Kind: BreakCut, Target: Target{Nodes: []int{1, 1}}},
		{Kind: BreakSlow, Target: Target{Nodes: []int{1}}, Slow: time.Second}, {Kind: "fire"}, {Kind: BreakClient},
		{Kind: BreakMaster, For: time.Second}, {Kind: BreakSlow, Target: Target{Nodes: []int{1}}, For: time.Hour},
	} {
		if broken, err := b.Break(t.Context(), w); !runner.Misused(err) || !strings.Contains(err.Error(),
			"(hint: ") && w.Kind != "fire" {
			t.Errorf("%v: %+v, %v", &w, broken, err)
		}
	}
	if len(noted) != 1 || noted[0].What != "broken" || noted[0].Node != 0 || noted[0].Took != time.Minute ||
		noted[0].Text != done.Text {
		t.Errorf("noted: %+v", noted)
	}
	b.events.Wait()
	if all := eventsOf(t, b.pool); len(all) != 1 || all[0].Text != done.Text || all[0].What != "broken" ||
		all[0].Took != time.Minute {
		t.Errorf("the pool's events: %+v", all)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if s, err := ops.Status(addr); err != nil || s.Nodes[0].Broken+s.Nodes[2].Broken != "" {
		t.Errorf("it is closed: %v: %+v", err, s)
	}
}

// TestDying: what may be dead for the pool, and what is not.
func TestDying(t *testing.T) {
	nodes := func(n int) *ops.State {
		s := new(ops.State)
		for i := range n {
			is := &ops.Served{Voter: i < 7, Reachable: true, InPool: true}
			s.Nodes = append(s.Nodes, ops.Node{Up: true, Served: is})
		}
		return s
	}
	for _, c := range []struct {
		nodes int
		kind  BreakKind
		cut   []int
		want  int
	}{
		{3, BreakNode, []int{1}, 1}, {3, BreakStop, []int{1}, 1}, {3, BreakSlow, []int{1}, 0},
		{3, BreakCut, []int{1}, 1},
		{3, BreakCut, []int{0, 1}, 0},       // each has a majority with the third
		{3, BreakCut, []int{0, 1, 2}, 3},    // none has
		{5, BreakCut, []int{0, 1, 2}, 0},    // three of five do without two
		{5, BreakCut, []int{0, 1, 2, 3}, 4}, // four with only the fifth do not
		{8, BreakCut, []int{0, 1, 7}, 0},    // the eighth is no voter
		{4, BreakCut, []int{0, 1}, 0},       // three of four live for each
	} {
		got := dying(nodes(c.nodes), &Break{Kind: c.kind, Target: Target{Nodes: c.cut}})
		if len(got) != c.want {
			t.Errorf("%s of %v of %d nodes: %v", c.kind, c.cut, c.nodes, got)
		}
	}
	if got := dying(nodes(3), &Break{Kind: BreakCut, Target: Target{Nodes: []int{1}, Clients: true}}); len(got) != 1 {
		t.Errorf("cut off from clients: %v", got)
	}
	if got := dying(&ops.State{Nodes: make([]ops.Node, 3)}, &Break{Kind: BreakCut, Target: Target{Nodes: []int{0,
		1}}}); len(got) != 2 {
		t.Errorf("of nodes that are not known: %v", got)
	}
}

// eventsOf reads the events that a pool keeps.
func eventsOf(t *testing.T, p *stores.Pool) []telemetry.Event {
	t.Helper()
	ep, err := p.Fabric.Open("reader")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	r, err := telemetry.Find(ep, p.Fabric.Nodes())
	if err != nil {
		t.Fatal(err)
	}
	all, err := telemetry.NewReader(r).Events(ep)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestCrashIsAnEvent: one that is for good is among the pool's events, too.
func TestCrashIsAnEvent(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	if _, err := ops.Up("shm:events", "fusee", stores.Params{Records: 1000}); err != nil {
		t.Fatal(err)
	}
	if _, err := CrashNode("shm:events", 2, false); err != nil {
		t.Fatal(err)
	}
	p, err := stores.Open("shm:events")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if all := eventsOf(t, p); len(all) != 1 || all[0].Node != 2 ||
		all[0].Text != "crashed node 2 of shm:events: it is down for good" {
		t.Errorf("%+v", all)
	}
}
