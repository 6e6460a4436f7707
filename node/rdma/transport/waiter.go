package transport

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
)

// Arrival is what came in over a link for a worker: the goroutine that read it leaves it in the
// worker's inbox, and only the worker itself completes it. That happens once, in Collect.
type Arrival interface{ Complete() }

// Waiter is a worker as links know it. Its inbox is filled by the goroutines that read; the
// worker collects what is in it. It is parked while it waits and does not read itself: see
// stream. Arrived and Notify are for any goroutine. All else is the worker's own: it is not safe
// for concurrent use. mu is held for a few instructions, and nothing is locked under it.
type Waiter struct {
	crowd *atomic.Int32 // workers of the process that are roused and have not gone on yet: they are about to post

	asked  []*stream        // see ask; kept to be used again
	late   realtime.Sleeper // of park; it is left alone while it goes off too early
	lateAt time.Duration    // when it goes off, on realtime.Now

	// mu guards inbox, told, parked and ready. taken is the worker's own, but for the moment in
	// which it changes places with inbox.
	mu    sync.Mutex
	inbox []Arrival
	taken []Arrival // that the worker took from the inbox last; used in turn with it
	// told is reset by Collect under the lock under which it takes the inbox. So what comes later
	// sets it again, and is not overlooked.
	told   bool // something came since the worker collected last
	parked bool
	ready  bool // roused, and counted in crowd
	wake   chan struct{}
}

// NewWaiter returns a worker of a process, which counts in crowd those that are about to post.
// All workers of a process share it: see Yield.
func NewWaiter(crowd *atomic.Int32) *Waiter {
	return &Waiter{crowd: crowd, wake: make(chan struct{}, 1)}
}

// Arrived leaves a in the inbox, and does not block. a belongs to the worker from then on.
func (w *Waiter) Arrived(a Arrival) {
	w.mu.Lock()
	w.inbox = append(w.inbox, a)
	w.called()
}

// Notify leaves word that something came that the worker finds by itself. The worker goes on if
// it is parked. Nothing is added to its inbox.
func (w *Waiter) Notify() {
	w.mu.Lock()
	w.called()
}

// called rouses the worker if it is parked. The caller holds mu, which called unlocks. The
// worker is counted in crowd until it runs: park takes it out. It is woken behind mu, which it
// takes when it goes on.
func (w *Waiter) called() {
	w.told = true
	rouse := w.parked && !w.ready
	if rouse {
		w.ready = true
		w.crowd.Add(1)
	}
	w.mu.Unlock()
	if rouse {
		w.rouse()
	}
}

// rouse wakes the worker, or has its next park return at once. wake has place for one word: a
// second one adds nothing.
func (w *Waiter) rouse() { Wake(w.wake) }

// word reports whether something came since the worker collected last.
func (w *Waiter) word() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told
}

// park pauses the worker until there is word for it, or it is roused, or until that time; 0:
// there is none. It may return early, such as by a wake-up that was left over: callers look
// again. told is looked at, and parked set, under one hold of mu. So what arrives before it keeps
// the worker from parking, and what arrives behind it rouses the worker. A worker that is roused
// by stream.next, to read, has no word.
func (w *Waiter) park(until time.Duration) {
	w.mu.Lock()
	if w.told {
		w.mu.Unlock()
		return
	}
	w.parked = true
	w.mu.Unlock()
	var late <-chan time.Time
	if until > 0 {
		late = w.alarm(until)
	}
	select {
	case <-w.wake:
	case <-late:
		w.lateAt = 0
	}
	w.mu.Lock()
	w.parked = false
	if w.ready {
		w.ready = false
		w.crowd.Add(-1)
	}
	w.mu.Unlock()
}

// alarm returns a channel that tells when it is that late, or earlier. A timer that goes off too
// early is kept: park returns early then, and its next call sets the timer anew.
func (w *Waiter) alarm(until time.Duration) <-chan time.Time {
	if now := realtime.Now(); w.lateAt == 0 || w.lateAt > until {
		w.lateAt = until
		return w.late.Set(until - now)
	}
	return w.late.C()
}

// Collect completes what is in the inbox. Only the worker calls it. Complete runs without the
// lock, since it may do what takes others. The two slices change places: while what is in one is
// completed, the other takes what arrives.
func (w *Waiter) Collect() {
	w.mu.Lock()
	w.inbox, w.taken = w.taken[:0], w.inbox
	w.told = false
	w.mu.Unlock()
	for i, a := range w.taken {
		a.Complete()
		// taken is kept to be used again, and what it pointed to is not.
		w.taken[i] = nil
	}
}

// Ask adds a link to those of which the worker waits for the first answer: see ParkAside. It
// returns how many they are; one that is down is none. The link is counted before its goroutine
// is called. So that goroutine does not stop reading before ParkAside has taken the worker out
// again.
func (w *Waiter) Ask(l *Link) int {
	if s := l.stream.Load(); s != nil && !slices.Contains(w.asked, s) {
		s.aside.Add(1)
		s.call()
		w.asked = append(w.asked, s)
	}
	return len(w.asked)
}

// ParkAside is park for a worker that asked several links. It reads none of them: a goroutine of
// each link does. It may return early, as park does. The links have to be asked again then.
func (w *Waiter) ParkAside(until time.Duration) {
	w.park(until)
	for i, s := range w.asked {
		s.aside.Add(-1)
		w.asked[i] = nil
	}
	w.asked = w.asked[:0]
}

// Yield lets workers that are ready post before this one writes, so that one write carries what
// all of them have. It gives way once, whether they have posted then or not.
func (w *Waiter) Yield() {
	if w.crowd.Load() > 0 {
		runtime.Gosched()
	}
}
