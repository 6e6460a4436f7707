package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// Command returns the command line of a node, whose pid file is the one given. The process must say that it serves by a
// line of JSON on its standard output, an object with the member "address".
type Command func(node int, pidFile string) []string

// Start starts n more nodes, detached from this process and its terminal, and waits until all of them serve. They are in
// the record before anything else happens, so that Stop ends them whatever becomes of the caller: a crash between a
// process's start and the record of it is the one thing that leaves it behind. Errors wrap ErrStart, or what ended ctx.
func (p *Pool) Start(ctx context.Context, n int, command Command) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	first := len(p.Nodes)
	ended := make([]chan error, n)
	for i := range n {
		cmd, err := p.launch(first+i, command(first+i, p.PIDFile(first+i)))
		if err != nil {
			return err
		}
		ended[i] = make(chan error, 1)
		go func() { ended[i] <- cmd.Wait() }() // ends with the process: nothing is left of it in this one's table
		start, err := startOf(cmd.Process.Pid)
		if errors.Is(err, os.ErrNotExist) {
			err = nil // it has ended, and is told below why; no start means no process
		}
		if err != nil { // nobody could tell it from another later on
			return errors.Join(fmt.Errorf("node %d: %w: %w", first+i, ErrStart, err), cmd.Process.Kill())
		}
		p.Nodes = append(p.Nodes, Process{PID: cmd.Process.Pid, Start: start, Boot: boot})
		if err := p.save(); err != nil {
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

func (p *Pool) launch(node int, args []string) (*exec.Cmd, error) {
	log, err := os.OpenFile(p.Log(node), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("node %d: %w", node, err)
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
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
			if addr := said(p.Log(node)); addr != "" { // it serves, and nobody had looked since
				return addr, nil
			}
			return "", context.Cause(ctx)
		case <-time.After(glance):
		}
	}
}

// said looks for the line that says where a node serves. One that is still being written is no JSON yet.
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
		return last
	}
	return "it ended without a word"
}
