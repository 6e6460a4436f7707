package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check"
)

// childEnv tells a test binary that it is one of several processes on one pool, as JSON of child.
const childEnv = "FARKV_STORETEST_CHILD"

// child is what one process does.
type child struct {
	Test   string // name of the test: the child takes the harness of that one
	Fabric string // "shm", "tcp" or "rdma"
	Pool   string // where to open it
	Logs   string // folder of the workers' histories
	First  int    // number of its first worker
	Ops    int
	Seed   uint64
	Doomed bool // it is killed in the midst: the others may find an unknown outcome
}

const (
	processes     = 3
	childWorkers  = 3
	childPatience = time.Minute // a process that takes longer is killed
	// clockSlack covers what the clocks of processors on one machine may differ by.
	clockSlack = time.Microsecond
	// enoughLog is how many bytes of history the doomed process writes before it is killed.
	enoughLog = 32 << 10
)

// processes has the workers in several processes that share a pool: all come to their end, or one
// is killed in the midst.
func (h *Harness) processes(t *testing.T, fabrics ...real) {
	if runtime.GOOS != "linux" {
		t.Skip("processes share a pool on Linux only")
	}
	test, kills := filepath.Dir(t.Name()), uint64(1)
	if long() {
		kills = 3
	}
	for _, on := range fabrics {
		t.Run(on.name+" histories", func(t *testing.T) { report(t, h.shared(on, t.TempDir(), test, 1, false)) })
		for seed := range kills {
			t.Run(fmt.Sprintf("%s killed %d", on.name, seed),
				func(t *testing.T) { report(t, h.shared(on, t.TempDir(), test, seed, true)) })
		}
	}
}

// shared runs the processes on a pool of their own and judges what their workers logged.
func (h *Harness) shared(on real, logs, test string, seed uint64, kill bool) (err error) {
	f, at, end, err := on.make(h)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	ctx, cancel := context.WithTimeout(context.Background(), childPatience)
	defer cancel()
	var g errgroup.Group
	for i := range processes {
		c := child{Test: test, Fabric: on.name, Pool: at, Logs: logs, First: i * childWorkers, Ops: 300 / *part,
			Seed: seed, Doomed: kill}
		if kill && i == 0 {
			c.Ops = 1 << 20
			g.Go(func() error { return c.killed(ctx) })
		} else {
			g.Go(func() error { return c.run(ctx) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	hist, err := decode(logs)
	if err != nil {
		return err
	}
	if got := hist.With(check.OK); len(got) < 100 {
		return fmt.Errorf("only %d of %d operations succeeded", len(got), len(hist))
	}
	if err := judge(hist, kill, clockSlack); err != nil {
		return err
	}
	if err := left(f); err != nil {
		return err
	}
	return h.sound(f, kill)
}

// left waits until no client is listed as alive: some fabrics still list those of a killed process
// for a moment.
func left(f rdma.Fabric) error {
	for until := time.Now().Add(childPatience); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		clients, err := rdma.ListClients(f)
		if err == nil && !slices.ContainsFunc(clients, func(c rdma.Client) bool { return c.Alive }) {
			return nil
		}
	}
	return fmt.Errorf("clients of processes that ended are alive: %+v", f.Clients())
}

func (c *child) command(ctx context.Context) (*exec.Cmd, *bytes.Buffer, error) {
	p, err := json.Marshal(c)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run="+pattern(c.Test), "-test.count=1")
	cmd.Env = append(os.Environ(), childEnv+"="+string(p))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out, nil
}

func (c *child) run(ctx context.Context) error {
	cmd, out, err := c.command(ctx)
	if err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("process of worker %d: %w\n%s", c.First, err, out)
	}
	return nil
}

// killed runs the process until it has worked for a while, and kills it.
func (c *child) killed(ctx context.Context) error {
	cmd, out, err := c.command(ctx)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for tick := time.NewTicker(time.Millisecond); ; {
		select {
		case err := <-ended:
			tick.Stop()
			return fmt.Errorf("process of worker %d ended before it was killed: %w\n%s", c.First, err, out)
		case <-tick.C:
		}
		if i, err := os.Stat(c.log(c.First)); err == nil && i.Size() >= enoughLog {
			tick.Stop()
			cmd.Process.Kill()
			<-ended
			return nil
		}
	}
}

func (c *child) log(w int) string { return filepath.Join(c.Logs, fmt.Sprintf("worker-%d.jsonl", w)) }

// child does the work of one process, if this is one.
func (h *Harness) child(t *testing.T) bool {
	text := os.Getenv(childEnv)
	if text == "" {
		return false
	}
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	if c.Test == t.Name() {
		report(t, h.work(c))
	}
	return true
}

func (h *Harness) work(c child) error {
	on := map[string]real{onShm.name: onShm, onTCP.name: onTCP, onRDMA.name: onRDMA}[c.Fabric]
	f, err := on.open(h, c.Pool)
	if err != nil {
		return err
	}
	l := load{workers: childWorkers, keys: 3, ops: c.Ops, seed: c.Seed, maxValue: h.MaxValue}
	if c.Doomed {
		if h.Impatient != nil {
			h.Open = h.Impatient
		}
		l.killed = true
		if c.First > 0 { // the first process works until it is killed
			l.patience = 2 // without recovery a dead winner's key stays as it is: each try would wait its timeout
		}
	}
	_, err = h.play(f, l, c.First, func(w int, r *check.Recorder) error {
		log, err := os.Create(c.log(w))
		if err == nil {
			r.LogTo(log) // unbuffered, so that it outlives the process
		}
		return err
	})
	return errors.Join(err, f.Close())
}

// decode merges the histories of all workers.
func decode(dir string) (check.History, error) {
	var all check.History
	paths, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		p, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		h, err := check.Decode(bytes.NewReader(p))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, h...)
	}
	return all, nil
}
