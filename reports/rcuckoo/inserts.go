package rcuckoo

import (
	"fmt"
	"math"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// insertMix is a workload of Figure 7: reads and INSERTs.
type insertMix struct {
	name  string
	share float64 // of INSERTs
}

var insertMixes = []insertMix{{"W", 1}, {"A", 0.5}, {"B", 0.05}, {"C", 0}}

// narrow is how many rows share a lock in what else there is beside the paper's 16.
const narrow = 2

// calm is a crowd that loads nothing much.
const calm = 8

// growing makes of a trial one of a table that is so full, in percent, and gets so many INSERTs at
// most.
func (s *size) growing(o *virtual.Simulation, m insertMix, fill int64) {
	o.Records, o.WarmUp = s.table*fill/100, 0
	o.Ops = s.ops
	if most := float64(s.table*insertPart) / 100; m.share > 0 {
		o.Ops = min(o.Ops, int64(most/m.share))
	}
	o.Properties = append(o.Properties, fmt.Sprintf("readproportion=%g", 1-m.share),
		fmt.Sprintf("insertproportion=%g", m.share))
}

// insertPart is how many percent of the table's entries a run inserts at most.
const insertPart = 3

func fillingCases(s *size) (list []eval.Trial) {
	for _, fill := range s.filled {
		add := func(m insertMix, name string, differ func(*virtual.Simulation)) {
			list = append(list, s.trial("rcuckoo", "w", eval.Key(name, fill), func(o *virtual.Simulation) {
				s.growing(o, m, fill)
				differ(o)
			}))
		}
		for _, m := range insertMixes {
			add(m, m.name, func(*virtual.Simulation) {})
		}
		add(insertMixes[0], "narrow", func(o *virtual.Simulation) { o.Set(rowsPerLock, narrow) })
		add(insertMixes[0], "calm", func(o *virtual.Simulation) { o.Clients, o.Ops = calm, o.Ops/4 })
	}
	for _, n := range []int{calm, paperCrowd} {
		for _, fill := range []int64{s.filled[0], paperFull} {
			list = append(list, s.trial("fusee", "w", eval.Key("fusee", n, fill), func(o *virtual.Simulation) {
				s.growing(o, insertMixes[0], fill)
				o.Clients, o.WarmUp = n, s.warmUp // in which clients find blocks
			}))
		}
	}
	return list
}

func fillingTable(s *size, r eval.Results, p *eval.Part) {
	inserts := func(name string, fill int64) *simulate.Call { return r[eval.Key(name, fill)].Call("INSERT") }
	payload := func(fill int64) float64 {
		c := r.All("A", fill).Cost
		return c.BytesRead + c.BytesWrote
	}
	var g eval.Grid[int64]
	for _, m := range insertMixes {
		g.Column(m.name+": Mops", func(fill int64) eval.Cell { return eval.Mops(r[eval.Key(m.name, fill)].Throughput) })
	}
	g.Column(fmt.Sprintf("W, %d rows a lock", narrow),
		func(fill int64) eval.Cell { return eval.Mops(r[eval.Key("narrow", fill)].Throughput) })
	g.Column("INSERT, calm: µs", func(fill int64) eval.Cell { return eval.FineMicros(inserts("calm", fill).At(0.5)) })
	g.Column("bytes of A", func(fill int64) eval.Cell { return eval.Text("%.0f", payload(fill)) })
	g.Column("verbs of A", func(fill int64) eval.Cell { return eval.Text("%.2f", r.All("A", fill).Cost.Verbs()) })
	g.Column("no path", func(fill int64) eval.Cell { return noPath(r[eval.Key("W", fill)]) })
	g.Show(p, "full", "%d %%", s.filled)
	first, last := s.filled[0], s.filled[len(s.filled)-1]
	w := func(name string, fill int64) float64 { return r[eval.Key(name, fill)].Throughput / 1e6 }
	c := inserts("W", first)
	whyRead := eval.Unknown("An INSERT reads all rows that it locks, and locks both rows of its key, or two clients "+
		"would insert it twice: %.0f B and %.1f verbs, of which %s is the limit. With %d rows a lock it is %.1f Mops.",
		c.Cost.BytesRead, c.Cost.Verbs(), eval.Busiest(r[eval.Key("W", first)]), narrow, w("narrow", first))
	p.Same("inserts-empty", w("W", first), whyRead)
	p.Same("inserts-full", w("W", last), whyRead)
	fewer := eval.Change(w("W", first), w("W", last))
	p.Same("inserts-drop", fewer, eval.Unknown("With %d rows a lock it is %+.0f %%.",
		narrow, eval.Change(w("narrow", first), w("narrow", last))))
	still := eval.Change(w("C", first), w("C", last))
	mixes := []eval.Test{eval.Similar(w("C", last), w("C", first), 0.05)}
	for _, m := range insertMixes[:3] {
		mixes = append(mixes, eval.Less(w(m.name, last), w(m.name, first)))
	}
	p.Claim("inserts-mixes", eval.All(mixes...), fmt.Sprintf("W %+.0f %%, A %+.0f %%, B %+.0f %%, C %+.0f %%", fewer,
		eval.Change(w("A", first), w("A", last)), eval.Change(w("B", first), w("B", last)), still), eval.Unknown(""))
	p.Claim("inserts-twice", eval.Inside(inserts("calm", last).At(0.5)/inserts("calm", first).At(0.5), 1.5, 2.5),
		fmt.Sprintf("from %.2f to %.2f µs at the median and %.2f to %.2f on the average, with %d clients",
			inserts("calm", first).At(0.5), inserts("calm", last).At(0.5), inserts("calm", first).Latency.Mean,
			inserts("calm", last).Latency.Mean, calm),
		eval.Unknown("More than half of the INSERTs find a free slot in their own rows even then."))
	twoTrips(p, "inserts-median", inserts("calm", first))
	p.Claim("inserts-bytes", eval.Less(payload(last), 2*payload(first)),
		fmt.Sprintf("%.2f times", payload(last)/payload(first)), eval.Unknown(""))
	verbs := r.All("A", last).Cost.Verbs() / r.All("A", first).Cost.Verbs()
	p.Claim("inserts-verbs", eval.Less(verbs, 1.5), fmt.Sprintf("%.2f times", verbs), eval.Unknown(""))
	rate := func(fill int64) float64 { return r[eval.Key("fusee", paperCrowd, fill)].Throughput / 1e6 }
	p.Same("inserts-fusee", rate(first),
		eval.Unknown("What is in use most is the %s.", eval.Busiest(r[eval.Key("fusee", paperCrowd, first)])))
	p.Claim("inserts-fusee-flat", eval.Similar(rate(paperFull), rate(first), 0.08),
		fmt.Sprintf("%+.1f %% from %d %% to %d %%", eval.Change(rate(first), rate(paperFull)), first, paperFull),
		eval.Unknown(""))
	x := r[eval.Key("fusee", calm, first)].Call("INSERT")
	theirs := x.At(0.5)
	p.Claim("inserts-fusee-us", eval.Similar(theirs, inserts("calm", first).At(0.5), 0.25),
		fmt.Sprintf("%.2f µs against %.2f", theirs, inserts("calm", first).At(0.5)),
		eval.Unknown("FUSEE's takes %d trips at the median here.", x.TripsAt(0.5)))
	p.Notes = append(p.Notes,
		fmt.Sprintf("A table of %d entries; a run inserts %d %% of them at most. No path: INSERTs of W that failed "+
			"since no path of 5 moves led to a free slot (see fill). Bytes are payload. Latencies are of W with %d "+
			"clients.", s.table, insertPart, calm))
}

// noPath is the share of the operations that failed, which are INSERTs without a path.
func noPath(r *simulate.Result) eval.Cell {
	return eval.Share(100 * float64(r.Failed) / float64(r.Operations))
}

// twoTrips claims that the median of calls takes two trips. A fence counts as one: what is behind
// it waits for what is ahead.
func twoTrips(p *eval.Part, about string, c *simulate.Call) {
	n := c.TripsAt(0.5)
	p.Claim(about, eval.Is(n == 2), fmt.Sprintf("%d at the median", n),
		eval.Unknown("Two batches are posted, and a fence in one of them waits for an answer, which farkv counts as a "+
			"trip. Behind an atomic on the NIC's memory it takes no time here: see device."))
}

// lockTrips is how many trips a share of the INSERTs did not exceed, but for those of the fence and
// of writing the rows.
func lockTrips(c *simulate.Call, part float64) float64 { return float64(c.TripsAt(part) - 2) }

func lockCases(s *size) (list []eval.Trial) {
	for _, rows := range s.lockRows {
		for _, locks := range s.lockBits {
			for i := range s.lockRuns {
				list = append(list, s.trial("rcuckoo", "w", eval.Key(rows, locks, i), func(o *virtual.Simulation) {
					o.Clients, o.Records, o.WarmUp, o.Seed = 8, 1, 0, s.seed+uint64(i)
					o.Own = o.Own.With(stores.Values{tableRows: smallTable, rowsPerLock: rows, "lock-bits": locks})
					o.Ops = smallTable*paperRow*fullPercent/100 - 1
				}))
			}
		}
	}
	return list
}

const smallTable = 512 // rows, of Figure 5

func lockTable(s *size, r eval.Results, p *eval.Part) {
	trips := func(rows, locks int) (mean float64) {
		for i := range s.lockRuns {
			mean += lockTrips(r[eval.Key(rows, locks, i)].Call("INSERT"), 0.99) / float64(s.lockRuns)
		}
		return mean
	}
	var g eval.Grid[int]
	for _, rows := range s.lockRows {
		g.Column(fmt.Sprint(rows), func(locks int) eval.Cell { return eval.Count("%.1f", trips(rows, locks)) })
	}
	g.Show(p, "locks a CAS", "%d", s.lockBits)
	most, global := s.lockBits[len(s.lockBits)-1], s.lockRows[len(s.lockRows)-1]
	best, at, sweet := math.Inf(1), 0, 0.0
	for _, rows := range s.lockRows {
		if got := trips(rows, most); got < best {
			best, at = got, rows
		}
		if rows >= 2 && rows <= 16 {
			sweet = max(sweet, trips(rows, most))
		}
	}
	p.Claim("locks-sweet", eval.All(eval.Is(at >= 2 && at <= 16), eval.Less(sweet, 1.5*best)),
		fmt.Sprintf("the fewest, %.1f, are with %d rows a lock, and at most %.1f with 2 to 16", best, at, sweet),
		eval.Unknown(""))
	p.Claim("locks-global", eval.More(trips(global, most), 1.3*best), fmt.Sprintf("%.1f", trips(global, most)),
		eval.Unknown(""))
	p.Claim("locks-single", eval.More(trips(1, 1), 1.5*best), fmt.Sprintf("%.1f", trips(1, 1)), eval.Unknown(""))
	const wide = 16
	few, many := trips(wide, 4), trips(wide, most)
	p.Claim("locks-four", eval.Is(math.Abs(few-many) < 1.5),
		fmt.Sprintf("%.1f with 4 locks a CAS and %d rows a lock, %.1f with %d", few, wide, many, most),
		eval.Unknown(""))
	p.Notes = append(p.Notes,
		fmt.Sprintf("Columns: rows a lock. Trips to get the locks at the 99th percentile, all tries and what was "+
			"looked at in between included, the mean of %d runs. The paper's 64 locks a CAS are 63 here: a bit of a "+
			"word is the repair's.", s.lockRuns))
}
