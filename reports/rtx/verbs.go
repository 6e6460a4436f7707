package rtx

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

const (
	countedPairs   = 2000 // that there are
	countedInserts = 2000 // that are counted, of which some split a leaf
	nodeBytes      = 1024 // of the paper's trees
)

// verbSum is what the verbs of an INSERT carry, as Table 2 counts it: bytes of READs and of WRITEs,
// and CASes.
type verbSum struct{ read, wrote, atomics int }

func (v verbSum) plus(w verbSum) verbSum {
	return verbSum{v.read + w.read, v.wrote + w.wrote, v.atomics + w.atomics}
}

func (v verbSum) String() string {
	return fmt.Sprintf("READs of %d B, WRITEs of %d B, %d CASes", v.read, v.wrote, v.atomics)
}

func sumOf(verbs []simulate.Posted) (v verbSum) {
	for _, one := range verbs {
		switch {
		case one.Verb == rdma.Read:
			v.read += one.Bytes
		case one.Verb == rdma.Write:
			v.wrote += one.Bytes
		case one.Verb.Atomic():
			v.atomics++
		}
	}
	return v
}

// remark explains a part of how what is counted differs from the table: with what it adds to ours
// it is the table's.
type remark struct {
	why string
	verbSum
}

// verbRemarks are those of an INSERT that changes one node, and of one that splits a leaf: it
// writes the leaf, a new one and their parent.
var verbRemarks = map[string][]remark{
	eval.Key(optimal, 1): {
		{"Sherman writes the entry that it changes (24 B), not the node", verbSum{0, nodeBytes - 24, 0}},
		{"a lock is released by a CAS, not by a WRITE of 8 B, since words that are CASed must not be WRITTEN",
			verbSum{0, 8, -1}},
	},
	eval.Key(optimal, 3): {
		{"the new leaf is not READ", verbSum{nodeBytes, 0, 0}},
		{"of the old leaf what stays as it is is not written (48 B)", verbSum{0, 48, 0}},
		{"leaf and parent are locked one after the other and the new leaf is not, and both are released by CAS",
			verbSum{0, 8, -1}},
	},
	eval.Key(dtxName, 1): {
		{"no READ validates: the CAS that locks expects the version that was read", verbSum{16, 0, 0}},
		{"the log has 40 B of heads, which the table omits", verbSum{0, -40, 0}},
		{"lock words (8 B) are neither logged nor written with their nodes", verbSum{0, 16, 0}},
		{"a lock is released by CAS", verbSum{0, 8, -1}},
	},
	eval.Key(dtxName, 3): {
		{"the new leaf is not READ", verbSum{nodeBytes, 0, 0}},
		{"no READ validates but one of 8 B, of the leaf when the parent is read", verbSum{3*16 - 8, 0, 0}},
		{"the log has 72 B of heads", verbSum{0, -72, 0}},
		{"lock words are neither logged nor written with their nodes", verbSum{0, 6 * 8, 0}},
		{"locks are released by CAS", verbSum{0, 8, -3}},
	},
	eval.Key(rtxName, 1): {
		{"behind the lock, taken early, the pointer is READ again (8 B)", verbSum{-8, 0, 0}},
		{"no WRITE releases a lock: for rTX, too, the table has 8 B beside the node", verbSum{0, 8, 0}},
	},
	eval.Key(rtxName, 3): {
		{"the new leaf is not READ", verbSum{nodeBytes + 16, 0, 0}},
		{"metadata is READ again behind the early lock (8 B), and with the parent's data (32 B)", verbSum{-40, 0, 0}},
		{"entries of the log have 24 B, as in section 4.2, and 16 in the table", verbSum{0, -3 * 8, 0}},
		{"its head has 24 B, and 8 in the table", verbSum{0, -16, 0}},
		{"the state becomes DOING and DONE", verbSum{0, 0, -2}},
		{"the leaf's early lock becomes one with a log", verbSum{0, 0, -1}},
	},
}

func verbCases(s *size) (list []eval.Trial) {
	for _, x := range rtxTrees {
		o := s.trial(x, "c", x.name, func(o *virtual.Simulation) {
			o.Clients, o.Processes, o.Records, o.WarmUp, o.Duration, o.Ops = 1, false, countedPairs, countedPairs, 0,
				countedInserts
		})
		o.Compute = func(ctx context.Context) (any, error) {
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

// splits reports whether an INSERT has split a leaf.
func splits(verbs []simulate.Posted) bool { return sumOf(verbs).wrote > 5*nodeBytes/2 }

// usual returns the verbs of those INSERTs of which most take the same, and how many do.
func usual(inserts [][]simulate.Posted) (verbs []simulate.Posted, n int) {
	times, first := map[verbSum]int{}, map[verbSum][]simulate.Posted{}
	for _, verbs := range inserts {
		v := sumOf(verbs)
		if times[v]++; first[v] == nil {
			first[v] = verbs
		}
	}
	v := slices.MaxFunc(slices.Collect(maps.Keys(times)), func(a, b verbSum) int {
		return cmp.Or(cmp.Compare(times[a], times[b]), cmp.Compare(b.read, a.read), cmp.Compare(b.wrote, a.wrote),
			cmp.Compare(b.atomics, a.atomics))
	})
	return first[v], times[v]
}

// tabled is what the paper's table has.
func tabled(p *eval.Part, name string) verbSum {
	list := p.Paper.Tables["verbs"][name]
	return verbSum{int(eval.Value(list[0])), int(eval.Value(list[1])), int(eval.Value(list[2]))}
}

func verbTable(_ *size, _ eval.Results, p *eval.Part) {
	p.Header = []string{"", "so many INSERTs", "READs, bytes", "paper", "WRITEs, bytes", "paper", "CASes", "paper"}
	for _, n := range []int{1, 3} {
		for _, x := range rtxTrees {
			inserts := eval.Computed[[][]simulate.Posted](p, x.name)
			some := slices.DeleteFunc(slices.Clone(inserts),
				func(verbs []simulate.Posted) bool { return splits(verbs) != (n == 3) })
			verbs, times := usual(some)
			v, paper := sumOf(verbs), tabled(p, eval.Key(x.name, n))
			p.Rows = append(p.Rows, []eval.Cell{eval.Text("%s, n = %d", x.name, n),
				eval.Text("%d of %d", times, len(inserts)),
				eval.Text("%d", v.read), eval.Text("%d", paper.read),
				eval.Text("%d", v.wrote), eval.Text("%d", paper.wrote), eval.Text("%d", v.atomics),
				eval.Text("%d", paper.atomics)})
			p.Notes = append(p.Notes, fmt.Sprintf("%s, n = %d: %s.", x.name, n, listed(verbs)))
			claimVerbs(p, eval.Key(x.name, n), v, paper)
		}
	}
	all := eval.Computed[[][]simulate.Posted](p, rtxName)
	split := slices.DeleteFunc(slices.Clone(all), func(verbs []simulate.Posted) bool { return !splits(verbs) })
	p.Same("verbs-splits", float64(len(all))/float64(len(split)),
		eval.Unknown("A leaf of 1 KB has 52 pairs of 8 B and 8 B here, with 2 B beside each, and is left with half "+
			"of them."))
	p.Notes = append(p.Notes,
		"Others of the INSERTs read an internal node, too, find that a leaf was split, or take memory.")
}

// claimVerbs claims that an INSERT takes what the table says. Where it does not, what explains each
// difference has to add up to it.
func claimVerbs(p *eval.Part, name string, ours, paper verbSum) {
	sum, whys := ours, []string(nil)
	for _, r := range verbRemarks[name] {
		sum = sum.plus(r.verbSum)
		whys = append(whys, r.why)
	}
	p.Claim(aboutOf("verbs", name), eval.Is(ours == paper), ours.String(),
		eval.Because("but for this: "+strings.Join(whys, "; ")+". Without that", sum.String(), eval.Is(sum == paper)))
}

// listed lists verbs with their steps, those of a step that are alike once.
func listed(verbs []simulate.Posted) string {
	var texts []string
	for i := 0; i < len(verbs); {
		n := i + 1
		for n < len(verbs) && verbs[n] == verbs[i] {
			n++
		}
		text := fmt.Sprintf("%v %d B (%s)", verbs[i].Verb, verbs[i].Bytes, verbs[i].Step)
		if n > i+1 {
			text = fmt.Sprintf("%d times ", n-i) + text
		}
		texts, i = append(texts, text), n
	}
	return strings.Join(texts, ", ")
}
