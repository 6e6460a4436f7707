package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// ErrStart is wrapped when a node's process ended after its start, or did not serve in time.
var ErrStart = errors.New("memory node did not start")

// startTime bounds how long one node takes until it serves; glance is the pause between two looks.
const (
	startTime = 20 * time.Second
	glance    = 5 * time.Millisecond
)

// Command returns the command line of a node, given the path of its pid file. The process must call
// AwaitRecord before anything else. It says that it serves by a line of JSON on its standard
// output: an object with the member "address".
type Command func(node int, pidFile string) []string

// Start starts n more nodes, detached from this process and its terminal, and waits until all of
// them serve. Each is recorded before it does anything, so that Stop ends it whatever happens to
// the caller. A process that is started and not recorded, because the caller died in between, ends
// by itself. Errors wrap ErrStart, or the reason for which ctx ended.
func (p *Pool) Start(ctx context.Context, n int, command Command) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	first := len(p.Nodes)
	ended := make([]chan error, n)
	for i := range n {
		if ended[i], err = p.startOne(boot, command(first+i, p.PIDFile(first+i))); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("it does not serve after %v", startTime))
	defer cancel()
	for i := range n {
		addr, err := p.serves(ctx, first+i, ended[i])
		if err != nil {
			return fmt.Errorf("node %d: %w: %w", first+i, ErrStart, err)
		}
		p.Nodes[first+i].Address = addr
	}
	return p.save()
}

// recorded is what a process reads on its standard input once it is recorded.
const recorded = "recorded\n"

// AwaitRecord returns nil once the process that started this one as a node has recorded it. in is
// the standard input. An error means that the starter ended before that: no record names this
// process, so it must end.
func AwaitRecord(in io.Reader) error {
	if _, err := io.ReadFull(in, make([]byte, len(recorded))); err != nil {
		return fmt.Errorf("%w: its starter ended before it had recorded the process: %w", ErrStart, err)
	}
	return nil
}

// startOne starts the next node and records it. ended gets a value when the process ends. A crash
// between the start and save leaves a process that reads the end of file and ends.
func (p *Pool) startOne(boot string, args []string) (ended chan error, err error) {
	node := len(p.Nodes)
	// Only this process holds the other end of the pipe: when it dies, the node reads the end of
	// file.
	gate, opener, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("node %d: %w", node, err)
	}
	defer opener.Close()
	cmd, err := p.launch(node, args, gate)
	if err := errors.Join(err, gate.Close()); err != nil {
		return nil, err
	}
	ended = make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // it reaps the process, too
	start, err := startOf(cmd.Process.Pid)
	if errors.Is(err, os.ErrNotExist) {
		err = nil // it has ended: without a start the record names no process, and serves returns why
	}
	if err != nil { // without its start it cannot be distinguished from a later process with its number
		return nil, errors.Join(fmt.Errorf("node %d: %w: %w", node, ErrStart, err), cmd.Process.Kill())
	}
	p.Nodes = append(p.Nodes, Process{PID: cmd.Process.Pid, Start: start, Boot: boot})
	// Until this is durable in the record the process waits at the pipe.
	if err := p.save(); err != nil {
		return nil, err
	}
	_, err = io.WriteString(opener, recorded)
	return ended, unless(err, syscall.EPIPE) // with EPIPE the process has ended: see above
}

// launch starts a process in a session of its own, with its log as output.
func (p *Pool) launch(node int, args []string, stdin *os.File) (*exec.Cmd, error) {
	log, err := os.OpenFile(p.Log(node), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("node %d: %w", node, err)
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, log, log
	cmd.Dir = "/" // keeps no file system busy
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("node %d: %w: %w", node, ErrStart, err)
	}
	return cmd, nil
}

// serves waits until a node prints its address.
func (p *Pool) serves(ctx context.Context, node int, ended <-chan error) (addr string, err error) {
	for {
		if addr := said(p.Log(node)); addr != "" {
			return addr, nil
		}
		select {
		case <-ended:
			return "", errors.New(p.LastLine(node))
		case <-ctx.Done():
			if addr := said(p.Log(node)); addr != "" { // it began to serve since the last look
				return addr, nil
			}
			return "", context.Cause(ctx)
		case <-time.After(glance):
		}
	}
}

// said returns the address in a node's log; "": it has not printed one. A line that is still being
// written does not parse yet.
func said(log string) string {
	text, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(text) {
		var says struct{ Address string }
		if json.Unmarshal(line, &says) == nil && says.Address != "" {
			return says.Address
		}
	}
	return ""
}

// LastLine returns the last line of a node's log, which says why it ended; never "".
func (p *Pool) LastLine(node int) string {
	text, err := os.ReadFile(p.Log(node))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return reason(last)
	}
	return "it ended without a word"
}
