package simulate

import (
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/workloads"
)

// sampler takes samples of a run in virtual time, as of a real pool. The first client that ends an
// operation after the time of a sample takes it. That takes no virtual time.
type sampler struct {
	take   func(*telemetry.Sample)
	next   time.Duration     // since measuring began
	done   []telemetry.Event // by the pool's master since the last sample
	faults sim.Faults        // that have not happened yet
}

// sample takes a sample when it is time for one.
func (r *run) sample(now time.Duration) {
	s := &r.sampler
	if s.take == nil || now < s.next {
		return
	}
	at := now - now%r.Interval
	s.next = at + r.Interval
	view := r.sim.View()
	all := telemetry.Sample{
		At: virtual(at), Pool: "sim", Store: r.Store, Virtual: true, Epoch: view.Epoch, Busy: view.Busy,
		Whole: !view.Busy, MayDie: -1,
	}
	for i, m := range view.Members {
		n := telemetry.Node{ID: i, Role: "member", Up: !r.sim.Dead(i), Replaces: int(m.Replaces), Bytes: r.sim.Size()}
		empty := i >= r.Nodes-r.Spares && m.Replaces == 0
		if empty && !m.Gone {
			n.Role = "spare"
			all.Spares++
		}
		if m.Gone {
			n.Role, n.Up = "gone", false
		}
		_, _, held := view.Holder(i)
		all.Whole = all.Whole && (n.Up || empty || n.Role == "gone" && held)
		all.Nodes = append(all.Nodes, n)
	}
	all.Processes = []telemetry.Process{r.process(at)}
	all.Events = s.events(r.began, at)
	s.take(&all)
}

// virtual is a moment of virtual time: it begins with the epoch of Unix.
func virtual(d time.Duration) time.Time { return time.Unix(0, int64(d)).UTC() }

// kinds are the operations that calls of a workload are.
var kinds = map[workloads.Op]telemetry.Kind{
	workloads.OpRead: telemetry.Get, workloads.OpUpdate: telemetry.Update, workloads.OpInsert: telemetry.Insert,
	workloads.OpScan: telemetry.Scan,
}

// process is what all clients of the run did, as if they were of one process.
func (r *run) process(at time.Duration) telemetry.Process {
	p := telemetry.Process{Host: r.Profile, Name: r.Store, Life: r.Seed, Began: virtual(0), At: virtual(at)}
	var total workloads.Tally
	for _, c := range r.clients {
		if c.tally != nil {
			p.Workers++
			total.Merge(c.tally)
		}
	}
	for op, kind := range kinds {
		m, o := &total.Calls[op], &p.Ops[kind]
		if m.OK != nil {
			o.OK, o.Trips, o.Latency = m.OK.Count(), m.Trips, m.OK
		}
		if m.Failed != nil {
			o.Failed = m.Failed.Count()
		}
	}
	return p
}

// events are those since the last sample: what was broken, and what the pool's master did about it.
func (s *sampler) events(began, at time.Duration) (list []telemetry.Event) {
	var later sim.Faults
	for _, f := range s.faults {
		if since := f.At - began; since > at {
			later = append(later, f)
		} else {
			list = append(list, telemetry.Event{At: virtual(since), What: "broken", Node: -1, Text: f.String()})
		}
	}
	s.faults = later
	list = append(list, s.done...)
	s.done = nil
	return list
}

// note keeps an event of the pool's master for the next sample.
func (s *sampler) note(e cluster.Event, at time.Duration) {
	if s.take != nil {
		s.done = append(s.done, stores.EventOf(e, virtual(at)))
	}
}
