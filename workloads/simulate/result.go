package simulate

import (
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// Result is what a simulation measured, all of it in virtual time. Latencies are microseconds.
type Result struct {
	Store         string  `json:"store"`
	Profile       string  `json:"profile"`
	Nodes         int     `json:"nodes"`
	Clients       int     `json:"clients"`
	InFlight      int     `json:"in_flight"` // operations of a client
	IndexReplicas int     `json:"index_replicas"`
	DataReplicas  int     `json:"data_replicas"`
	Records       int64   `json:"records"`
	PairBytes     int     `json:"pair_bytes"`             // of the largest
	ObjectSizes   string  `json:"object_sizes,omitempty"` // see workloads.Spec
	DeviceBytes   uint64  `json:"device_bytes,omitempty"` // of each node, in the memory of its NIC
	Seed          uint64  `json:"seed"`
	Seconds       float64 `json:"seconds"`

	Operations uint64  `json:"operations"` // a read-modify-write is one
	Failed     uint64  `json:"failed"`
	Throughput float64 `json:"throughput"` // operations a second that ended well

	// LongestGap is the longest time in which one of the clients (or of the operations that it has
	// in flight) finished nothing, in microseconds.
	LongestGap float64 `json:"longest_gap"`

	Calls  []Call  `json:"calls"` // those that were made; TOTAL, the last, is all but READ_MODIFY_WRITE
	Points []Point `json:"over_time,omitempty"`
	// Events are what the pool's master did, in runs with faults or with requests that shift.
	Events []Event `json:"events,omitempty"`
	// Machines are the memory nodes, then the compute nodes.
	Machines []Machine `json:"machines"`
	// Memory is what the pool's memory is used for in the end, where Config asks for it.
	Memory []client.Use `json:"memory,omitempty"`

	Error string `json:"error,omitempty"` // the first failure
}

// Call is one kind of call.
type Call struct {
	Name    string         `json:"name"`
	Latency runner.Latency `json:"latency"`
	// CDF are pairs of a latency and the share of the calls that took no longer.
	CDF    [][2]float64    `json:"cdf,omitempty"`
	Failed *runner.Latency `json:"failed,omitempty"`
	Error  string          `json:"error,omitempty"` // the first failure
	Trips  float64         `json:"trips_per_call"`  // of calls that ended well
	// ByTrips are the shares of the calls that ended well which took 0, 1, 2 ... trips; the last:
	// as many or more.
	ByTrips []float64 `json:"share_by_trips,omitempty"`
	Cost    *Cost     `json:"per_call,omitempty"`
}

// At returns the latency that a share of the calls did not exceed, in microseconds.
func (c *Call) At(share float64) float64 {
	for _, p := range c.CDF {
		if p[1] >= share {
			return p[0]
		}
	}
	return c.Latency.Max
}

// TripsAt returns the trips that a share of the calls did not exceed.
func (c *Call) TripsAt(share float64) int {
	sum := 0.0
	for n, part := range c.ByTrips {
		if sum += part; sum >= share-1e-9 {
			return n
		}
	}
	return len(c.ByTrips)
}

// Cost is what a call takes, on average: verbs, two-sided calls, and bytes of their payload.
type Cost struct {
	Reads      float64 `json:"reads"`
	Writes     float64 `json:"writes"`
	Atomics    float64 `json:"atomics"`
	Calls      float64 `json:"calls"`
	BytesRead  float64 `json:"bytes_read"`
	BytesWrote float64 `json:"bytes_wrote"`
}

// Verbs is the number of one-sided verbs.
func (c *Cost) Verbs() float64 { return c.Reads + c.Writes + c.Atomics }

func newCost(c rdma.Counters, calls uint64) *Cost {
	if calls == 0 {
		return nil
	}
	per := func(n uint64) float64 { return float64(n) / float64(calls) }
	return &Cost{Reads: per(c.Reads), Writes: per(c.Writes), Atomics: per(c.Atomics), Calls: per(c.Calls),
		BytesRead: per(c.BytesRead), BytesWrote: per(c.BytesWrote)}
}

// Point is the sum over one interval.
type Point struct {
	Seconds    float64 `json:"seconds"` // when it ended, since measuring began
	Throughput float64 `json:"throughput"`
	Failed     float64 `json:"failed,omitempty"` // a second
	Latency    float64 `json:"latency"`          // mean of its calls, in microseconds; 0: there were none
	// CPU is how busy the cores of each memory node were, where requests shift: see Machine.
	CPU []float64 `json:"cpu,omitempty"`
}

// Event is something that the pool's master did.
type Event struct {
	Seconds float64 `json:"seconds"` // since measuring began
	What    string  `json:"what"`
	Report  string  `json:"report,omitempty"` // cluster.Event.Report, in lines
}

func (r *run) result() *Result {
	res := &Result{
		Store: r.Store, Profile: r.Profile, Nodes: r.Nodes, Clients: r.Config.Clients, InFlight: r.InFlight,
		IndexReplicas: r.IndexReplicas, DataReplicas: r.DataReplicas, Records: r.Spec.RecordCount,
		PairBytes: r.Spec.PairBytes(), ObjectSizes: r.Spec.ObjectSizes, Seed: r.Seed,
		Seconds:    max(r.ended, 1).Seconds(),
		LongestGap: runner.Microseconds(r.gap), Memory: r.memory, DeviceBytes: r.inNICs,
	}
	var total workloads.Tally
	var sum meter
	for _, p := range r.clients {
		if p.tally == nil {
			continue
		}
		total.Merge(p.tally)
		for op := range workloads.Ops {
			sum.calls[op] += p.meter.calls[op]
			sum.verbs[op] = sum.verbs[op].Add(p.meter.verbs[op])
			sum.trips[op].merge(&p.meter.trips[op])
		}
	}
	res.Operations, res.Failed = total.Operations, total.Failed
	res.Throughput = float64(total.Operations-total.Failed) / res.Seconds
	for op := range workloads.Ops {
		res.add(op, &total.Calls[op], &sum)
	}
	res.total(&total, &sum)
	usage := since(r.usage, r.idle)
	for i := range usage {
		res.Machines = append(res.Machines, machine(&usage[i], max(r.ended, 1)))
	}
	res.Points, res.Events = r.points(), r.events
	return res
}

// points returns the complete intervals.
func (r *run) points() (list []Point) {
	span := r.Interval.Seconds()
	for i, p := range r.series.points {
		if end := time.Duration(i+1) * r.Interval; end <= r.ended {
			list = append(list, Point{Seconds: end.Seconds(), Throughput: float64(p.operations-p.failed) / span,
				Failed: float64(p.failed) / span, Latency: runner.Microseconds(p.took) / float64(max(p.operations, 1)),
				CPU: r.busy(i)})
		}
	}
	return list
}

// add adds a kind of call that was made.
func (r *Result) add(op workloads.Op, m *workloads.Measure, sum *meter) {
	c := Call{Name: op.String(), Latency: runner.Summarize(m.OK), CDF: cdf(m.OK),
		Cost: newCost(sum.verbs[op], sum.calls[op]), ByTrips: sum.trips[op].shares()}
	if m.Failed != nil && m.Failed.Count() > 0 {
		failed := runner.Summarize(m.Failed)
		c.Failed, c.Error = &failed, m.Err.Error()
		if r.Error == "" {
			r.Error = c.Name + ": " + c.Error
		}
	}
	if c.Latency.Count == 0 && c.Failed == nil {
		return
	}
	if c.Latency.Count > 0 {
		c.Trips = float64(m.Trips) / float64(c.Latency.Count)
	}
	r.Calls = append(r.Calls, c)
}

func (r *Result) total(t *workloads.Tally, sum *meter) {
	h, trips := t.Total()
	if h.Count() == 0 {
		return
	}
	var all rdma.Counters
	var by tripCount
	calls := uint64(0)
	for op := range workloads.OpReadModifyWrite {
		all, calls = all.Add(sum.verbs[op]), calls+sum.calls[op]
		by.merge(&sum.trips[op])
	}
	r.Calls = append(r.Calls, Call{Name: "TOTAL", Latency: runner.Summarize(&h), CDF: cdf(&h),
		Trips: float64(trips) / float64(h.Count()), Cost: newCost(all, calls), ByTrips: by.shares()})
}

// cdf returns the distribution of h, with a point for each bucket that counted anything.
func cdf(h *workloads.Histogram) (points [][2]float64) {
	if h == nil || h.Count() == 0 {
		return nil
	}
	seen := uint64(0)
	h.Buckets(func(_, to time.Duration, n uint64) bool {
		seen += n
		share := float64(seen*1_000_000/h.Count()) / 1e6
		points = append(points, [2]float64{runner.Microseconds(min(to-1, h.Max())), share})
		return true
	})
	return points
}

// Call returns what was measured of the kind of call with that name, or nil.
func (r *Result) Call(name string) *Call {
	for i := range r.Calls {
		if r.Calls[i].Name == name {
			return &r.Calls[i]
		}
	}
	return nil
}
