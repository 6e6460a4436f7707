package reports

import (
	"fmt"
	"strings"

	"github.com/farkv/farkv/ops/virtual"
)

func loadCases(s *swarmSize) (list []trial) {
	for _, x := range quorums() {
		for _, mix := range []string{"a", "b"} {
			for _, n := range s.inFlight {
				list = append(list, s.trial(x, mix, key(x.store, mix, n), func(o *virtual.Simulation) {
					if o.InFlight = n; n > 1 {
						o.Records = min(o.Records, s.crowdKeys)
					}
				}))
			}
		}
	}
	return list
}

func loadTable(s *swarmSize, r results, p *Part) {
	core := func(store, mix string, n int) float64 { return r[key(store, mix, n)].Throughput / 4 }
	mean := func(store, mix string, n int) float64 { return r.all(store, mix, n).Latency.Mean }
	most := func(store, mix string) (rate float64, with int) {
		for _, n := range s.inFlight {
			if got := core(store, mix, n); got > rate {
				rate, with = got, n
			}
		}
		return rate / 1e3, with
	}
	var g grid[int]
	for _, mix := range []string{"a", "b"} {
		for _, x := range quorums() {
			title := x.name
			if x == swarmKV {
				title = mixName(mix) + ": kops a core"
			}
			g.column(title, func(n int) Cell { return kops(core(x.store, mix, n)) })
			g.column("mean", func(n int) Cell { return us(mean(x.store, mix, n)) })
		}
	}
	g.show(p, "in flight", "%d", s.inFlight)
	for _, mix := range []string{"a", "b"} {
		p.same("load-"+mix+"1-us", mean("swarm", mix, 1), whyWork)
		p.same("load-"+mix+"1-kops", core("swarm", mix, 1)/1e3, whyWork)
		rate, with := most("swarm", mix)
		p.same("load-"+mix+"-most", rate, whyWork.and("It is reached with %d in flight.", with))
	}
	longer := func(from, to int) float64 { return change(mean("swarm", "a", from), mean("swarm", "a", to)) }
	times := func(mix string, from, to int) float64 { return core("swarm", mix, to) / core("swarm", mix, from) }
	gain := func(mix string, from, to int) float64 { return 100 * (times(mix, from, to) - 1) }
	p.claim("load-a2", all(printed(longer(1, 2), "5", "%"), more(times("a", 1, 2), 1.8)),
		fmt.Sprintf("%+.0f %%, and %+.0f %% of throughput", longer(1, 2), gain("a", 1, 2)), whyWork)
	p.claim("load-a3", percents([]float64{longer(2, 3), gain("a", 2, 3)}, "21", "22"),
		fmt.Sprintf("%+.0f %%, and %+.0f %% of throughput", longer(2, 3), gain("a", 2, 3)), whyWork)
	last := s.inFlight[len(s.inFlight)-1]
	each := (mean("swarm", "b", last) - mean("swarm", "b", 3)) / float64(last-3)
	p.claim("load-b-flat", all(less(times("b", 3, last), 1.1), inside(each, 0.75, 1.05)),
		fmt.Sprintf("%+.0f %% from 3 to %d, at %.2f µs each", gain("b", 3, last), last, each), whyWork)
	for _, mix := range []string{"a", "b"} {
		ours, _ := most("swarm", mix)
		other, _ := most("dm-abd", mix)
		holds := more(ours, other)
		if mix == "a" {
			holds = similar(other, ours, 0.15)
		}
		p.claim("load-dm-"+mix, holds, fmt.Sprintf("%.0f kops against %.0f", ours, other), whyWork)
	}
	p.Notes = append(p.Notes,
		fmt.Sprintf("Each operation in flight is a worker with a cache of its own, on the client's core; with more "+
			"than one there are %d records.", s.crowdKeys))
}

func crowdCases(s *swarmSize) (list []trial) {
	for _, x := range quorums() {
		for _, n := range s.clients {
			for _, k := range []int{1, 4} {
				list = append(list, s.trial(x, "b", key(x.store, n, k),
					func(o *virtual.Simulation) { o.Records, o.Clients, o.InFlight = s.crowdKeys, n, k }))
			}
		}
	}
	return list
}

func crowdTable(s *swarmSize, r results, p *Part) {
	p.Header = []string{"clients", "Mops", "GET", "UPDATE", "DM-ABD", "GET", "UPDATE", "4 in flight", "GET", "UPDATE",
		"DM-ABD", "GET", "UPDATE", "busiest"}
	rate := func(store string, n, k int) float64 { return r[key(store, n, k)].Throughput }
	last := s.clients[len(s.clients)-1]
	peak, at, ahead := 0.0, 0, 0
	for _, n := range s.clients {
		row := []Cell{say("%d", n)}
		for _, k := range []int{1, 4} {
			for _, x := range quorums() {
				row = append(row, mops(rate(x.store, n, k)), us(r.gets(x.store, n, k).Latency.Mean),
					us(r.updates(x.store, n, k).Latency.Mean))
			}
		}
		p.Rows = append(p.Rows, append(row, say("%s", limit(r[key("swarm", n, 4)]))))
		if got := rate("swarm", n, 4); got > peak {
			peak, at = got, n
		}
		if ahead == 0 && rate("dm-abd", n, 4) > rate("swarm", n, 4) {
			ahead = n
		}
	}
	one := func(n int) (get, update float64) {
		return r.gets("swarm", n, 1).Latency.Mean, r.updates("swarm", n, 1).Latency.Mean
	}
	p.same("clients-most", rate("swarm", last, 1)/1e6, whyThreads)
	half, whole := rate("swarm", 32, 1)/rate("swarm", 1, 1), rate("swarm", last, 1)/rate("swarm", 1, 1)
	p.claim("clients-linear", all(more(half, 27), less(whole, 1.9*half)),
		fmt.Sprintf("32 clients do %.1f times of what one does, %d do %.1f times", half, last, whole), unknown(""))
	get, update := one(1)
	p.same("clients-get1", get, whyWork)
	p.same("clients-put1", update,
		unknown("It is as long for one client as for four here, with which the paper has 3.1 µs."))
	get, update = one(last)
	p.same("clients-get64", get, whyThreads)
	p.same("clients-put64", update, whyThreads)
	dm := r["dm-abd "+fmt.Sprint(last)+" 1"]
	p.claim("clients-dm", all(less(get, 0.8*dm.Call("READ").Latency.Mean),
		less(update, 0.9*dm.Call("UPDATE").Latency.Mean)), fmt.Sprintf(
		"%.2f against %.2f µs, and %.2f against %.2f, with %d", get, dm.Call("READ").Latency.Mean, update,
		dm.Call("UPDATE").Latency.Mean, last), unknown(""))
	p.claim("clients-four", all(printed(peak/1e6, "28.3", "Mops"), is(at == 40)),
		fmt.Sprintf("%.2f Mops, with %d", peak/1e6, at), whyThreads)
	text := "DM-ABD is never faster"
	if ahead > 0 {
		text = fmt.Sprintf("DM-ABD is faster from %d clients on", ahead)
	}
	_, busiest := r[key("swarm", last, 4)].Busiest()
	p.claim("clients-fabric", is(ahead == 56 && strings.HasPrefix(busiest.Name, "link")),
		text+"; the busiest with "+fmt.Sprint(last)+" is "+
			limit(r[key("swarm", last, 4)]), whyThreads)
	p.Notes = append(p.Notes,
		fmt.Sprintf("%d records. The last column is what is in use most under SWARM-KV with 4 operations in flight.",
			s.crowdKeys))
}
