package shm

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

func now() time.Duration { return realtime.Now() }

// Now is the time since the machine started, the same in all its processes.
func (e *Endpoint) Now() time.Duration { return now() }

// Sleep pauses the worker. It ends early when the fabric closes, so that tasks see that they have
// to stop.
func (e *Endpoint) Sleep(d time.Duration) { e.sleeper.Sleep(d, e.fabric.stop) }

// Host starts a task beside a memory node of this process. There are no nodes' processes here, so
// that the task is like any other. The error wraps rdma.ErrNotSupported on a file, of which the
// nodes are no process's own, rdma.ErrAccess when there is no such node, and rdma.ErrClosed.
func (f *Fabric) Host(node int, name string, work func(rdma.Endpoint)) error {
	switch {
	case f.faults:
		return fmt.Errorf("run %s beside node %d of %s: %w", name, node, f.name, rdma.ErrNotSupported)
	case node < 0 || node >= f.Nodes():
		return fmt.Errorf("run %s beside node %d of %d: %w", name, node, f.Nodes(), rdma.ErrAccess)
	}
	return f.tasks.Go(f.Open, name, work)
}

// Rand is the worker's own generator.
func (e *Endpoint) Rand() *rand.Rand { return e.rand }

// Go starts a task with an endpoint of its own. Once the fabric closes, that endpoint answers
// rdma.ErrClosed, which is how the task learns that it has to return. A panic in f ends the
// process.
func (e *Endpoint) Go(name string, f func(rdma.Endpoint)) error {
	return e.fabric.tasks.Go(e.fabric.Open, name, f)
}
