package rtx

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// Of Figure 14: all clients of one of the compute nodes are killed.
const (
	crashNodes = 3
	crashLease = 8 * time.Millisecond // of rTX's locks, and of DTX's master
	// crashSlack is what the eye does not see in a timeline: so far below the mean an interval may
	// be.
	crashSlack = 0.1
	// loadTime is how long a record takes to be loaded: buffers that it replaces are free again
	// then, as in a pool that was busy.
	loadTime = 400 * time.Nanosecond
	// unmastered is the lease of a master that notices nothing in a run.
	unmastered = time.Hour
)

// crashSize is how large the tree is, and how long its timeline.
type crashSize struct {
	records, few int64 // pairs; and of a smaller tree
	warmUp       int64
	roomy        uint64 // bytes of a node of which most were never used
	threads      int    // of a compute node
	calm, after  time.Duration
}

func newCrashSize(quick bool) crashSize {
	if quick {
		return crashSize{records: 50_000, few: 20_000, warmUp: 10_000, roomy: 256 << 20, threads: 4,
			calm: 3 * time.Millisecond, after: 22 * time.Millisecond}
	}
	return crashSize{records: 4_000_000, few: 400_000, warmUp: 400_000, roomy: 2 << 30, threads: rtxThreads,
		calm: 5 * time.Millisecond, after: 25 * time.Millisecond}
}

func (s *crashSize) intervals() (calm, after int) {
	return int(s.calm / time.Millisecond), int(s.after / time.Millisecond)
}

func clientCrashCases(s *size) (list []eval.Trial) {
	for _, x := range rtxTrees {
		list = append(list, s.crashed(x, x.name, s.crash.records))
		if x.name != optimal {
			list = append(list, s.crashed(x, few(x.name), s.crash.few))
		}
		if x.name == rtxName {
			t := s.crashed(x, roomy, s.crash.few)
			t.Pool.Memory = s.crash.roomy
			list = append(list, t)
		}
	}
	return list
}

// crashed is a run of INSERTs in which all clients of the last compute node die: clients are dealt
// to the nodes in turn.
func (s *size) crashed(x implementation, name string, records int64) eval.Trial {
	size := s.crash
	return s.trial(x, "a", name, func(o *virtual.Simulation) {
		o.Properties = append(o.Properties, "readproportion=0", "updateproportion=0", "insertproportion=1")
		o.Hardware = append(o.Hardware, fmt.Sprintf("ComputeNodes=%d", crashNodes))
		o.Clients, o.Records, o.WarmUp = crashNodes*size.threads, records, min(size.warmUp, records/4)
		o.Duration, o.Interval, o.Lease = size.calm+size.after, time.Millisecond, unmastered
		o.Loading = time.Duration(records) * loadTime
		// what waits for the dead waits until the end
		o.Pool.Timeout = 4 * o.Duration
		o.Own = o.Own.With(stores.Values{stores.CacheBytes: min(4*int(records), 8<<20)}) // 72 clients have one each
		if x.name == dtxName {
			o.Lease, o.Silence = crashLease, crashLease
		}
		for i := crashNodes - 1; i < o.Clients; i += crashNodes {
			o.Crashes = append(o.Crashes, fmt.Sprintf("client %d@%v", i, size.calm))
		}
	})
}

// collapse is what a timeline shows behind the death of a part of the clients.
type collapse struct {
	before, after float64 // throughput, of all that live before, and in the end
	depth         float64 // share of the throughput of those that live by which the worst interval is below it
	length        int     // intervals that are below it by more than crashSlack
	noise         float64 // depth of the last intervals alone
}

// during is the mean throughput of some intervals, of which the last may be missing where nothing
// ended any more.
func during(x *simulate.Result, from, to int) float64 {
	sum := 0.0
	for _, point := range x.Points[min(from, len(x.Points)):min(to, len(x.Points))] {
		sum += point.Throughput
	}
	return sum / float64(to-from)
}

// left is the throughput of those that live, had nothing else changed.
func (c *collapse) left() float64 { return c.before * (crashNodes - 1) / crashNodes }

func (s *crashSize) collapse(x *simulate.Result) (c collapse) {
	calm, after := s.intervals()
	c.before, c.after = during(x, 0, calm), during(x, after, calm+after)
	for i := calm; i < calm+after; i++ {
		below := 1 - during(x, i, i+1)/c.left()
		if c.depth = max(c.depth, below); below > crashSlack {
			c.length++
		}
		if i >= after {
			c.noise = max(c.noise, below)
		}
	}
	return c
}

func clientCrashTable(s *size, r eval.Results, p *eval.Part) {
	size := &s.crash
	calm, after := size.intervals()
	p.SetUp = fmt.Sprintf("%d compute nodes of %d clients, which INSERT, %d pairs to begin with. All clients of one "+
		"compute\n"+
		"node die at 0. DTX has a master, which knows of a client's death after %v, as long as the lease of rTX's "+
		"locks is.",
		crashNodes, size.threads, size.records, crashLease)
	var g eval.Grid[int]
	for _, x := range rtxTrees {
		g.Column(x.name+": Mops", func(i int) eval.Cell { return eval.Mops(during(r[x.name], i, i+1)) })
	}
	var rows []int
	for i := calm - 2; i < calm+after; i++ {
		rows = append(rows, i)
	}
	g.Show(p, "until, ms", "%d", rows)
	for i := range p.Rows {
		p.Rows[i][0] = eval.Text("%+d", rows[i]+1-calm)
	}
	for _, x := range rtxTrees {
		c := size.collapse(r[x.name])
		p.Notes = append(p.Notes,
			fmt.Sprintf("%s: %.2f Mops before, %.2f in the end. The worst interval is %.0f %% below two thirds of "+
				"what was before, and %d are by more than %.0f %%. The longest time in which one of the living "+
				"finished nothing: %.2f ms.", x.name, c.before/1e6, c.after/1e6, 100*c.depth, c.length, 100*crashSlack,
				r[x.name].LongestGap/1e3))
	}
	s.crashClaims(r, p)
}

func (s *size) crashClaims(r eval.Results, p *eval.Part) {
	size := &s.crash
	calm, _ := size.intervals()
	rtx, dtx, tree := size.collapse(r[rtxName]), size.collapse(r[dtxName]), r[optimal]
	fresh := size.collapse(r[roomy])
	model := func(about string, ours float64) eval.Reason {
		text := fmt.Sprintf("%.2f Mops", ours/1e6)
		f := p.Figure(about)
		return eval.Because(fmt.Sprintf("with %d pairs in a pool of %d MiB, of whose memory most was never used",
			size.few,
			size.roomy>>20), text,
			eval.Printed(ours/1e6, f.Printed, f.Unit)).And("Where all was used 1 %% of rTX's INSERTs take more than "+
			"%.0f µs: their clients look for buffers that others have replaced.", r[rtxName].Call("INSERT").At(0.99))
	}
	p.Same("crash-before", rtx.before/1e6, model("crash-before", fresh.before))
	p.Same("crash-after", rtx.after/1e6, model("crash-after", fresh.after))
	p.Claim("crash-rtx", eval.Less(rtx.depth, crashSlack),
		fmt.Sprintf("the worst interval is %.1f %% below", 100*rtx.depth),
		eval.Unknown("Of the last %d intervals, when all is over, the worst is %.1f %% below.", calm, 100*rtx.noise))
	p.Claim("crash-dtx", eval.All(eval.More(dtx.depth, crashSlack), eval.More(dtx.depth, 2*rtx.depth)),
		fmt.Sprintf("the worst interval is %.1f %% below, and %d are by more than %.0f %%", 100*dtx.depth, dtx.length,
			100*crashSlack),
		eval.Unknown("Here its master recovers one dead client after the other, and stops none of the living: as in "+
			"rTX, only those wait that meet a lock of the dead, and few do in a tree of so many leaves."))
	gap, late := r[few(rtxName)].LongestGap/1e3, r[few(dtxName)].LongestGap/1e3
	p.Claim("crash-lease", eval.Less(gap, eval.Millis(crashLease)+1),
		fmt.Sprintf("%.2f ms, with %d pairs; %.2f ms for DTX", gap, size.few, late), eval.Unknown(""))
	x, first := size.collapse(tree), during(tree, calm, calm+1)
	p.Claim("crash-optimal", eval.All(eval.More(first, x.left()/2), eval.Less(x.after, x.left()/3)),
		fmt.Sprintf("from %.2f Mops to %.2f in the first interval behind the kill, and %.2f in the end, with %d of "+
			"%d clients that wait for a dead one", x.before/1e6, first/1e6, x.after/1e6, tree.Failed,
			(crashNodes-1)*size.threads), eval.Unknown(""))
	p.Notes = append(p.Notes,
		fmt.Sprintf("What is lost in a lease grows with the share of the leaves that the dead have locked, and lasts "+
			"until a client has met each of them and a lease is over. With %d pairs, %s. The paper has 100 "+
			"million pairs.",
			size.few, size.fewText(r)))
}

// roomy is the run on the smaller tree in a pool that is large.
const roomy = "rTX with room"

// few names the run of an implementation on the smaller tree.
func few(name string) string { return name + " with few pairs" }

func (s *crashSize) fewText(r eval.Results) string {
	text := ""
	for _, name := range []string{rtxName, dtxName} {
		c := s.collapse(r[few(name)])
		text += fmt.Sprintf(", %s's worst interval is %.0f %% below, and %d are by more than %.0f %%", name,
			100*c.depth, c.length, 100*crashSlack)
	}
	return text[2:]
}
