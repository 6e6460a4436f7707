package local

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

// find returns the process that a record names, and never another one that got its number; nil: the
// process is gone. The handle is taken before the start is checked: on Linux a handle means the
// same process for good. The caller releases it.
func (n Process) find() (*os.Process, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if n.PID <= 1 || n.Start == 0 || boot != n.Boot {
		return nil, nil
	}
	process, err := os.FindProcess(n.PID)
	if err != nil {
		return nil, nil
	}
	if start, err := startOf(n.PID); err != nil || start != n.Start {
		return nil, errors.Join(process.Release(), unless(err, os.ErrNotExist, os.ErrProcessDone))
	}
	return process, nil
}

// unless returns err, but nil if it is one of the errors in gone.
func unless(err error, gone ...error) error {
	if slices.ContainsFunc(gone, func(g error) bool { return errors.Is(err, g) }) {
		return nil
	}
	return err
}

// Alive reports whether the process that was started as a node exists.
func (p *Pool) Alive(node int) bool {
	process, err := p.Nodes[node].find()
	if err != nil || process == nil {
		return false
	}
	process.Release()
	return true
}

// signal sends a signal to a node's process. It reports false if the process is gone.
func (p *Pool) signal(node int, s os.Signal) (bool, error) {
	process, err := p.Nodes[node].find()
	if err != nil || process == nil {
		return false, err
	}
	defer process.Release()
	if err := process.Signal(s); err != nil {
		return false, unless(err, os.ErrProcessDone)
	}
	return true, nil
}

// Kill ends a node's process by SIGKILL and returns when it is gone. It reports false if it was
// gone before.
func (p *Pool) Kill(node int) (bool, error) {
	there, err := p.signal(node, syscall.SIGKILL)
	if err != nil || !there {
		return there, err
	}
	return true, p.gone([]int{node}, killTime)
}

// Find returns the process that was started as a node; nil: it is gone. The caller releases it.
func (p *Pool) Find(node int) (*os.Process, error) { return p.Nodes[node].find() }

// killTime bounds how long a killed process takes to be gone: the kernel frees its memory first.
const killTime = 10 * time.Second

// Stop ends the processes that were started, and no others: by SIGTERM, and after the given time by
// SIGKILL. Then it removes the run folder. If a process could not be ended, the folder and its
// record stay.
func (p *Pool) Stop(patience time.Duration) error {
	var left []int
	for i := range p.Nodes {
		there, err := p.signal(i, syscall.SIGTERM)
		if err != nil {
			return fmt.Errorf("stop node %d of %s: %w", i, p.Name, err)
		}
		if there {
			left = append(left, i)
		}
	}
	if p.gone(left, patience) != nil {
		for _, i := range left {
			if _, err := p.signal(i, syscall.SIGKILL); err != nil {
				return fmt.Errorf("kill node %d of %s: %w", i, p.Name, err)
			}
		}
		if err := p.gone(left, killTime); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(p.folder); err != nil {
		return fmt.Errorf("remove the run folder of %s: %w", p.Name, err)
	}
	return nil
}

// gone waits until the processes of the given nodes have ended.
func (p *Pool) gone(nodes []int, patience time.Duration) error {
	for until := time.Now().Add(patience); ; time.Sleep(glance) {
		left := 0
		for _, i := range nodes {
			if p.Alive(i) {
				left++
			}
		}
		switch {
		case left == 0:
			return nil
		case time.Now().After(until):
			return fmt.Errorf("%d processes of %s are still there after %v", left, p.Name, patience)
		}
	}
}
