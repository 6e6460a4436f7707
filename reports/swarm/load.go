package swarm

import (
	"fmt"
	"strings"

	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
)

func loadCases(s *size) (list []eval.Trial) {
	for _, x := range quorums() {
		for _, mix := range []string{"a", "b"} {
			for _, n := range s.inFlight {
				list = append(list, s.trial(x, mix, eval.Key(x.store, mix, n), func(o *virtual.Simulation) {
					if o.InFlight = n; n > 1 {
						o.Records = min(o.Records, s.crowdKeys)
					}
				}))
			}
		}
	}
	return list
}

func loadTable(s *size, r eval.Results, p *eval.Part) {
	core := func(store, mix string, n int) float64 { return r[eval.Key(store, mix, n)].Throughput / 4 }
	mean := func(store, mix string, n int) float64 { return r.All(store, mix, n).Latency.Mean }
	most := func(store, mix string) (rate float64, with int) {
		for _, n := range s.inFlight {
			if got := core(store, mix, n); got > rate {
				rate, with = got, n
			}
		}
		return rate / 1e3, with
	}
	var g eval.Grid[int]
	for _, mix := range []string{"a", "b"} {
		for _, x := range quorums() {
			title := x.name
			if x == swarmKV {
				title = eval.MixName(mix) + ": kops a core"
			}
			g.Column(title, func(n int) eval.Cell { return eval.Kops(core(x.store, mix, n)) })
			g.Column("mean", func(n int) eval.Cell { return eval.FineMicros(mean(x.store, mix, n)) })
		}
	}
	g.Show(p, "in flight", "%d", s.inFlight)
	for _, mix := range []string{"a", "b"} {
		p.Same("load-"+mix+"1-us", mean("swarm", mix, 1), whyWork)
		p.Same("load-"+mix+"1-kops", core("swarm", mix, 1)/1e3, whyWork)
		rate, with := most("swarm", mix)
		p.Same("load-"+mix+"-most", rate, whyWork.And("It is reached with %d in flight.", with))
	}
	longer := func(from, to int) float64 { return eval.Change(mean("swarm", "a", from), mean("swarm", "a", to)) }
	times := func(mix string, from, to int) float64 { return core("swarm", mix, to) / core("swarm", mix, from) }
	gain := func(mix string, from, to int) float64 { return 100 * (times(mix, from, to) - 1) }
	p.Claim("load-a2", eval.All(eval.Printed(longer(1, 2), "5", "%"), eval.More(times("a", 1, 2), 1.8)),
		fmt.Sprintf("%+.0f %%, and %+.0f %% of throughput", longer(1, 2), gain("a", 1, 2)), whyWork)
	p.Claim("load-a3", eval.Percents([]float64{longer(2, 3), gain("a", 2, 3)}, "21", "22"),
		fmt.Sprintf("%+.0f %%, and %+.0f %% of throughput", longer(2, 3), gain("a", 2, 3)), whyWork)
	last := s.inFlight[len(s.inFlight)-1]
	each := (mean("swarm", "b", last) - mean("swarm", "b", 3)) / float64(last-3)
	p.Claim("load-b-flat", eval.All(eval.Less(times("b", 3, last), 1.1), eval.Inside(each, 0.75, 1.05)),
		fmt.Sprintf("%+.0f %% from 3 to %d, at %.2f µs each", gain("b", 3, last), last, each), whyWork)
	for _, mix := range []string{"a", "b"} {
		ours, _ := most("swarm", mix)
		other, _ := most("dm-abd", mix)
		holds := eval.More(ours, other)
		if mix == "a" {
			holds = eval.Similar(other, ours, 0.15)
		}
		p.Claim("load-dm-"+mix, holds, fmt.Sprintf("%.0f kops against %.0f", ours, other), whyWork)
	}
	p.Notes = append(p.Notes,
		fmt.Sprintf("Each operation in flight is a worker with a cache of its own, on the client's core; with more "+
			"than one there are %d records.", s.crowdKeys))
}

func crowdCases(s *size) (list []eval.Trial) {
	for _, x := range quorums() {
		for _, n := range s.clients {
			for _, k := range []int{1, 4} {
				list = append(list, s.trial(x, "b", eval.Key(x.store, n, k),
					func(o *virtual.Simulation) { o.Records, o.Clients, o.InFlight = s.crowdKeys, n, k }))
			}
		}
	}
	return list
}

func crowdTable(s *size, r eval.Results, p *eval.Part) {
	p.Header = []string{"clients", "Mops", "GET", "UPDATE", "DM-ABD", "GET", "UPDATE", "4 in flight", "GET", "UPDATE",
		"DM-ABD", "GET", "UPDATE", "busiest"}
	rate := func(store string, n, k int) float64 { return r[eval.Key(store, n, k)].Throughput }
	last := s.clients[len(s.clients)-1]
	peak, at, ahead := 0.0, 0, 0
	for _, n := range s.clients {
		row := []eval.Cell{eval.Text("%d", n)}
		for _, k := range []int{1, 4} {
			for _, x := range quorums() {
				row = append(row, eval.Mops(rate(x.store, n, k)), eval.FineMicros(r.Gets(x.store, n, k).Latency.Mean),
					eval.FineMicros(r.Updates(x.store, n, k).Latency.Mean))
			}
		}
		p.Rows = append(p.Rows, append(row, eval.Text("%s", eval.Busiest(r[eval.Key("swarm", n, 4)]))))
		if got := rate("swarm", n, 4); got > peak {
			peak, at = got, n
		}
		if ahead == 0 && rate("dm-abd", n, 4) > rate("swarm", n, 4) {
			ahead = n
		}
	}
	one := func(n int) (get, update float64) {
		return r.Gets("swarm", n, 1).Latency.Mean, r.Updates("swarm", n, 1).Latency.Mean
	}
	p.Same("clients-most", rate("swarm", last, 1)/1e6, whyThreads)
	half, whole := rate("swarm", 32, 1)/rate("swarm", 1, 1), rate("swarm", last, 1)/rate("swarm", 1, 1)
	p.Claim("clients-linear", eval.All(eval.More(half, 27), eval.Less(whole, 1.9*half)),
		fmt.Sprintf("32 clients do %.1f times of what one does, %d do %.1f times", half, last, whole), eval.Unknown(""))
	get, update := one(1)
	p.Same("clients-get1", get, whyWork)
	p.Same("clients-put1", update,
		eval.Unknown("It is as long for one client as for four here, with which the paper has 3.1 µs."))
	get, update = one(last)
	p.Same("clients-get64", get, whyThreads)
	p.Same("clients-put64", update, whyThreads)
	dm := r["dm-abd "+fmt.Sprint(last)+" 1"]
	p.Claim("clients-dm", eval.All(eval.Less(get, 0.8*dm.Call("READ").Latency.Mean),
		eval.Less(update, 0.9*dm.Call("UPDATE").Latency.Mean)), fmt.Sprintf(
		"%.2f against %.2f µs, and %.2f against %.2f, with %d", get, dm.Call("READ").Latency.Mean, update,
		dm.Call("UPDATE").Latency.Mean, last), eval.Unknown(""))
	p.Claim("clients-four", eval.All(eval.Printed(peak/1e6, "28.3", "Mops"), eval.Is(at == 40)),
		fmt.Sprintf("%.2f Mops, with %d", peak/1e6, at), whyThreads)
	text := "DM-ABD is never faster"
	if ahead > 0 {
		text = fmt.Sprintf("DM-ABD is faster from %d clients on", ahead)
	}
	_, busiest := r[eval.Key("swarm", last, 4)].Busiest()
	p.Claim("clients-fabric", eval.Is(ahead == 56 && strings.HasPrefix(busiest.Name, "link")),
		text+"; the busiest with "+fmt.Sprint(last)+" is "+
			eval.Busiest(r[eval.Key("swarm", last, 4)]), whyThreads)
	p.Notes = append(p.Notes,
		fmt.Sprintf("%d records. The last column is what is in use most under SWARM-KV with 4 operations in flight.",
			s.crowdKeys))
}
