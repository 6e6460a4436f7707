package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/daemon"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// patience bounds whatever a test waits for, on a machine that has much else to do.
const patience = time.Minute

const (
	proofWorkers = 3  // of a process
	proofKeys    = 24 // that all workers share

	statusPause = 250 * time.Millisecond // in front of a 'farkv status', which would take a processor from the workers
)

// proofPause is of a worker, at most: histories are to be checked in seconds. Without $FARKV_LONG
// all clients of a pool and its nodes take a fifth of a processor, since other tests run meanwhile.
func proofPause() time.Duration {
	if os.Getenv("FARKV_LONG") == "1" {
		return 8 * time.Millisecond
	}
	return 50 * time.Millisecond
}

// long skips a proof, or one more case of it, that takes its time: .ci/run has it.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("FARKV_LONG") != "1" {
		t.Skip("takes its time: FARKV_LONG=1 runs it, as .ci/run does")
	}
}

// stage is where processes play: memory nodes and a pool on them, and programs that work with it.
type stage struct {
	t       *testing.T
	folder  string
	env     []string
	pool    string
	nodes   []*process
	at      []string // addresses of the nodes
	workers int      // that were numbered so far
	// of so many workers each writes keys of its own: what became of a write can always be told; 0:
	// any
	own int
}

// process is one that the test started. What it says is in files, so that a failure can show it.
type process struct {
	*exec.Cmd
	name   string
	stage  *stage
	over   chan struct{} // closed when it has ended
	err    error         // how; behind over
	doomed bool          // the test ends it
}

func newStage(t *testing.T) *stage {
	t.Helper()
	if teeth.UnderRace {
		t.Skip("storetest has processes and nodes killed under -race; run without it")
	}
	s := &stage{t: t, folder: t.TempDir()}
	for _, dir := range []string{"run", "shm", "histories"} {
		if err := os.Mkdir(filepath.Join(s.folder, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.env = append(os.Environ(), "XDG_RUNTIME_DIR="+filepath.Join(s.folder, "run"),
		"FARKV_SHM_DIR="+filepath.Join(s.folder, "shm"), "GORACE=atexit_sleep_ms=0")
	return s
}

func (s *stage) histories() string { return filepath.Join(s.folder, "histories") }

// start starts a program of this test, in a network of its own where there is one.
func (s *stage) start(in *network, name, program string, args ...string) *process {
	s.t.Helper()
	p := &process{Cmd: in.command(program, args...), name: name, stage: s, over: make(chan struct{})}
	p.Env, p.SysProcAttr = s.env, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if p.Stdout, err = appendTo(p.file("out")); err == nil {
		p.Stderr, err = appendTo(p.file("log"))
	}
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		s.t.Fatalf("start %s: %v", name, err)
	}
	p.Stdout.(*os.File).Close()
	p.Stderr.(*os.File).Close()
	go func() {
		p.err = p.Wait()
		close(p.over)
	}()
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			s.t.Logf("%s (process %d) said:\n%s", p.name, p.Process.Pid, tail(p.said("log"), 40))
		}
	})
	return p
}

func (p *process) file(kind string) string { return filepath.Join(p.stage.folder, p.name+"."+kind) }

func (p *process) said(kind string) []byte {
	text, err := os.ReadFile(p.file(kind))
	if err != nil {
		p.stage.t.Error(err)
	}
	return text
}

// kill ends the process at once.
func (p *process) kill() {
	p.doomed = true
	_ = p.Process.Kill() // it may have ended
	<-p.over
}

func tail(text []byte, lines int) []byte {
	all := bytes.SplitAfter(text, []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], nil)
}

func (p *process) ended() bool {
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}

// alive fails the test when the process has ended by itself.
func (p *process) alive() {
	p.stage.t.Helper()
	if p.ended() && !p.doomed {
		p.stage.t.Fatalf("%s ended: %v\n%s%s", p.name, p.err, p.said("out"), tail(p.said("log"), 40))
	}
}

// leave lets the process end by itself.
func (p *process) leave() {
	p.stage.t.Helper()
	p.alive()
	p.doomed = true
	if err := p.Process.Signal(os.Interrupt); err != nil {
		p.stage.t.Fatalf("%s: %v", p.name, err)
	}
	select {
	case <-p.over:
	case <-time.After(patience):
		_ = p.Process.Signal(syscall.SIGQUIT) // it says where it is
		<-p.over
	}
	if p.err != nil {
		p.stage.t.Fatalf("%s: %v\n%s", p.name, p.err, p.said("log"))
	}
}

// until waits for something, while the processes are alive.
func (s *stage) until(what string, is func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// node starts a memory node and waits until it serves.
func (s *stage) node(in *network, listen string, args ...string) {
	s.t.Helper()
	args = append([]string{"node", "--memory", "64MiB", "--listen", listen, "--drain", "100ms", "-o", "json"}, args...)
	p := s.start(in, fmt.Sprint("node", len(s.nodes)), "farkv", args...)
	s.nodes = append(s.nodes, p)
	var serving daemon.Serving
	s.until(p.name+" serves", func() bool {
		p.alive()
		return json.Unmarshal(p.said("out"), &serving) == nil
	})
	s.at = append(s.at, serving.Address)
}

// farkv runs a command, which has to succeed, and returns its answer.
func (s *stage) farkv(in *network, args ...string) []byte {
	s.t.Helper()
	text, err := s.tried(in, args...)
	if err != nil {
		s.t.Fatalf("farkv %s: %v", strings.Join(args, " "), err)
	}
	return text
}

func (s *stage) tried(in *network, args ...string) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd := in.command("farkv", args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%w: %s%s", err, &out, &errs)
	}
	return out.Bytes(), nil
}

// up makes the pool.
func (s *stage) up(in *network, pool string, args ...string) {
	s.t.Helper()
	s.pool = pool
	s.farkv(in, append([]string{"up", pool, "--records", "1000", "--pair-bytes", "256"}, args...)...)
}

// status is what 'farkv status' tells; nil when it fails.
func (s *stage) status(in *network) *ops.State {
	began := time.Now()
	text, err := s.tried(in, "status", s.pool, "-o", "json")
	var state ops.State
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		s.t.Logf("after %v: status: %v", time.Since(began).Round(time.Millisecond), err)
		return nil
	}
	return &state
}

// work starts a program that works with the pool, and waits until all its workers have done
// something.
func (s *stage) work(in *network) *process {
	s.t.Helper()
	first := s.workers
	s.workers += proofWorkers
	p := s.start(in, fmt.Sprint("client", first), "record", "-pool", s.pool, "-folder", s.histories(), "-first",
		strconv.Itoa(first),
		"-workers", strconv.Itoa(proofWorkers), "-keys", strconv.Itoa(proofKeys), "-pause", proofPause().String(),
		"-own", strconv.Itoa(s.own))
	for w := range proofWorkers {
		s.until(p.name+" works", func() bool {
			p.alive()
			i, err := os.Stat(historyOf(s.histories(), first+w))
			return err == nil && i.Size() > 2000
		})
	}
	return p
}

// wait lets the clients work for a while.
func (s *stage) wait(d time.Duration, clients ...*process) {
	s.t.Helper()
	time.Sleep(d)
	for _, p := range clients {
		p.alive()
	}
}

// kill kills a node's process, and returns when.
func (s *stage) kill(node int) time.Duration {
	at := realtime.Now()
	s.nodes[node].kill()
	return at
}

// gone waits until the view no longer has the node, and at least so many spares stand for nodes
// that are gone.
func (s *stage) gone(in *network, node, spares int) {
	s.t.Helper()
	s.until(fmt.Sprintf("node %d is gone, and %d spares are filled", node, spares), func() bool {
		time.Sleep(statusPause)
		state := s.status(in)
		if state == nil || state.View.Busy || !state.Nodes[node].Gone {
			return false
		}
		filled := 0
		for _, n := range state.Nodes {
			if n.Replaces != nil && !n.Gone {
				filled++
			}
		}
		return filled >= spares
	})
}

// expelled waits until a master says that a node is gone, and returns when it did so.
func (s *stage) expelled(node int, clients ...*process) (at time.Duration) {
	s.t.Helper()
	said := fmt.Sprintf(" node %d is gone: ", node)
	s.until(said, func() bool {
		for _, p := range clients {
			for line := range strings.Lines(string(p.said("log"))) {
				when, _, ok := strings.Cut(line, said)
				if d, err := time.ParseDuration(when); ok && err == nil {
					at = d
					return true
				}
			}
		}
		return false
	})
	return at
}

// history merges what all workers logged so far.
func (s *stage) history() (all check.History) {
	s.t.Helper()
	for w := range s.workers {
		text, err := os.ReadFile(historyOf(s.histories(), w))
		if errors.Is(err, os.ErrNotExist) { // killed before it began
			continue
		}
		h, wrong := check.Decode(bytes.NewReader(text))
		if err = errors.Join(err, wrong); err != nil {
			s.t.Fatalf("history of worker %d: %v", w, err)
		}
		all = append(all, h...)
	}
	return all
}

// judge wants what is in the pool in the end, and all that was answered before, to be right, and
// the pool to be sound.
func (s *stage) judge(in *network) check.History {
	s.t.Helper()
	look := s.start(in, "look", "record", "-pool", s.pool, "-folder", s.histories(), "-first", strconv.Itoa(s.workers),
		"-keys", strconv.Itoa(proofKeys), "-look")
	s.workers++
	<-look.over
	if look.err != nil {
		s.t.Fatalf("look at the pool in the end: %v\n%s", look.err, look.said("log"))
	}
	if k, err := stores.Lookup(s.status(in).Store); err != nil || k.Recoverer != nil {
		s.farkv(in, "recover", s.pool)
	}
	s.farkv(in, "check", s.pool)
	h := s.history()
	if err := check.Linearizable(h, check.Options{Slack: 20 * time.Microsecond}); err != nil {
		s.t.Errorf("%d operations: %v", len(h), err)
	}
	for _, kind := range []check.Kind{check.Get, check.Insert, check.Update, check.Delete} {
		if n := h.Count(kind, check.OK); n < 10 {
			s.t.Errorf("only %d times %v succeeded, of %d operations", n, kind, len(h))
		}
	}
	return h
}
