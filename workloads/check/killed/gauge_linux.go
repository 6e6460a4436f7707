package killed

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
)

// A worker waits for a processor in two lines: its goroutine for one of its process's threads, and
// that thread for a processor of the machine.

const (
	sleepTick   = time.Millisecond
	threadTick  = 10 * time.Millisecond
	mostThreads = 64
)

// gauges are a process's. What they have not noted when it is killed is lost, and with it the slow
// operations of that time: these are published behind the delays.
type gauges struct {
	*ledger
	first int // worker of the process
	slept atomic.Int64
	slow  chan slowOp
}

// slowOp is an operation that took longer than it may in a process that no processor keeps waiting.
type slowOp struct {
	number       int // of its worker
	what         what
	trips        uint64
	began, ended time.Duration
}

func newGauges(l *ledger, first int) *gauges {
	return &gauges{ledger: l, first: first, slow: make(chan slowOp, slowOps)}
}

// sleep measures how long this process's goroutines wait, until the process ends. What a timer
// wakes goes on ahead of others, so that the gauge steps back behind them, as a worker does that is
// preempted.
func (g *gauges) sleep() {
	for {
		due := realtime.Now() + sleepTick
		time.Sleep(sleepTick)
		runtime.Gosched()
		now := realtime.Now()
		g.delayed(due, now)
		g.slept.Store(int64(now))
	}
}

// threads measures how long this process's threads wait, until the process ends: the kernel counts
// that for each. What a thread has waited for since the last look counts as one wait. A thread that
// is preempted may wait for far longer than one that wakes, of which that of sleep is one. No
// thread's count has the time for which the host took a processor away under it: see stolen.
func (g *gauges) threads() {
	waited, stole := map[int]time.Duration{}, map[string]time.Duration{}
	var kept []slowOp
	for {
		before := realtime.Now()
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
				g.delayedFor(more, before-more, realtime.Now())
			}
			waited[thread] = wait
		}
		if text, err := os.ReadFile("/proc/stat"); err == nil {
			g.stolen(string(text), stole, before)
		}
		kept = g.publish(kept, min(before, time.Duration(g.slept.Load())))
	}
}

// stealTick is the unit of /proc/stat.
const stealTick = 10 * time.Millisecond

// stolen notes for how long the host has not run each of the machine's processors since the last
// look, which was not before a time, as one wait. stole is what /proc/stat said then, and becomes
// what it says now.
func (g *gauges) stolen(stat string, stole map[string]time.Duration, looked time.Duration) {
	const steal = 8 // behind the name: user, nice, system, idle, iowait, irq, softirq
	for line := range strings.Lines(stat) {
		f := strings.Fields(line)
		if len(f) <= steal || !strings.HasPrefix(f[0], "cpu") {
			return // those of processors come first
		}
		ticks, err := strconv.ParseInt(f[steal], 10, 64)
		if err != nil || f[0] == "cpu" { // that one is the sum
			continue
		}
		now := time.Duration(ticks) * stealTick
		if was, known := stole[f[0]]; known && now > was {
			g.delayedFor(now-was, looked-(now-was), realtime.Now())
		}
		stole[f[0]] = now
	}
}

// publish notes that delays up to a time are noted, and the slow operations up to then. It returns
// the others.
func (g *gauges) publish(list []slowOp, upTo time.Duration) (kept []slowOp) {
	g.worker(g.first)[gaugedAt].Store(uint64(upTo))
	for len(g.slow) > 0 {
		list = append(list, <-g.slow)
	}
	for _, op := range list {
		if op.ended > upTo {
			kept = append(kept, op)
			continue
		}
		own := g.worker(op.number)
		n := own[slowAt].Load()
		at := slowsAt + slowWords*int(n%slowOps)
		own[at].Store(uint64(op.began))
		own[at+1].Store(uint64(op.ended))
		own[at+2].Store(uint64(op.what))
		own[at+3].Store(op.trips)
		own[slowAt].Store(n + 1)
	}
	return kept
}
