package reports

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/workloads/simulate"
)

// gets and updates return what was measured of a trial's.
func (r results) gets(parts ...any) *simulate.Call    { return r[key(parts...)].Call("READ") }
func (r results) all(parts ...any) *simulate.Call     { return r[key(parts...)].Call("TOTAL") }
func (r results) updates(parts ...any) *simulate.Call { return r[key(parts...)].Call("UPDATE") }

func systemCases(s *swarmSize) []trial {
	return each(systems(), []string{"b", "a"}, func(x system, mix string) trial {
		return s.trial(x, mix, key(x.store, mix), func(o *virtual.Simulation) { o.Ops, o.WarmUp = s.longer, s.longer })
	})
}

func tripTable(_ *swarmSize, r results, p *Part) {
	p.Header = []string{"", "GET", "paper", "GET, p99", "paper", "UPDATE", "paper", "UPDATE, p99", "paper",
		"mean of GET", "of UPDATE"}
	for _, x := range systems() {
		g, u, paper := r.gets(x.store, "b"), r.updates(x.store, "b"), p.paper.Tables["trips"][x.store]
		ours := [4]int{g.TripsAt(0.5), g.TripsAt(0.99), u.TripsAt(0.5), u.TripsAt(0.99)}
		row, holds := []Cell{say("%s", x.name)}, true
		for i, trips := range ours {
			row = append(row, say("%d", trips), say("%s", paper[i]))
			least, most := between(paper[i])
			holds = holds && trips >= least && trips <= most
		}
		p.Rows = append(p.Rows, append(row, say("%.3f", g.Trips), say("%.3f", u.Trips)))
		_, get99 := between(paper[1])
		_, update99 := between(paper[3])
		p.claim("trips-"+x.store, is(holds), fmt.Sprintf("%d and %d, and %d and %d at the 99th percentile", ours[0],
			ours[2], ours[1], ours[3]),
			unknown("%.1f %% of the GETs and %.1f %% of the UPDATEs take more than the paper's trips.",
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

func cdfTable(s *swarmSize, r results, p *Part) {
	p.cdfs(systems(), func(x system) []any { return []any{x.store, "b"} }, r)
	p.Notes = append(p.Notes, fmt.Sprintf("%d operations, behind a warm-up of as many.", s.longer))
	for _, x := range systems() {
		g, u := r.gets(x.store, "b"), r.updates(x.store, "b")
		p.same("get-"+x.store, g.At(0.5), whyWork)
		switch x.store {
		case "swarm":
			p.same("get-swarm-p1", g.At(0.01), whyWork)
			p.same("get-swarm-p99", g.At(0.99), unknown(""))
		case "fusee":
			p.same("get-fusee-p90", g.At(0.9), unknown("%.1f %% of them are stale and take a second trip.",
				beyond(g, 1)))
		}
		p.same("update-"+x.store, u.At(0.5), whyWork)
		if x.store == "fusee" {
			p.same("update-fusee-p90", u.At(0.9), whyWork)
			p.same("one-fusee", 100*g.ByTrips[1], unknown(""))
			p.same("one-fusee-a", 100*r.gets(x.store, "a").ByTrips[1], unknown(""))
		}
	}
}

// cdfs prints the distributions of each system's GETs and UPDATEs.
func (p *Part) cdfs(list []system, of func(system) []any, r results) {
	var g grid[percentile]
	for _, call := range [][2]string{{"GET", "READ"}, {"UPDATE", "UPDATE"}} {
		for _, x := range list {
			g.column(call[0]+" "+x.name, func(part percentile) Cell {
				return us(r[key(of(x)...)].Call(call[1]).At(float64(part)))
			})
		}
	}
	g.show(p, "percentile", "%s", cdfShares)
}

func cacheMissCases(s *swarmSize) (list []trial) {
	for _, x := range systems("raw") {
		list = append(list, s.trial(x, "b", x.store, func(o *virtual.Simulation) {
			o.Records, o.WarmUp, o.Known, o.Fresh = s.manyKeys, s.manyWarmUp, false, true
			o.Set(stores.CacheBytes, s.cacheBytes())
		}))
	}
	return list
}

// cacheBytes are 5 MiB for a million keys.
func (s *swarmSize) cacheBytes() int { return int(5 << 20 * s.manyKeys / 1_000_000) }

func cacheMissTable(s *swarmSize, r results, p *Part) {
	p.Header = []string{"", "GETs that miss", "paper", "GET", "p50", "p90", "p99", "UPDATE", "p50", "p90",
		"p99", "trips"}
	for _, x := range systems("raw") {
		g, u := r.gets(x.store), r.updates(x.store)
		miss := beyond(g, x.trips)
		row := []Cell{say("%s", x.name), share(miss), share(p.published("caches-" + x.store))}
		for _, c := range []*simulate.Call{g, u} {
			row = append(row, us(c.Latency.Mean), us(c.At(0.5)), us(c.At(0.9)), us(c.At(0.99)))
		}
		p.Rows = append(p.Rows, append(row, say("%.2f", u.Trips)))
		p.same("caches-"+x.store, miss, unknown("A miss is a GET of more than %d trips.", x.trips))
	}
	p.Notes = append(p.Notes, fmt.Sprintf("%d keys, caches of %d B for each client, a warm-up of %d operations.",
		s.manyKeys, s.cacheBytes(), s.manyWarmUp))
	if len(quorums()) < 2 {
		return
	}
	var shorter []test
	text := ""
	for _, call := range []string{"READ", "UPDATE"} {
		ours := r["swarm"].Call(call).Latency.Mean
		text += fmt.Sprintf("%s %.2f µs", call, ours)
		for _, x := range systems("raw", "swarm") {
			other := r[x.store].Call(call).Latency.Mean
			shorter = append(shorter, less(ours, other))
			text += fmt.Sprintf(", %s %.2f", x.name, other)
		}
		text += "; "
	}
	p.claim("caches-mean", all(shorter...), text[:len(text)-2],
		unknown("FUSEE's GETs that hit are as fast as SWARM-KV's here, and of those that miss the index is read with "+
			"the pair."))
	swarm, abd := mode(r.updates("swarm"), 2), mode(r.updates("dm-abd"), 3)
	p.claim("caches-miss", is(swarm == 3 && abd == 3),
		fmt.Sprintf("UPDATEs that miss take %d trips on SWARM-KV and %d on DM-ABD, mostly", swarm, abd),
		unknown("An entry of the directory is a hash, so that an UPDATE that finds one reads the pair, to be sure of "+
			"the key."))
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
