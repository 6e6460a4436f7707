// Package rowan does the evaluation of Rowan and Rowan-KV again (Wang et al., OSDI 2023).
package rowan

import (
	"context"
	_ "embed" // for published
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// size is how large the simulations of Rowan's report are.
type size struct {
	seed             uint64
	senders          []int
	warmUp, duration time.Duration
	calls            simulate.Replicated
	// Of the stores; undivided, as the paper has them.
	clients, entries, replicas, workers []int
	failover                            failoverSize
	reshard                             reshardSize
}

func newSize(quick bool, seed uint64) *size {
	if quick {
		return &size{
			seed, []int{72, 126, 144}, 100 * time.Microsecond, 200 * time.Microsecond,
			rowanCalls(4, kindClients/2, seed, 30*time.Microsecond),
			[]int{360, 720, kindClients / 2}, []int{256, 1024}, []int{2, 5}, []int{16, kindWorkers},
			failoverSize{8, 2000},
			reshardSize{20_000, 200 * time.Millisecond, 1400 * time.Millisecond, nil},
		}
	}
	return &size{
		seed, []int{18, 36, 54, 72, 90, 108, 126, 144}, time.Millisecond, 5 * time.Millisecond,
		rowanCalls(2, kindClients, seed, 150*time.Microsecond),
		[]int{180, 360, 540, 720, 1440, kindClients}, []int{64, 128, 192, 256, 512, 1024}, []int{1, 2, 3, 4, 5},
		[]int{8, 16, kindWorkers, 32}, failoverSize{32, 20_000},
		reshardSize{288_000, time.Second, 3 * time.Second,
			[]time.Duration{100 * time.Millisecond, 200 * time.Millisecond,
				300 * time.Millisecond, 400 * time.Millisecond}},
	}
}

// unsteady tells for which statements of the quick size its runs are too short.
const unsteady = "The quick size ends before senders and threads have found their pace beside each other."

const fewMoved = "The hot shard of the quick size has few records, which are not even among workers."

var small = map[string]string{
	"dlwa-c": unsteady, "dlwa-d": unsteady, "beside-c": unsteady, "beside-d": unsteady, "over-c": unsteady,
	"over-d":       unsteady,
	"append-limit": unsteady,
	"load-batch":   "The quick size has no fewer than 360 clients.", "persist-slower": divided,
	"entries-similar": divided,
	"cold-start": "The quick size has few records, beside which it counts for more that masters look from " +
		"time to time.",
	"reshard-detect": "The quick size has one run.", "reshard-move": fewMoved, "reshard-steady": fewMoved,
	"reshard-rises": fewMoved,
}

func init() {
	for about := range Paper.Figures {
		if strings.HasPrefix(about, "kv-") {
			small[about] = divided
		}
	}
}

//go:embed published.json
var published []byte

// Paper is that of Rowan-KV: what it says of Rowan itself, and of throughput, latency and DLWA of
// the stores.
var Paper = eval.NewPaper(&eval.Paper{
	Name: "Rowan", Source: "Wang et al., OSDI 2023", Section: "sections 2.4 and 6.2 to 6.6", Small: small,
}, published, eval.Plan[*size]{Size: newSize, SetUp: setUp, Experiments: experiments})

func setUp(s *size) string {
	return fmt.Sprintf("Profile rowan-testbed: a server with three modules of persistent memory, four machines with "+
		"senders, each with one\n"+
		"write in flight and a READ behind it; %v behind a warm-up of %v, seed %d. Writes are 64 or 128 B, headers\n"+
		"among them. Threads of the server, where there are any, are %d, which write %d B at a time past their "+
		"caches.\n"+
		"What the paper says is read off its words, not its plots.", s.duration, s.warmUp, s.seed, paperThreads,
		threadBytes)
}

var experiments = []eval.Experiment[*size]{
	{Name: "streams", Title: "WRITEs to exclusive logs: what modules are asked to write, and what their media do " +
		"(Figure 2)",
		SetUp: "Bandwidths in GB/s, of senders and threads together.", Cases: streamCases, Evaluate: streamTable},
	{Name: "appends", Title: "Rowan, WRITEs to exclusive logs, and the strawman of 3.2.1 (Figure 8)",
		SetUp: "Million writes a second of the senders, and DLWA.", Cases: appendCases, Evaluate: appendTable},
	{Name: "stores", Title: "Rowan-KV, and what replicates in other ways (Figures 9, 10 and 13d)",
		Cases: kindCases, Evaluate: kindTable},
	{Name: "reads", Title: "with few PUTs, and with none (Figures 9d to 9f)", SetUp: asStores,
		Cases: readCases, Evaluate: readTable},
	{Name: "objects", Title: "with pairs as long as UP2X's and UDB's (the table of 6.3)", SetUp: asStores,
		Cases: objectCases, Evaluate: objectTable},
	{Name: "load", Title: "latency against load (Figure 9, and 6.3 on the tail)", SetUp: asStores + " 50 % PUTs.",
		Cases: loadingCases, Evaluate: loadingTable},
	{Name: "persistence", Title: "how long an entry takes to be in a backup's memory (Figure 11)", SetUp: asStores +
		" 50 % PUTs.",
		Cases: persistCases, Evaluate: persistTable},
	{Name: "entries", Title: "entries of 64 to 1024 B (Figure 13a)", SetUp: asStores + " 50 % PUTs.",
		Cases: entryBytesCases, Evaluate: entryBytesTable},
	{Name: "replicas", Title: "1 to 5 replicas (Figure 13b)", SetUp: asStores + " 50 % PUTs.",
		Cases: factorCases, Evaluate: factorTable},
	{Name: "threads", Title: "8 to 32 threads a server (Figure 13c)", SetUp: asStores + " 50 % PUTs.",
		Cases: threadCases, Evaluate: threadTable},
	{Name: "failover", Title: "a server dies under load (Figure 14)",
		Cases: failoverCases, Evaluate: failoverTable},
	{Name: "coldstart", Title: "all servers lose power, and are back (section 6.5)",
		Cases: coldCases, Evaluate: coldTable},
	{Name: "resharding", Title: "a shard becomes hot, and moves (Figure 15)",
		Cases: reshardCases, Evaluate: reshardTable},
}

// asStores is the set-up of parts that measure the stores.
const asStores = "The servers, clients and pairs of the part stores, unless it says otherwise."

// Of the paper's set-up (section 2.4).
const (
	paperServers = 4
	paperThreads = 18
	threadBytes  = 128
	paperStreams = 144 // of the highest DLWA it prints
	fewStreams   = 90  // fewer amplify next to nothing
)

// subfigure is one of the four that Figures 2 and 8 have each.
type subfigure struct {
	name    string
	bytes   int
	threads int
}

func (f subfigure) String() string {
	if f.threads > 0 {
		return fmt.Sprintf("%d B beside threads", f.bytes)
	}
	return fmt.Sprintf("%d B", f.bytes)
}

var subfigures = []subfigure{{"a", 64, 0}, {"b", 128, 0}, {"c", 64, paperThreads}, {"d", 128, paperThreads}}

// What is changed to see why a statement differs.
const (
	slowMedia = "PMem.WriteBandwidth=1.8e9"
	freeReads = "PMem.ReadBandwidth=1e15"
)

// trial is a run; hardware is what is changed, if anything.
func (s *size) trial(way string, f subfigure, senders int, hardware ...string) eval.Trial {
	w := simulate.Streams{
		Way: way, Profile: "rowan-testbed", Hardware: hardware, Machines: paperServers, Senders: senders,
		Bytes: f.bytes,
		Local: f.threads, LocalBytes: threadBytes, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed,
	}
	return eval.Trial{
		Name: eval.Key(way, f.name, senders, strings.Join(hardware, " ")), Same: fmt.Sprintf("%+v", w),
		Compute: func(ctx context.Context) (any, error) { return w.Run(ctx) },
	}
}

// written is what a trial computed.
func written(p *eval.Part, way string, f subfigure, senders int, hardware ...string) *simulate.Written {
	return eval.Computed[*simulate.Written](p, way, f.name, senders, strings.Join(hardware, " "))
}

// among are the numbers of senders of a subfigure, which has threads alone, too.
func (s *size) among(f subfigure) []int {
	if f.threads > 0 {
		return append([]int{0}, s.senders...)
	}
	return s.senders
}

func streamCases(s *size) (list []eval.Trial) {
	for _, f := range subfigures {
		for _, n := range s.among(f) {
			list = append(list, s.trial(simulate.Exclusive, f, n))
		}
	}
	for _, f := range subfigures[2:] {
		list = append(list, s.trial(simulate.Exclusive, f, 0, slowMedia),
			s.trial(simulate.Exclusive, f, paperStreams, freeReads))
	}
	return list
}

func streamTable(s *size, _ eval.Results, p *eval.Part) {
	var g eval.Grid[int]
	for _, f := range subfigures {
		at := func(cell func(w *simulate.Written) eval.Cell) func(int) eval.Cell {
			return func(n int) eval.Cell {
				if n == 0 && f.threads == 0 {
					return eval.Cell{}
				}
				return cell(written(p, simulate.Exclusive, f, n))
			}
		}
		g.Column(f.String()+": asked", at(func(w *simulate.Written) eval.Cell { return eval.Gigabytes(w.Requests) }))
		g.Column("media", at(func(w *simulate.Written) eval.Cell { return eval.Gigabytes(w.Media) }))
		g.Column("DLWA", at(func(w *simulate.Written) eval.Cell { return eval.Count("%.2f", w.DLWA) }))
	}
	g.Show(p, "senders", "%d", append([]int{0}, s.senders...))

	most, few := 0.0, 0
	for _, f := range subfigures[:2] {
		for _, n := range s.senders {
			if n < fewStreams {
				most, few = max(most, written(p, simulate.Exclusive, f, n).DLWA), max(few, n)
			}
		}
	}
	p.Claim("streams-few", eval.Less(most, 1.1), fmt.Sprintf("%.3f with up to %d streams", most, few), eval.Unknown(""))
	for _, f := range subfigures {
		all := written(p, simulate.Exclusive, f, paperStreams)
		p.Same("dlwa-"+f.name, all.DLWA, eval.Unknown("All threads and senders go on evenly here."))
		if f.threads == 0 {
			continue
		}
		alone, slower := written(p, simulate.Exclusive, f, 0), written(p, simulate.Exclusive, f, 0, slowMedia)
		gb := slower.Requests / 1e9
		p.Same("alone-"+f.name, alone.Requests/1e9, eval.Because("with modules that write 1.8 GB/s, and not 2",
			fmt.Sprintf("%.2f GB/s", gb),
			p.AsPrinted("alone-"+f.name, gb)).And("The paper has the same run twice, with 5.2 and 5.4."))
		free := written(p, simulate.Exclusive, f, paperStreams, freeReads).Requests / 1e9
		p.Same("beside-"+f.name, all.Requests/1e9, eval.Because("with media whose reads take no time from their writes",
			fmt.Sprintf("%.2f GB/s", free), p.AsPrinted("beside-"+f.name, free)))
	}
	p.Notes = append(p.Notes,
		"The modules' lines that combine writes are fitted to the DLWA of 144 streams of 64 B: 46 of 64. Logs are "+
			"spread evenly over the modules, and an answer that waits for a module comes later by a random time: "+
			"assumptions that were chosen with results in sight. A line that is evicted before it is complete is "+
			"read first, which takes the media a third of a write.")
}

func appendCases(s *size) (list []eval.Trial) {
	for _, f := range subfigures {
		for _, n := range s.senders {
			list = append(list, s.trial(simulate.Exclusive, f, n), s.trial(simulate.Append, f, n))
		}
		list = append(list, s.trial(simulate.Strawman, f, paperStreams))
	}
	return append(list, s.trial(simulate.Append, subfigures[1], paperStreams, slowMedia))
}

func appendTable(s *size, _ eval.Results, p *eval.Part) {
	var g eval.Grid[int]
	for _, f := range subfigures {
		for i, way := range []string{simulate.Append, simulate.Exclusive} {
			name := []string{f.String() + ": Rowan", "WRITE"}[i]
			g.Column(name, func(n int) eval.Cell { return eval.Mops(written(p, way, f, n).Writes) })
			g.Column("DLWA", func(n int) eval.Cell { return eval.Count("%.2f", written(p, way, f, n).DLWA) })
		}
	}
	g.Show(p, "senders", "%d", s.senders)
	row := []eval.Cell{eval.Text("%d, strawman", paperStreams)}
	fastest := 0.0
	for _, f := range subfigures {
		w := written(p, simulate.Strawman, f, paperStreams)
		row = append(row, eval.Mops(w.Writes), eval.Count("%.2f", w.DLWA), eval.Cell{}, eval.Cell{})
		fastest = max(fastest, w.Writes)
	}
	p.Rows = append(p.Rows, row)

	highest := func(list []subfigure) (dlwa float64) {
		for _, f := range list {
			for _, n := range s.senders {
				dlwa = max(dlwa, written(p, simulate.Append, f, n).DLWA)
			}
		}
		return dlwa
	}
	alone, beside := highest(subfigures[:2]), highest(subfigures[2:])
	p.Claim("append-dlwa", eval.Is(alone < 1.029), fmt.Sprintf("%.3f at most", alone), eval.Unknown(""))
	p.Claim("append-dlwa-threads", eval.Is(beside < 1.056), fmt.Sprintf("%.3f at most", beside), eval.Unknown(""))
	peak := func(way string, f subfigure) (best *simulate.Written, at int) {
		for _, n := range s.senders {
			if w := written(p, way, f, n); best == nil || w.Writes > best.Writes {
				best, at = w, n
			}
		}
		return best, at
	}
	slower := written(p, simulate.Append, subfigures[1], paperStreams, slowMedia).Writes / 1e6
	for _, f := range subfigures {
		ours, _ := peak(simulate.Append, f)
		switch f.name {
		case "a":
			p.Same("append-a", ours.Writes/1e6, eval.Unknown(""))
		case "b":
			p.Same("append-b", ours.Writes/1e6, eval.Because("with modules that write 1.8 GB/s, and not 2",
				fmt.Sprintf("%.1f Mops", slower), p.AsPrinted("append-b", slower)))
		}
		theirs, at := peak(simulate.Exclusive, f)
		why := eval.Unknown("")
		if at < paperStreams {
			last := written(p, simulate.Append, f, paperStreams).Writes / written(p, simulate.Exclusive, f,
				paperStreams).Writes
			why = why.And("The peak of WRITE is with %d senders here, beyond which its DLWA rises more steeply than "+
				"in the paper. With %d Rowan does %.2f times as many.", at, paperStreams, last)
		}
		p.Same("over-"+f.name, ours.Writes/theirs.Writes, why)
	}
	a, _ := peak(simulate.Append, subfigures[0])
	b, _ := peak(simulate.Append, subfigures[1])
	c, _ := peak(simulate.Append, subfigures[2])
	p.Claim("append-limit", eval.Is(a.NIC > 0.95 && b.Busy > 0.95 && c.Busy > 0.95),
		fmt.Sprintf("the NIC is busy for %.0f %% of the time in (a), the media for %.0f and %.0f %% in (b) and (c)",
			100*a.NIC, 100*b.Busy, 100*c.Busy),
		eval.Unknown("A NIC's writes go over PCIe in order, and wait for the module that is full; threads fill them "+
			"all."))
	p.Claim("strawman", eval.Less(fastest/1e6, 10), fmt.Sprintf("%.1f Mops", fastest/1e6), eval.Unknown(""))
	p.Notes = append(p.Notes, "An entry of Rowan's is 64 or 128 B with its header, and a sender asks for leave once "+
		"in some hundreds of them. What the NIC does of writes with a READ behind them is fitted to the 54.5 million "+
		"a second, for WRITE as for Rowan. The strawman's word is in the NIC's memory, which does 9 million "+
		"atomics a second on one word (RCuckoo 2.2).")
}
