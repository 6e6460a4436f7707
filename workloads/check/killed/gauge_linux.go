package killed

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/farkv/farkv/node/rdma/wall"
)

// A worker waits for a processor in two lines: its goroutine for one of its process's threads, and that thread for a
// processor of the machine.

const (
	sleepTick   = time.Millisecond
	threadTick  = 10 * time.Millisecond
	mostThreads = 64
)

// sleepGauge measures how long this process's goroutines wait, until the process ends. What a timer wakes goes on
// ahead of others, so that the gauge steps back behind them, as a worker does that is preempted.
func sleepGauge(l *ledger) {
	for {
		due := wall.Now() + sleepTick
		time.Sleep(sleepTick)
		runtime.Gosched()
		l.delayed(due, wall.Now())
	}
}

// threadGauge measures how long this process's threads wait, until the process ends: the kernel counts that for each.
// What a thread has waited for since the last look counts as one wait. A thread that is preempted may wait for far
// longer than one that wakes, of which sleepGauge is one.
func threadGauge(l *ledger) {
	waited := map[int]time.Duration{}
	for {
		before := wall.Now()
		time.Sleep(threadTick)
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			continue // it is about to end
		}
		for _, t := range tasks[:min(len(tasks), mostThreads)] {
			var thread int
			var ran, wait time.Duration
			text, err := os.ReadFile("/proc/self/task/" + t.Name() + "/schedstat")
			if err == nil {
				_, err = fmt.Sscan(t.Name(), &thread)
			}
			if err == nil {
				_, err = fmt.Sscan(string(text), (*int64)(&ran), (*int64)(&wait))
			}
			if err != nil {
				continue // the thread has ended
			}
			if more := wait - waited[thread]; more > 0 {
				l.delayedFor(more, before-more, wall.Now())
			}
			waited[thread] = wait
		}
	}
}
