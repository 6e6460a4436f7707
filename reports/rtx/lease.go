package rtx

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// leaseSize says how large the runs of Figure 18 are, in which no client dies.
type leaseSize struct {
	clients int   // each of which changes one object
	objects []int // of how many
	drifts  []time.Duration
	during  time.Duration
	several []int         // objects that a transaction changes
	of      int           // objects of those runs
	fewer   int           // their clients
	long    time.Duration // how long they last
}

func newLeaseSize(quick bool) leaseSize {
	if quick {
		return leaseSize{
			clients: 12, objects: []int{10, 1000}, drifts: []time.Duration{noDrift, crashLease},
			during:  5 * time.Millisecond,
			several: []int{20, 80}, fewer: 6, of: 5000, long: 2 * time.Millisecond,
		}
	}
	return leaseSize{
		clients: crashNodes * rtxThreads, objects: []int{100, 10_000},
		drifts: []time.Duration{
			noDrift, time.Millisecond, 3 * time.Millisecond, paperDrift, crashLease, 10 * time.Millisecond,
		},
		during: 50 * time.Millisecond, several: []int{20, 40, 60, 80}, fewer: rtxThreads, of: 50_000,
		long: 20 * time.Millisecond,
	}
}

const (
	// noDrift stands for none: a lease has to last, and looks at a lock are paced by it.
	noDrift    = 10 * time.Microsecond
	paperDrift = 5 * time.Millisecond
	// What is assumed of the machines: how often a second a core is taken from a client, and for
	// how long on average; and how far apart clocks are that NTP sets, and how they drift.
	leaseStalls = 10
	leaseStall  = time.Millisecond
	leaseOffset = 10 * time.Millisecond
	leasePPM    = 50
)

// alive names a run in which no client dies.
func (s *size) alive(name string, l simulate.Leases) eval.Trial {
	l.Profile, l.Hardware, l.Seed = "rtx-testbed", []string{fmt.Sprintf("ComputeNodes=%d", crashNodes)}, s.seed
	l.Stall, l.Offset, l.PPM = leaseStall, leaseOffset, leasePPM
	return eval.Trial{Name: name, Compute: func(ctx context.Context) (any, error) { return l.Run(ctx) }}
}

func leaseCases(s *size) (list []eval.Trial) {
	size := &s.lease
	one := func(objects int, drift time.Duration) simulate.Leases {
		return simulate.Leases{Clients: size.clients, Objects: objects, Writes: 1, Stalls: leaseStalls,
			Duration: size.during, ObjectOptions: stores.ObjectOptions{Drift: drift}}
	}
	for _, objects := range size.objects {
		for _, drift := range size.drifts {
			list = append(list, s.alive(eval.Key(objects, drift), one(objects, drift)))
		}
	}
	calm := one(size.objects[0], noDrift)
	calm.Stalls, calm.Duration = 0, size.during/4
	list = append(list, s.alive("calm", calm))
	for _, writes := range size.several {
		for _, flat := range []bool{true, false} {
			for _, drift := range []time.Duration{crashLease, noDrift} {
				list = append(list, s.alive(eval.Key(writes, flat, drift), simulate.Leases{
					Clients: size.fewer, Objects: size.of, Writes: writes, Stalls: leaseStalls, Duration: size.long,
					ObjectOptions: stores.ObjectOptions{Drift: drift, Flat: flat},
				}))
			}
		}
	}
	return list
}

func leaseTable(s *size, _ eval.Results, p *eval.Part) {
	size := &s.lease
	p.SetUp = fmt.Sprintf("Clients of rTX itself, without an index; none dies. What is counted are transactions "+
		"whose locks another\n"+
		"client took for those of a dead one, in percent. Assumed, as the paper does not say what its machines do: a "+
		"core is taken\n"+
		"from each client %d times a second, for %v on average, exponentially; clocks are up to %v apart.",
		leaseStalls, leaseStall, leaseOffset)
	shares := func(parts ...any) eval.Cell {
		return eval.Count("%.4f %%", eval.Computed[*simulate.Suspected](p, parts...).Share())
	}
	p.Header = []string{"objects", "drift", "fixed lease", "regulated"}
	for _, objects := range size.objects {
		for _, drift := range size.drifts {
			p.Rows = append(p.Rows, []eval.Cell{eval.Text("1 of %d, %d clients", objects, size.clients),
				eval.Text("%v", drift), eval.Text(""),
				shares(objects, drift)})
		}
	}
	for _, drift := range []time.Duration{crashLease, noDrift} {
		for _, writes := range size.several {
			p.Rows = append(p.Rows, []eval.Cell{eval.Text("%d of %d, %d clients", writes, size.of, size.fewer),
				eval.Text("%v", drift),
				shares(writes, true, drift), shares(writes, false, drift)})
		}
	}
	s.leaseClaims(p)
}

func (s *size) leaseClaims(p *eval.Part) {
	size := &s.lease
	run := func(parts ...any) *simulate.Suspected { return eval.Computed[*simulate.Suspected](p, parts...) }
	some := func(x *simulate.Suspected) string { return fmt.Sprintf("%d of %d", x.Suspected, x.Transactions) }
	none, text := true, ""
	for _, drift := range size.drifts {
		for _, objects := range size.objects {
			if x := run(objects, drift); drift >= crashLease {
				none = none && x.Suspected == 0
				text += fmt.Sprintf(", %s with %v on %d objects", some(x), drift, objects)
			}
		}
	}
	p.Claim("leases-8", eval.Is(none), text[2:], eval.Unknown(""))
	dense := size.objects[0]
	drift := size.drifts[min(slices.Index(size.drifts, crashLease), max(slices.Index(size.drifts, paperDrift), 0))]
	x := run(dense, drift)
	p.Claim("leases-5", eval.Less(x.Share(), 1),
		fmt.Sprintf("%.4f %% with %v, %.4f %% with %v; cores were taken from clients %d times",
			x.Share(), drift, run(dense, noDrift).Share(), noDrift, x.Stalls), eval.Unknown(""))
	p.Notes = append(p.Notes,
		fmt.Sprintf("Where no cores are taken %s transactions are suspected with a drift of %v: clocks that are %v "+
			"apart cost nothing here. A lock is suspected when the observer has seen it unchanged for a lease on its "+
			"own clock; in the paper it compares its clock with a time that the holder wrote.", some(run("calm")),
			noDrift, leaseOffset))
	most, fewest := size.several[len(size.several)-1], size.several[0]
	grows := func(drift time.Duration) (eval.Test, string) {
		few, many := run(fewest, true, drift).Share(), run(most, true, drift).Share()
		return eval.All(eval.Less(few, 1), eval.More(many, 10)),
			fmt.Sprintf("from %.2f %% of %d to %.2f %% of %d", few, fewest, many, most)
	}
	met, ours := grows(crashLease)
	again, then := grows(noDrift)
	p.Claim("leases-fixed", met, ours,
		eval.Because(fmt.Sprintf("with a drift of %v", noDrift), then, again).And("A commit of %d objects takes some "+
			"ten microseconds here, and nothing near 8 ms; the paper does not say what takes its so long.", most))
	regulated := run(most, false, crashLease)
	p.Claim("leases-regulated", eval.Less(regulated.Share(), 0.4),
		fmt.Sprintf("%s of %d; with a drift of %v %s", some(regulated), most,
			noDrift, some(run(most, false, noDrift))), eval.Unknown(""))
}
