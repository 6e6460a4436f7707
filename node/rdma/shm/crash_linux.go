package shm

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

// CrashClient ends the process of a client by SIGKILL, and with it all clients of that process: at
// once, or with a step when the client posts what it names so (rdma.Step); steps that no store has
// never come. Errors wrap rdma.ErrClosed when the client is not alive, rdma.ErrNotSupported when
// the pool is this process's own, or with a step when it is Shared, and ErrForeign when the process
// does not hold the client's lock.
func (f *Fabric) CrashClient(c rdma.Client, step rdma.Step) error {
	if err := f.crash(c, step); err != nil {
		return fmt.Errorf("crash client %d: %w", c.ID, err)
	}
	return nil
}

// The number in the slot is any that a process wrote, and may be another process's by now. So it
// is turned into a descriptor first, and then the kernel is asked: whether that process holds the
// lock, and whether the life is the one that is meant. What is killed is what the descriptor
// stands for.
func (f *Fabric) crash(c rdma.Client, step rdma.Step) (err error) {
	defer f.guard(&err)()
	if err := f.g.known(c.ID); err != nil {
		return err
	}
	if !f.faults {
		return fmt.Errorf("%s has no other processes: %w", f.name, rdma.ErrNotSupported)
	}
	if f.shared && step != "" {
		return fmt.Errorf("clients of %s obey no order to crash, which any user of the machine could give: %w", f.name,
			rdma.ErrNotSupported)
	}
	s := f.head.slot(c.ID)
	word := atomic.LoadUint64(&s.pid)
	pid := int(uint32(word))
	// From here on the process is meant, and not its number.
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("find process %d: %w", pid, err)
	}
	defer unix.Close(process)
	if err := f.lives.(*fileLives).mustHold(pid, c.ID); err != nil {
		return err
	}
	// Alive behind the opening: the number means the process that holds the slot, and none that got
	// it later.
	held, err := f.lives.held(c.ID)
	if err == nil && (!held || atomic.LoadUint64(&s.state) != c.Life<<1|1) {
		err = rdma.ErrClosed
	}
	if err != nil {
		return err
	}
	if step != "" {
		// From the word that was read: a slot that has changed hands, or another order, makes it
		// fail.
		if !atomic.CompareAndSwapUint64(&s.pid, word, uint64(stepOrder(step))<<orderShift|uint64(pid)) {
			return fmt.Errorf("another process gave it an order: %w", rdma.ErrTimeout)
		}
		return nil
	}
	if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	// So when it returns nil, no verb of the client lands any more.
	for until := now() + patience; now() < until; time.Sleep(time.Millisecond) { // until the kernel has let go of it
		if held, err := f.lives.held(c.ID); err != nil || !held {
			return err
		}
	}
	return fmt.Errorf("process %d did not end: %w", pid, rdma.ErrTimeout)
}

// die ends this process as a crash would. It never returns. No deferred function runs, and
// nothing is closed.
func die() {
	_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
	select {} // the signal is on its way
}
