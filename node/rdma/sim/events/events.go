// Package events is virtual time: what is to happen, ordered by time, and at the same time by the
// order in which it was scheduled. Events happen once; an Alarm is an event that can be moved, and
// mostly is before it goes off.
package events

// Queue holds what is to happen. The zero value begins at time 0.
type Queue[E any] struct {
	now int64 // virtual ns
	// seq orders what happens at one time, and makes runs repeat themselves. An alarm that is moved
	// gets a new one.
	seq    uint64
	steps  uint64
	events heap[E]
	alarms alarms[E]
}

// Now returns the virtual time in ns.
func (q *Queue[E]) Now() int64 { return q.now }

// Steps returns how many events and alarms have happened.
func (q *Queue[E]) Steps() uint64 { return q.steps }

// Advance moves the clock by d ns, past whatever is to happen meanwhile, which is late then.
func (q *Queue[E]) Advance(d int64) { q.now += d }

// Clear forgets what is to happen.
func (q *Queue[E]) Clear() { q.events, q.alarms = nil, nil }

// At schedules e for time t, or for now if t is over.
func (q *Queue[E]) At(t int64, e E) {
	q.seq++
	q.events = append(q.events, item[E]{max(t, q.now), q.seq, e})
	q.events.up()
}

// Arm lets a go off at time t, and not when it was armed for before.
func (q *Queue[E]) Arm(a *Alarm[E], t int64) {
	q.seq++
	a.armed, a.at, a.seq = true, t, q.seq
	if a.place == 0 {
		q.alarms = append(q.alarms, a)
		a.place = len(q.alarms)
	}
	q.alarms.fix(a.place - 1)
}

// Next moves the clock to the next thing, and puts it into e; false: there is none.
func (q *Queue[E]) Next(e *E) bool {
	for len(q.alarms) > 0 && !q.alarms[0].armed {
		q.alarms.pop()
	}
	if len(q.alarms) > 0 {
		a := q.alarms[0]
		if len(q.events) == 0 || a.at < q.events[0].at || a.at == q.events[0].at && a.seq < q.events[0].seq {
			q.alarms.pop()
			q.now = max(q.now, a.at)
			q.steps++
			*e = a.Event
			return true
		}
	}
	return q.NextEvent(e)
}

// NextEvent is Next without alarms.
func (q *Queue[E]) NextEvent(e *E) bool {
	if len(q.events) == 0 {
		return false
	}
	next := &q.events[0]
	q.now = max(q.now, next.at)
	q.steps++
	*e = next.event
	q.events.pop()
	return true
}

// item is an event in the heap.
type item[E any] struct {
	at    int64
	seq   uint64
	event E
}

func (e *item[E]) before(f *item[E]) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

// heap has four children a node, which makes it flatter and so faster than a binary one.
type heap[E any] []item[E]

// up moves the last event to its place.
func (h heap[E]) up() {
	i := len(h) - 1
	e := h[i]
	for i > 0 {
		p := (i - 1) / 4
		if !e.before(&h[p]) {
			break
		}
		h[i] = h[p]
		i = p
	}
	h[i] = e
}

// pop drops the first event.
func (h *heap[E]) pop() {
	a := *h
	n := len(a) - 1
	e := a[n]
	a[n] = item[E]{}
	*h = a[:n]
	if n > 0 {
		a[:n].down(e)
	}
}

// down puts e in the place of the root.
func (h heap[E]) down(e item[E]) {
	i := 0
	for {
		c := 4*i + 1
		if c >= len(h) {
			break
		}
		best := c
		for k := c + 1; k < min(c+4, len(h)); k++ {
			if h[k].before(&h[best]) {
				best = k
			}
		}
		if !h[best].before(&e) {
			break
		}
		h[i] = h[best]
		i = best
	}
	h[i] = e
}

// Alarm is an event that can be moved. An alarm that was disarmed stays in the queue, and is moved
// when it is armed again: nearly every wait has a limit and nearly none reaches it.
type Alarm[E any] struct {
	Event E // what happens when it goes off
	armed bool
	place int // in the queue, from 1; 0: it is not in it
	at    int64
	seq   uint64
}

// Disarm keeps a from going off.
func (a *Alarm[E]) Disarm() { a.armed = false }

// At returns when a was last armed for.
func (a *Alarm[E]) At() int64 { return a.at }

// alarms are a binary heap.
type alarms[E any] []*Alarm[E]

func (h alarms[E]) before(i, k int) bool {
	a, b := h[i], h[k]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (h alarms[E]) swap(i, k int) {
	h[i], h[k] = h[k], h[i]
	h[i].place, h[k].place = i+1, k+1
}

func (h alarms[E]) fix(i int) {
	for i > 0 && h.before(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h.before(c+1, c) {
			c++
		}
		if !h.before(c, i) {
			return
		}
		h.swap(i, c)
		i = c
	}
}

func (h *alarms[E]) pop() {
	a := *h
	top := a[0]
	n := len(a) - 1
	a.swap(0, n)
	a[n] = nil
	*h = a[:n]
	if n > 0 {
		(*h).fix(0)
	}
	top.place = 0
}
