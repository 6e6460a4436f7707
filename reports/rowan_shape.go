package reports

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rowan/kv"
)

// across shows the rate of each kind and its DLWA, for each of some numbers.
func (p *Part) across(s *rowanSize, title string, numbers []int, of func(kv.Kind, int) calls) {
	var g grid[int]
	for _, k := range kv.Kinds() {
		g.column(k.String(), func(n int) Cell { return mops(1e6 * s.mops(p.served(of(k, n)))) })
		g.column("DLWA", func(n int) Cell { return count("%.2f", p.served(of(k, n)).DLWA) })
	}
	g.show(p, title, "%d", numbers)
}

// entryOf is a kind with entries of so many bytes.
func entryOf(k kv.Kind, bytes int) calls { return calls{kind: k, puts: 50, entry: bytes} }

func entryBytesCases(s *rowanSize) []trial {
	return each(kv.Kinds(), s.entries, func(k kv.Kind, n int) trial { return s.calling(entryOf(k, n)) })
}

// line is one of the media, in bytes.
const line = 256

func entryBytesTable(s *rowanSize, _ results, p *Part) {
	p.across(s, "bytes of an entry", s.entries, entryOf)
	most, similarly := 0.0, is(true)
	for _, n := range s.entries {
		if n%line > 0 {
			continue
		}
		for _, k := range kv.Kinds() {
			r := p.served(entryOf(k, n))
			most = max(most, r.DLWA)
			if k != kv.RPC {
				similarly = all(similarly, similar(r.Rate, p.served(entryOf(kv.Rowan, n)).Rate, 0.1))
			}
		}
	}
	p.claim("entries-dlwa", less(most, 1.1), fmt.Sprintf("%.2f at most", most), unknown(""))
	last := s.entries[len(s.entries)-1]
	ours, write := s.mops(p.served(entryOf(kv.Rowan, last))), s.mops(p.served(entryOf(kv.RWrite, last)))
	p.claim("entries-similar", similarly,
		fmt.Sprintf("%.1f and %.1f Mops of Rowan-KV and RWrite-KV with %d B", ours, write, last), unknown(""))
	p.same("entries-rpc", -change(ours, s.mops(p.served(entryOf(kv.RPC, last)))), unknown(""))
}

// copied is a kind with so many replicas.
func copied(k kv.Kind, replicas int) calls {
	c := mix(k, 50)
	if replicas != 3 {
		c.replicas = replicas
	}
	return c
}

func factorCases(s *rowanSize) []trial {
	return each(kv.Kinds(), s.replicas, func(k kv.Kind, n int) trial { return s.calling(copied(k, n)) })
}

func factorTable(s *rowanSize, _ results, p *Part) {
	p.across(s, "replicas", s.replicas, copied)
	few, many := 2, s.replicas[len(s.replicas)-1]
	over := func(k kv.Kind, n int) float64 {
		return p.served(copied(kv.Rowan, n)).Rate / p.served(copied(k, n)).Rate
	}
	grows, said := is(true), ""
	for _, k := range kv.Kinds()[1:] {
		grows = all(grows, more(over(k, many), over(k, few)))
		said += fmt.Sprintf(", %.2f to %.2f times %s", over(k, few), over(k, many), k)
	}
	p.claim("replicas-more", grows, said[2:], unknown(""))
	a, b := p.served(copied(kv.RWrite, few)).DLWA, p.served(copied(kv.RWrite, many)).DLWA
	p.claim("replicas-dlwa", more(b, a), fmt.Sprintf("%.2f with %d and %.2f with %d", a, few, b, many), unknown(""))
}

// threaded is a kind with so many workers a server.
func threaded(k kv.Kind, workers int) calls {
	c := mix(k, 50)
	if workers != kindWorkers {
		c.workers = workers
	}
	return c
}

func threadCases(s *rowanSize) []trial {
	return each(kv.Kinds(), s.workers, func(k kv.Kind, n int) trial { return s.calling(threaded(k, n)) })
}

func threadTable(s *rowanSize, _ results, p *Part) {
	p.across(s, "threads", s.workers, threaded)
	const few = 16
	rate := func(k kv.Kind, n int) float64 { return p.served(threaded(k, n)).Rate }
	lowest := slices.MinFunc(slices.DeleteFunc(kv.Kinds(), func(k kv.Kind) bool { return k == kv.RPC }),
		func(a, b kv.Kind) int { return int(rate(a, few) - rate(b, few)) })
	p.claim("threads-rpc", less(rate(kv.RPC, few), rate(lowest, few)),
		fmt.Sprintf("%.2f times that of %s, the lowest of the others", rate(kv.RPC, few)/rate(lowest, few), lowest),
		unknown(""))
	gain := func(k kv.Kind) float64 { return rate(k, kindWorkers) / rate(k, few) }
	scales, amplifies, said, dlwa := is(true), is(true), fmt.Sprintf("%.2f times", gain(kv.Rowan)), ""
	for _, k := range []kv.Kind{kv.RWrite, kv.Batch, kv.Share} {
		scales = all(scales, less(gain(k), gain(kv.Rowan)))
		said += fmt.Sprintf(", %s %.2f", k, gain(k))
		from, to := p.served(threaded(k, few)).DLWA, p.served(threaded(k, kindWorkers)).DLWA
		amplifies = all(amplifies, more(to, from))
		dlwa += fmt.Sprintf(", %s from %.2f to %.2f", k, from, to)
	}
	p.claim("threads-scale", scales, said, unknown(""))
	p.claim("threads-dlwa", amplifies, dlwa[2:], unknown(""))
}
