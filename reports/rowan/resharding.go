package rowan

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// Of the paper's dynamic resharding (section 6.6).
const (
	reshardServers = 6
	reshardShards  = 48 // a server
	reshardShare   = 0.8
	reshardFrom    = 2 // server A
	reshardTo      = 4 // server B. A has no replica of its first shard: else the two would just change places

	reshardSlow    = 100
	reshardWorkers = 4
	reshardClients = 140 // with which servers are as busy as the paper's
	reshardFewer   = 105 // with which throughput drops as the paper's
	reshardSegment = 64 << 10
	reshardWindow  = 20 * time.Millisecond
	reshardSettled = 3 * reshardWindow // behind the shift: requests wait at the one server by then
	reshardRow     = 10                // windows
	reshardEnd     = 20
	reshardPeriod  = 500 * time.Millisecond // of counting
	reshardMoved   = 1.1e6                  // objects
	reshardDetect  = 660                    // milliseconds
	// Of further runs: what is of interest is over by then, after up to one and a half periods, and
	// a migration.
	asideCalm, asideAfter = 200 * time.Millisecond, 1100 * time.Millisecond
)

// reshardSize is how large the pool is in which a shard becomes hot, and for how long that is
// looked at. Phases are how much later it does so in further runs.
type reshardSize struct {
	records     int64
	calm, after time.Duration
	phases      []time.Duration
}

// Trials of the part.
const (
	reshardMain  = "resharding"
	reshardIdle  = "resharding, fewer clients"
	reshardClose = "resharding, machines that are close to each other"
)

func reshardPhase(late time.Duration) string { return eval.Key("resharding, later", late) }

func reshardCases(s *size) (list []eval.Trial) {
	add := func(name string, records int64, clients int, at, after time.Duration, hardware ...string) {
		list = append(list, eval.Trial{Name: name, Simulation: virtual.Simulation{
			Config: simulate.Config{
				Store: "rowan", Profile: "rowan-testbed", Hardware: hardware, Slow: reshardSlow,
				NodeCores: reshardWorkers,
				Pool:      stores.Params{Nodes: reshardServers, Memory: 256 << 20}, Clients: clients,
				WarmUp:   records / 10,
				Shift:    simulate.Shift{At: at, Share: reshardShare, From: reshardFrom, To: reshardTo},
				Duration: at + after, Interval: reshardWindow, Seed: s.seed,
			},
			Workload: simulate.Workload{
				Name: "rowan-zippydb-b", Records: records, Properties: []string{"requestdistribution=uniform"},
			},
			Own: stores.Values{
				"server-workers": reshardWorkers, "server-shards": reshardShards, "segment-bytes": reshardSegment,
			},
		}})
	}
	r := s.reshard
	add(reshardMain, r.records, reshardClients, r.calm, r.after)
	add(reshardIdle, r.records, reshardFewer, asideCalm, asideAfter)
	add(reshardClose, r.records, reshardClients, asideCalm, asideAfter, "Propagation=0", "PCIe=0")
	for _, late := range r.phases {
		add(reshardPhase(late), r.records/10, reshardClients, asideCalm+late, asideAfter)
	}
	return list
}

// resharding is a run of the part, in windows.
type resharding struct {
	*simulate.Result
	shift, found, moved int     // where requests shift, the overload is detected, and the shard has moved
	detect, move        float64 // how long both take, in milliseconds
}

func reshardingOf(r eval.Results, name string, at time.Duration) resharding {
	x := resharding{Result: r[name]}
	for n := len(x.Points); n > 0 && x.Points[n-1].CPU == nil; n = len(x.Points) { // no client came by later
		x.Points = x.Points[:n-1]
	}
	x.detect = behind(x.Result, at, " begins: shards move")
	x.move = behind(x.Result, at, " begins: shards were copied") - x.detect
	window := func(after float64) int { return int(at/reshardWindow) + int(after/eval.Millis(reshardWindow)) }
	x.shift, x.found, x.moved = window(0), window(x.detect), window(x.detect+x.move)
	return x
}

// before returns the points before the shard became hot.
func (x resharding) before() []simulate.Point { return x.Points[:x.shift] }

// hot returns the points from when the load has settled until the overload was detected.
func (x resharding) hot() []simulate.Point {
	return x.Points[min(x.shift+int(reshardSettled/reshardWindow), x.found):x.found]
}

// drop is by how many percent throughput falls.
func (x resharding) drop() float64 {
	return -eval.Change(meanThroughput(x.before()), meanThroughput(x.hot()))
}

// objects is how many a shard has.
func (x resharding) objects() int64 { return x.Records / reshardServers / reshardShards }

// took is how long the migration of the paper's objects would take, in milliseconds.
func (x resharding) took() float64 {
	return x.move * reshardMoved / reshardSlow / float64(x.objects())
}

// meanCPU is how busy servers are, in percent.
func meanCPU(points []simulate.Point, servers ...int) float64 {
	sum := 0.0
	for _, p := range points {
		for _, n := range servers {
			sum += 100 * p.CPU[n]
		}
	}
	return sum / float64(max(1, len(points)*len(servers)))
}

func reshardTable(s *size, r eval.Results, p *eval.Part) {
	x := reshardingOf(r, reshardMain, s.reshard.calm)
	p.SetUp = fmt.Sprintf("Profile rowan-testbed, %d times slower: what cores spend, rates of NICs and links, and "+
		"ways between\n"+
		"machines. Clocks are not. %d servers with %d workers and %d shards, %d clients, %d pairs of ZippyDB's\n"+
		"sizes, chosen evenly, 5 %% PUTs. The manager counts requests for %v at a time. At 0 clients shift "+
		"%.0f %% of\n"+
		"the requests for server A to one shard of server B's. Throughput is times %d.", reshardSlow, reshardServers,
		reshardWorkers, reshardShards, reshardClients, x.Records, reshardPeriod, 100*reshardShare, reshardSlow)
	var each, others []int
	for n := range reshardServers {
		if each = append(each, n); n != reshardFrom && n != reshardTo {
			others = append(others, n)
		}
	}
	p.Header = []string{"ms", "Mops", "CPU of A", "of B", "of others"}
	for i := x.shift % reshardRow; i+reshardRow <= len(x.Points); i += reshardRow {
		at, row := time.Duration(i-x.shift)*reshardWindow, x.Points[i:i+reshardRow]
		cells := []eval.Cell{eval.Text("%d", at.Milliseconds()), eval.Mops(reshardSlow * meanThroughput(row))}
		for _, servers := range [][]int{{reshardFrom}, {reshardTo}, others} {
			v := meanCPU(row, servers...)
			cells = append(cells, eval.Share(v))
		}
		p.Rows = append(p.Rows, cells)
	}

	fewer := reshardingOf(r, reshardIdle, asideCalm)
	p.Same("reshard-drop", x.drop(),
		eval.Because(fmt.Sprintf("with %d clients, so that servers are busy for %.1f %% at first, and not %.1f",
			reshardFewer, meanCPU(fewer.before(), each...), meanCPU(x.before(), each...)),
			fmt.Sprintf("%.1f %%", fewer.drop()), p.AsPrinted("reshard-drop", fewer.drop())).
			And("B is nearly as busy before, and cannot do much more."))
	p.Same("reshard-a", meanCPU(x.hot(), reshardFrom),
		eval.Unknown("A keeps a fifth of its requests, and clients make fewer. Cores that look for requests count as "+
			"idle."))
	p.Same("reshard-b", meanCPU(x.hot(), reshardTo),
		eval.Unknown("Its workers have requests waiting all the time. What other tasks of a server do counts as the "+
			"workers' cores'."))
	p.Same("reshard-others", meanCPU(x.hot(), others...),
		eval.Unknown("They are less busy by as much as throughput drops."))

	least, most := x.detect, x.detect
	for _, late := range s.reshard.phases {
		d := reshardingOf(r, reshardPhase(late), asideCalm+late).detect
		least, most = min(least, d), max(most, d)
	}
	p.Claim("reshard-detect", eval.Is(least > 0 && least <= reshardDetect && reshardDetect <= most),
		fmt.Sprintf("%.0f ms, and %.0f to %.0f in all", x.detect, least, most),
		eval.Unknown("It depends on how much of the first period is behind the shift: about half of it has to be."))
	near := reshardingOf(r, reshardClose, asideCalm)
	p.Claim("reshard-move", p.AsPrinted("reshard-move", x.took()), fmt.Sprintf("%.0f ms", x.took()),
		eval.Because("with no time for ways between machines and to memory", fmt.Sprintf("%.0f ms", near.took()),
			p.AsPrinted("reshard-move", near.took())).And("The source reads and appends one entry after the other, "+
			"and waits for each. %d objects take %.0f ms.", x.objects(), x.move))
	half := (x.found + x.moved) / 2
	first, second := meanThroughput(x.Points[x.found:half]), meanThroughput(x.Points[half:x.moved])
	p.Claim("reshard-rises", eval.More(second, first),
		fmt.Sprintf("%.1f and %.1f Mops", reshardSlow*first/1e6, reshardSlow*second/1e6), eval.Unknown(""))
	end := x.Points[len(x.Points)-reshardEnd:]
	mean, worst := meanCPU(end, each...), 0.0
	for _, n := range each {
		worst = max(worst, meanCPU(end, n))
	}
	now, was := meanThroughput(end), meanThroughput(x.before())
	p.Claim("reshard-steady", eval.All(eval.Less(worst, 1.1*mean), eval.More(now, 0.95*was)),
		fmt.Sprintf("%.1f Mops, and %.1f before; servers are busy for %.1f %%, and %.1f at most", reshardSlow*now/1e6,
			reshardSlow*was/1e6, mean, worst), eval.Unknown(""))
	p.Notes = append(p.Notes,
		"The number of clients is chosen so that servers are as busy at first as the paper's, 90.2 to 90.9 %. When a "+
			"term begins nothing is served for as long as all servers take to know it, and clients that are refused "+
			"ask again up to a thousand times a second, which is not slower than on the paper's machines.",
		fmt.Sprintf("The %d clients are chosen for the paper's drop: it is an experiment on what the drop depends "+
			"on, and says nothing of how many clients the paper had.", reshardFewer),
		fmt.Sprintf("The time of the migration is that of the paper's 1.1 million objects, were there a %dth "+
			"of them. Of %d operations %d failed.", reshardSlow, x.Operations, x.Failed))
}
