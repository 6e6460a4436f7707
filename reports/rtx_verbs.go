package reports

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads/simulate"
)

const (
	countedPairs   = 2000 // that there are
	countedInserts = 300  // that are counted, of which about ten split a leaf
)

// tally is what the verbs of an INSERT carry, as Table 2 counts it.
type verbTally struct{ reads, readBytes, writes, wroteBytes, atomics int }

func tallied(verbs []simulate.Posted) (t verbTally) {
	for _, v := range verbs {
		switch {
		case v.Verb == rdma.Read:
			t.reads++
			t.readBytes += v.Bytes
		case v.Verb == rdma.Write:
			t.writes++
			t.wroteBytes += v.Bytes
		case v.Verb.Atomic():
			t.atomics++
		}
	}
	return t
}

func verbCases(s *rtxSize) (list []trial) {
	for _, x := range rtxTrees {
		o := s.trial(x, "c", x.name, func(o *ops.Simulation) {
			o.Clients, o.Processes, o.Records, o.WarmUp, o.Duration, o.Ops = 1, false, countedPairs, countedPairs, 0, countedInserts
		})
		o.compute = func(ctx context.Context) (any, error) {
			c, err := o.Complete()
			if err != nil {
				return nil, err
			}
			c.Pool.Records += countedInserts
			return simulate.Inserts(ctx, c, countedInserts)
		}
		list = append(list, o)
	}
	return list
}

// usual returns the verbs of those INSERTs of which most take the same, and how many do.
func usual(inserts [][]simulate.Posted) (verbs []simulate.Posted, n int) {
	times, first := map[verbTally]int{}, map[verbTally][]simulate.Posted{}
	for _, verbs := range inserts {
		t := tallied(verbs)
		if times[t]++; first[t] == nil {
			first[t] = verbs
		}
	}
	t := slices.MaxFunc(slices.Collect(maps.Keys(times)), func(a, b verbTally) int {
		return cmp.Or(cmp.Compare(times[a], times[b]), cmp.Compare(b.wroteBytes, a.wroteBytes))
	})
	return first[t], times[t]
}

func verbTable(_ *rtxSize, _ results, p *Part) {
	p.Header = []string{"", "INSERTs", "READs", "bytes", "WRITEs", "bytes", "CASes"}
	for _, x := range rtxTrees {
		inserts := computed[[][]simulate.Posted](p, x.name)
		verbs, n := usual(inserts)
		t := tallied(verbs)
		p.Rows = append(p.Rows, []Cell{say("%s", x.name), say("%d of %d", n, len(inserts)), say("%d", t.reads), say("%d", t.readBytes),
			say("%d", t.writes), say("%d", t.wroteBytes), say("%d", t.atomics)})
		var steps []string
		for _, v := range verbs {
			steps = append(steps, fmt.Sprintf("%v %d B (%s)", v.Verb, v.Bytes, v.Step))
		}
		p.Notes = append(p.Notes, x.name+": "+strings.Join(steps, ", ")+".")
	}
}
