// Package history keeps what samples of a pool showed: their differences, as points in time, and
// since when something is as it is. It is bounded: when it is full, neighbors among its older half
// become one point each.
package history

import (
	"slices"
	"time"

	"github.com/farkv/farkv/node/telemetry"
)

// Bounds of a History.
const (
	MaxPoints = 3600 // an hour of samples of every second
	// MaxBytes is about what points take, so that a monitor that has run for minutes takes no more
	// memory than one that has for days: but LeastPoints, five minutes, are kept of many processes,
	// too, up to MostBytes.
	MaxBytes    = 4 << 20
	LeastPoints = 300
	MostBytes   = 64 << 20
	MaxEvents   = 2000
	// Gap is how many times the usual distance of two points they may be apart and yet be drawn as
	// one line.
	Gap = 4
)

// A History holds the points of one pool, oldest first. It is not safe for concurrent use.
type History struct {
	Last   *telemetry.Sample // the newest sample; nil: none came yet
	Points []Point
	Events []telemetry.Event // oldest first
	Since  Since

	before map[ProcessID]telemetry.Process
	rates  map[ProcessID]rates
	own    []string // names of the stores' counters, as they came
	nodes  map[int]telemetry.Node
	bytes  int

	scratch Distribution // room for one that is being made
}

// Since is from when on something that is not well is so, by the clock of the samples.
type Since struct {
	Unseen   time.Time               // the pool, or a part of it
	NoMaster time.Time               // zero while there is one, or was none yet
	Busy     time.Time               // replicas are being mended
	NotWhole time.Time               // replicas are fewer, or differ
	Lost     time.Time               // data
	Down     map[int]time.Time       // nodes
	Dead     map[int]time.Time       // clients
	Silent   map[ProcessID]time.Time // processes, when their record changed last
	told     map[ProcessID]time.Time // the record's own time then
	Full     map[string]time.Time    // parts over 90 %
	Counters map[int]time.Time       // nodes with missing counters, since when
	master   bool
}

// New returns an empty history.
func New() *History {
	h := &History{before: map[ProcessID]telemetry.Process{}, rates: map[ProcessID]rates{},
		nodes: map[int]telemetry.Node{}, scratch: make(Distribution, 0, 64<<subBits)}
	h.Since.Down, h.Since.Dead, h.Since.Full = map[int]time.Time{}, map[int]time.Time{}, map[string]time.Time{}
	h.Since.Silent, h.Since.told = map[ProcessID]time.Time{}, map[ProcessID]time.Time{}
	h.Since.Counters = map[int]time.Time{}
	return h
}

// Add takes the next sample, which must not be changed any more. One that is not newer than the
// last adds no point: the look failed, and says so in its Problem.
func (h *History) Add(s *telemetry.Sample) {
	last := h.Last
	h.Last = s
	for _, e := range s.Events {
		if !slices.Contains(h.Events[max(len(h.Events)-50, 0):], e) {
			h.Events = append(h.Events, e)
		}
	}
	slices.SortStableFunc(h.Events, func(a, b telemetry.Event) int { return a.At.Compare(b.At) })
	h.Events = h.Events[max(len(h.Events)-MaxEvents, 0):]
	h.Since.note(s)
	for _, p := range s.Processes {
		for _, c := range p.Own {
			if len(h.own) < maxOwn && !slices.Contains(h.own, c.Name) {
				h.own = append(h.own, c.Name)
			}
		}
	}
	if last == nil || s.At.After(last.At) {
		p := h.point(s, last)
		if last != nil {
			h.bytes += p.size()
			h.Points = append(h.Points, p)
		}
	}
	for n := len(h.Points); n > MaxPoints || n > LeastPoints && h.bytes > MaxBytes ||
		n > 2 && h.bytes > MostBytes; n = len(h.Points) {
		h.thin()
	}
}

// maxOwn bounds how many counters of stores are kept.
const maxOwn = 64

// thin makes one point of two in the older half.
func (h *History) thin() {
	half := len(h.Points) / 2 &^ 1
	thinned := make([]Point, 0, len(h.Points)-half/2)
	for i := 0; i < half; i += 2 {
		thinned = append(thinned, join(h.Points[i], h.Points[i+1]))
	}
	if half == 0 {
		thinned = append(thinned, join(h.Points[0], h.Points[1]))
		half = 2
	}
	h.Points = append(thinned, h.Points[half:]...)
	h.bytes = 0
	for i := range h.Points {
		h.bytes += h.Points[i].size()
	}
}

// In returns the points after from and not after to.
func (h *History) In(from, to time.Time) []Point {
	first, _ := slices.BinarySearchFunc(h.Points, from, func(p Point, t time.Time) int {
		if p.At.After(t) {
			return 1
		}
		return -1
	})
	rest := h.Points[first:]
	end, _ := slices.BinarySearchFunc(rest, to, func(p Point, t time.Time) int {
		if p.At.After(t) {
			return 1
		}
		return -1
	})
	return rest[:end]
}

// Own returns the names of the counters that stores keep of themselves, in their order.
func (h *History) Own() []string { return h.own }

// Began returns the time of the first point; now when there is none.
func (h *History) Began(now time.Time) time.Time {
	if len(h.Points) == 0 {
		return now
	}
	return h.Points[0].At.Add(-h.Points[0].Span)
}

// note keeps in m since when what keys holds is so.
func noteAll[K comparable](m map[K]time.Time, at time.Time, keys map[K]bool) {
	for k := range m {
		if !keys[k] {
			delete(m, k)
		}
	}
	for k := range keys {
		if _, ok := m[k]; !ok {
			m[k] = at
		}
	}
}

func noteOne(t *time.Time, at time.Time, is bool) {
	if !is {
		*t = time.Time{}
	} else if t.IsZero() {
		*t = at
	}
}

func (n *Since) note(s *telemetry.Sample) {
	down, dead, full, blind := map[int]bool{}, map[int]bool{}, map[string]bool{}, map[int]bool{}
	replaced := map[int]bool{}
	for _, x := range s.Nodes {
		if x.Replaces > 0 && x.Up {
			replaced[x.Replaces-1] = true
		}
	}
	for _, x := range s.Nodes {
		if (!x.Up || x.Role == "gone") && !replaced[x.ID] {
			down[x.ID] = true
		}
		if x.Up && x.Problem != "" {
			blind[x.ID] = true
		}
	}
	for _, c := range s.Clients {
		if c.State != "" && c.State != "live" {
			dead[c.ID] = true
		}
	}
	for _, f := range s.Fill {
		if f.All > 0 && float64(f.Used) > 0.9*float64(f.All) {
			full[f.Of] = true
		}
	}
	noteAll(n.Down, s.At, down)
	for _, e := range s.Events { // which know it better than samples do
		if at,
			ok := n.Down[e.Node]; ok && (e.What == "expelled" || e.What == "broken") && e.At.Before(at) &&
			s.At.Sub(e.At) < time.Hour {
			n.Down[e.Node] = e.At
		}
	}
	noteAll(n.Dead, s.At, dead)
	noteAll(n.Full, s.At, full)
	noteAll(n.Counters, s.At, blind)
	noteOne(&n.Unseen, s.At, s.Problem != "")
	n.master = n.master || s.Master != 0
	noteOne(&n.NoMaster, s.At, s.Master == 0 && n.master)
	noteOne(&n.Busy, s.At, s.Busy)
	noteOne(&n.Lost, s.At, s.Lost)
	noteOne(&n.NotWhole, s.At, !s.Whole)
	n.noteSilent(s)
}

func (n *Since) noteSilent(s *telemetry.Sample) {
	here := map[ProcessID]bool{}
	for i := range s.Processes {
		p := &s.Processes[i]
		id := IDOf(p)
		here[id] = true
		if at, ok := n.told[id]; !ok || !at.Equal(p.At) {
			n.told[id], n.Silent[id] = p.At, s.At
		}
	}
	for id := range n.told {
		if !here[id] {
			delete(n.told, id)
			delete(n.Silent, id)
		}
	}
}
