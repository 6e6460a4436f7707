package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
)

// cores of six client machines (section 5.5).
const sixMachines = 120

// sizeOf gives a trial values of so many bytes, in their entries or in extents, in a table of fewer
// entries.
func (s *size) sizeOf(o *virtual.Simulation, value int, inline bool) {
	o.Records = s.smaller * paperFull / 100
	o.Set(tableRows, int(s.smaller)/paperRow)
	o.Properties = append(o.Properties, fmt.Sprintf("fieldlength=%d", value))
	o.Set(valueBytes, value)
	o.Set(inlineBytes, 0)
	if inline {
		o.Set(inlineBytes, value)
	}
}

const inlineValue = 8 // bytes, of those that Figure 8d plots beside extents

func extentCases(s *size) (list []eval.Trial) {
	for _, mix := range readMixes {
		for _, n := range s.values {
			list = append(list, s.trial("rcuckoo", mix, eval.Key(mix, n), func(o *virtual.Simulation) {
				o.Clients = sixMachines
				s.sizeOf(o, n, false)
			}))
		}
		list = append(list, s.trial("rcuckoo", mix, eval.Key(mix, "inline"), func(o *virtual.Simulation) {
			o.Clients = sixMachines
			s.sizeOf(o, inlineValue, true)
		}))
	}
	return list
}

func extentTable(s *size, r eval.Results, p *eval.Part) {
	var g eval.Grid[string]
	for _, mix := range readMixes {
		g.Column(eval.MixName(mix)+": Mops",
			func(value string) eval.Cell { return eval.Mops(r[eval.Key(mix, value)].Throughput) })
		g.Column("trips", func(value string) eval.Cell { return eval.Text("%.2f", r.All(mix, value).Trips) })
		g.Column("busiest",
			func(value string) eval.Cell { return eval.Text("%s", eval.Busiest(r[eval.Key(mix, value)])) })
	}
	rows := []string{"inline"}
	for _, n := range s.values {
		rows = append(rows, fmt.Sprint(n))
	}
	g.Show(p, "value", "%s B", rows)
	p.Rows[0][0] = eval.Text("%d B, inline", inlineValue)
	gain := func(mix string) float64 {
		return eval.Change(r[eval.Key(mix, s.values[0])].Throughput, r[eval.Key(mix, "inline")].Throughput)
	}
	why := eval.Unknown("With values of %d B in extents what is in use most by reads is the %s.", s.values[0],
		eval.Busiest(r[eval.Key("c", s.values[0])]))
	p.Same("extents-b", gain("b"), why)
	p.Same("extents-a", gain("a"), why)
	limited, text := true, ""
	for _, n := range s.values {
		_, part := r[eval.Key("c", n)].Busiest()
		if n >= 64 {
			limited = limited && part.Name == "link out" && part.Busy > 0.9
		}
		text = eval.Busiest(r[eval.Key("c", n)])
	}
	p.Claim("extents-link", eval.Is(limited), text+fmt.Sprintf(" with %d B", s.values[len(s.values)-1]),
		eval.Unknown(""))
	p.Notes = append(p.Notes, fmt.Sprintf("%d clients, a table of %d entries, %d %% full.", sixMachines, s.smaller,
		paperFull))
}

func entryCases(s *size) (list []eval.Trial) {
	for _, m := range []insertMix{insertMixes[1], insertMixes[3]} {
		for _, n := range s.entries {
			list = append(list, s.trial("rcuckoo", "w", eval.Key(m.name, n), func(o *virtual.Simulation) {
				s.growing(o, m, s.filled[0])
				s.sizeOf(o, n-paperPairing, true)
				o.Records = s.smaller * s.filled[0] / 100
			}))
		}
	}
	reads := list[len(list)-len(s.entries):]
	for _, t := range []eval.Trial{reads[0], reads[len(reads)-1]} {
		t.Name, t.Hardware = "fast "+t.Name, []string{"LinkGbps=2000", "PCIeGbps=2000"}
		list = append(list, t)
	}
	return list
}

func entryTable(s *size, r eval.Results, p *eval.Part) {
	p.Header = []string{"entry", "50 % INSERTs: Mops", "bytes", "busiest", "C: Mops", "bytes", "busiest"}
	for _, n := range s.entries {
		a, c := r[eval.Key("A", n)], r[eval.Key("C", n)]
		p.Rows = append(p.Rows, []eval.Cell{eval.Text("%d B", n), eval.Mops(a.Throughput),
			eval.Text("%.0f", a.Call("TOTAL").Cost.BytesRead+a.Call("TOTAL").Cost.BytesWrote),
			eval.Text("%s", eval.Busiest(a)),
			eval.Mops(c.Throughput), eval.Text("%.0f", c.Call("TOTAL").Cost.BytesRead),
			eval.Text("%s", eval.Busiest(c))})
	}
	few, many := s.entries[0], s.entries[len(s.entries)-1]
	_, part := r[eval.Key("A", many)].Busiest()
	drop := eval.Change(r[eval.Key("A", few)].Throughput, r[eval.Key("A", many)].Throughput)
	p.Claim("entries-insert", eval.All(eval.Is(part.Name == "link out"), eval.Less(1+drop/100, 0.9)),
		fmt.Sprintf("%+.0f %% from %d to %d B; the busiest is %s", drop, few, many,
			eval.Busiest(r[eval.Key("A", many)])),
		eval.Unknown(""))
	reads := func(of string) (eval.Test, string) {
		times := r[eval.Key(of, many)].Throughput / r[eval.Key(of, few)].Throughput
		return eval.Inside(times, 0.85, 1.15), fmt.Sprintf("%+.0f %% from %d to %d B", 100*(times-1), few, many)
	}
	again, other := reads("fast C")
	ours, text := reads("C")
	p.Claim("entries-read", ours, text, eval.Because("with a link and PCIe of 2,000 Gbit/s", other,
		again).And("A GET reads both rows, %.0f B with entries of %d B: %s.",
		r[eval.Key("C", many)].Call("TOTAL").Cost.BytesRead, many, eval.Busiest(r[eval.Key("C", many)])))
	p.Notes = append(p.Notes,
		fmt.Sprintf("Entries of a key of %d B and an inline value; a table of %d entries, %d %% full.", paperPairing,
			s.smaller, s.filled[0]))
}

// A lockPlace is where the lock table lies, and what a fence behind it costs.
type lockPlace struct {
	name, title   string
	host, stalled bool
}

func (l lockPlace) String() string { return l.title }

var lockPlaces = []lockPlace{{"device", "the NIC's memory", false, false},
	{"stalled", "the NIC's memory, fences stall", false, true}, {"host", "the node's memory", true, false}}

// A lockLoad is one that the device is compared under.
type lockLoad struct {
	name, title, mix string
	clients          int
	one              bool // record, which all update
}

var lockLoads = []lockLoad{{"alone", "A, one client", "a", 1, false}, {"a", "A", "a", paperCrowd, false},
	{"b", "B", "b", paperCrowd, false}, {"one", "UPDATEs of one key", "a", paperCrowd, true}}

func deviceCases(s *size) []eval.Trial {
	return eval.Each(lockPlaces, lockLoads, func(at lockPlace, l lockLoad) eval.Trial {
		return s.trial("rcuckoo", l.mix, eval.Key(at.name, l.name), func(o *virtual.Simulation) {
			o.NoDevice, o.StallFences, o.Clients = at.host, at.stalled, l.clients
			if l.one {
				o.Records, o.Ops, o.WarmUp = 1, s.ops/10, 0
				o.Properties = append(o.Properties, "readproportion=0", "updateproportion=1",
					"requestdistribution=uniform")
			}
			if l.clients == 1 {
				o.Ops, o.WarmUp = s.ops/10, 0
			}
		})
	})
}

func deviceTable(_ *size, r eval.Results, p *eval.Part) {
	var g eval.Grid[lockPlace]
	for _, l := range lockLoads {
		g.Column(l.title+": Mops", func(at lockPlace) eval.Cell {
			rate := eval.Mops(r[eval.Key(at.name, l.name)].Throughput)
			if l.clients == 1 || l.one {
				rate.Text = fmt.Sprintf("%.3f", rate.Value/1e6)
			}
			return rate
		})
		g.Column("UPDATE", func(at lockPlace) eval.Cell { return eval.FineMicros(r.Updates(at.name, l.name).At(0.5)) })
		g.Column("p99", func(at lockPlace) eval.Cell { return eval.FineMicros(r.Updates(at.name, l.name).At(0.99)) })
	}
	g.Show(p, "locks in", "%s", lockPlaces)
	rate := func(at, load string) float64 { return r[eval.Key(at, load)].Throughput }
	best, text := 0.0, ""
	for _, l := range lockLoads[1:] {
		gain := rate("device", l.name) / rate("host", l.name)
		best = max(best, gain)
		text += fmt.Sprintf(", %.2f times under %s", gain, l.title)
	}
	p.Claim("device-gain", eval.Inside(best, 2.5, 3.5), text[2:], eval.Unknown(""))
	d, h := r.Updates("device", "alone").At(0.5), r.Updates("host", "alone").At(0.5)
	p.Claim("device-us", eval.Less(d, h),
		fmt.Sprintf("an UPDATE of a client that is alone takes %.2f µs, and %.2f with the locks in the node's memory",
			d, h), eval.Unknown(""))
	p.Notes = append(p.Notes, "The profile takes the paper at its word: a node's NIC does 50 million atomics a "+
		"second, 3 on one word; 75 and 9 on its own memory, of 256 KB (2.2, Figure 1c); and a fence behind one of "+
		"these does not wait (3.2.2, footnote 1). Where NICs stall there, as the verbs' definition lets them, the "+
		"second row is what to expect; nothing here shows which they do.")
}
