package swarm

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

func systemCases(s *size) []eval.Trial {
	return eval.Each(systems(), []string{"b", "a"}, func(x system, mix string) eval.Trial {
		return s.trial(x, mix, eval.Key(x.store, mix),
			func(o *virtual.Simulation) { o.Ops, o.WarmUp = s.longer, s.longer })
	})
}

func tripTable(_ *size, r eval.Results, p *eval.Part) {
	p.Header = []string{"", "GET", "paper", "GET, p99", "paper", "UPDATE", "paper", "UPDATE, p99", "paper",
		"mean of GET", "of UPDATE"}
	for _, x := range systems() {
		g, u, paper := r.Gets(x.store, "b"), r.Updates(x.store, "b"), p.Paper.Tables["trips"][x.store]
		ours := [4]int{g.TripsAt(0.5), g.TripsAt(0.99), u.TripsAt(0.5), u.TripsAt(0.99)}
		row, holds := []eval.Cell{eval.Text("%s", x.name)}, true
		for i, trips := range ours {
			row = append(row, eval.Text("%d", trips), eval.Text("%s", paper[i]))
			least, most := between(paper[i])
			holds = holds && trips >= least && trips <= most
		}
		p.Rows = append(p.Rows, append(row, eval.Text("%.3f", g.Trips), eval.Text("%.3f", u.Trips)))
		_, get99 := between(paper[1])
		_, update99 := between(paper[3])
		p.Claim("trips-"+x.store, eval.Is(holds), fmt.Sprintf("%d and %d, and %d and %d at the 99th percentile",
			ours[0],
			ours[2], ours[1], ours[3]),
			eval.Unknown("%.1f %% of the GETs and %.1f %% of the UPDATEs take more than the paper's trips.",
				beyond(g, get99), beyond(u, update99)))
	}
	p.Notes = append(p.Notes, "The common case is the median here.")
}

// between reads a number of trips, or a range of them.
func between(text string) (least, most int) {
	from, to, _ := strings.Cut(text, "-")
	least, _ = strconv.Atoi(from) // the text is ours
	most, _ = strconv.Atoi(to)
	return least, max(least, most)
}

// beyond is the share of the calls that take more trips, in percent.
func beyond(c *simulate.Call, trips int) (sum float64) {
	for i, part := range c.ByTrips {
		if i > trips {
			sum += 100 * part
		}
	}
	return sum
}

var cdfShares = []percentile{0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 0.999}

// A percentile is the share of calls that take no longer.
type percentile float64

func (p percentile) String() string { return fmt.Sprintf("%g", 100*float64(p)) }

func cdfTable(s *size, r eval.Results, p *eval.Part) {
	cdfs(p, systems(), func(x system) []any { return []any{x.store, "b"} }, r)
	p.Notes = append(p.Notes, fmt.Sprintf("%d operations, behind a warm-up of as many.", s.longer))
	for _, x := range systems() {
		g, u := r.Gets(x.store, "b"), r.Updates(x.store, "b")
		p.Same("get-"+x.store, g.At(0.5), whyWork)
		switch x.store {
		case "swarm":
			p.Same("get-swarm-p1", g.At(0.01), whyWork)
			p.Same("get-swarm-p99", g.At(0.99), eval.Unknown(""))
		case "fusee":
			p.Same("get-fusee-p90", g.At(0.9), eval.Unknown("%.1f %% of them are stale and take a second trip.",
				beyond(g, 1)))
		}
		p.Same("update-"+x.store, u.At(0.5), whyWork)
		if x.store == "fusee" {
			p.Same("update-fusee-p90", u.At(0.9), whyWork)
			p.Same("one-fusee", 100*g.ByTrips[1], eval.Unknown(""))
			p.Same("one-fusee-a", 100*r.Gets(x.store, "a").ByTrips[1], eval.Unknown(""))
		}
	}
}

// cdfs prints the distributions of each system's GETs and UPDATEs.
func cdfs(p *eval.Part, list []system, of func(system) []any, r eval.Results) {
	var g eval.Grid[percentile]
	for _, call := range [][2]string{{"GET", "READ"}, {"UPDATE", "UPDATE"}} {
		for _, x := range list {
			g.Column(call[0]+" "+x.name, func(part percentile) eval.Cell {
				return eval.FineMicros(r[eval.Key(of(x)...)].Call(call[1]).At(float64(part)))
			})
		}
	}
	g.Show(p, "percentile", "%s", cdfShares)
}

func cacheMissCases(s *size) (list []eval.Trial) {
	for _, x := range systems("raw") {
		list = append(list, s.trial(x, "b", x.store, func(o *virtual.Simulation) {
			o.Records, o.WarmUp, o.Known, o.Fresh = s.manyKeys, s.manyWarmUp, false, true
			o.Set(stores.CacheBytes, s.cacheBytes())
		}))
	}
	return list
}

// cacheBytes are 5 MiB for a million keys.
func (s *size) cacheBytes() int { return int(5 << 20 * s.manyKeys / 1_000_000) }

func cacheMissTable(s *size, r eval.Results, p *eval.Part) {
	p.Header = []string{"", "GETs that miss", "paper", "GET", "p50", "p90", "p99", "UPDATE", "p50", "p90",
		"p99", "trips"}
	for _, x := range systems("raw") {
		g, u := r.Gets(x.store), r.Updates(x.store)
		miss := beyond(g, x.trips)
		row := []eval.Cell{eval.Text("%s", x.name), eval.Share(miss), eval.Share(p.Published("caches-" + x.store))}
		for _, c := range []*simulate.Call{g, u} {
			row = append(row, eval.FineMicros(c.Latency.Mean), eval.FineMicros(c.At(0.5)), eval.FineMicros(c.At(0.9)),
				eval.FineMicros(c.At(0.99)))
		}
		p.Rows = append(p.Rows, append(row, eval.Text("%.2f", u.Trips)))
		p.Same("caches-"+x.store, miss, eval.Unknown("A miss is a GET of more than %d trips.", x.trips))
	}
	p.Notes = append(p.Notes, fmt.Sprintf("%d keys, caches of %d B for each client, a warm-up of %d operations.",
		s.manyKeys, s.cacheBytes(), s.manyWarmUp))
	if len(quorums()) < 2 {
		return
	}
	var shorter []eval.Test
	text := ""
	for _, call := range []string{"READ", "UPDATE"} {
		ours := r["swarm"].Call(call).Latency.Mean
		text += fmt.Sprintf("%s %.2f µs", call, ours)
		for _, x := range systems("raw", "swarm") {
			other := r[x.store].Call(call).Latency.Mean
			shorter = append(shorter, eval.Less(ours, other))
			text += fmt.Sprintf(", %s %.2f", x.name, other)
		}
		text += "; "
	}
	p.Claim("caches-mean", eval.All(shorter...), text[:len(text)-2],
		eval.Unknown("FUSEE's GETs that hit are as fast as SWARM-KV's here, and of those that miss the index is read "+
			"with the pair."))
	swarm, abd := mode(r.Updates("swarm"), 2), mode(r.Updates("dm-abd"), 3)
	p.Claim("caches-miss", eval.Is(swarm == 3 && abd == 3),
		fmt.Sprintf("UPDATEs that miss take %d trips on SWARM-KV and %d on DM-ABD, mostly", swarm, abd),
		eval.Unknown("An entry of the directory is a hash, so that an UPDATE that finds one reads the pair, to be "+
			"sure of the key."))
}

// mode returns the most common number of trips from some on.
func mode(c *simulate.Call, from int) (trips int) {
	most := 0.0
	for n, part := range c.ByTrips {
		if n >= from && part > most {
			trips, most = n, part
		}
	}
	return trips
}
