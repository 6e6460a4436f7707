package shm

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// started and booted are the same moment on the process's clock and on the machine's monotonic one, which all
// processes share.
var started, booted = calibrate()

func now() time.Duration { return booted + time.Since(started) }

// Now is the time since the machine started, the same in all its processes.
func (e *Endpoint) Now() time.Duration { return now() }

// shortest is the sleep below which a timer costs more than the sleep itself.
const shortest = 20 * time.Microsecond

// Sleep pauses the worker. It ends early when the fabric closes, so that tasks see that they have to stop.
func (e *Endpoint) Sleep(d time.Duration) {
	if d < shortest {
		for until := now() + d; ; {
			runtime.Gosched()
			if now() >= until {
				return
			}
		}
	}
	if e.timer == nil {
		e.timer = time.NewTimer(d)
	} else {
		e.timer.Reset(d)
	}
	select {
	case <-e.timer.C:
	case <-e.fabric.stop:
		e.timer.Stop()
	}
}

// Rand is the worker's own generator.
func (e *Endpoint) Rand() *rand.Rand { return e.rand }

// Go starts a task with an endpoint of its own. Once the fabric closes, that endpoint answers rdma.ErrClosed, which
// is how the task learns that it has to return. A panic in f ends the process.
func (e *Endpoint) Go(name string, f func(rdma.Endpoint)) error {
	own, err := e.fabric.Open(name)
	if err != nil {
		return fmt.Errorf("start task %s: %w", name, err)
	}
	if err := e.fabric.begin(name); err != nil {
		own.Close()
		return err
	}
	go func() {
		defer e.fabric.end(name)
		defer own.Close()
		f(own)
	}()
	return nil
}
