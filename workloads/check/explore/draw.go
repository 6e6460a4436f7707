package explore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// Limits restrict the plans that are drawn. A zero value restricts nothing.
type Limits struct {
	Workers  int             // the most
	Keys     int             // the most
	Ops      int             // the most of a worker
	Replicas int             // of index and data, exactly
	Value    int             // bytes of the largest value
	Faults   int             // the most; negative: none
	Kinds    []sim.FaultKind // of the faults
}

// The plans that are drawn are small: enough to collide in, small enough to read.
const (
	mostWorkers = 6
	mostKeys    = 4
	mostOps     = 24
	mostFaults  = 4
)

// Widest are the limits that a plan has when its run sets none.
var Widest = Limits{Workers: mostWorkers, Keys: mostKeys, Ops: mostOps, Faults: mostFaults}

// Draw makes the plan of a seed for a subject. The same seed, subject and limits make the same
// plan.
func (s *Subject) Draw(seed uint64, l Limits) *Plan {
	d := drawer{rand.New(rand.NewPCG(seed, 0x9a7)), s.withDefaults(), l}
	p := &Plan{Seed: seed, Shape: d.shape(), Net: d.net(), Cache: d.IntN(3) > 0}
	d.widen(&p.Shape, rand.New(rand.NewPCG(seed, 0x1a57)))
	p.Pause = []time.Duration{0, 0, 3 * time.Microsecond, 30 * time.Microsecond}[d.IntN(4)]
	p.Work = d.work(p.Value)
	if l.Faults >= 0 {
		d.faults(p)
	}
	if d.subject.Scans { // by draws of its own, as outages are
		d.Rand = rand.New(rand.NewPCG(seed, 0x5ca4))
		d.scans(p)
	}
	if l.Faults >= 0 && d.subject.Durable { // by draws of its own: the rest is as it is without
		d.Rand = rand.New(rand.NewPCG(seed, 0x70ff))
		d.outages(p)
	}
	return p
}

type drawer struct {
	*rand.Rand
	subject *Subject
	limits  Limits
}

// upTo draws from 1 to limit, or to most when limit is 0.
func (d *drawer) upTo(most, limit int) int {
	if limit > 0 {
		most = limit
	}
	return 1 + d.IntN(most)
}

func (d *drawer) shape() Shape {
	r := d.subject.Replicas[d.IntN(len(d.subject.Replicas))]
	if n := d.limits.Replicas; n > 0 {
		r = [2]int{n, n}
	}
	p := Shape{Index: r[0], Data: r[1]}
	p.Nodes = max(p.Index, p.Data) + d.IntN(2)
	if d.subject.spared(p.Data) && d.IntN(3) == 0 {
		p.Spares = 1
		p.Nodes++
	}
	if d.subject.Levels > 0 && d.IntN(2) == 0 {
		p.Levels = d.subject.Levels
	}
	return p
}

// rarely is how many pools there are for each that is wide, or of large pairs: these take longer.
const rarely = 16

// widen makes some pools wide, and some of large pairs. It has draws of its own: the others are as
// they are without.
func (d *drawer) widen(s *Shape, own *rand.Rand) {
	wide, large := own.IntN(rarely) == 0, own.IntN(rarely) == 0
	if w := d.subject.Wide; wide && w > 0 && d.limits.Replicas == 0 {
		s.Nodes += w - max(s.Index, s.Data)
		s.Index, s.Data = w, w
	}
	if l := d.subject.Large; large && l > 0 && d.limits.Value == 0 {
		s.Value, s.Levels = l, 0 // a table that grows is small beside large pairs
	}
}

func (d *drawer) net() Net {
	n := Net{Min: 500, Max: []time.Duration{2, 10, 50}[d.IntN(3)] * time.Microsecond}
	n.Tear, n.Reorder = d.IntN(4) > 0, d.IntN(4) > 0
	if n.Fly = []float64{0, 0.01, 0.1}[d.IntN(3)]; n.Fly > 0 {
		n.FlyMax = 200 * time.Microsecond
	}
	return n
}

// mixes are the weights of Get, Insert, Update and Delete.
var mixes = [][4]int{{7, 4, 5, 4}, {3, 1, 6, 0}, {2, 4, 0, 4}, {2, 3, 3, 2}, {1, 1, 8, 1}}

// work draws what workers do, with values of up to large bytes; 0: up to the subject's MaxValue.
func (d *drawer) work(large int) [][]Op {
	work := make([][]Op, d.upTo(mostWorkers, d.limits.Workers))
	keys, ops := d.upTo(mostKeys, d.limits.Keys), d.upTo(mostOps, d.limits.Ops)
	mix := mixes[d.IntN(len(mixes))]
	size := []int{16, 64, d.subject.MaxValue}[d.IntN(3)]
	if l := d.limits.Value; l > 0 {
		size = min(size, l)
	}
	if size = min(size, d.subject.MaxValue); large > 0 {
		size = large
	}
	for w := range work {
		for i := range ops {
			op := Op{Kind: d.kind(mix), Key: d.IntN(keys)}
			if i == 0 && w == 0 && mix[1] < 2 {
				op.Kind = check.Insert // else there would be nothing to update for long
			}
			if op.writes() {
				op.Size = d.size(size)
			}
			work[w] = append(work[w], op)
		}
	}
	return work
}

// scanShares are the shares of operations that become scans: one in n; 0: none.
var scanShares = []int{0, 4, 2}

// scans replaces some operations by scans. Half of these are of all keys.
func (d *drawer) scans(p *Plan) {
	share, keys := scanShares[d.IntN(len(scanShares))], p.keys()
	if share == 0 {
		return
	}
	for _, ops := range p.Work {
		for i := range ops {
			if d.IntN(share) > 0 {
				continue
			}
			if ops[i] = (Op{Kind: check.Scan, Size: keys + 1}); d.IntN(2) == 0 {
				ops[i].Key, ops[i].Size = d.IntN(keys), d.IntN(keys+1)
			}
		}
	}
}

func (d *drawer) kind(mix [4]int) check.Kind {
	n := d.IntN(mix[0] + mix[1] + mix[2] + mix[3])
	for k, weight := range mix {
		if n -= weight; n < 0 {
			return check.Kind(k)
		}
	}
	return check.Get
}

// size draws a size. One in four is the greatest, so that size classes mix and large pairs meet.
func (d *drawer) size(most int) int {
	if most > 64 && d.IntN(4) > 0 {
		most = 64
	}
	return check.MinValue + d.IntN(max(most-check.MinValue, 0)+1)
}

// workerName is what faults and traces call a worker.
func workerName(i int) string { return fmt.Sprintf("worker-%d", i) }

// keeperName is what faults and traces call a keeper.
func keeperName(i int) string { return fmt.Sprintf("keeper-%d", i) }

// verbsAnOp is about how many verbs an operation sends. It spreads crashes over all operations.
const verbsAnOp = 12

// faults draws what goes wrong.
func (d *drawer) faults(p *Plan) {
	most := mostFaults
	if d.limits.Faults > 0 {
		most = d.limits.Faults
	}
	mends := d.subject.Recoverer != nil
	doomed := d.Perm(p.Nodes)[:d.subject.expendable(min(p.Index, p.Data))]
	sent := uint64(verbsAnOp*(len(p.Work[0])+1)) + 20 // a store's Open sends some, too
	for range d.IntN(most + 1) {
		client := workerName(d.IntN(len(p.Work)))
		at := time.Duration(d.Int64N(int64(sent) * int64(p.Net.Max)))
		lasts := time.Duration(1 + d.Int64N(int64(5*time.Millisecond)))
		var f sim.Fault
		switch n := d.IntN(20); {
		case n < 7:
			f = sim.Fault{Kind: sim.CrashFault, Client: client, Verb: 1 + d.Uint64N(sent)}
		case n < 8:
			f = sim.Fault{Kind: sim.CrashFault, Client: client, At: at}
		case n < 9 && mends:
			f = sim.Fault{Kind: sim.CrashFault, Client: keeperName(d.IntN(keepers)), Verb: 1 + d.Uint64N(400)}
		case n < 13 && len(doomed) > 0:
			f = sim.Fault{Kind: sim.CrashFault, Node: d.one(&doomed), Verb: 1 + d.Uint64N(sent*uint64(len(p.Work)))}
		case n < 14 && len(doomed) > 0:
			f = sim.Fault{Kind: sim.CrashFault, Node: d.one(&doomed), At: at}
		case n < 15 && len(doomed) > 0:
			f = sim.Fault{Kind: sim.PartitionFault, Client: client, Node: d.one(&doomed), At: at, For: lasts}
		case n < 16 && len(doomed) > 0:
			f = sim.Fault{Kind: sim.SlowFault, Node: d.one(&doomed), At: at, For: lasts,
				Factor: float64(2 + d.IntN(50))}
		case n < 17:
			f = sim.Fault{Kind: sim.StallFault, Client: client, Verb: 1 + d.Uint64N(sent), For: lasts}
		case n < 18:
			f = sim.Fault{Kind: sim.FlyFault, Client: client, Verb: 1 + d.Uint64N(sent), For: lasts}
		case n < 19:
			f = sim.Fault{Kind: sim.LateFault, Client: client, Verb: 1 + d.Uint64N(sent), For: lasts}
		default: // a clock that goes back is none that a machine has: rdma.Env.Now is monotonic
			f = sim.Fault{Kind: sim.StepFault, Client: client, Verb: 1 + d.Uint64N(sent), By: lasts}
		}
		if d.may(f.Kind) { // others draw the same as without the limit
			p.Faults = append(p.Faults, f)
		}
		if f.Kind == sim.CrashFault && f.Client != "" && f.Verb > 0 && d.IntN(3) == 0 && d.may(sim.FlyFault) {
			// the dead one's last verb lands while it is being recovered, or later
			p.Faults = append(p.Faults, flying(f, lasts))
		}
	}
}

// mostOutages bounds the outages of a plan.
const mostOutages = 3

// outages draws losses of power and restarts for some plans. Some are of all nodes, and the next
// one may come while the pool still recovers from the last. Others are of one node, which must be
// expendable: if it stays away for long, the pool goes on without it.
func (d *drawer) outages(p *Plan) {
	if d.IntN(2) == 0 {
		return
	}
	at := d.within(4*time.Millisecond, 8*time.Millisecond, 16*time.Millisecond) // servers begin within some two
	for range 1 + d.IntN(mostOutages) {
		f := sim.Fault{Kind: sim.PowerFault, Node: sim.AnyNode, At: at}
		if d.IntN(4) == 0 {
			f.Kind = sim.RestartFault
		}
		if one := d.expendable(p); len(one) > 0 && d.IntN(3) == 0 {
			f.Node = one[d.IntN(len(one))]
		}
		f.For = d.within(50*time.Microsecond, 500*time.Microsecond, 5*time.Millisecond)
		// The node is up for long enough that the master notices it. Otherwise two outages would be
		// one.
		at += f.For + time.Millisecond + d.within(50*time.Microsecond, time.Millisecond, 10*time.Millisecond)
		d.add(p, f)
	}
	if doomed := d.expendable(p); len(doomed) > 0 && d.IntN(3) == 0 { // others take over what it has recovered
		d.add(p, sim.Fault{Kind: sim.CrashFault, Node: doomed[d.IntN(len(doomed))], At: at})
	}
}

// add adds a fault, if the limits permit it.
func (d *drawer) add(p *Plan, f sim.Fault) {
	if d.may(f.Kind) && (d.limits.Faults == 0 || len(p.Faults) < d.limits.Faults) {
		p.Faults = append(p.Faults, f)
	}
}

// expendable returns the nodes that may be lost in addition to those lost by the plan's faults.
func (d *drawer) expendable(p *Plan) (nodes []int) {
	lost := p.lost()
	for n := range p.Nodes {
		if !lost[n] && len(lost) < d.subject.expendable(min(p.Index, p.Data)) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// within chooses one of the given bounds and draws a time up to it.
func (d *drawer) within(most ...time.Duration) time.Duration {
	return time.Duration(1 + d.Int64N(int64(most[d.IntN(len(most))])))
}

// flying delays the last verb of a client that crashes.
func flying(crash sim.Fault, by time.Duration) sim.Fault {
	return sim.Fault{Kind: sim.FlyFault, Client: crash.Client, Verb: crash.Verb, For: by}
}

// may reports whether the limits permit faults of a kind.
func (d *drawer) may(k sim.FaultKind) bool {
	return len(d.limits.Kinds) == 0 || slices.Contains(d.limits.Kinds, k)
}

// one removes a node from those that may be lost, and returns it.
func (d *drawer) one(nodes *[]int) int {
	n := (*nodes)[0]
	*nodes = (*nodes)[1:]
	return n
}
