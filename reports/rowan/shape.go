package rowan

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/reports/eval"
)

// across shows the rate of each kind and its DLWA, for each of some numbers.
func across(p *eval.Part, s *size, title string, numbers []int, of func(kv.Kind, int) calls) {
	var g eval.Grid[int]
	for _, k := range kv.Kinds() {
		g.Column(k.String(), func(n int) eval.Cell { return eval.Mops(1e6 * s.mops(served(p, of(k, n)))) })
		g.Column("DLWA", func(n int) eval.Cell { return eval.Count("%.2f", served(p, of(k, n)).DLWA) })
	}
	g.Show(p, title, "%d", numbers)
}

// entryOf is a kind with entries of so many bytes.
func entryOf(k kv.Kind, bytes int) calls { return calls{kind: k, puts: 50, entry: bytes} }

func entryBytesCases(s *size) []eval.Trial {
	return eval.Each(kv.Kinds(), s.entries, func(k kv.Kind, n int) eval.Trial { return s.calling(entryOf(k, n)) })
}

// line is one of the media, in bytes.
const line = 256

func entryBytesTable(s *size, _ eval.Results, p *eval.Part) {
	across(p, s, "bytes of an entry", s.entries, entryOf)
	most, similarly := 0.0, eval.Is(true)
	for _, n := range s.entries {
		if n%line > 0 {
			continue
		}
		for _, k := range kv.Kinds() {
			r := served(p, entryOf(k, n))
			most = max(most, r.DLWA)
			if k != kv.RPC {
				similarly = eval.All(similarly, eval.Similar(r.Rate, served(p, entryOf(kv.Rowan, n)).Rate, 0.1))
			}
		}
	}
	p.Claim("entries-dlwa", eval.Less(most, 1.1), fmt.Sprintf("%.2f at most", most), eval.Unknown(""))
	last := s.entries[len(s.entries)-1]
	ours, write := s.mops(served(p, entryOf(kv.Rowan, last))), s.mops(served(p, entryOf(kv.RWrite, last)))
	p.Claim("entries-similar", similarly,
		fmt.Sprintf("%.1f and %.1f Mops of Rowan-KV and RWrite-KV with %d B", ours, write, last), eval.Unknown(""))
	p.Same("entries-rpc", -eval.Change(ours, s.mops(served(p, entryOf(kv.RPC, last)))), eval.Unknown(""))
}

// copied is a kind with so many replicas.
func copied(k kv.Kind, replicas int) calls {
	c := mix(k, 50)
	if replicas != 3 {
		c.replicas = replicas
	}
	return c
}

func factorCases(s *size) []eval.Trial {
	return eval.Each(kv.Kinds(), s.replicas, func(k kv.Kind, n int) eval.Trial { return s.calling(copied(k, n)) })
}

func factorTable(s *size, _ eval.Results, p *eval.Part) {
	across(p, s, "replicas", s.replicas, copied)
	few, many := 2, s.replicas[len(s.replicas)-1]
	over := func(k kv.Kind, n int) float64 {
		return served(p, copied(kv.Rowan, n)).Rate / served(p, copied(k, n)).Rate
	}
	grows, said := eval.Is(true), ""
	for _, k := range kv.Kinds()[1:] {
		grows = eval.All(grows, eval.More(over(k, many), over(k, few)))
		said += fmt.Sprintf(", %.2f to %.2f times %s", over(k, few), over(k, many), k)
	}
	p.Claim("replicas-more", grows, said[2:], eval.Unknown(""))
	a, b := served(p, copied(kv.RWrite, few)).DLWA, served(p, copied(kv.RWrite, many)).DLWA
	p.Claim("replicas-dlwa", eval.More(b, a), fmt.Sprintf("%.2f with %d and %.2f with %d", a, few, b, many),
		eval.Unknown(""))
}

// threaded is a kind with so many workers a server.
func threaded(k kv.Kind, workers int) calls {
	c := mix(k, 50)
	if workers != kindWorkers {
		c.workers = workers
	}
	return c
}

func threadCases(s *size) []eval.Trial {
	return eval.Each(kv.Kinds(), s.workers, func(k kv.Kind, n int) eval.Trial { return s.calling(threaded(k, n)) })
}

func threadTable(s *size, _ eval.Results, p *eval.Part) {
	across(p, s, "threads", s.workers, threaded)
	const few = 16
	rate := func(k kv.Kind, n int) float64 { return served(p, threaded(k, n)).Rate }
	lowest := slices.MinFunc(slices.DeleteFunc(kv.Kinds(), func(k kv.Kind) bool { return k == kv.RPC }),
		func(a, b kv.Kind) int { return int(rate(a, few) - rate(b, few)) })
	p.Claim("threads-rpc", eval.Less(rate(kv.RPC, few), rate(lowest, few)),
		fmt.Sprintf("%.2f times that of %s, the lowest of the others", rate(kv.RPC, few)/rate(lowest, few), lowest),
		eval.Unknown(""))
	gain := func(k kv.Kind) float64 { return rate(k, kindWorkers) / rate(k, few) }
	scales, amplifies, said, dlwa := eval.Is(true), eval.Is(true), fmt.Sprintf("%.2f times", gain(kv.Rowan)), ""
	for _, k := range []kv.Kind{kv.RWrite, kv.Batch, kv.Share} {
		scales = eval.All(scales, eval.Less(gain(k), gain(kv.Rowan)))
		said += fmt.Sprintf(", %s %.2f", k, gain(k))
		from, to := served(p, threaded(k, few)).DLWA, served(p, threaded(k, kindWorkers)).DLWA
		amplifies = eval.All(amplifies, eval.More(to, from))
		dlwa += fmt.Sprintf(", %s from %.2f to %.2f", k, from, to)
	}
	p.Claim("threads-scale", scales, said, eval.Unknown(""))
	p.Claim("threads-dlwa", amplifies, dlwa[2:], eval.Unknown(""))
}
