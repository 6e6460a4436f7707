package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/workloads/check/teeth"
	"github.com/farkv/farkv/workloads/check/wait"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/ycsb"
)

// programs are what tests run as processes.
var programs = map[string]func(){"go-ycsb": main, "memory-node": memoryNode, "check-pool": checkPool}

func TestMain(m *testing.M) {
	// More tests at a time than there are processors: they wait for other processes.
	if err := flag.Set("test.parallel", strconv.Itoa(2+runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	testscript.Main(m, programs)
}

// checkPool is a program that looks at all of a pool: it fails where something is wrong, or waits
// for a recovery.
func checkPool() {
	p, err := stores.Open(os.Args[1])
	if err == nil {
		var r client.Report
		if r, err = p.Kind.Check(p.Fabric); err == nil && len(r.Damage)+len(r.Waiting)+len(r.Unchecked) > 0 {
			err = fmt.Errorf("%+v", r)
		}
		err = errors.Join(err, p.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			dir := filepath.Join(e.WorkDir, "shm")
			e.Setenv("FARKV_SHM_DIR", dir)
			run := filepath.Join(e.WorkDir, "run")
			e.Setenv("XDG_RUNTIME_DIR", run)
			e.Defer(func() {
				if err := endNodes(run); err != nil {
					t.Error(err)
				}
			})
			return errors.Join(os.MkdirAll(dir, 0o700), os.MkdirAll(run, 0o700))
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "shm":
				return runtime.GOOS == "linux", nil
			case "ibverbs":
				return fabrics.Lacks("rdma") == nil, nil
			case "race":
				return teeth.UnderRace, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "results": results, "oneline": oneline,
			"killnode": killNode, "nodes": nodes,
			"endnodes": func(ts *testscript.TestScript, _ bool, _ []string) { ts.Check(endNodes(ts.MkAbs("run"))) },
		},
	})
}

// endNodes ends the memory nodes that loads started, of run folders in a folder, and waits until
// they have.
func endNodes(run string) error {
	files, err := filepath.Glob(filepath.Join(run, "farkv", "*", "node-*.pid"))
	var pids []int
	for _, name := range files {
		text, wrong := os.ReadFile(name)
		pid, bad := strconv.Atoi(strings.TrimSpace(string(text)))
		if err = errors.Join(err, wrong, bad); err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		pids = append(pids, pid)
	}
	// They end together: each waits for a moment for clients, and servers for other servers.
	for end := time.Now().Add(wait.Hang); len(pids) > 0; time.Sleep(10 * time.Millisecond) {
		pids = slices.DeleteFunc(pids, func(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
		if len(pids) > 0 && time.Now().After(end) {
			return fmt.Errorf("nodes of processes %d do not end", pids)
		}
	}
	return err
}

// killNode N kills the memory node of that number that a load started.
func killNode(ts *testscript.TestScript, _ bool, args []string) {
	files, err := filepath.Glob(filepath.Join(ts.MkAbs("run"), "farkv", "*", "node-"+args[0]+".pid"))
	ts.Check(err)
	if len(files) != 1 {
		ts.Fatalf("%d nodes %s", len(files), args[0])
	}
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(files[0])))
	ts.Check(err)
	ts.Check(syscall.Kill(pid, syscall.SIGKILL))
}

// exits STATUS COMMAND... fails unless the command ends with that status.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if err != nil {
		ts.Fatalf("exits: %v", err)
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// oneline fails unless standard error has one line, which is no stack trace and no usage.
func oneline(ts *testscript.TestScript, _ bool, _ []string) {
	text := ts.ReadFile("stderr")
	if strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "go-ycsb: ") {
		ts.Fatalf("standard error is not one line:\n%s", text)
	}
}

// results FILE OPERATIONS FAILED fails unless the results file says so.
func results(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	defer f.Close()
	r, err := runner.ReadResult(f)
	ts.Check(err)
	if got := fmt.Sprintf("%d %d", r.Operations, r.Failed); got != strings.Join(args[1:], " ") {
		ts.Fatalf("the results are %s", got)
	}
}

// TestSignals: what was measured until then is printed and written, and the status names the
// signal.
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		file := filepath.Join(t.TempDir(), "results.json")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, "go-ycsb", "run", "noop", "-P", "workloada", "-p",
			"operationcount=1000000000000", "--interval", "1", "--threads", "3", "--results", file)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var total bool
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "[") {
				cmd.Process.Signal(sig)
				cmd.Process.Signal(sig) // as timeout(1) does, to the process and to its group
			}
			total = total || strings.HasPrefix(lines.Text(), "TOTAL  - Takes(s): ")
		}
		err = cmd.Wait()
		cancel()
		if code := cmd.ProcessState.ExitCode(); code != 128+int(sig) {
			t.Errorf("%v: exit status %d: %v", sig, code, err)
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := runner.ReadResult(f)
		f.Close()
		if err != nil || !r.Interrupted || r.Operations == 0 || !total {
			t.Errorf("%v: results %+v, %v; total printed: %v", sig, r, err, total)
		}
	}
}

// TestOutputWithoutReader: a run stops in order, and says why, when its output has no reader.
func TestOutputWithoutReader(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "results.json")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go-ycsb", "run", "noop", "-P", "workloada", "-p", "operationcount=1000000000000",
		"--interval", "1", "--results", file)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	bufio.NewReader(out).ReadString('\n')
	out.Close()
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 ||
		!strings.Contains(stderr.String(), "go-ycsb: standard output: ") || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("exit status %d: %s", code, stderr.String())
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the results so far: %v", err)
	}
}

// TestWorkloadFiles: each is one that noop can run, so that no property in them is misspelt or out
// of range.
func TestWorkloadFiles(t *testing.T) {
	for _, name := range ycsb.Names() {
		p, err := propertyFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range p.Keys() {
			if err := checkName(key); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		c, err := runner.Configure(p)
		if err != nil || c.Bounded() != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if sum := c.Spec.Read + c.Spec.Update + c.Spec.Insert + c.Spec.Scan + c.Spec.ReadModifyWrite; sum != 1 {
			t.Errorf("%s: the proportions sum to %v", name, sum)
		}
		if ycsb.Title(name) == "" {
			t.Errorf("%s has no title", name)
		}
		pair := map[string]int{"fusee": 1024, "swarm": 24 + 64, "rtx": 16, "rcuckoo": 12}
		family, _, _ := strings.Cut(name, "-")
		if want, ok := pair[family]; ok && c.Spec.PairBytes() != want {
			t.Errorf("%s: pairs of %d bytes, want %d", name, c.Spec.PairBytes(), want)
		}
	}
}

// said is what a program has written so far.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

// find waits until something was said.
func (s *said) find(t *testing.T, what *regexp.Regexp) string {
	t.Helper()
	for until := time.Now().Add(wait.Hang); time.Now().Before(until); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		found := what.FindString(s.text.String())
		s.mu.Unlock()
		if found != "" {
			return found
		}
	}
	t.Fatalf("never %v", what)
	return ""
}

// Metrics are served while a run goes on, and no longer.
func TestMetrics(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("pools that processes share need Linux")
	}
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	common := []string{"fusee", "-P", "workloada", "-p", "recordcount=100", "-p", "farkv.metrics=0", "-p",
		"farkv.metricspublic=false"}
	if status := execute(append([]string{"load"}, common...), strings.NewReader(""), io.Discard,
		io.Discard); status != 0 {
		t.Fatalf("load: %d", status)
	}
	errs, ended := new(said), make(chan int, 1)
	go func() {
		args := append([]string{"run", "-p", "operationcount=1000000000000", "--target", "1000"}, common...)
		ended <- execute(args, strings.NewReader(""), io.Discard, errs)
	}()
	interrupt := sync.OnceValue(func() int {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Signal(os.Interrupt)
		}
		if err != nil {
			t.Error(err)
		}
		return <-ended
	})
	url := errs.find(t, regexp.MustCompile(`http://\S+/metrics`))
	defer interrupt()
	some := regexp.MustCompile(`(?m)^farkv_client_operations_total{operation="read",result="ok"} [1-9]`)
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		text := page(t, url)
		if some.MatchString(text) && strings.Contains(text, "\nfarkv_pool_nodes{state=\"up\"} 3\n") {
			break
		}
		if time.Now().After(until) {
			t.Fatal(text)
		}
	}
	if status := interrupt(); status != 128+int(syscall.SIGINT) {
		t.Errorf("run: %d", status)
	}
	if _, err := http.Get(url); err == nil {
		t.Error("metrics are served when the run is over")
	}
}

func page(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
