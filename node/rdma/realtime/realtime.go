// Package realtime is the time and the tasks of fabrics that live in real time.
package realtime

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// started and booted are the same moment on the process's clock and on the machine's monotonic one,
// which all processes share.
var started, booted = calibrate()

// Now is the time since the machine started, the same in all its processes.
func Now() time.Duration { return booted + time.Since(started) }

// Beat is the time until the next multiple of d on the process's clock. Goroutines that wait for
// beats of one length go on together, so that an idle process is woken once for all of them: to
// wake it costs more than what most of them do.
func Beat(d time.Duration) time.Duration { return d - time.Since(started)%d }

// shortest is the sleep below which a timer costs more than the sleep itself.
const shortest = 20 * time.Microsecond

// Sleeper pauses one worker. The zero Sleeper is ready.
type Sleeper struct{ timer *time.Timer }

// Sleep pauses the worker for d, or until stop is closed.
func (s *Sleeper) Sleep(d time.Duration, stop <-chan struct{}) {
	if d < shortest {
		for until := Now() + d; ; {
			runtime.Gosched()
			if Now() >= until {
				return
			}
		}
	}
	s.Set(d)
	select {
	case <-s.timer.C:
	case <-stop:
		s.timer.Stop()
	}
}

// Set starts the sleeper's timer and returns its channel, for callers that wait for something else,
// too; Unset stops it.
func (s *Sleeper) Set(d time.Duration) <-chan time.Time {
	if s.timer == nil {
		s.timer = time.NewTimer(d)
	} else {
		s.timer.Reset(d)
	}
	return s.timer.C
}

// C is the channel of the timer that Set started.
func (s *Sleeper) C() <-chan time.Time { return s.timer.C }

// Unset stops the timer that Set started.
func (s *Sleeper) Unset() { s.timer.Stop() }

// Tasks are the goroutines of a fabric. The zero Tasks has none.
type Tasks struct {
	mu     sync.Mutex
	names  []string // running
	closed bool
	idle   chan struct{} // closed when a task ends; nil while no caller waits for that
}

// Go starts a task with an endpoint of its own, which open gives it and which is closed behind it.
// The error wraps rdma.ErrClosed once Join was called. A panic in work ends the process.
func (t *Tasks) Go(open func(name string) (rdma.Endpoint, error), name string, work func(rdma.Endpoint)) error {
	own, err := open(name)
	if err != nil {
		return fmt.Errorf("start task %s: %w", name, err)
	}
	if !t.Begin(name) {
		own.Close()
		return fmt.Errorf("start task %s: %w", name, rdma.ErrClosed)
	}
	go func() {
		defer t.End(name)
		defer own.Close()
		work(own)
	}()
	return nil
}

// Begin makes room for a task; false: Join was called.
func (t *Tasks) Begin(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.names = append(t.names, name)
	}
	return !t.closed
}

// End ends a task that Begin let begin.
func (t *Tasks) End(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.names, name)
	t.names = slices.Delete(t.names, i, i+1)
	if t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// Join lets no more tasks begin and waits for those that run. The error wraps rdma.ErrTimeout and
// names those that do not end within the given time, which may be waited for again.
func (t *Tasks) Join(within time.Duration) error {
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		t.mu.Lock()
		t.closed = true
		left := strings.Join(t.names, ", ")
		if t.idle == nil {
			t.idle = make(chan struct{})
		}
		idle := t.idle
		t.mu.Unlock()
		if left == "" {
			return nil
		}
		select {
		case <-idle:
		case <-late.C:
			return fmt.Errorf("tasks %s did not stop: %w", left, rdma.ErrTimeout)
		}
	}
}
