package explore

import (
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// Plan is one run as plain data: a plan and the program fix everything that happens. It prints as
// one line, which Parse reads back.
type Plan struct {
	Seed uint64 // of the network's draws, and the workers' own
	Shape
	Net   Net
	Cache bool          // workers cache what the store caches
	Pause time.Duration // the longest between two operations of a worker
	// Work is what each worker does. A worker without operations does not run; it keeps its number,
	// and with it the others theirs: what they draw follows from their names.
	Work   [][]Op
	Faults sim.Faults
}

// Shape is the pool of a plan.
type Shape struct {
	Nodes  int // memory nodes, spares among them
	Index  int // replicas of the index
	Data   int // replicas of the data
	Spares int // nodes that hold nothing until one dies
	Levels int // how many times a table may double that the keys do not fit; 0: they do
	Value  int // bytes of the longest value that the pool is made for; 0: the subject's MaxValue
}

// Net is the network of a plan; see sim.Options.
type Net struct {
	Tear, Reorder bool
	Min, Max      time.Duration // latency, one way
	Fly           float64       // share of the verbs that are late, by FlyMax at most
	FlyMax        time.Duration
}

// Op is one operation of a worker.
type Op struct {
	Kind check.Kind
	Key  int
	Size int // bytes of the value of an INSERT or UPDATE, or pairs of a scan
}

// Bounds of a plan, so that a line typed by hand cannot take the machine's memory.
const (
	maxNodes   = 16
	maxLevels  = 16
	maxWorkers = 32
	maxKeys    = 64
	maxOps     = 10_000 // of all workers
	maxSize    = 64 << 10
	maxFaults  = 32
	maxTime    = 10 * time.Second
)

// keys returns the number of keys: the plan's operations use keys below it.
func (p *Plan) keys() int {
	n := 1
	for _, ops := range p.Work {
		for _, op := range ops {
			n = max(n, op.Key+1)
		}
	}
	return n
}

// ops returns how many operations the plan has.
func (p *Plan) ops() (n int) {
	for _, ops := range p.Work {
		n += len(ops)
	}
	return n
}

// clone returns a copy that shares nothing with p.
func (p *Plan) clone() *Plan {
	q := *p
	q.Work = make([][]Op, len(p.Work))
	for i, ops := range p.Work {
		q.Work[i] = append([]Op(nil), ops...)
	}
	q.Faults = append(sim.Faults(nil), p.Faults...)
	return &q
}

// outages returns how many of the faults take nodes away that come back.
func (p *Plan) outages() (n int) {
	for _, f := range p.Faults {
		if f.Outage() {
			n++
		}
	}
	return n
}

// lost returns the nodes that may be gone in the end.
func (p *Plan) lost() map[int]bool {
	lost := map[int]bool{}
	for _, f := range p.Faults {
		ofNode := f.Kind == sim.PartitionFault || f.Kind == sim.SlowFault || f.Outage() || f.Kind == sim.CrashFault &&
			f.Client == ""
		if ofNode && f.Node != sim.AnyNode {
			lost[f.Node] = true
		}
	}
	return lost
}

// options returns the simulation of the plan.
func (p *Plan) options() sim.Options {
	o := sim.Options{
		Seed: p.Seed, Nodes: p.Nodes, Tear: p.Net.Tear, Reorder: p.Net.Reorder,
		MinLatency: p.Net.Min, MaxLatency: p.Net.Max, FlyProb: p.Net.Fly, FlyMax: p.Net.FlyMax, Faults: p.Faults,
	}
	if p.outages() > 0 {
		o.PMem = new(pmem.Testbed())
	}
	return o
}
