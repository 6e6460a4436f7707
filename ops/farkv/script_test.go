package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sync/errgroup"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster/consul/consultest"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads/check/teeth"
	"github.com/farkv/farkv/workloads/check/wait"
)

func TestMain(m *testing.M) {
	// A few more tests at a time than there are processors: they wait for other processes. With two
	// more than this, dozens of threads waited for two processors: half a second and longer, when a
	// node is given up that is silent for one. With -race all of these processes compute.
	if !teeth.UnderRace {
		if err := flag.Set("test.parallel", strconv.Itoa(2+runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	testscript.Main(m, map[string]func(){
		"farkv": main, "hold": hold, "use": use, "corrupt": corrupt, "empty": empty, "redis-server": redisServer,
		"record": record, "reversion": reversion, "fill": fill,
	})
}

// TestScripts runs the command line end to end. Scripts have a folder of pools and a PATH of their
// own.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, scripts("testdata"))
}

// TestConsul runs the scripts that need a Consul agent, each with one of its own: they take
// whatever node is free there.
func TestConsul(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/consul/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run("agent", func(t *testing.T) {
			t.Parallel()
			p := scripts("")
			p.Files = []string{file}
			agent, setup := consultest.Start(t, nil), p.Setup
			p.Setup = func(env *testscript.Env) error {
				env.Setenv("CONSUL", agent.Address)
				return setup(env)
			}
			testscript.Run(t, p)
		})
	}
}

// device is the RDMA device that scripts with one use.
var device = flag.String("rdma", "", "run the scripts that need an RDMA device, on the one with this IP address")

// TestRDMA runs the scripts that need an RDMA device: go test -tags ibverbs ./ops/farkv -run
// TestRDMA -rdma ADDRESS
func TestRDMA(t *testing.T) {
	if *device == "" {
		t.Skip("needs an RDMA device: -rdma ADDRESS names one, and -tags ibverbs builds for it")
	}
	p := scripts("testdata/rdma")
	setup := p.Setup
	p.Setup = func(env *testscript.Env) error {
		env.Setenv("RDMA", *device)
		return setup(env)
	}
	testscript.Run(t, p)
}

func scripts(dir string) testscript.Params {
	return testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			bin := filepath.SplitList(env.Getenv("PATH"))[0]
			env.Setenv("FARKV", filepath.Join(bin, "farkv"))
			env.Setenv("PATH", bin)
			env.Setenv("TMPDIR", env.Getenv("WORK"))
			env.Setenv("GORACE", "atexit_sleep_ms=0") // else each program waits a second when it is done
			env.Setenv("FARKV_SHM_DIR", filepath.Join(env.WorkDir, "shm"))
			env.Setenv("XDG_RUNTIME_DIR", filepath.Join(env.WorkDir, "run"))
			env.Defer(func() { endNodes(filepath.Join(env.WorkDir, "run")) })
			return errors.Join(os.Mkdir(filepath.Join(env.WorkDir, "shm"), 0o700),
				os.Mkdir(filepath.Join(env.WorkDir, "run"), 0o700))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "process": processOf, "stands": stands, "json": isJSON, "await": await, "client": client,
			"until":  until,
			"occupy": occupy, "terminate": terminate, "addresses": addresses, "flip": flip,
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "recovery":
				k, err := stores.Lookup("fusee")
				return err == nil && k.Recoverer != nil, err
			case "race":
				return teeth.UnderRace, nil
			case "ibverbs":
				return fabrics.Lacks("rdma") == nil, nil
			}
			return false, fmt.Errorf("no such condition")
		},
	}
}

// endNodes ends what 'farkv up' of a script started, and the script, since it failed, did not end.
func endNodes(run string) {
	pools, _ := filepath.Glob(filepath.Join(run, "farkv", "*"))
	for _, folder := range pools {
		down := exec.Command("farkv", "down", filepath.Base(folder), "--force")
		down.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+run)
		_ = down.Run() // some are no pools on purpose
	}
}

// exits STATUS PROGRAM ARGS... runs a program and wants its exit status. A failure is told in one
// line, the last one.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	switch {
	case neg:
		ts.Fatalf("exits takes no !")
	case err == nil && want == 0:
		return
	case !errors.As(err, &exit) || exit.ExitCode() != want:
		ts.Fatalf("exit status: %v, want %d", err, want)
	}
	lines := strings.Split(strings.TrimSuffix(ts.ReadFile("stderr"), "\n"), "\n")
	for i, line := range lines {
		said := strings.HasPrefix(line, "farkv: ") || strings.HasPrefix(line, `{"version":1,"error":"`)
		if said != (i == len(lines)-1) {
			ts.Fatalf("an error is one line, the last: line %d is %q", i+1, line)
		}
	}
}

// isJSON wants the last program's standard output to be one JSON value.
func isJSON(ts *testscript.TestScript, _ bool, _ []string) {
	d := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	var v map[string]any
	if err := d.Decode(&v); err != nil || d.More() || len(v) == 0 {
		ts.Fatalf("not a JSON object: %v", err)
	}
}

// await PATTERN waits until there is a file of such a name; ! await PATTERN wants none.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		if found, err := filepath.Glob(ts.MkAbs(args[0])); err != nil || len(found) > 0 {
			ts.Fatalf("%v, %v", found, err)
		}
		return
	}
	for until := time.Now().Add(wait.Hang); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		if found, err := filepath.Glob(ts.MkAbs(args[0])); err == nil && len(found) > 0 {
			return
		}
	}
	ts.Fatalf("no file %s", args[0])
}

// client NAME VARIABLE looks up the identity of the first client of a name in 'farkv status'.
func client(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(ts.Exec("farkv", "status", "-o", "json"))
	var s ops.State
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &s))
	for _, c := range s.Clients {
		if c.Name == args[0] && c.Alive {
			ts.Setenv(args[1], strconv.Itoa(c.ID))
			return
		}
	}
	ts.Fatalf("no live client %s: %+v", args[0], s.Clients)
}

// process NAME VARIABLE looks up the process of the first client of a name in 'farkv status'.
func processOf(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(ts.Exec("farkv", "status", "-o", "json"))
	var s ops.State
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &s))
	for _, c := range s.Clients {
		if c.Name == args[0] && c.Alive {
			ts.Setenv(args[1], strconv.Itoa(c.PID))
			return
		}
	}
	ts.Fatalf("no live client %s: %+v", args[0], s.Clients)
}

// stands PID waits until a signal stopped a process; ! stands PID waits until it goes on. In place
// of PID there may be a file with the number.
func stands(ts *testscript.TestScript, neg bool, args []string) {
	if _, err := strconv.Atoi(args[0]); err != nil {
		args = []string{ts.ReadFile(args[0])}
	}
	for until := time.Now().Add(wait.Hang); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(args[0]), "stat"))
		ts.Check(err)
		if stopped := bytes.HasPrefix(text[bytes.LastIndexByte(text, ')')+1:], []byte(" T")); stopped != neg {
			return
		}
	}
	ts.Fatalf("process %s: never", args[0])
}

// occupy VARIABLE takes a port of the loopback until the script ends, and names its address.
func occupy(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	ts.Setenv(args[0], l.Addr().String())
}

// flip FILE TEXT flips a bit of a text wherever a file has it, in place: a process may have the
// file mapped.
func flip(ts *testscript.TestScript, _ bool, args []string) {
	name, text := ts.MkAbs(args[0]), []byte(args[1])
	p, err := os.ReadFile(name)
	ts.Check(err)
	if !bytes.Contains(p, text) {
		ts.Fatalf("%s does not have %q", name, text)
	}
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	ts.Check(err)
	for at := 0; ; at++ {
		next := bytes.Index(p[at:], text)
		if next < 0 {
			break
		}
		at += next
		_, wrong := f.WriteAt([]byte{p[at] ^ 4}, int64(at))
		err = errors.Join(err, wrong)
	}
	ts.Check(errors.Join(err, f.Close()))
}

// addresses POOL VARIABLE... names the addresses of a pool's memory nodes.
func addresses(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(ts.Exec("farkv", "status", args[0], "-o", "json"))
	var s ops.State
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &s))
	for i, variable := range args[1:] {
		ts.Setenv(variable, s.Nodes[i].Address)
	}
}

// terminate PID sends SIGTERM to a process. In place of PID there may be a file with the number.
func terminate(ts *testscript.TestScript, _ bool, args []string) {
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		pid, err = strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[0])))
	}
	ts.Check(err)
	p, err := os.FindProcess(pid)
	ts.Check(err)
	ts.Check(p.Signal(syscall.SIGTERM))
}

// until PATTERN PROGRAM ARGS... runs a program again and again until its standard output matches;
// with ! it is to fail then.
func until(ts *testscript.TestScript, neg bool, args []string) {
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	// a program is expensive
	for end := time.Now().Add(wait.Hang); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		if (err != nil) == neg && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
	}
	ts.Fatalf("never %s", args[0])
}

func must[T any](v T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return v
}

// hold POOL NAME FILE is a client that says in a file that it is attached, and lives until it is
// interrupted or killed.
func hold() {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	f := must(fabrics.Open(must(ops.Resolve(os.Args[1]))))
	ep := must(f.Open(os.Args[2]))
	must(0, os.WriteFile(os.Args[3], nil, 0o600))
	<-interrupted
	must(0, errors.Join(ep.Close(), f.Close()))
}

// fill POOL PREFIX PAIRS BYTES puts pairs with values of so many bytes. Keys begin with the prefix.
func fill() {
	pairs, length := must(strconv.Atoi(os.Args[3])), must(strconv.Atoi(os.Args[4]))
	db := must(stores.OpenDB(must(ops.Resolve(os.Args[1])), stores.DBOptions{NoKeeper: true}))
	var err error
	for i := range pairs {
		key := fmt.Appendf(nil, "%s%d", os.Args[2], i)
		err = errors.Join(err, db.Put(context.Background(), key, make([]byte, length)))
	}
	if err := errors.Join(err, db.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// use POOL NAME FILE [PAUSE [only]] puts and gets pairs of its own from several workers until it is
// interrupted, and says in a file that it does. Whatever happens to nodes and other clients, it
// finds what it has put, and is not held up for long. A worker pauses before each pair where the
// script waits for leases, and other scripts need the processors. A program that does nothing else
// is no candidate for the pool's master.
func use() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	const workers, keys, longest = 4, 50, 10 * time.Second
	var pause time.Duration
	if len(os.Args) > 4 {
		pause = must(time.ParseDuration(os.Args[4]))
	}
	db := must(stores.OpenDB(must(ops.Resolve(os.Args[1])),
		stores.DBOptions{Name: os.Args[2], Workers: workers, NoKeeper: len(os.Args) > 5}))
	var all errgroup.Group
	for w := range workers {
		all.Go(func() error {
			have := map[string]string{}
			for i := 0; ctx.Err() == nil; i++ {
				time.Sleep(pause)
				key, value := fmt.Sprintf("%s-%d-%d", os.Args[2], w, i%keys), fmt.Sprint(i)
				err := errors.New("not tried")
				for end := time.Now().Add(longest); err != nil; {
					if err = db.Put(context.Background(), []byte(key), []byte(value)); err != nil &&
						time.Now().After(end) {
						return fmt.Errorf("put %s: %w", key, err)
					}
				}
				have[key] = value
				key = fmt.Sprintf("%s-%d-%d", os.Args[2], w, (i*7)%keys)
				got, err := db.Get(context.Background(), []byte(key))
				for end := time.Now().Add(longest); err != nil && have[key] != "" && time.Now().Before(end); {
					got, err = db.Get(context.Background(), []byte(key))
				}
				if have[key] != "" && string(got) != have[key] { // others of its name may have been here before
					return fmt.Errorf("get %s: %q, not %q (%w)", key, got, have[key], err)
				}
				if i == keys {
					must(0, os.WriteFile(os.Args[3], nil, 0o600))
				}
			}
			return nil
		})
	}
	must(0, errors.Join(all.Wait(), db.Close()))
}

// corrupt POOL TEXT changes a bit wherever a node's memory holds a text.
func corrupt() {
	f := must(fabrics.Open(os.Args[1]))
	ep := must(f.Open("corrupt"))
	text, found := []byte(os.Args[2]), false
	for n := range f.Nodes() {
		b := ep.Batch()
		op := b.Read(rdma.At(n, 0), int(f.Size()))
		must(0, rdma.Do(ep, b, time.Second))
		memory := op.Buf
		damage := ep.Batch()
		p := damage.Alloc(1)
		p[0] = text[0] ^ 1
		for at := bytes.Index(memory, text); at >= 0; at = bytes.Index(memory, text) {
			found = true
			memory[at] = p[0]
			damage.Write(rdma.At(n, uint64(at)), p)
		}
		must(0, rdma.Do(ep, damage, time.Second))
		b.Release()
		damage.Release()
	}
	must(0, errors.Join(ep.Close(), f.Close()))
	if !found {
		must(0, errors.New("no such text"))
	}
}

// empty POOL makes a pool without a store.
func empty() {
	f := must(fabrics.Create(os.Args[1], fabrics.Geometry{Nodes: 1, Memory: 1 << 16, Clients: 2}, nil))
	must(0, f.Close())
}
