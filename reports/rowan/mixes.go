package rowan

import (
	"fmt"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

func readCases(s *size) []eval.Trial {
	return eval.Each(kv.Kinds(), []int{0, 5}, func(k kv.Kind, puts int) eval.Trial { return s.calling(mix(k, puts)) })
}

// noDDIO is a fact about all that depends on it.
const noDDIO = "What DDIO saves a processor is not in the model: it is off for all kinds."

func readTable(s *size, _ eval.Results, p *eval.Part) {
	n := float64(s.calls.Scale)
	var g eval.Grid[kv.Kind]
	g.Column("no PUT", func(k kv.Kind) eval.Cell { return eval.Mops(n * served(p, mix(k, 0)).Rate) })
	g.Column("GET", func(k kv.Kind) eval.Cell { return eval.Micros(median(served(p, mix(k, 0)).Get)) })
	g.Column("5 % PUT", func(k kv.Kind) eval.Cell { return eval.Mops(n * served(p, mix(k, 5)).Rate) })
	g.Column("PUT", func(k kv.Kind) eval.Cell { return eval.Micros(median(served(p, mix(k, 5)).Put)) })
	g.Column("GET", func(k kv.Kind) eval.Cell { return eval.Micros(median(served(p, mix(k, 5)).Get)) })
	g.Show(p, "", "%s", kv.Kinds())

	rpc := served(p, mix(kv.RPC, 0))
	var ahead []float64
	for _, k := range kv.Kinds() {
		if k != kv.RPC {
			ahead = append(ahead, eval.Change(served(p, mix(k, 0)).Rate, rpc.Rate))
		}
	}
	p.Claim("reads-rpc", eval.Percents(ahead, "5", "5", "5", "5"),
		fmt.Sprintf("%+.1f, %+.1f, %+.1f and %+.1f %%", ahead[0], ahead[1], ahead[2], ahead[3]),
		eval.Unknown(noDDIO))
	ours, calls := served(p, mix(kv.Rowan, 5)), served(p, mix(kv.RPC, 5))
	p.Same("kv-5", s.mops(ours), eval.Unknown(""))
	p.Claim("kv-5-rpc", eval.Similar(ours.Rate, calls.Rate, 0.1), fmt.Sprintf("%.2f times", ours.Rate/calls.Rate),
		eval.Unknown(noDDIO))
	p.Same("kv-5-put", median(calls.Put)/median(ours.Put), eval.Unknown(""))
	p.Same("kv-5-get", median(ours.Get)/median(calls.Get), eval.Unknown(noDDIO))
}

var objects = []struct{ name, title string }{{"up2x", "UP2X"}, {"udb", "UDB"}}

// sizedAs is a kind with pairs as long as in another store.
func sizedAs(objects string, k kv.Kind, puts int) calls {
	return calls{kind: k, puts: puts, objects: objects}
}

func objectCases(s *size) (list []eval.Trial) {
	for _, o := range objects {
		list = append(list, eval.Each(kv.Kinds(), []int{50, 100}, func(k kv.Kind, puts int) eval.Trial {
			return s.calling(sizedAs(o.name, k, puts))
		})...)
	}
	return list
}

func objectTable(s *size, _ eval.Results, p *eval.Part) {
	n := float64(s.calls.Scale)
	var g eval.Grid[kv.Kind]
	for _, o := range objects {
		for _, puts := range []int{50, 100} {
			of := func(k kv.Kind) *simulate.Served { return served(p, sizedAs(o.name, k, puts)) }
			g.Column(fmt.Sprintf("%s, %d %% PUT", o.title, puts),
				func(k kv.Kind) eval.Cell { return eval.Mops(n * of(k).Rate) })
			g.Column("DLWA", func(k kv.Kind) eval.Cell { return eval.Count("%.2f", of(k).DLWA) })
		}
	}
	g.Show(p, "", "%s", kv.Kinds())
	first := true
	for _, o := range objects {
		for _, k := range kv.Kinds() {
			ours := served(p, sizedAs(o.name, k, 50))
			first = first && ours.Rate <= served(p, sizedAs(o.name, kv.Rowan, 50)).Rate
			p.Same(fmt.Sprintf("objects-%s-%s", o.name, short(k)), s.mops(ours), eval.Unknown(""))
		}
	}
	p.Claim("kv-objects", eval.Is(first), fmt.Sprint(first), eval.Unknown(""))
}
