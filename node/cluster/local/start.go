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

// ErrStart is wrapped when a node's process ended, or did not serve in time, after it was started.
var ErrStart = errors.New("memory node did not start")

const (
	startTime = 20 * time.Second // of one node until it serves
	glance    = 5 * time.Millisecond
)

// Command returns the command line of a node, whose pid file is the one given. The process must
// call AwaitRecord before anything else, and say that it serves by a line of JSON on its standard
// output, an object with the member "address".
type Command func(node int, pidFile string) []string

// Start starts n more nodes, detached from this process and its terminal, and waits until all of
// them serve. They are in the record before they do anything, so that Stop ends them whatever
// becomes of the caller: a process whose starter dies before the record of it is written ends by
// itself. Errors wrap ErrStart, or what ended ctx.
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

// recorded is what a process reads once it is in the record.
const recorded = "recorded\n"

// AwaitRecord returns nil once the process that started this one as a node has recorded it. in is
// the standard input. An error says that the starter ended before: no record names this process,
// and it must end.
func AwaitRecord(in io.Reader) error {
	if _, err := io.ReadFull(in, make([]byte, len(recorded))); err != nil {
		return fmt.Errorf("%w: its starter ended before it had recorded the process: %w", ErrStart, err)
	}
	return nil
}

// startOne starts the next node and records it. ended gets a value when the process ends.
func (p *Pool) startOne(boot string, args []string) (ended chan error, err error) {
	node := len(p.Nodes)
	// The pipe's other end is in this process alone: when this process dies, the node reads the end of
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
	go func() { ended <- cmd.Wait() }() // ends with the process: nothing is left of it in this one's table
	start, err := startOf(cmd.Process.Pid)
	if errors.Is(err, os.ErrNotExist) {
		err = nil // it has ended, and is told below why; no start means no process
	}
	if err != nil { // without its start it could not be told from a later process of the same number
		return nil, errors.Join(fmt.Errorf("node %d: %w: %w", node, ErrStart, err), cmd.Process.Kill())
	}
	p.Nodes = append(p.Nodes, Process{PID: cmd.Process.Pid, Start: start, Boot: boot})
	if err := p.save(); err != nil {
		return nil, err
	}
	_, err = io.WriteString(opener, recorded)
	return ended, unless(err, syscall.EPIPE) // it has ended, as above
}

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

// serves waits until a node says its address.
func (p *Pool) serves(ctx context.Context, node int, ended <-chan error) (addr string, err error) {
	for {
		if addr := said(p.Log(node)); addr != "" {
			return addr, nil
		}
		select {
		case <-ended:
			return "", errors.New(p.LastLine(node))
		case <-ctx.Done():
			if addr := said(p.Log(node)); addr != "" { // it serves, and had not said so at the last look
				return addr, nil
			}
			return "", context.Cause(ctx)
		case <-time.After(glance):
		}
	}
}

// said looks for the line that says where a node serves. One that is still being written is no JSON
// yet.
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

// LastLine returns what a node wrote last, which is why it ended; never "".
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
