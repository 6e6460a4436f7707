package swarm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// pace is what a client does a second in Table 3.
const pace = 200_000

func resourceCases(s *size) (list []eval.Trial) {
	for _, x := range systems() {
		list = append(list, s.trial(x, "b", x.store, func(o *virtual.Simulation) {
			sized(o, 1024)
			o.Memory = true
			o.Properties = append(o.Properties, fmt.Sprintf("target=%d", 4*pace))
		}))
	}
	return list
}

// resources are what Table 3 lists, as the paper computes it: a client polls for as long as its
// operations take, and bytes are those of keys, values and metadata. Memory is what was handed out,
// and not what waits for that.
func resources(r *simulate.Result) (cpu, gbit, gib float64) {
	all := r.Call("TOTAL")
	bytes := uint64(0)
	for _, use := range r.Memory {
		part := func(u client.Use) bool { return u.Name == use.Name+" handed out" }
		if !strings.Contains(use.Name, "free") && !slices.ContainsFunc(r.Memory, part) {
			bytes += use.Bytes
		}
	}
	return all.Latency.Mean * pace / 1e6 * 100, (all.Cost.BytesRead + all.Cost.BytesWrote) * 8 * 4 * pace / 1e9,
		float64(bytes) / float64(r.Records) * 1e6 / (1 << 30)
}

func resourceTable(s *size, r eval.Results, p *eval.Part) {
	p.Header = []string{"", "CPU", "paper", "Gbit/s", "paper", "GiB", "paper"}
	for _, x := range systems() {
		cpu, gbit, gib := resources(r[x.store])
		paper := p.Paper.Tables["resources"][x.store]
		p.Rows = append(p.Rows, []eval.Cell{eval.Text("%s", x.name), eval.Share(cpu), eval.Share(eval.Value(paper[0])),
			eval.FineMicros(gbit),
			eval.FineMicros(eval.Value(paper[2])), eval.FineMicros(gib), eval.FineMicros(eval.Value(paper[3]))})
	}
	p.Notes = append(p.Notes,
		fmt.Sprintf("%d records of 1 KiB; memory is that of a million. CPU is what an operation takes, since a "+
			"client polls all the while; Gbit/s are of four clients, and carry payloads alone. The paper computes "+
			"both likewise: RAW's 6.55 Gbit/s are 800 thousand times 1 KiB.", s.records))
	if len(systems()) < len(allSystems) {
		return
	}
	type each = map[string]float64
	cpu, gbit, gib := each{}, each{}, each{}
	for _, x := range systems() {
		cpu[x.store], gbit[x.store], gib[x.store] = resources(r[x.store])
	}
	a, b, c := eval.Change(cpu["raw"], cpu["swarm"]), eval.Change(cpu["dm-abd"], cpu["swarm"]),
		eval.Change(cpu["fusee"], cpu["swarm"])
	p.Claim("resources-cpu", eval.Percents([]float64{a, b, c}, "30", "-38", "-16"),
		fmt.Sprintf("%+.0f %%, %+.0f %% and %+.0f %%", a, b, c),
		eval.Unknown("It is the mean latency of an operation, as the paper computes it."))
	a, b, c = eval.Change(gbit["raw"], gbit["dm-abd"]), eval.Change(gbit["dm-abd"], gbit["swarm"]),
		eval.Change(gbit["swarm"], gbit["fusee"])
	p.Claim("resources-io", eval.Percents([]float64{a, b, c}, "7", "6", "10"),
		fmt.Sprintf("%+.1f %%, %+.1f %% and %+.1f %%", a, b, c), eval.Unknown(""))
	a, b, c = gib["dm-abd"]/gib["raw"], eval.Change(gib["dm-abd"], gib["swarm"]),
		eval.Change(gib["swarm"], gib["fusee"])
	p.Claim("resources-memory", eval.All(eval.Printed(a, "3.1", ""), eval.Percents([]float64{b, c}, "35", "-50")),
		fmt.Sprintf("%.1f times, %+.0f %% and %+.0f %%", a, b, c),
		eval.Unknown("What a pool sets aside for logs, tables and freed objects counts, too."))
}
