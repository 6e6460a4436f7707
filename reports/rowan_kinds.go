package reports

import (
	"context"
	"fmt"
	"time"

	"github.com/montanaflynn/stats"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/simulate"
)

// divided says why the quick size decides nothing about stores.
const divided = "The quick size has an eighth of each machine: three workers, and modules with five lines that combine writes."

// What is not the paper's: how many clients there are, it does not say. With a quarter of them rates are 4 to 9 %
// lower.
const kindClients = 2880

const kindKeys = 30 // of each worker

// rowanCalls are calls of the paper's six servers with 24 workers, all divided by a scale.
func rowanCalls(scale int, seed uint64, warmUp time.Duration) simulate.Replicated {
	return simulate.Replicated{
		Profile: "rowan-testbed", Scale: scale, Servers: 6, Workers: 24, Replicas: 3, Clients: kindClients / scale, Keys: kindKeys,
		WarmUp: warmUp, Duration: 2 * warmUp, Seed: seed,
	}
}

// zippyDB are keys and values of such lengths.
func zippyDB() (*workloads.Spec, error) {
	w := simulate.Workload{Name: "rowan-zippydb-a", Records: 1}
	p, err := w.Read()
	if err != nil {
		return nil, err
	}
	return runner.ReadSpec(p)
}

const oneModule = "PMem.DIMMs=1"

// noTime are modules that take next to no time.
var noTime = []string{"PMem.WriteBandwidth=1e12", "PMem.ReadBandwidth=1e12"}

func (s *rowanSize) kind(k kv.Kind, puts int, hardware ...string) trial {
	return trial{
		name: key(k, puts, hardware),
		compute: func(ctx context.Context) (any, error) {
			spec, err := zippyDB()
			if err != nil {
				return nil, err
			}
			c := s.calls
			c.Kind, c.Puts, c.Hardware, c.Spec = k, puts, hardware, spec
			return c.Run(ctx)
		},
	}
}

func (p *Part) kind(k kv.Kind, puts int, hardware ...string) *simulate.Served {
	return computed[*simulate.Served](p, k, puts, hardware)
}

func kindCases(s *rowanSize) (list []trial) {
	for _, k := range kv.Kinds() {
		list = append(list, s.kind(k, 50), s.kind(k, 100), s.kind(k, 50, oneModule))
	}
	return append(list, s.kind(kv.Rowan, 50, noTime...), s.kind(kv.Rowan, 100, noTime...))
}

func kindTable(s *rowanSize, _ results, p *Part) {
	n := float64(s.calls.Scale)
	p.SetUp = fmt.Sprintf("Machines are divided by %d: workers, rates of NICs, links, PCIe and media, lines, queues and interleaving of modules.\n"+
		"Rates are times %d. What a core spends on a message stays. %d clients have an operation in flight each, for %v behind\n"+
		"%v. Keys are chosen evenly, pairs are as long as ZippyDB's. Medians in µs; what is busy, in percent of the time.",
		s.calls.Scale, s.calls.Scale, s.calls.Clients, s.calls.Duration, s.calls.WarmUp)
	p.Header = []string{"", "50 % PUT", "DLWA", "PUT", "GET", "media", "NIC", "cores", "100 % PUT", "DLWA", "PUT",
		"media", "NIC", "cores", "one module, 50 %"}
	median := func(all []time.Duration) float64 {
		ns, _ := stats.Median(stats.LoadRawData(all)) // without calls it is 0, and an error
		return ns / 1e3
	}
	share := func(v float64) Cell { return count("%.0f", 100*v) }
	for _, k := range kv.Kinds() {
		half, all := p.kind(k, 50), p.kind(k, 100)
		p.Rows = append(p.Rows, []Cell{
			say("%s", k), mops(n * half.Rate), count("%.2f", half.DLWA), micros(median(half.Put)), micros(median(half.Get)), share(half.Media),
			share(half.NIC), share(half.Cores), mops(n * all.Rate), count("%.2f", all.DLWA), micros(median(all.Put)),
			share(all.Media), share(all.NIC), share(all.Cores), mops(n * p.kind(k, 50, oneModule).Rate),
		})
	}
	first := true
	for _, puts := range []int{50, 100} {
		ours, free := p.kind(kv.Rowan, puts), p.kind(kv.Rowan, puts, noTime...)
		p.same(fmt.Sprint("kv-", puts), n*ours.Rate/1e6,
			unknown("With modules that take no time it is %.1f.", n*free.Rate/1e6))
		for _, k := range kv.Kinds()[1:] {
			other := p.kind(k, puts)
			first = first && ours.Rate > other.Rate
			over := fmt.Sprintf("kv-over-%s-%d", short(k), puts)
			if _, ok := p.paper.Figures[over]; ok {
				p.same(over, ours.Rate/other.Rate, unknown(""))
			}
			put := fmt.Sprintf("kv-put-%s-%d", short(k), puts)
			if _, ok := p.paper.Figures[put]; ok {
				p.same(put, median(other.Put)/median(ours.Put),
					unknown("As many clients call both here, so that it follows from the rates."))
			}
		}
	}
	p.claim("kv-first", is(first), fmt.Sprint(first), unknown(""))
	dlwa := func(k kv.Kind) (least, most float64) {
		a, b := p.kind(k, 50).DLWA, p.kind(k, 100).DLWA
		return min(a, b), max(a, b)
	}
	_, a := dlwa(kv.Rowan)
	_, b := dlwa(kv.RPC)
	p.claim("kv-dlwa", is(max(a, b) < 1.032), fmt.Sprintf("%.3f and %.3f at most", a, b),
		unknown("Each log has a line in a module that fills; entries that straddle lines keep two."))
	_, most := dlwa(kv.RWrite)
	p.same("kv-dlwa-rwrite", most, unknown("Entries have headers of 40 bytes. With pairs of one length, entries of 128 bytes and a segment that begins"+
		" with a line it is 1.27: pairs as different as ZippyDB's straddle lines."))
	low, high := dlwa(kv.Share)
	p.claim("kv-dlwa-share", is(low >= 1.28 && high <= 1.39), fmt.Sprintf("%.2f to %.2f", low, high),
		unknown("The network reorders WRITEs of different workers by as much as they wait for modules here."))
	base := p.kind(kv.RWrite, 50, oneModule).Rate
	for _, k := range []kv.Kind{kv.Rowan, kv.RPC, kv.Batch, kv.Share} {
		p.same("kv-module-"+short(k), p.kind(k, 50, oneModule).Rate/base, unknown(""))
	}
	p.Notes = append(p.Notes, "A key belongs to one worker here, and to none in the paper (5.2). By Zipf's law with 0.99 the hottest of 200 million keys has"+
		" a twentieth of the requests, more than a worker does of 67.86 Mops: so keys are chosen evenly.")
}

// short is a kind's name in those of statements.
func short(k kv.Kind) string {
	return map[kv.Kind]string{kv.Rowan: "rowan", kv.RPC: "rpc", kv.RWrite: "rwrite", kv.Batch: "batch",
		kv.Share: "share"}[k]
}
