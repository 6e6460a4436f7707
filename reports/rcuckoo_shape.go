package reports

import (
	"fmt"

	"github.com/farkv/farkv/ops/virtual"
)

// cores of six client machines (section 5.5).
const sixMachines = 120

// sizeOf gives a trial values of so many bytes, in their entries or in extents, in a table of fewer
// entries.
func (s *rcuckooSize) sizeOf(o *virtual.Simulation, value int, inline bool) {
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

func extentCases(s *rcuckooSize) (list []trial) {
	for _, mix := range readMixes {
		for _, n := range s.values {
			list = append(list, s.trial("rcuckoo", mix, key(mix, n), func(o *virtual.Simulation) {
				o.Clients = sixMachines
				s.sizeOf(o, n, false)
			}))
		}
		list = append(list, s.trial("rcuckoo", mix, key(mix, "inline"), func(o *virtual.Simulation) {
			o.Clients = sixMachines
			s.sizeOf(o, inlineValue, true)
		}))
	}
	return list
}

func extentTable(s *rcuckooSize, r results, p *Part) {
	var g grid[string]
	for _, mix := range readMixes {
		g.column(mixName(mix)+": Mops", func(value string) Cell { return mops(r[key(mix, value)].Throughput) })
		g.column("trips", func(value string) Cell { return say("%.2f", r.all(mix, value).Trips) })
		g.column("busiest", func(value string) Cell { return say("%s", limit(r[key(mix, value)])) })
	}
	rows := []string{"inline"}
	for _, n := range s.values {
		rows = append(rows, fmt.Sprint(n))
	}
	g.show(p, "value", "%s B", rows)
	p.Rows[0][0] = say("%d B, inline", inlineValue)
	gain := func(mix string) float64 {
		return change(r[key(mix, s.values[0])].Throughput, r[key(mix, "inline")].Throughput)
	}
	why := unknown("With values of %d B in extents what is in use most by reads is the %s.", s.values[0],
		limit(r[key("c", s.values[0])]))
	p.same("extents-b", gain("b"), why)
	p.same("extents-a", gain("a"), why)
	limited, text := true, ""
	for _, n := range s.values {
		_, part := r[key("c", n)].Busiest()
		if n >= 64 {
			limited = limited && part.Name == "link out" && part.Busy > 0.9
		}
		text = limit(r[key("c", n)])
	}
	p.claim("extents-link", is(limited), text+fmt.Sprintf(" with %d B", s.values[len(s.values)-1]), unknown(""))
	p.Notes = append(p.Notes, fmt.Sprintf("%d clients, a table of %d entries, %d %% full.", sixMachines, s.smaller,
		paperFull))
}

func mixName(mix string) string { return string(mix[0] - 'a' + 'A') }

func entryCases(s *rcuckooSize) (list []trial) {
	for _, m := range []insertMix{insertMixes[1], insertMixes[3]} {
		for _, n := range s.entries {
			list = append(list, s.trial("rcuckoo", "w", key(m.name, n), func(o *virtual.Simulation) {
				s.growing(o, m, s.filled[0])
				s.sizeOf(o, n-paperPairing, true)
				o.Records = s.smaller * s.filled[0] / 100
			}))
		}
	}
	reads := list[len(list)-len(s.entries):]
	for _, t := range []trial{reads[0], reads[len(reads)-1]} {
		t.name, t.Hardware = "fast "+t.name, []string{"LinkGbps=2000", "PCIeGbps=2000"}
		list = append(list, t)
	}
	return list
}

func entryTable(s *rcuckooSize, r results, p *Part) {
	p.Header = []string{"entry", "50 % INSERTs: Mops", "bytes", "busiest", "C: Mops", "bytes", "busiest"}
	for _, n := range s.entries {
		a, c := r[key("A", n)], r[key("C", n)]
		p.Rows = append(p.Rows, []Cell{say("%d B", n), mops(a.Throughput),
			say("%.0f", a.Call("TOTAL").Cost.BytesRead+a.Call("TOTAL").Cost.BytesWrote), say("%s", limit(a)),
			mops(c.Throughput), say("%.0f", c.Call("TOTAL").Cost.BytesRead), say("%s", limit(c))})
	}
	few, many := s.entries[0], s.entries[len(s.entries)-1]
	_, part := r[key("A", many)].Busiest()
	drop := change(r[key("A", few)].Throughput, r[key("A", many)].Throughput)
	p.claim("entries-insert", all(is(part.Name == "link out"), less(1+drop/100, 0.9)),
		fmt.Sprintf("%+.0f %% from %d to %d B; the busiest is %s", drop, few, many, limit(r[key("A", many)])),
		unknown(""))
	reads := func(of string) (test, string) {
		times := r[key(of, many)].Throughput / r[key(of, few)].Throughput
		return inside(times, 0.85, 1.15), fmt.Sprintf("%+.0f %% from %d to %d B", 100*(times-1), few, many)
	}
	again, other := reads("fast C")
	ours, text := reads("C")
	p.claim("entries-read", ours, text, because("with a link and PCIe of 2,000 Gbit/s", other,
		again).and("A GET reads both rows, %.0f B with entries of %d B: %s.",
		r[key("C", many)].Call("TOTAL").Cost.BytesRead, many, limit(r[key("C", many)])))
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

func deviceCases(s *rcuckooSize) []trial {
	return each(lockPlaces, lockLoads, func(at lockPlace, l lockLoad) trial {
		return s.trial("rcuckoo", l.mix, key(at.name, l.name), func(o *virtual.Simulation) {
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

func deviceTable(_ *rcuckooSize, r results, p *Part) {
	var g grid[lockPlace]
	for _, l := range lockLoads {
		g.column(l.title+": Mops", func(at lockPlace) Cell {
			rate := mops(r[key(at.name, l.name)].Throughput)
			if l.clients == 1 || l.one {
				rate.Text = fmt.Sprintf("%.3f", rate.Value/1e6)
			}
			return rate
		})
		g.column("UPDATE", func(at lockPlace) Cell { return us(r.updates(at.name, l.name).At(0.5)) })
		g.column("p99", func(at lockPlace) Cell { return us(r.updates(at.name, l.name).At(0.99)) })
	}
	g.show(p, "locks in", "%s", lockPlaces)
	rate := func(at, load string) float64 { return r[key(at, load)].Throughput }
	best, text := 0.0, ""
	for _, l := range lockLoads[1:] {
		gain := rate("device", l.name) / rate("host", l.name)
		best = max(best, gain)
		text += fmt.Sprintf(", %.2f times under %s", gain, l.title)
	}
	p.claim("device-gain", inside(best, 2.5, 3.5), text[2:], unknown(""))
	d, h := r.updates("device", "alone").At(0.5), r.updates("host", "alone").At(0.5)
	p.claim("device-us", less(d, h),
		fmt.Sprintf("an UPDATE of a client that is alone takes %.2f µs, and %.2f with the locks in the node's memory",
			d, h), unknown(""))
	p.Notes = append(p.Notes, "The profile takes the paper at its word: a node's NIC does 50 million atomics a "+
		"second, 3 on one word; 75 and 9 on its own memory, of 256 KB (2.2, Figure 1c); and a fence behind one of "+
		"these does not wait (3.2.2, footnote 1). Where NICs stall there, as the verbs' definition lets them, the "+
		"second row is what to expect; nothing here shows which they do.")
}
