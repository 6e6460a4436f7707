package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain is a node, too: the argument says which kind.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || !strings.HasPrefix(os.Args[1], "node-") {
		goleak.VerifyTestMain(m)
		return
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	if err := AwaitRecord(os.Stdin); err != nil {
		os.Exit(2)
	}
	switch os.Args[1] {
	case "node-broken":
		fmt.Fprintln(os.Stderr, "farkv: no memory today")
		os.Exit(1)
	case "node-mute":
		os.Exit(0)
	case "node-slow": // never serves
		<-ended
		os.Exit(0)
	}
	fmt.Println("a line that is no JSON\n" + `{"version": 1, "address": "127.0.0.1:` + fmt.Sprint(os.Getpid()) + `"}`)
	for os.Args[1] == "node-stubborn" {
		<-ended
	}
	<-ended
}

// kinds are the nodes that a test starts, one after the other.
func kinds(all ...string) Command {
	return func(node int, _ string) []string {
		exe, err := os.Executable()
		if err != nil {
			panic(err)
		}
		return []string{exe, all[node]}
	}
}

// place is a folder for run folders.
func place(t *testing.T) {
	t.Helper()
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each node waits a second when it is done
}

func create(t *testing.T) *Pool {
	t.Helper()
	p, err := Create("pool")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after a failure
		if err := p.Stop(0); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestLife(t *testing.T) {
	place(t)
	p := create(t)
	if err := p.Start(t.Context(), 2, kinds("node-good", "node-good", "node-good")); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context(), 1, kinds("node-good", "node-good", "node-good")); err != nil {
		t.Fatal(err)
	}
	if addr, err := Resolve("pool"); addr != "" || err != nil {
		t.Errorf("a pool that was not made has an address: %q, %v", addr, err)
	}
	if err := p.Made("tcp:somewhere"); err != nil {
		t.Fatal(err)
	}
	if _, err := Create("pool"); !errors.Is(err, ErrExists) {
		t.Errorf("made twice: %v", err)
	}
	again, err := Open("pool")
	if err != nil {
		t.Fatal(err)
	}
	if addr, err := Resolve("pool"); addr != "tcp:somewhere" || err != nil || !slices.Equal(again.Nodes, p.Nodes) {
		t.Errorf("%q, %+v, want %+v", addr, again.Record, p.Record)
	}
	if names, err := List(); err != nil || !slices.Equal(names, []string{"pool"}) {
		t.Errorf("%v, %v", names, err)
	}
	for i, n := range again.Nodes {
		if want := fmt.Sprint("127.0.0.1:", n.PID); n.Address != want || !again.Alive(i) {
			t.Errorf("node %d: %+v, alive: %v", i, n, again.Alive(i))
		}
		if sid, err := getsid(n.PID); err != nil || sid != n.PID {
			t.Errorf("node %d is in session %d, not its own (%v)", i, sid, err)
		}
	}
	if killed, err := again.Kill(1); err != nil || !killed || again.Alive(1) {
		t.Errorf("kill: %v, %v, alive: %v", killed, err, again.Alive(1))
	}
	if killed, err := again.Kill(1); err != nil || killed {
		t.Errorf("killed twice: %v, %v", killed, err)
	}
	if err := again.Stop(time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("pool"); !errors.Is(err, ErrNoPool) || again.Alive(0) || again.Alive(2) {
		t.Errorf("it is not gone: %v", err)
	}
}

func getsid(pid int) (int, error) {
	sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(sid), nil
}

// A node that does not come up says why, and the others can be stopped.
func TestNodesThatDoNotServe(t *testing.T) {
	for kind, says := range map[string]string{
		"node-broken": "farkv: no memory today", "node-mute": "without a word", "node-slow": "context canceled",
	} {
		t.Run(kind, func(t *testing.T) {
			place(t)
			p := create(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if kind == "node-slow" {
				go func() { // when the first one serves
					defer cancel()
					for said(p.Log(0)) == "" && ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
				}()
			}
			err := p.Start(ctx, 2, kinds("node-good", kind))
			if !errors.Is(err, ErrStart) || !strings.Contains(err.Error(), says) ||
				!strings.Contains(err.Error(), "node 1") {
				t.Errorf("%v", err)
			}
			if !p.Alive(0) {
				t.Error("node 0 is not in the record, or did not start")
			}
			if err := p.Stop(time.Minute); err != nil || p.Alive(0) {
				t.Errorf("%v, alive: %v", err, p.Alive(0))
			}
		})
	}
	for range 20 { // of several that end, before or after a look at them, the first is told
		place(t)
		p := create(t)
		err := p.Start(t.Context(), 3, kinds("node-broken", "node-broken", "node-mute"))
		if !errors.Is(err, ErrStart) || !strings.Contains(err.Error(), "node 0: ") ||
			!strings.Contains(err.Error(), "no memory today") {
			t.Errorf("%v", err)
		}
		if err := p.Stop(time.Minute); err != nil {
			t.Error(err)
		}
	}
	place(t)
	p := create(t)
	if err := p.Start(t.Context(), 1, func(int, string) []string { return []string{"/nowhere/farkv"} }); !errors.Is(err,
		ErrStart) {
		t.Errorf("a program that is not there: %v", err)
	}
}

func TestStubbornNode(t *testing.T) {
	place(t)
	p := create(t)
	if err := p.Start(t.Context(), 1, kinds("node-stubborn")); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(20 * time.Millisecond); err != nil || p.Alive(0) {
		t.Errorf("%v, alive: %v", err, p.Alive(0))
	}
}

// A process that has the number of one that was started here, and is another, is left alone.
func TestReusedPID(t *testing.T) {
	place(t)
	bystander := exec.Command("sleep", "60")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(bystander.Process.Kill(), unlessKilled(bystander.Wait())); err != nil {
			t.Errorf("the bystander was killed: %v", err)
		}
	}()
	start, err := startOf(bystander.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	p := create(t)
	p.Nodes = []Process{
		{PID: bystander.Process.Pid, Start: start - 1, Boot: boot},
		{PID: bystander.Process.Pid, Start: start, Boot: "another"},
		{PID: 1, Start: start, Boot: boot}, {PID: 0, Boot: boot}, {PID: -1, Boot: boot},
	}
	for i := range p.Nodes {
		if killed, err := p.Kill(i); killed || err != nil || p.Alive(i) {
			t.Errorf("%+v: killed: %v, %v, alive: %v", p.Nodes[i], killed, err, p.Alive(i))
		}
	}
	if err := p.Stop(0); err != nil {
		t.Fatal(err)
	}
	if now, err := startOf(bystander.Process.Pid); err != nil || now != start {
		t.Errorf("the bystander was killed: %v", err)
	}
	p = create(t)
	p.Nodes = []Process{{PID: bystander.Process.Pid, Start: start, Boot: boot}}
	if !p.Alive(0) { // or the test shows nothing
		t.Error("a process is not found by its number, start and boot")
	}
	p.Nodes = nil
}

func unlessKilled(err error) error {
	if err != nil && err.Error() == "signal: killed" {
		return nil
	}
	return err
}

func TestFolders(t *testing.T) {
	for _, name := range []string{"", ".", "..", ".hidden", "-f", "a/b", "a b", strings.Repeat("x", 201)} {
		if _, err := Create(name); !errors.Is(err, ErrName) {
			t.Errorf("create %q: %v", name, err)
		}
		if _, err := Open(name); !errors.Is(err, ErrName) {
			t.Errorf("open %q: %v", name, err)
		}
	}
	place(t)
	if names, err := List(); err != nil || len(names) > 0 {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := Open("nosuch"); !errors.Is(err, ErrNoPool) {
		t.Error(err)
	}
	p := create(t)
	record := filepath.Join(p.Folder(), recordFile)
	for _, text := range []string{"", "{", `{"version": 2, "name": "pool"}`, `{"version": 1, "name": "other"}`, `[]`} {
		if err := os.WriteFile(record, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open("pool"); !errors.Is(err, ErrRecord) {
			t.Errorf("%q: %v", text, err)
		}
		if addr, err := Resolve("pool"); addr != "" || !errors.Is(err, ErrRecord) {
			t.Errorf("%q: %q, %v", text, addr, err)
		}
	}
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("pool"); !errors.Is(err, ErrRecord) {
		t.Errorf("no record: %v", err)
	}
	if err := os.Chmod(Root(), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Create("second"); !errors.Is(err, ErrFolder) || !strings.Contains(err.Error(), "others may use") {
		t.Errorf("others may look into it: %v", err)
	}
	t.Setenv("XDG_RUNTIME_DIR", "/nowhere")
	if _, err := Create("second"); !errors.Is(err, ErrFolder) {
		t.Error(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", "")
	if want := fmt.Sprintf("farkv-%d", os.Getuid()); filepath.Base(Root()) != want {
		t.Errorf("%s, want .../%s", Root(), want)
	}
}
