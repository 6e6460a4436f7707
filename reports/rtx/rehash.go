package rtx

import (
	"context"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// rehashSize says how large tables are that rehash. All of them are filled until subtables are
// about to be split.
type rehashSize struct {
	groups    int           // of the one subtable in the timed rehash
	groupsFew int           // of a subtable of the timeline
	subtables int           // of that
	threads   int           // of a compute node
	during    time.Duration // of the timeline
}

func newRehashSize(quick bool) rehashSize {
	if quick {
		return rehashSize{groups: 1024, groupsFew: 64, subtables: 16, threads: 8, during: 20 * time.Millisecond}
	}
	return rehashSize{groups: 50_000, groupsFew: 512, subtables: 64, threads: rtxThreads, during: 60 * time.Millisecond}
}

const (
	slotsOfGroup = 21 // RACE's: two main buckets and an overflow bucket of 7 slots
	groupBytes   = 192
	// nearlyFull is up to where a table is filled, in percent of its slots, and fillMore how many
	// of these are then inserted: a bucket overflows in between.
	nearlyFull = 85
	fillMore   = 10
	// rehashPatience bounds runs of one subtable, of which the original's rehash takes some
	// seconds.
	rehashPatience = 5 * time.Second
)

// rehashTrial fills a table until a subtable is split.
func (s *size) rehashTrial(x implementation, name string, groups, subtables int, most time.Duration,
	dies bool) eval.Trial {
	slots := int64(groups * subtables * slotsOfGroup)
	t := s.trial(x, "a", name, func(o *virtual.Simulation) {
		o.Properties = append(o.Properties, "readproportion=0", "updateproportion=0", "insertproportion=1")
		o.Hardware = append(o.Hardware, fmt.Sprintf("ComputeNodes=%d", crashNodes))
		o.Clients, o.Records = crashNodes*s.rehash.threads, slots*nearlyFull/100
		o.WarmUp = 1 // what is inserted before it is measured fills the table
		o.Duration, o.Interval, o.Lease, o.Pool.Timeout = most, time.Millisecond, unmastered, 4*most
		if subtables == 1 {
			o.Ops = slots * fillMore / 100
		}
		o.Own = o.Own.With(stores.Values{"groups": groups})
	})
	t.Compute = func(ctx context.Context) (any, error) {
		c, err := t.Complete()
		if err != nil {
			return nil, err
		}
		return simulate.Rehash(ctx, c, dies)
	}
	return t
}

// Of each store one table has a single subtable, and one has many, for the timeline.
const (
	lone    = "one subtable"
	several = "many subtables"
)

func rehashCases(s *size) (list []eval.Trial) {
	size := s.rehash
	for _, x := range rtxTables {
		if x.name != dtxName {
			list = append(list, s.rehashTrial(x, eval.Key(x.name, lone), size.groups, 1, rehashPatience,
				x.name == rtxName),
				s.rehashTrial(x, eval.Key(x.name, several), size.groupsFew, size.subtables, size.during, true))
		}
	}
	return list
}

func rehashTable(s *size, _ eval.Results, p *eval.Part) {
	const before, behind = 2, 24 // rows
	size := &s.rehash
	p.SetUp = fmt.Sprintf("%d compute nodes of %d clients, which INSERT. The table has %d subtables of %d bucket "+
		"groups of %d slots\n"+
		"(%d KiB each). A client dies at 0, in the midst of a rehash. DTX is left out, as in the paper.",
		crashNodes, size.threads, size.subtables, size.groupsFew, slotsOfGroup, size.groupsFew*groupBytes>>10)
	var g eval.Grid[int]
	for _, name := range []string{rtxName, optimal} {
		w := eval.Computed[*simulate.Rehashed](p, name, several)
		show := func(title string, r *simulate.Result) {
			g.Column(title, func(row int) eval.Cell {
				if n := int(w.Died/time.Millisecond) + row; n >= 0 && n < len(r.Points) {
					return eval.Mops(r.Points[n].Throughput)
				}
				return eval.Text("")
			})
		}
		show(name+": Mops", w.After)
		show("no client dies", w.Whole)
		done := "no other client does it"
		if w.Again > 0 {
			done = fmt.Sprintf("another one has done it %.1f ms later", eval.Millis(w.Again))
		}
		p.Notes = append(p.Notes,
			fmt.Sprintf("%s, timeline: a rehash takes %.2f ms. Its client dies in the midst of it: %s, and the "+
				"longest time in which a client finishes nothing is %.1f ms.", name, eval.Millis(w.Took), done,
				w.After.LongestGap/1e3))
	}
	var rows []int
	for i := -before; i < behind; i++ {
		rows = append(rows, i)
	}
	g.Show(p, "until, ms", "%+d", rows)
	s.rehashClaims(p)
}

func (s *size) rehashClaims(p *eval.Part) {
	size := &s.rehash
	of := func(name, table string) *simulate.Rehashed { return eval.Computed[*simulate.Rehashed](p, name, table) }
	rtx, original := of(rtxName, lone), of(optimal, lone)
	times := func(table string) float64 { return float64(of(optimal, table).Took) / float64(of(rtxName, table).Took) }
	p.Notes = append(p.Notes,
		fmt.Sprintf("What is said of 200 ms and 1.3 s is measured on a table that is one subtable of %d bucket "+
			"groups, %.1f MiB: in the full size of this report, rTX's rehash takes 200 ms then. By default a "+
			"subtable has up to 1,024.",
			size.groups, float64(size.groups)*groupBytes/(1<<20)))
	const model = "The model's network and CPUs decide what a verb takes."
	p.Claim("rehash-rtx", eval.Test{}, fmt.Sprintf("%.0f ms", eval.Millis(rtx.Took)), eval.Reason{})
	p.Same("rehash-optimal", original.Took.Seconds(),
		eval.Unknown("Each pair that moves takes two CASes, one behind the other. "+model))
	p.Claim("rehash-faster", eval.More(times(lone), 5), fmt.Sprintf("%.1f times; %.1f with the timeline's subtables",
		times(lone), times(several)), eval.Unknown(""))
	p.Same("rehash-recovers", eval.Millis(rtx.Again),
		eval.Unknown("It is what is left of the lease, 8 ms and what the subtable's bytes take, and then the rehash "+
			"from its beginning. "+model))
	rtx, original = of(rtxName, several), of(optimal, several)
	failed := original.After.Failed
	p.Claim("rehash-blocks", eval.All(eval.Is(original.Again == 0),
		eval.More(float64(failed), float64(crashNodes*size.threads)/2)),
		fmt.Sprintf("%d of %d clients wait until their INSERTs time out", failed, crashNodes*size.threads-1),
		eval.Unknown(""))
	gap := rtx.After.LongestGap / 1e3
	p.Claim("rehash-lease", eval.Less(gap, eval.Millis(crashLease)+1+1.5*eval.Millis(rtx.Took)),
		fmt.Sprintf("%.1f ms, with a rehash of %.2f ms", gap, eval.Millis(rtx.Took)), eval.Unknown(""))
}
