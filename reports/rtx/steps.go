package rtx

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// rtxStep is one of the steps from the original tree to that over rTX (Figures 16 and 17).
type rtxStep struct {
	name  string
	store string // that has the step; "": none has
	less  stores.Without
	verbs [][]simulate.BareVerb // as the paper describes them, a trip each
}

func bare(v rdma.Verb, at simulate.Place, bytes int) simulate.BareVerb {
	return simulate.BareVerb{Verb: v, Place: at, Bytes: bytes}
}

// The verbs of steps.
var (
	readNode   = bare(rdma.Read, simulate.OfData, nodeBytes)
	writeNode  = bare(rdma.Write, simulate.OfData, nodeBytes)
	readLock   = bare(rdma.Read, simulate.OfLock, 16)
	lockNode   = bare(rdma.CompareSwap, simulate.OfLock, 0)
	writeLock  = bare(rdma.Write, simulate.OfLock, 8)
	swapNode   = bare(rdma.CompareSwap, simulate.OfPointer, 0)
	readMeta   = bare(rdma.Read, simulate.OfPointer, 16)
	logNode    = bare(rdma.Write, simulate.OfLog, nodeBytes+24)
	logPointer = bare(rdma.Write, simulate.OfLog, 24)
	setState   = bare(rdma.CompareSwap, simulate.OfLogState, 0)
)

type trip = []simulate.BareVerb

var rtxSteps = []rtxStep{
	{name: optimal, store: "sherman", verbs: []trip{{lockNode}, {readNode}, {writeNode, writeLock}}},
	{name: "+OCC", store: "sherman-dtx", less: stores.EarlyLocks | stores.Logs,
		verbs: []trip{{readNode}, {lockNode}, {readLock}, {writeNode, writeLock}}},
	{name: "+ICommit", verbs: []trip{{readNode}, {lockNode}, {readLock}, {writeNode, swapNode, lockNode}}},
	{name: "+Log", store: "sherman-dtx", less: stores.EarlyLocks,
		verbs: []trip{{readNode}, {logNode}, {lockNode}, {readLock}, {setState},
			{writeNode, swapNode, lockNode, setState}}},
	{name: "+Separate", store: "sherman-rtx", less: stores.EarlyLocks | stores.LogElision,
		verbs: []trip{{readMeta}, {readNode}, {logPointer}, {lockNode}, {readLock}, {setState},
			{writeNode, swapNode, lockNode, setState}}},
	{name: "+OPT1 +OPT2", store: "sherman-rtx",
		verbs: []trip{{readMeta}, {lockNode, readNode}, {writeNode, swapNode}, {lockNode}}},
}

// oneNode are the clients of one compute node, of which the paper takes latencies.
const oneNode = rtxThreads

func stepCases(s *size) (list []eval.Trial) {
	for _, x := range rtxSteps {
		list = append(list, s.program(eval.Key("bare", x.name), x.verbs, oneNode),
			s.program(eval.Key("bare", x.name), x.verbs, bareCrowd))
		if x.store == "" {
			continue
		}
		own := implementation{x.name, x.store, forgetful, x.less}
		if x.name == optimal {
			own.own = nil
		}
		inserts := func(o *virtual.Simulation) {
			o.Properties = append(o.Properties, "insertproportion=1", "readproportion=0", "updateproportion=0")
		}
		list = append(list, s.trial(own, "a", eval.Key(x.name, oneNode), func(o *virtual.Simulation) {
			inserts(o)
			o.Clients = oneNode
		}))
		list = append(list, s.peaks(own, insertsAlone, x.name, inserts)...)
	}
	return list
}

// insertsAlone is their mixture: INSERTs draw no records.
var insertsAlone = mixture{"a", evenly}

// bareCrowd are as many clients as do the paper's verbs alone at their peak.
const bareCrowd = 4 * rtxNodes * rtxThreads

// stepCost is what a step has: operations a second, and the mean latency of the clients of one
// compute node.
type stepCost struct{ rate, took float64 }

// by returns by how many percent a step is less than the one before, and how many times as long.
func (c stepCost) by(before stepCost) (changed, times float64) {
	return eval.Change(before.rate, c.rate), c.took / before.took
}

func stepTable(s *size, r eval.Results, p *eval.Part) {
	p.Header = []string{"", "Mops", "change", "mean", "times", "trips", "verbs", "verbs alone: Mops", "change",
		"mean", "times"}
	store, alone := map[string]stepCost{}, map[string]stepCost{}
	var last string // step that a store has
	for i, x := range rtxSteps {
		ran, one := eval.Computed[*simulate.Ran](p, "bare", x.name, bareCrowd),
			eval.Computed[*simulate.Ran](p, "bare", x.name, oneNode)
		alone[x.name] = stepCost{ran.Throughput, one.Latency.Mean}
		row := []eval.Cell{eval.Text("%s", x.name)}
		if x.store == "" {
			row = append(row, slices.Repeat([]eval.Cell{eval.Text("")}, 6)...)
		} else {
			call := r.All(x.name, oneNode)
			store[x.name] = stepCost{settled(s.peak(r, x.name, insertsAlone)), call.Latency.Mean}
			row = append(row, stepCells(store[x.name], store[last])...)
			row = append(row, eval.Count("%.2f", call.Trips), eval.Count("%.2f", call.Cost.Verbs()))
			last = x.name
		}
		before := stepCost{}
		if i > 0 {
			before = alone[rtxSteps[i-1].name]
		}
		p.Rows = append(p.Rows, append(row, stepCells(alone[x.name], before)...))
	}
	claimSteps(p, store, alone)
	p.Notes = append(p.Notes, "On the left the stores, forgetful, where one has the step: DTX without log and early "+
		"locks; with its log; rTX with a log of each transaction and without early locks; rTX. None commits DTX's "+
		"layout by CAS, so +ICommit has its verbs alone, and +Log is compared with +OCC. On the right the verbs "+
		"of each step alone, as we read the paper's words, each phase in a trip of its own, on leaves that "+
		"no other client has. Latencies are those of 24 clients.")
}

func stepCells(c, before stepCost) []eval.Cell {
	if before.rate == 0 {
		return []eval.Cell{eval.Mops(c.rate), eval.Text(""), eval.FineMicros(c.took), eval.Text("")}
	}
	changed, times := c.by(before)
	return []eval.Cell{eval.Mops(c.rate), eval.Percent(changed), eval.FineMicros(c.took), eval.Count("%.2f", times)}
}

// claimSteps claims what each step costs. Where a store has it, that counts, and the verbs alone
// may show why it differs.
func claimSteps(p *eval.Part, store, alone map[string]stepCost) {
	for _, x := range []struct{ about, step, before, bareBefore string }{
		{"steps-occ", "+OCC", optimal, optimal}, {"steps-icommit", "+ICommit", "+OCC", "+OCC"},
		{"steps-log", "+Log", "+OCC", "+ICommit"},
		{"steps-separate", "+Separate", "+Log", "+Log"}, {"steps-opt", "+OPT1 +OPT2", "+Separate", "+Separate"},
	} {
		bareChanged, bareTimes := alone[x.step].by(alone[x.bareBefore])
		changed, times := bareChanged, bareTimes
		if _, has := store[x.step]; has {
			changed, times = store[x.step].by(store[x.before])
		}
		f := p.Figure(x.about)
		ours := func(changed float64) float64 { // in the unit that the paper has
			if f.Unit == "%" {
				return changed
			}
			return 1 + changed/100
		}
		p.Same(x.about, ours(changed), eval.Because("for the verbs alone, with each phase in a trip",
			fmt.Sprintf("%+.1f %%", bareChanged), eval.Printed(ours(bareChanged), f.Printed, f.Unit)))
		latency, ok := p.Paper.Figures[x.about+"-latency"]
		if !ok {
			continue
		}
		took := func(times float64) float64 {
			if latency.Unit == "%" {
				return 100 * (times - 1)
			}
			return times
		}
		holds := func(times float64) eval.Test {
			if latency.Printed == "" {
				return eval.Inside(times, 0.9, 1.1)
			}
			return eval.Printed(took(times), latency.Printed, latency.Unit)
		}
		p.Claim(x.about+"-latency", holds(times), fmt.Sprintf("%.2f times", times),
			eval.Because("for the verbs alone, with each phase in a trip", fmt.Sprintf("%.2f times", bareTimes),
				holds(bareTimes)))
	}
}
