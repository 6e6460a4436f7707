package reports

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/montanaflynn/stats"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/workloads/simulate"
)

func loadingCases(s *rowanSize) []trial {
	return each(kv.Kinds(), s.clients, func(k kv.Kind, n int) trial { return s.calling(s.loaded(k, n)) })
}

// loaded is a kind with so many clients.
func (s *rowanSize) loaded(k kv.Kind, clients int) calls {
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

// curve is how something depends on the load of a kind: points with more and more clients.
type curve []struct{ load, value float64 }

// curve returns one of a kind, over its load in million operations a second.
func (p *Part) curve(s *rowanSize, k kv.Kind, of func(*simulate.Served) float64) (c curve) {
	for _, n := range s.clients {
		r := p.served(s.loaded(k, n))
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

func loadingTable(s *rowanSize, _ results, p *Part) {
	n := float64(s.calls.Scale)
	var g grid[int]
	for _, k := range kv.Kinds() {
		g.column(k.String(), func(c int) Cell { return mops(n * p.served(s.loaded(k, c)).Rate) })
		g.column("PUT", func(c int) Cell { return micros(putMedian(p.served(s.loaded(k, c)))) })
		g.column("GET", func(c int) Cell { return micros(getMedian(p.served(s.loaded(k, c)))) })
		g.column("99 %", func(c int) Cell { return micros(allTail(p.served(s.loaded(k, c)))) })
	}
	g.show(p, "clients", "%d", s.clients)
	ours, reached := p.curve(s, kv.Rowan, allTail).at(tailLoad)
	p.under("load-tail", ours, reached, unknown(""))
	for _, k := range kv.Kinds()[1:] {
		theirs, ok := p.curve(s, k, allTail).at(tailLoad)
		p.under("load-tail-"+short(k), theirs/ours, ok && reached, unknown(""))
	}
	few := s.clients[0]
	slower := putMedian(p.served(s.loaded(kv.Batch, few))) / putMedian(p.served(s.loaded(kv.Rowan, few)))
	p.claim("load-batch", more(slower, 1.5), fmt.Sprintf("%.2f times with %d clients", slower, few), unknown(""))
	rpc := p.knee(s, kv.RPC)
	peak := s.mops(rpc)
	get, _ := p.curve(s, kv.Rowan, getMedian).at(peak)
	put, _ := p.curve(s, kv.Rowan, putMedian).at(peak)
	p.same("load-get", -change(getMedian(rpc), get), unknown(""))
	p.Notes = append(p.Notes,
		fmt.Sprintf("At the peak of RPC-KV, %.1f Mops, Rowan-KV's median PUT takes %.2f times less than RPC-KV's. "+
			"The part stores compares them with as many clients. A peak is what the fewest clients do that do 95 %% "+
			"of the most. Between two numbers of clients values are on a line.", peak, putMedian(rpc)/put))
}

// under claims a number that is one of tailLoad, which may not be reached.
func (p *Part) under(about string, ours float64, reached bool, why reason) {
	if reached {
		p.same(about, ours, why)
		return
	}
	p.claim(about, is(false), fmt.Sprintf("it does not do %d Mops", tailLoad), why)
}

// knee is a kind's run with the fewest clients that do nearly as much as any.
func (p *Part) knee(s *rowanSize, k kv.Kind) *simulate.Served {
	most := 0.0
	for _, n := range s.clients {
		most = max(most, p.served(s.loaded(k, n)).Rate)
	}
	i := slices.IndexFunc(s.clients, func(n int) bool { return p.served(s.loaded(k, n)).Rate >= 0.95*most })
	return p.served(s.loaded(k, s.clients[i]))
}

// sided are the kinds that write to backups' memory from afar.
var sided = []kv.Kind{kv.Rowan, kv.RWrite, kv.Batch, kv.Share}

func persistCases(s *rowanSize) []trial {
	return each(sided, s.clients, func(k kv.Kind, n int) trial { return s.calling(s.loaded(k, n)) })
}

func persistTable(s *rowanSize, _ results, p *Part) {
	n := float64(s.calls.Scale)
	var g grid[int]
	for _, k := range sided {
		g.column(k.String(), func(c int) Cell { return mops(n * p.served(s.loaded(k, c)).Rate) })
		g.column("median", func(c int) Cell { return micros(persistMedian(p.served(s.loaded(k, c)))) })
		g.column("99 %", func(c int) Cell { return micros(persistTail(p.served(s.loaded(k, c)))) })
	}
	g.show(p, "clients", "%d", s.clients)
	said := unknown("With how much load it was measured, the paper does not say. Here it is %d Mops, as for its tail.",
		tailLoad)
	ours, ok := p.curve(s, kv.Rowan, persistMedian).at(tailLoad)
	p.under("persist-rowan", ours, ok, said)
	write, reached := p.curve(s, kv.RWrite, persistMedian).at(tailLoad)
	p.under("persist-rwrite", write, reached, said)
	last, _ := p.curve(s, kv.RWrite, persistTail).at(tailLoad)
	p.under("persist-rwrite-99", last, reached, said)
	slower := is(true)
	for _, n := range s.clients[len(s.clients)/2:] {
		a, b := p.served(s.loaded(kv.Rowan, n)), p.served(s.loaded(kv.RWrite, n))
		slower = all(slower, more(persistMedian(b), persistMedian(a)))
	}
	p.claim("persist-slower", slower,
		fmt.Sprintf("%.1f and %.1f µs at their peaks", persistMedian(p.knee(s, kv.RWrite)),
			persistMedian(p.knee(s, kv.Rowan))), unknown(""))
	p.Notes = append(p.Notes, "It is from when a worker posts the verb to when it could know of the answer.")
}
