package chaos

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
)

// stopped is a process that stands still until resume.
type stopped struct {
	process *os.Process
	guard   *exec.Cmd
	thread  io.Closer // what the guard reads: its end is that of this process, or of the stop
	once    sync.Once
	err     error
}

// stopProcess stops a process by SIGSTOP. A shell that waits for the end of this process lets it go
// on, too: not even SIGKILL leaves it stopped for ever.
func stopProcess(p *os.Process) (*stopped, error) {
	if p.Pid == os.Getpid() || p.Pid <= 1 {
		return nil, errors.Join(fmt.Errorf("process %d is this program's own", p.Pid), p.Release())
	}
	s := &stopped{process: p, guard: exec.Command("/bin/sh", "-c", `read over; kill -CONT "$0" 2>/dev/null`,
		strconv.Itoa(p.Pid))}
	s.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no interrupt of the terminal ends it
	var err error
	if s.thread, err = s.guard.StdinPipe(); err == nil {
		err = s.guard.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start what lets process %d go on: %w", p.Pid, err), p.Release())
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return nil, errors.Join(fmt.Errorf("stop process %d: %w", p.Pid, err), s.resume())
	}
	return s, nil
}

// resume lets the process go on. One that was killed meanwhile is no error.
func (s *stopped) resume() error {
	s.once.Do(func() {
		err := s.process.Signal(syscall.SIGCONT)
		if errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
		_ = s.thread.Close()
		_ = s.guard.Wait() // it fails where the process is gone
		s.err = errors.Join(err, s.process.Release())
	})
	return s.err
}
