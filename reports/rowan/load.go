package rowan

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/montanaflynn/stats"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

func loadingCases(s *size) []eval.Trial {
	return eval.Each(kv.Kinds(), s.clients, func(k kv.Kind, n int) eval.Trial { return s.calling(s.loaded(k, n)) })
}

// loaded is a kind with so many clients.
func (s *size) loaded(k kv.Kind, clients int) calls {
	c := mix(k, 50)
	if clients != s.calls.Clients*s.calls.Scale {
		c.clients = clients
	}
	return c
}

// tail returns the 99th percentile in microseconds. 0: there are no latencies.
func tail(all []time.Duration) float64 {
	ns, _ := stats.PercentileNearestRank(stats.LoadRawData(all), 99) // of none it is no number, and an error
	if math.IsNaN(ns) {
		return 0
	}
	return ns / 1e3
}

// Latencies of a run.
func putMedian(r *simulate.Served) float64     { return median(r.Put) }
func getMedian(r *simulate.Served) float64     { return median(r.Get) }
func allTail(r *simulate.Served) float64       { return tail(slices.Concat(r.Put, r.Get)) }
func persistMedian(r *simulate.Served) float64 { return median(r.Persist) }
func persistTail(r *simulate.Served) float64   { return tail(r.Persist) }

// curveOf is how something depends on the load of a kind: points with more and more clients.
type curve []struct{ load, value float64 }

// curve returns one of a kind, over its load in million operations a second.
func curveOf(p *eval.Part, s *size, k kv.Kind, of func(*simulate.Served) float64) (c curve) {
	for _, n := range s.clients {
		r := served(p, s.loaded(k, n))
		c = append(c, struct{ load, value float64 }{s.mops(r), of(r)})
	}
	return c
}

// at returns the value at a load, on the line between two points. false: the curve does not reach
// that load.
func (c curve) at(load float64) (value float64, ok bool) {
	for i := range c {
		if to := c[i]; to.load >= load {
			if i == 0 {
				return to.value, true
			}
			from := c[i-1]
			return from.value + (to.value-from.value)*(load-from.load)/(to.load-from.load), true
		}
	}
	return 0, false
}

// tailLoad is the load with which the paper has latencies of the tail, in million operations a
// second (section 6.3).
const tailLoad = 50

func loadingTable(s *size, _ eval.Results, p *eval.Part) {
	n := float64(s.calls.Scale)
	var g eval.Grid[int]
	for _, k := range kv.Kinds() {
		g.Column(k.String(), func(c int) eval.Cell { return eval.Mops(n * served(p, s.loaded(k, c)).Rate) })
		g.Column("PUT", func(c int) eval.Cell { return eval.Micros(putMedian(served(p, s.loaded(k, c)))) })
		g.Column("GET", func(c int) eval.Cell { return eval.Micros(getMedian(served(p, s.loaded(k, c)))) })
		g.Column("99 %", func(c int) eval.Cell { return eval.Micros(allTail(served(p, s.loaded(k, c)))) })
	}
	g.Show(p, "clients", "%d", s.clients)
	ours, reached := curveOf(p, s, kv.Rowan, allTail).at(tailLoad)
	under(p, "load-tail", ours, reached, eval.Unknown(""))
	for _, k := range kv.Kinds()[1:] {
		theirs, ok := curveOf(p, s, k, allTail).at(tailLoad)
		under(p, "load-tail-"+short(k), theirs/ours, ok && reached, eval.Unknown(""))
	}
	few := s.clients[0]
	slower := putMedian(served(p, s.loaded(kv.Batch, few))) / putMedian(served(p, s.loaded(kv.Rowan, few)))
	p.Claim("load-batch", eval.More(slower, 1.5), fmt.Sprintf("%.2f times with %d clients", slower, few),
		eval.Unknown(""))
	rpc := knee(p, s, kv.RPC)
	peak := s.mops(rpc)
	get, _ := curveOf(p, s, kv.Rowan, getMedian).at(peak)
	put, _ := curveOf(p, s, kv.Rowan, putMedian).at(peak)
	p.Same("load-get", -eval.Change(getMedian(rpc), get), eval.Unknown(""))
	p.Notes = append(p.Notes,
		fmt.Sprintf("At the peak of RPC-KV, %.1f Mops, Rowan-KV's median PUT takes %.2f times less than RPC-KV's. "+
			"The part stores compares them with as many clients. A peak is what the fewest clients do that do 95 %% "+
			"of the most. Between two numbers of clients values are on a line.", peak, putMedian(rpc)/put))
}

// under claims a number that is one of tailLoad, which may not be reached.
func under(p *eval.Part, about string, ours float64, reached bool, why eval.Reason) {
	if reached {
		p.Same(about, ours, why)
		return
	}
	p.Claim(about, eval.Is(false), fmt.Sprintf("it does not do %d Mops", tailLoad), why)
}

// knee is a kind's run with the fewest clients that do nearly as much as any.
func knee(p *eval.Part, s *size, k kv.Kind) *simulate.Served {
	most := 0.0
	for _, n := range s.clients {
		most = max(most, served(p, s.loaded(k, n)).Rate)
	}
	i := slices.IndexFunc(s.clients, func(n int) bool { return served(p, s.loaded(k, n)).Rate >= 0.95*most })
	return served(p, s.loaded(k, s.clients[i]))
}

// sided are the kinds that write to backups' memory from afar.
var sided = []kv.Kind{kv.Rowan, kv.RWrite, kv.Batch, kv.Share}

func persistCases(s *size) []eval.Trial {
	return eval.Each(sided, s.clients, func(k kv.Kind, n int) eval.Trial { return s.calling(s.loaded(k, n)) })
}

func persistTable(s *size, _ eval.Results, p *eval.Part) {
	n := float64(s.calls.Scale)
	var g eval.Grid[int]
	for _, k := range sided {
		g.Column(k.String(), func(c int) eval.Cell { return eval.Mops(n * served(p, s.loaded(k, c)).Rate) })
		g.Column("median", func(c int) eval.Cell { return eval.Micros(persistMedian(served(p, s.loaded(k, c)))) })
		g.Column("99 %", func(c int) eval.Cell { return eval.Micros(persistTail(served(p, s.loaded(k, c)))) })
	}
	g.Show(p, "clients", "%d", s.clients)
	said := eval.Unknown("With how much load it was measured, the paper does not say. Here it is %d Mops, as for its "+
		"tail.",
		tailLoad)
	ours, ok := curveOf(p, s, kv.Rowan, persistMedian).at(tailLoad)
	under(p, "persist-rowan", ours, ok, said)
	write, reached := curveOf(p, s, kv.RWrite, persistMedian).at(tailLoad)
	under(p, "persist-rwrite", write, reached, said)
	last, _ := curveOf(p, s, kv.RWrite, persistTail).at(tailLoad)
	under(p, "persist-rwrite-99", last, reached, said)
	slower := eval.Is(true)
	for _, n := range s.clients[len(s.clients)/2:] {
		a, b := served(p, s.loaded(kv.Rowan, n)), served(p, s.loaded(kv.RWrite, n))
		slower = eval.All(slower, eval.More(persistMedian(b), persistMedian(a)))
	}
	p.Claim("persist-slower", slower,
		fmt.Sprintf("%.1f and %.1f µs at their peaks", persistMedian(knee(p, s, kv.RWrite)),
			persistMedian(knee(p, s, kv.Rowan))), eval.Unknown(""))
	p.Notes = append(p.Notes, "It is from when a worker posts the verb to when it could know of the answer.")
}
