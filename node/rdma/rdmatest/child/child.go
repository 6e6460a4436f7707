//go:build unix

// Package child runs a test's program again as other processes, which the test talks to, stops and
// kills.
package child

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// env tells a process that it is a child, and with which arguments, each of them a word.
const env = "FARKV_TEST_CHILD"

// Main runs a child's main, and ends the process, where the process is one; elsewhere it returns.
// TestMain begins with it.
func Main(main func(args []string) error) {
	args := os.Getenv(env)
	if args == "" {
		return
	}
	if err := main(strings.Fields(args)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Command returns how to start a child, for callers that do it in a way of their own.
func Command(args ...string) *exec.Cmd {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), env+"="+strings.Join(args, " "), "GORACE=atexit_sleep_ms=0")
	return c
}

// Process is a child. Its methods are for one goroutine.
type Process struct {
	*exec.Cmd
	out  *bufio.Reader
	in   io.Closer
	dead sync.Once
}

// Start starts a child, which is killed when the test ends, if it has not ended before.
func Start(t testing.TB, args ...string) *Process {
	t.Helper()
	c := Command(args...)
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
	p := &Process{Cmd: c, out: bufio.NewReader(out), in: in}
	t.Cleanup(p.Kill)
	return p
}

// Line returns the next line that the process prints.
func (p *Process) Line(t testing.TB) string {
	t.Helper()
	s, err := p.Next()
	if err != nil {
		t.Fatalf("child said %q: %v", s, err)
	}
	return s
}

// Next is Line, of a process that may end before.
func (p *Process) Next() (string, error) {
	s, err := p.out.ReadString('\n')
	return strings.TrimSpace(s), err
}

// Release ends the process's input, which it waits for where it is to stay in the midst of
// something.
func (p *Process) Release() { p.in.Close() }

// End releases the process and waits until it has ended, which it has to do well.
func (p *Process) End(t testing.TB) {
	t.Helper()
	p.Release()
	out, _ := io.ReadAll(p.out)
	p.dead.Do(func() {
		if err := p.Wait(); err != nil {
			t.Fatalf("child: %v: %s", err, out)
		}
	})
}

// Kill ends the process by SIGKILL.
func (p *Process) Kill() {
	p.dead.Do(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
}

// Stop stops the process, and returns when all of its threads stand still.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	p.AwaitStop(t)
}

// AwaitStop returns when all of the process's threads stand still, of one that calls StandStill.
func (p *Process) AwaitStop(t testing.TB) {
	t.Helper()
	var s syscall.WaitStatus
	if _, err := syscall.Wait4(p.Process.Pid, &s, syscall.WUNTRACED, nil); err != nil || !s.Stopped() {
		t.Fatalf("wait until the child stands still: %v, %v", s, err)
	}
}

// GoOn lets a process that was stopped go on.
func (p *Process) GoOn(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGCONT)
}

// StandStill stops this process, a child, and returns when it goes on. One that stops itself has
// run for no longer than it knows, however long its parent stood still meanwhile.
func StandStill() error {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return err
	}
	<-goesOn // another thread may get the signal, and this one run on until it stops, too
	return nil
}

func (p *Process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}
