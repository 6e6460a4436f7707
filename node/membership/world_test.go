package membership

import (
	"container/heap"
	"errors"
	"iter"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/workloads/check/seeds"
)

// world is virtual time: events in the order of their times, and tasks that wait in it. Same seed,
// same run.
type world struct {
	*rand.Rand
	now    time.Duration
	seq    int
	events events
	tasks  []*task

	current *task // the one that runs
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 4))}
	t.Cleanup(w.unwind)
	return w
}

// after does something later.
func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{w.now + max(d, 0), w.seq, do})
}

// chance is true with probability p.
func (w *world) chance(p float64) bool { return w.Float64() < p }

// between returns a time from a to b.
func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.Int64N(int64(b-a)+1))
}

// run runs until nothing is left to happen, or until a time.
func (w *world) run(until time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= until {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
}

// task is a coroutine. One that crashes is never resumed until the world is unwound.
type task struct {
	w       *world
	resume  func() (struct{}, bool)
	stop    func()
	yield   func(struct{}) bool
	waiting bool
	crashed bool
	done    bool
}

var errUnwound = errors.New("the world has ended")

// spawn starts a task now.
func (w *world) spawn(f func(t *task)) *task {
	t := &task{w: w}
	t.resume, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil && r != errUnwound {
				panic(r)
			}
		}()
		t.yield = yield
		f(t)
		t.done = true
	})
	w.tasks = append(w.tasks, t)
	w.after(0, t.step)
	return t
}

func (t *task) step() {
	if !t.crashed {
		t.w.current = t
		t.resume()
	}
}

// wait waits until wake.
func (t *task) wait() {
	t.waiting = true
	if !t.yield(struct{}{}) {
		panic(errUnwound)
	}
}

func (t *task) wake() {
	if t.waiting {
		t.waiting = false
		t.w.after(0, t.step)
	}
}

func (t *task) sleep(d time.Duration) {
	t.w.after(d, t.wake)
	t.wait()
}

func (w *world) unwind() {
	for _, t := range w.tasks {
		t.stop()
	}
	w.tasks, w.events = nil, nil
}

// forSeeds runs a test with the chosen seeds, and returns how many. It stops at a failure.
func forSeeds(t *testing.T, n int, f func(t *testing.T, seed uint64)) int {
	t.Helper()
	first, count := seeds.Chosen(t, uint64(n))
	for seed := first; seed < first+count && !t.Failed(); seed++ {
		f(t, seed)
	}
	return int(count)
}

// enough is how many runs tell something about what is usual in them.
const enough = 50
