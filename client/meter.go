package client

import (
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// A Meter reads the counters of a worker's endpoint and store. It belongs to the worker, and must
// not be used in the middle of an operation of its store.
type Meter struct {
	queue rdma.Queue
	store Countable // nil: the store has no counters

	// The counters as they were collected last, and buffers for the current ones and the
	// difference. nodes is by node. own has the store's order, which never changes: see Countable.
	calls    uint64
	nodes    []rdma.NodeCounters
	own, now []telemetry.Counter
	diff     telemetry.Process
}

// NewMeter returns the meter of a worker that has done nothing yet. What it takes to open the store
// is in the first Collect.
func NewMeter(s Store, q rdma.Queue) *Meter {
	m := &Meter{queue: q}
	m.store, _ = s.(Countable)
	return m
}

// Collect adds to p what was counted since the last call: verbs by node, calls, and the store's own
// counters. Once its buffers are there it allocates nothing.
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
