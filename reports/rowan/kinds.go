package rowan

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/montanaflynn/stats"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/simulate"
)

// divided says why the quick size does not decide about stores.
const divided = "The quick size has a fourth of each machine, and is short beside what an operation takes."

const (
	// What is not the paper's: how many clients there are at its peaks, it does not say. With a
	// quarter of them rates are 4 to 9 % lower.
	kindClients = 2880

	kindKeys    = 30 // of each worker
	kindWorkers = 24 // of a server
)

// rowanCalls are calls of the paper's six servers with 24 workers, and of so many clients, all
// divided by a scale.
func rowanCalls(scale, clients int, seed uint64, warmUp time.Duration) simulate.Replicated {
	return simulate.Replicated{
		Profile: "rowan-testbed", Scale: scale, Servers: 6, Workers: kindWorkers, Replicas: 3,
		Clients: clients / scale, Keys: kindKeys, WarmUp: warmUp, Duration: 2 * warmUp, Seed: seed,
	}
}

// calls are those of a run, as the paper has them: undivided. What is zero is as in most runs.
type calls struct {
	kind     kv.Kind
	puts     int    // percent
	objects  string // a workload with pairs of these sizes; default zippydb
	entry    int    // bytes of each entry, instead
	hardware string // what is changed, with spaces between
	gather   time.Duration

	replicas, workers, clients int
}

func (c calls) String() string {
	text := fmt.Sprintf("%s, %d %% PUT", c.kind, c.puts)
	for _, x := range []struct {
		format string
		value  any
		given  bool
	}{
		{", %s", c.objects, c.objects != ""}, {", entries of %d B", c.entry, c.entry > 0},
		{", %s", c.hardware, c.hardware != ""}, {", gathers for %s", c.gather, c.gather > 0},
		{", %d replicas", c.replicas, c.replicas > 0}, {", %d workers", c.workers, c.workers > 0},
		{", %d clients", c.clients, c.clients > 0},
	} {
		if x.given {
			text += fmt.Sprintf(x.format, x.value)
		}
	}
	return text
}

// Bytes of an entry that are not its pair's.
const entryHead = 40

// spec are keys and values of such lengths.
func (c calls) spec() (*workloads.Spec, error) {
	w := simulate.Workload{
		Name: "rowan-zippydb-a", Records: 1, Properties: []string{"objectsizes=" + cmp.Or(c.objects, "zippydb")},
	}
	if c.entry > 0 {
		w = simulate.Workload{Name: "ycsb-a", Records: 1, PairBytes: c.entry - entryHead}
	}
	p, err := w.Read()
	if err != nil {
		return nil, err
	}
	return runner.ReadSpec(p)
}

const oneModule = "PMem.DIMMs=1"

// noTime are modules that take next to no time.
const noTime = "PMem.WriteBandwidth=1e12 PMem.ReadBandwidth=1e12"

// calling is a run; what several parts ask for is run once.
func (s *size) calling(c calls) eval.Trial {
	return eval.Trial{
		Name: c.String(), Same: "calls: " + c.String(),
		Compute: func(ctx context.Context) (any, error) {
			spec, err := c.spec()
			if err != nil {
				return nil, err
			}
			r := s.calls
			r.Kind, r.Puts, r.Spec, r.GatherFor, r.Hardware = c.kind, c.puts, spec, c.gather, strings.Fields(c.hardware)
			r.Replicas, r.Workers = cmp.Or(c.replicas, r.Replicas), cmp.Or(c.workers, r.Workers)
			r.Clients = cmp.Or(c.clients/r.Scale, r.Clients)
			return r.Run(ctx)
		},
	}
}

// served is what a run came to.
func served(p *eval.Part, c calls) *simulate.Served { return eval.Computed[*simulate.Served](p, c) }

// mops is the rate of a run in million operations a second, times what machines are divided by.
func (s *size) mops(r *simulate.Served) float64 { return float64(s.calls.Scale) * r.Rate / 1e6 }

// mix is a kind with such a part of PUTs, in percent, and all else as in most runs.
func mix(k kv.Kind, puts int) calls { return calls{kind: k, puts: puts} }

// single is a kind on nodes with one module.
func single(k kv.Kind) calls { return calls{kind: k, puts: 50, hardware: oneModule} }

// weightless is Rowan-KV with modules that take no time.
func weightless(puts int) calls { return calls{kind: kv.Rowan, puts: puts, hardware: noTime} }

// median is that of latencies, in microseconds; 0: there are none.
func median(all []time.Duration) float64 {
	ns, _ := stats.Median(stats.LoadRawData(all)) // of none it is 0, and an error
	return ns / 1e3
}

func kindCases(s *size) (list []eval.Trial) {
	for _, k := range kv.Kinds() {
		list = append(list, s.calling(mix(k, 50)), s.calling(mix(k, 100)), s.calling(single(k)))
	}
	for _, puts := range []int{50, 100} {
		list = append(list, s.calling(weightless(puts)))
	}
	return append(list, s.calling(patient))
}

// patient is Batch-KV with the other timeout that the paper has (section 6.3).
var patient = calls{kind: kv.Batch, puts: 50, gather: 20 * time.Microsecond}

func kindTable(s *size, _ eval.Results, p *eval.Part) {
	n := float64(s.calls.Scale)
	p.SetUp = fmt.Sprintf("Machines are divided by %d: workers, rates of NICs, links, PCIe and media, lines, queues "+
		"and interleaving of modules.\n"+
		"Rates are times %d. What a core spends on a message stays. %d clients have an operation in flight each, for "+
		"%v behind\n"+
		"%v. Keys are chosen evenly, pairs are as long as ZippyDB's. Medians in µs; what is busy, in percent of "+
		"the time.",
		s.calls.Scale, s.calls.Scale, s.calls.Clients, s.calls.Duration, s.calls.WarmUp)
	p.Header = []string{"", "50 % PUT", "DLWA", "PUT", "GET", "media", "NIC", "cores", "100 % PUT", "DLWA", "PUT",
		"media", "NIC", "cores", "one module, 50 %"}
	share := func(v float64) eval.Cell { return eval.Count("%.0f", 100*v) }
	for _, k := range kv.Kinds() {
		half, all := served(p, mix(k, 50)), served(p, mix(k, 100))
		p.Rows = append(p.Rows, []eval.Cell{
			eval.Text("%s", k), eval.Mops(n * half.Rate), eval.Count("%.2f", half.DLWA), eval.Micros(median(half.Put)),
			eval.Micros(median(half.Get)), share(half.Media),
			share(half.NIC), share(half.Cores), eval.Mops(n * all.Rate), eval.Count("%.2f", all.DLWA),
			eval.Micros(median(all.Put)),
			share(all.Media), share(all.NIC), share(all.Cores), eval.Mops(n * served(p, single(k)).Rate),
		})
	}
	first := true
	for _, puts := range []int{50, 100} {
		ours, free := served(p, mix(kv.Rowan, puts)), served(p, weightless(puts))
		p.Same(fmt.Sprint("kv-", puts), n*ours.Rate/1e6,
			eval.Unknown("With modules that take no time it is %.1f.", n*free.Rate/1e6))
		for _, k := range kv.Kinds()[1:] {
			other := served(p, mix(k, puts))
			first = first && ours.Rate > other.Rate
			over := fmt.Sprintf("kv-over-%s-%d", short(k), puts)
			if _, ok := p.Paper.Figures[over]; ok {
				p.Same(over, ours.Rate/other.Rate, eval.Unknown(""))
			}
			put := fmt.Sprintf("kv-put-%s-%d", short(k), puts)
			if _, ok := p.Paper.Figures[put]; ok {
				p.Same(put, median(other.Put)/median(ours.Put),
					eval.Unknown("As many clients call both here, so that it follows from the rates."))
			}
		}
	}
	p.Claim("kv-first", eval.Is(first), fmt.Sprint(first), eval.Unknown(""))
	dlwa := func(k kv.Kind) (least, most float64) {
		a, b := served(p, mix(k, 50)).DLWA, served(p, mix(k, 100)).DLWA
		return min(a, b), max(a, b)
	}
	_, a := dlwa(kv.Rowan)
	_, b := dlwa(kv.RPC)
	p.Claim("kv-dlwa", eval.Is(max(a, b) < 1.032), fmt.Sprintf("%.3f and %.3f at most", a, b),
		eval.Unknown("Each log has a line in a module that fills; entries that straddle lines keep two."))
	_, most := dlwa(kv.RWrite)
	p.Same("kv-dlwa-rwrite", most,
		eval.Unknown("Entries have headers of 40 bytes. With pairs of one length, entries of 128 bytes and a segment "+
			"that begins with a line it is 1.27: pairs as different as ZippyDB's straddle lines."))
	low, high := dlwa(kv.Share)
	p.Claim("kv-dlwa-share", eval.Is(low >= 1.28 && high <= 1.39), fmt.Sprintf("%.2f to %.2f", low, high),
		eval.Unknown("The network reorders WRITEs of different workers by as much as they wait for modules here."))
	base := served(p, single(kv.RWrite)).Rate
	for _, k := range []kv.Kind{kv.Rowan, kv.RPC, kv.Batch, kv.Share} {
		p.Same("kv-module-"+short(k), served(p, single(k)).Rate/base, eval.Unknown(""))
	}
	for _, puts := range []int{50, 100} {
		write := served(p, mix(kv.RWrite, puts))
		p.Same(fmt.Sprint("kv-batch-", puts), served(p, mix(kv.Batch, puts)).Rate/write.Rate, eval.Unknown(""))
		p.Same(fmt.Sprint("kv-share-less-", puts), -eval.Change(write.DLWA, served(p, mix(kv.Share, puts)).DLWA),
			eval.Unknown(""))
	}
	p.Same("kv-batch-less", -eval.Change(served(p, mix(kv.RWrite, 50)).DLWA, served(p, mix(kv.Batch, 50)).DLWA),
		eval.Unknown(""))
	p.Same("kv-batch-patient", -eval.Change(served(p, mix(kv.Rowan, 50)).Rate, served(p, patient).Rate),
		eval.Unknown(""))
	p.Notes = append(p.Notes, "A key is written by one worker here, and by any in the paper (5.2). By Zipf's law "+
		"with 0.99 the hottest of 200 million keys has a twentieth of the PUTs, more than a worker does of 67.86 "+
		"Mops: so keys are chosen evenly.")
}

// short is a kind's name in those of statements.
func short(k kv.Kind) string {
	return map[kv.Kind]string{kv.Rowan: "rowan", kv.RPC: "rpc", kv.RWrite: "rwrite", kv.Batch: "batch",
		kv.Share: "share"}[k]
}
