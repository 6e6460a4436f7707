package client

import (
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// A Meter reads what a worker's endpoint and store count of themselves. It belongs to the worker:
// one in the midst of an operation of its store does not use it.
type Meter struct {
	queue rdma.Queue
	store Countable // nil: it counts nothing

	// What has been collected, and room for what there is and for the difference.
	calls    uint64
	nodes    []rdma.NodeCounters
	own, now []telemetry.Counter
	diff     telemetry.Process
}

// NewMeter returns the meter of a worker that has done nothing yet.
func NewMeter(s Store, q rdma.Queue) *Meter {
	m := &Meter{queue: q}
	m.store, _ = s.(Countable)
	return m
}

// Collect adds to p what was counted since it was collected last: verbs at nodes, calls, and the
// store's own counters.
func (m *Meter) Collect(p *telemetry.Process) {
	d := &m.diff
	d.Nodes, d.Own = d.Nodes[:0], d.Own[:0]
	for i, now := range m.queue.NodeCounters() {
		if i == len(m.nodes) {
			m.nodes = append(m.nodes, rdma.NodeCounters{})
		}
		if was := m.nodes[i]; now != was {
			d.Nodes = append(d.Nodes, telemetry.NodeCounts{
				Node: i, Doorbells: now.Doorbells - was.Doorbells,
				Reads: now.Reads - was.Reads, Writes: now.Writes - was.Writes, Atomics: now.Atomics - was.Atomics,
				Calls: now.Calls - was.Calls, BytesRead: now.BytesRead - was.BytesRead,
				BytesWrote: now.BytesWrote - was.BytesWrote,
			})
			m.nodes[i] = now
		}
	}
	calls := m.queue.Counters().Calls
	d.Calls, m.calls = calls-m.calls, calls
	if m.store != nil {
		m.now = m.store.Counts(m.now[:0])
		for i, now := range m.now {
			if i == len(m.own) {
				m.own = append(m.own, telemetry.Counter{})
			}
			d.Own = append(d.Own, telemetry.Counter{Name: now.Name, Count: now.Count - m.own[i].Count})
			m.own[i] = now
		}
	}
	p.Add(d)
}
