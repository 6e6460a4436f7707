package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/workloads/runner"
)

// memoryNode is a program that serves as a memory node until its standard input ends. It says its
// address.
func memoryNode() {
	n, err := fabrics.Serve(fabrics.NodeConfig{Listen: "127.0.0.1:0", Memory: 64 << 20})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(n.Addr())
	io.Copy(io.Discard, os.Stdin)
	n.Close()
}

// startNode starts the process of a memory node, which end kills.
func startNode() (addr string, end func(), err error) {
	cmd := exec.Command("memory-node")
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	end = sync.OnceFunc(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		end()
	}
	return strings.TrimSpace(line), end, err
}

// memoryNodes starts the processes of a pool. kill ends them at once.
func memoryNodes(t *testing.T, n int) (addr string, kill func()) {
	t.Helper()
	var all []string
	var ends []func()
	for range n {
		addr, end, err := startNode()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(end)
		all, ends = append(all, addr), append(ends, end)
	}
	return "tcp:" + strings.Join(all, ","), func() {
		for _, end := range ends {
			end()
		}
	}
}

// nodes NAME N starts N memory nodes, which end with the script, and sets a variable to the address
// of their pool.
func nodes(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	var all []string
	for range n {
		addr, end, err := startNode()
		ts.Check(err)
		ts.Defer(end)
		all = append(all, addr)
	}
	ts.Setenv(args[0], "tcp:"+strings.Join(all, ","))
}

// TestGonePool takes the pool away under a run without end. It ends by itself, with one line that
// says why, and a status that is not 0.
func TestGonePool(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("pools that processes share need Linux")
	}
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	gone(t, "shm:gone", func() error { return fabrics.Remove("shm:gone", true) })
}

// TestGoneNodes is TestGonePool for pools of memory nodes.
func TestGoneNodes(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("memory nodes need Linux")
	}
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		pool, kill := memoryNodes(t, 3)
		gone(t, pool, func() error { kill(); return nil })
	})
	t.Run("emptied", func(t *testing.T) {
		t.Parallel()
		pool, _ := memoryNodes(t, 3)
		gone(t, pool, func() error { return fabrics.Remove(pool, true) })
	})
}

// gone loads a pool and has take take it away under a run.
func gone(t *testing.T, pool string, take func() error) {
	common := []string{"fusee", "-P", "workloada", "-p", "recordcount=200", "-p", "farkv.pool=" + pool,
		"--threads", "4"}
	if out, err := exec.Command("go-ycsb",
		append([]string{"load"}, common...)...).CombinedOutput(); err != nil {
		t.Fatalf("load: %v\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "results.json")
	cmd := exec.Command("go-ycsb", append([]string{"run", "--interval", "1", "--results", file,
		"-p", "operationcount=1000000000000", "--target", "200"}, common...)...)
	out, errs := new(said), new(said)
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()
	out.find(t, regexp.MustCompile(`(?m)^\[\d+s\] [1-9]\d* operations`))
	if err := take(); err != nil {
		t.Fatal(err)
	}
	errs.find(t, regexp.MustCompile(`(?m)^go-ycsb: the pool is gone: `+regexp.QuoteMeta(pool)+
		`.*: no such pool \(the results are those of \d+ operations, \d+ of which failed\)$`))
	if err := <-ended; cmd.ProcessState.ExitCode() != exitFailed {
		t.Errorf("it ended with %v", err)
	}
	if text := errs.text.String(); strings.Count(text, "\n") != 1 {
		t.Errorf("not one line:\n%s", text)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := runner.ReadResult(f)
	if err != nil || !strings.HasPrefix(r.Problem, "the pool is gone: ") || len(r.Series) == 0 ||
		r.Interrupted {
		t.Errorf("results: %+v, %v", r, err)
	}
}
