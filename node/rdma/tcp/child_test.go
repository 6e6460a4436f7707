package tcp_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// child is the main of another process. It ends when its input does.
func child(args []string) error {
	switch what := args[0]; what {
	case "node":
		return childNode(args[1])
	case "create":
		f, err := tcp.Create(tcp.Options{Addresses: strings.Split(args[1], ",")},
			tcp.Geometry{Nodes: strings.Count(args[1], ",") + 1, Memory: 4096, Clients: 4}, func(*tcp.Fabric) error {
				fmt.Println("formatting")
				_, err := io.Copy(io.Discard, os.Stdin)
				return err
			})
		return errors.Join(err, f.Close())
	default:
		f, err := tcp.Open(tcp.Options{Addresses: strings.Split(args[1], ",")})
		if err != nil {
			return err
		}
		ep, err := f.Open(what)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		return errors.Join(clientRole(what, f, ep), ep.Close(), f.Close())
	}
}

func clientRole(what string, f *tcp.Fabric, ep rdma.Endpoint) error {
	if role, ok := strings.CutPrefix(what, "role-"); ok {
		return rdmatest.Role(role)(f, ep)
	}
	switch what {
	case "hold": // an identity
		fmt.Println(ep.Client())
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case "add": // without end
		fmt.Println(ep.Client())
		for {
			if _, err := add(ep, 0, 0); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("no child %q", what)
}

func childNode(listen string) error {
	n, err := tcp.Listen(tcp.Config{Listen: listen, Memory: 1 << 20, Handler: addByCall})
	if err != nil {
		return err
	}
	fmt.Println(n.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, n.Close())
}

// process is a child.
type process struct {
	*exec.Cmd
	out  *bufio.Reader
	in   io.Closer
	dead sync.Once
}

func spawn(t testing.TB, args ...string) *process {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childEnv+"="+strings.Join(args, " "), "GORACE=atexit_sleep_ms=0")
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: c, out: bufio.NewReader(out), in: in}
	t.Cleanup(func() { p.kill() }) // after a failure; otherwise it is over
	return p
}

// line reads the next line that the process prints.
func (p *process) line(t testing.TB) string {
	t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("child said %q: %v", s, err)
	}
	return strings.TrimSpace(s)
}

// end waits until the process has ended, by itself.
func (p *process) end(t testing.TB) {
	t.Helper()
	p.in.Close()
	out, _ := io.ReadAll(p.out)
	p.dead.Do(func() {
		if err := p.Wait(); err != nil {
			t.Errorf("child: %v: %s", err, out)
		}
	})
}

// kill ends the process by SIGKILL.
func (p *process) kill() {
	p.dead.Do(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
}

// stop stops the process, and returns when all of its threads stand still.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	var s syscall.WaitStatus
	if _, err := syscall.Wait4(p.Process.Pid, &s, syscall.WUNTRACED, nil); err != nil || !s.Stopped() {
		t.Fatalf("wait until the child stands still: %v, %v", s, err)
	}
}

// goOn lets a process that was stopped go on.
func (p *process) goOn(t testing.TB) { p.signal(t, syscall.SIGCONT) }

func (p *process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// nodeProcesses starts n nodes, each a process.
func nodeProcesses(t testing.TB, n int) (nodes []*process, addrs []string) {
	t.Helper()
	for range n {
		p := spawn(t, "node", "127.0.0.1:0")
		nodes, addrs = append(nodes, p), append(addrs, p.line(t))
	}
	return nodes, addrs
}
