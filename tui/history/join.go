package history

import (
	"slices"

	"github.com/farkv/farkv/node/telemetry"
)

// join returns one point of two that follow each other.
func join(a, b Point) Point {
	p := Point{At: b.At, Span: a.Span + b.Span, Fill: b.Fill, Own: slices.Clone(b.Own)}
	wa := 0.5
	if p.Span > 0 {
		wa = float64(a.Span) / float64(p.Span)
	}
	p.Ops = joinOps(&a.Ops, &b.Ops, wa)
	for i, n := range a.Own {
		if i < len(p.Own) {
			p.Own[i] += n
		}
	}
	p.Total = Quantiles{max(a.Total.P50, b.Total.P50), max(a.Total.P99, b.Total.P99), max(a.Total.P999, b.Total.P999)}
	var none Process
	for i := range b.Processes {
		is, was := &b.Processes[i], &none
		if j := slices.IndexFunc(a.Processes, func(w Process) bool { return w.ID == is.ID }); j >= 0 {
			was = &a.Processes[j]
		}
		p.Processes = append(p.Processes, joinProcesses(was, is, wa))
	}
	for i := range a.Processes { // that ended
		was := &a.Processes[i]
		if !slices.ContainsFunc(b.Processes, func(is Process) bool { return is.ID == was.ID }) {
			none.ID = was.ID
			p.Processes = append(p.Processes, joinProcesses(was, &none, wa))
		}
	}
	for _, is := range b.Nodes {
		if j := slices.IndexFunc(a.Nodes, func(w Node) bool { return w.ID == is.ID }); j >= 0 {
			was := a.Nodes[j]
			addCounts(&is.NodeCounts, was.NodeCounts)
			is.DIMMs = joinDIMMs(was.DIMMs, is.DIMMs)
		}
		p.Nodes = append(p.Nodes, is)
	}
	return p
}

func joinProcesses(a, b *Process, wa float64) Process {
	p := Process{ID: b.ID, Ops: joinOps(&a.Ops, &b.Ops, wa)}
	p.Own = append(p.Own, b.Own...)
	for _, c := range a.Own {
		if i := slices.IndexFunc(p.Own, func(o telemetry.Counter) bool { return o.Name == c.Name }); i >= 0 {
			p.Own[i].Count += c.Count
		} else {
			p.Own = append(p.Own, c)
		}
	}
	p.Nodes = append(p.Nodes, b.Nodes...)
	for _, c := range a.Nodes {
		if i := slices.IndexFunc(p.Nodes, func(n telemetry.NodeCounts) bool { return n.Node == c.Node }); i >= 0 {
			addCounts(&p.Nodes[i], c)
		} else {
			p.Nodes = append(p.Nodes, c)
		}
	}
	return p
}

// joinOps adds counts; rates are weighted by how long they were.
func joinOps(a, b *[telemetry.Kinds]Ops, wa float64) (sum [telemetry.Kinds]Ops) {
	for k := range sum {
		x, y := &a[k], &b[k]
		sum[k] = Ops{
			Rate: x.Rate*wa + y.Rate*(1-wa), OK: x.OK + y.OK, Failed: x.Failed + y.Failed,
			Unknown: x.Unknown + y.Unknown, Trips: x.Trips + y.Trips, Latency: Merge(x.Latency, y.Latency),
		}
	}
	return sum
}

func joinDIMMs(a, b []telemetry.DIMM) []telemetry.DIMM {
	sum := slices.Clone(b)
	for i := range sum {
		j := slices.IndexFunc(a, func(d telemetry.DIMM) bool { return d.ID == sum[i].ID })
		if j < 0 {
			continue
		}
		sum[i].MediaReads += a[j].MediaReads
		sum[i].MediaWrites += a[j].MediaWrites
		sum[i].ReadRequests += a[j].ReadRequests
		sum[i].WriteRequests += a[j].WriteRequests
	}
	return sum
}
