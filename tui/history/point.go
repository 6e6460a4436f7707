package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/farkv/farkv/node/telemetry"
)

// ProcessID tells a process from all others, of other times too.
type ProcessID struct {
	Host string
	PID  int
	Life uint64
}

// IDOf returns the identity of p.
func IDOf(p *telemetry.Process) ProcessID { return ProcessID{p.Host, p.PID, p.Life} }

// Ops are what happened to operations of one kind between two samples.
type Ops struct {
	Rate                       float64 // those in OK a second
	OK, Failed, Unknown, Trips uint64
	Latency                    Distribution
}

// Process is what a process did between two samples.
type Process struct {
	ID    ProcessID
	Ops   [telemetry.Kinds]Ops
	Own   []telemetry.Counter
	Nodes []telemetry.NodeCounts
}

// Node is what happened at a node between two samples.
type Node struct {
	ID int
	telemetry.NodeCounts
	DIMMs []telemetry.DIMM
}

// Point is the time between two samples: Span until At. Counts are differences.
type Point struct {
	At        time.Time
	Span      time.Duration
	Ops       [telemetry.Kinds]Ops // of all processes
	Total     Quantiles            // of all kinds
	Processes []Process
	Nodes     []Node
	Own       []uint64 // by History.Own; shorter where a counter came later
	Fill      []telemetry.Fill
}

// Quantiles are those of a point's operations; 0 where none ended.
type Quantiles struct{ P50, P99, P999 time.Duration }

func quantiles(d Distribution) Quantiles {
	return Quantiles{d.Percentile(50), d.Percentile(99), d.Percentile(99.9)}
}

// Rate returns the operations of all kinds a second.
func (p *Point) Rate() (sum float64) {
	for k := range p.Ops {
		sum += p.Ops[k].Rate
	}
	return sum
}

// Of returns what a process did; nil if it is not in p.
func (p *Point) Of(id ProcessID) *Process {
	for i := range p.Processes {
		if p.Processes[i].ID == id {
			return &p.Processes[i]
		}
	}
	return nil
}

// RateOf returns the operations of a process a second.
func (p *Point) RateOf(id ProcessID) float64 {
	if q := p.Of(id); q != nil {
		return q.Sum().Rate
	}
	return 0
}

// Sum returns the counts of all kinds.
func (p *Point) Sum() (s Ops) { return sumOps(&p.Ops) }

func sumOps(all *[telemetry.Kinds]Ops) (s Ops) {
	for k := range all {
		o := &all[k]
		s.Rate, s.OK, s.Failed = s.Rate+o.Rate, s.OK+o.OK, s.Failed+o.Failed
		s.Unknown, s.Trips = s.Unknown+o.Unknown, s.Trips+o.Trips
	}
	return s
}

// Sum returns the counts of all kinds.
func (p *Process) Sum() Ops { return sumOps(&p.Ops) }

// size returns about how many bytes p takes.
func (p *Point) size() (n int) {
	n = 512 + 16*len(p.Own) + 128*len(p.Nodes)
	for k := range p.Ops {
		n += 8 * cap(p.Ops[k].Latency)
	}
	for i := range p.Processes {
		n += 640 + 24*len(p.Processes[i].Own) + 64*len(p.Processes[i].Nodes)
		for k := range p.Processes[i].Ops {
			n += 8 * cap(p.Processes[i].Ops[k].Latency)
		}
	}
	return n
}

// rates are what a process did a second when its record changed last, and when that was by the
// samples' clock.
type rates struct {
	ops [telemetry.Kinds]float64
	at  time.Time
}

// hold is for how long a process is taken to go on as before though its record did not change: it
// is written once a second, and two looks a second apart may find the same.
const hold = 2500 * time.Millisecond

// point returns what happened between last and s, and keeps what the next one needs.
func (h *History) point(s, last *telemetry.Sample) Point {
	p := Point{At: s.At, Fill: s.Fill, Own: make([]uint64, len(h.own))}
	if last != nil {
		p.Span = s.At.Sub(last.At)
	}
	seen := map[ProcessID]bool{}
	for i := range s.Processes {
		is := &s.Processes[i]
		id := IDOf(is)
		if seen[id] {
			continue
		}
		seen[id] = true
		did := h.did(id, is, s.At, p.Span)
		h.before[id] = *is
		p.Processes = append(p.Processes, did)
		for k := range did.Ops {
			o, d := &p.Ops[k], &did.Ops[k]
			o.Rate, o.OK, o.Failed = o.Rate+d.Rate, o.OK+d.OK, o.Failed+d.Failed
			o.Unknown, o.Trips = o.Unknown+d.Unknown, o.Trips+d.Trips
		}
		for _, c := range did.Own {
			if i := slices.Index(h.own, c.Name); i >= 0 {
				p.Own[i] += c.Count
			}
		}
	}
	for id := range h.before {
		if !seen[id] {
			delete(h.before, id)
			delete(h.rates, id)
		}
	}
	p.distributions()
	h.nodesOf(&p, s)
	return p
}

// distributions merges those of the processes.
func (p *Point) distributions() {
	var kinds []Distribution
	for k := range p.Ops {
		var all []Distribution
		for i := range p.Processes {
			all = append(all, p.Processes[i].Ops[k].Latency)
		}
		p.Ops[k].Latency = Merge(all...)
		kinds = append(kinds, p.Ops[k].Latency)
	}
	p.Total = quantiles(Merge(kinds...))
}

// did returns what a process did since its record before. A record that is new counts from nothing
// if its process began since the sample before, by the process's own clock, and not at all
// otherwise: how much of it happened before is not known.
func (h *History) did(id ProcessID, is *telemetry.Process, at time.Time, span time.Duration) Process {
	did := Process{ID: id}
	was, known := h.before[id]
	took := is.At.Sub(was.At)
	if !known {
		if took = is.At.Sub(is.Began); is.Began.IsZero() || took > span+hold {
			return did
		}
	}
	if took <= 0 || took > 24*time.Hour {
		if r := h.rates[id]; at.Sub(r.at) < hold {
			for k, rate := range r.ops {
				did.Ops[k].Rate = rate
			}
		}
		return did
	}
	r := rates{at: at}
	for k := range is.Ops {
		o, d := &is.Ops[k], &did.Ops[k]
		b := &was.Ops[k]
		d.OK, d.Failed = since(o.OK, b.OK), since(o.Failed, b.Failed)
		d.Unknown, d.Trips = since(o.Unknown, b.Unknown), since(o.Trips, b.Trips)
		d.Rate = float64(d.OK) / took.Seconds()
		r.ops[k] = d.Rate
		if o.Latency != nil && d.OK > 0 {
			before := b.Latency
			if before != nil && o.Latency.Count() < before.Count() {
				before = nil
			}
			// which takes no more than it has to
			d.Latency = slices.Clone(distributionSince(o.Latency, before, h.scratch[:0]))
		}
	}
	h.rates[id] = r
	for i := range is.Nodes {
		var before telemetry.NodeCounts
		if i < len(was.Nodes) && was.Nodes[i].Node == is.Nodes[i].Node {
			before = was.Nodes[i]
		}
		did.Nodes = append(did.Nodes, countsSince(&is.Nodes[i], &before))
	}
	for i, c := range is.Own {
		var before uint64
		if i < len(was.Own) && was.Own[i].Name == c.Name {
			before = was.Own[i].Count
		}
		did.Own = append(did.Own, telemetry.Counter{Name: c.Name, Count: since(c.Count, before)})
	}
	return did
}

// since returns how much a counter grew; one that went back began anew.
func since(is, was uint64) uint64 {
	if is < was {
		return is
	}
	return is - was
}

// nodesOf adds the verbs at nodes: by the nodes' own counters, or as clients counted them where
// nodes do not.
func (h *History) nodesOf(p *Point, s *telemetry.Sample) {
	for _, n := range s.Nodes {
		was, known := h.nodes[n.ID]
		h.nodes[n.ID] = n
		d := Node{ID: n.ID}
		d.NodeCounts.Node = n.ID
		if n.Counts != nil {
			if known && was.Counts != nil {
				d.NodeCounts = countsSince(n.Counts, was.Counts)
			}
		} else {
			for i := range p.Processes {
				for _, c := range p.Processes[i].Nodes {
					if c.Node == n.ID {
						addCounts(&d.NodeCounts, c)
					}
				}
			}
		}
		if n.PMem != nil && known && was.PMem != nil {
			d.DIMMs = dimmsSince(n.PMem.DIMMs, was.PMem.DIMMs)
		}
		p.Nodes = append(p.Nodes, d)
	}
	slices.SortFunc(p.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
}

// countsSince returns differences of all counters.
func countsSince(is, was *telemetry.NodeCounts) telemetry.NodeCounts {
	return telemetry.NodeCounts{
		Node:  is.Node,
		Reads: since(is.Reads, was.Reads), Writes: since(is.Writes, was.Writes), Atomics: since(is.Atomics,
			was.Atomics),
		Calls: since(is.Calls, was.Calls), BytesRead: since(is.BytesRead, was.BytesRead),
		BytesWrote: since(is.BytesWrote, was.BytesWrote), Doorbells: since(is.Doorbells, was.Doorbells),
	}
}

func addCounts(a *telemetry.NodeCounts, b telemetry.NodeCounts) {
	a.Reads, a.Writes, a.Atomics, a.Calls = a.Reads+b.Reads, a.Writes+b.Writes, a.Atomics+b.Atomics, a.Calls+b.Calls
	a.BytesRead, a.BytesWrote = a.BytesRead+b.BytesRead, a.BytesWrote+b.BytesWrote
	a.Doorbells += b.Doorbells
}

// Verbs returns the verbs and calls of n.
func (n *Node) Verbs() uint64 { return n.Reads + n.Writes + n.Atomics + n.Calls }

func dimmsSince(is, was []telemetry.DIMM) (d []telemetry.DIMM) {
	for _, x := range is {
		i := slices.IndexFunc(was, func(w telemetry.DIMM) bool { return w.ID == x.ID })
		if i < 0 {
			continue
		}
		w := was[i]
		d = append(d, telemetry.DIMM{
			ID: x.ID, MediaReads: since(x.MediaReads, w.MediaReads), MediaWrites: since(x.MediaWrites, w.MediaWrites),
			ReadRequests: since(x.ReadRequests, w.ReadRequests), WriteRequests: since(x.WriteRequests, w.WriteRequests),
		})
	}
	return d
}
