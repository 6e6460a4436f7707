package sim

// kind says what an event does.
type kind uint8

const (
	landing    kind = iota // a verb, or a piece of it, takes effect
	completion             // a verb's answer is at its requester
	arrival                // a call is at its node
	service                // a call's handler runs
	reply                  // a call's answer is at its caller
	nodeDeath
	workerCrash
	doorbell // verbs of one post to one node, and what follows them in their list, are at the NIC
	incoming // a verb is at its node
	strike   // a fault of a client happens
	placing  // a block of an APPEND takes its place in a ring
	settling // a piece of one takes effect
	seeing   // the READ behind one does
	outage   // a fault takes nodes away
	comeback // and brings them back
)

// event is what happens at one moment; what happens at the same moment happens in the order of seq.
type event struct {
	at    int64
	seq   uint64
	kind  kind
	piece uint16
	node  int32
	f     *flight
	w     *Worker
}

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

// eventHeap is a heap with four children a node, which is flatter and so faster than a binary one.
type eventHeap []event

func (h *eventHeap) push(e event) {
	*h = append(*h, e)
	a := *h
	i := len(a) - 1
	for i > 0 {
		p := (i - 1) / 4
		if !e.before(&a[p]) {
			break
		}
		a[i] = a[p]
		i = p
	}
	a[i] = e
}

func (h *eventHeap) pop() event {
	a := *h
	top := a[0]
	n := len(a) - 1
	e := a[n]
	a[n] = event{}
	*h = a[:n]
	if n > 0 {
		a[:n].down(e)
	}
	return top
}

// down puts e in the place of the root.
func (h eventHeap) down(e event) {
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

// timerHeap holds the workers that have, or lately had, a moment to be woken at. A worker that is
// woken by something else stays in it with armed off, and is moved when it waits again: nearly
// every wait has a limit and nearly none reaches it.
type timerHeap []*Worker

func (h timerHeap) before(i, k int) bool {
	a, b := h[i], h[k]
	return a.wakeAt < b.wakeAt || a.wakeAt == b.wakeAt && a.wakeSeq < b.wakeSeq
}

func (h timerHeap) swap(i, k int) {
	h[i], h[k] = h[k], h[i]
	h[i].timer, h[k].timer = i, k
}

func (h timerHeap) fix(i int) {
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

func (h *timerHeap) pop() {
	a := *h
	w := a[0]
	n := len(a) - 1
	a.swap(0, n)
	a[n] = nil
	*h = a[:n]
	if n > 0 {
		(*h).fix(0)
	}
	w.timer = -1
}

// arm wakes w at a time unless something else does before.
func (s *Sim) arm(w *Worker, at int64) {
	s.seq++
	w.armed, w.wakeAt, w.wakeSeq = true, at, s.seq
	if w.timer < 0 {
		w.timer = len(s.timers)
		s.timers = append(s.timers, w)
	}
	s.timers.fix(w.timer)
}

// at schedules e.
func (s *Sim) at(t int64, e event) {
	s.seq++
	e.at, e.seq = max(t, s.now), s.seq
	s.events.push(e)
}

// step makes the next thing happen. It returns false when nothing is left to happen.
func (s *Sim) step() bool {
	for len(s.timers) > 0 && !s.timers[0].armed {
		s.timers.pop()
	}
	if len(s.timers) > 0 {
		w := s.timers[0]
		if len(s.events) == 0 || w.wakeAt < s.events[0].at ||
			w.wakeAt == s.events[0].at && w.wakeSeq < s.events[0].seq {
			s.timers.pop()
			s.now = max(s.now, w.wakeAt)
			s.steps++
			s.resume(w)
			return true
		}
	}
	if len(s.events) == 0 {
		return false
	}
	s.handle(s.events.pop())
	return true
}

func (s *Sim) handle(e event) {
	s.now = max(s.now, e.at)
	s.steps++
	switch e.kind {
	case landing:
		s.land(e.f, int(e.piece))
	case completion:
		s.complete(e.f)
	case arrival:
		s.arrive(e.f)
	case service:
		s.serve(e.f)
	case reply:
		s.replied(e.f)
	case nodeDeath:
		s.kill(int(e.node))
	case workerCrash:
		s.crash(e.w.root)
	case doorbell:
		s.ring(e.f)
	case incoming:
		s.incoming(e.f)
	case placing:
		s.placeBlock(e.f, int(e.piece))
	case settling:
		s.settle(e.f, int(e.piece))
	case seeing:
		s.see(e.f)
	case strike:
		s.hit(e.w, &s.opts.Faults[e.node])
	case outage:
		s.takeAway(int(e.node))
	case comeback:
		s.bringBack(int(e.node))
	}
}
