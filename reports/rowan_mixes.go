package reports

import (
	"fmt"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/workloads/simulate"
)

func readCases(s *rowanSize) []trial {
	return each(kv.Kinds(), []int{0, 5}, func(k kv.Kind, puts int) trial { return s.calling(mix(k, puts)) })
}

// noDDIO is a fact about all that depends on it.
const noDDIO = "What DDIO saves a processor is not in the model: it is off for all kinds."

func readTable(s *rowanSize, _ results, p *Part) {
	n := float64(s.calls.Scale)
	var g grid[kv.Kind]
	g.column("no PUT", func(k kv.Kind) Cell { return mops(n * p.served(mix(k, 0)).Rate) })
	g.column("GET", func(k kv.Kind) Cell { return micros(median(p.served(mix(k, 0)).Get)) })
	g.column("5 % PUT", func(k kv.Kind) Cell { return mops(n * p.served(mix(k, 5)).Rate) })
	g.column("PUT", func(k kv.Kind) Cell { return micros(median(p.served(mix(k, 5)).Put)) })
	g.column("GET", func(k kv.Kind) Cell { return micros(median(p.served(mix(k, 5)).Get)) })
	g.show(p, "", "%s", kv.Kinds())

	rpc := p.served(mix(kv.RPC, 0))
	var ahead []float64
	for _, k := range kv.Kinds() {
		if k != kv.RPC {
			ahead = append(ahead, change(p.served(mix(k, 0)).Rate, rpc.Rate))
		}
	}
	p.claim("reads-rpc", percents(ahead, "5", "5", "5", "5"),
		fmt.Sprintf("%+.1f, %+.1f, %+.1f and %+.1f %%", ahead[0], ahead[1], ahead[2], ahead[3]),
		unknown(noDDIO))
	ours, calls := p.served(mix(kv.Rowan, 5)), p.served(mix(kv.RPC, 5))
	p.same("kv-5", s.mops(ours), unknown(""))
	p.claim("kv-5-rpc", similar(ours.Rate, calls.Rate, 0.1), fmt.Sprintf("%.2f times", ours.Rate/calls.Rate),
		unknown(noDDIO))
	p.same("kv-5-put", median(calls.Put)/median(ours.Put), unknown(""))
	p.same("kv-5-get", median(ours.Get)/median(calls.Get), unknown(noDDIO))
}

var objects = []struct{ name, title string }{{"up2x", "UP2X"}, {"udb", "UDB"}}

// sizedAs is a kind with pairs as long as in another store.
func sizedAs(objects string, k kv.Kind, puts int) calls {
	return calls{kind: k, puts: puts, objects: objects}
}

func objectCases(s *rowanSize) (list []trial) {
	for _, o := range objects {
		list = append(list, each(kv.Kinds(), []int{50, 100}, func(k kv.Kind, puts int) trial {
			return s.calling(sizedAs(o.name, k, puts))
		})...)
	}
	return list
}

func objectTable(s *rowanSize, _ results, p *Part) {
	n := float64(s.calls.Scale)
	var g grid[kv.Kind]
	for _, o := range objects {
		for _, puts := range []int{50, 100} {
			of := func(k kv.Kind) *simulate.Served { return p.served(sizedAs(o.name, k, puts)) }
			g.column(fmt.Sprintf("%s, %d %% PUT", o.title, puts), func(k kv.Kind) Cell { return mops(n * of(k).Rate) })
			g.column("DLWA", func(k kv.Kind) Cell { return count("%.2f", of(k).DLWA) })
		}
	}
	g.show(p, "", "%s", kv.Kinds())
	first := true
	for _, o := range objects {
		for _, k := range kv.Kinds() {
			ours := p.served(sizedAs(o.name, k, 50))
			first = first && ours.Rate <= p.served(sizedAs(o.name, kv.Rowan, 50)).Rate
			p.same(fmt.Sprintf("objects-%s-%s", o.name, short(k)), s.mops(ours), unknown(""))
		}
	}
	p.claim("kv-objects", is(first), fmt.Sprint(first), unknown(""))
}
