package explore

import (
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// shrinkEvents bounds the runs of a Shrink together: some seconds.
const shrinkEvents = 30_000_000

// Shrink looks for a smaller plan that fails by the same guilt, within some thousand runs: fewer
// faults, workers, operations, keys and nodes, a gentler network, earlier crashes. The same plan
// shrinks to the same.
func (s *Subject) Shrink(p *Plan, f *Failure) (*Plan, *Failure) {
	k := &shrinker{subject: s, best: p.clone(), failure: f, left: shrinkEvents}
	for {
		before := k.best.String()
		k.faults()
		k.workers()
		k.operations()
		k.shape()
		k.network()
		k.values()
		k.moments()
		if k.left <= 0 || k.best.String() == before {
			return k.best, k.failure
		}
	}
}

type shrinker struct {
	subject *Subject
	best    *Plan
	failure *Failure
	left    int64 // events
}

// try keeps what edit makes of the best plan so far if that still fails; edit returns false when it
// changes nothing.
func (k *shrinker) try(edit func(p *Plan) bool) bool {
	if k.left <= 0 {
		return false
	}
	p := k.best.clone()
	if !edit(p) || p.valid() != nil {
		return false
	}
	r, f := k.subject.play(p, nil)
	k.left -= int64(r.stats.Events) + eventsARun
	if f == nil || f.Guilt != k.failure.Guilt {
		return false
	}
	k.best, k.failure = p, f
	return true
}

// eventsARun is what else a run costs: it is made, and checked.
const eventsARun = 1000

// reseeds is how many other seeds a large cut is tried with. A cut changes which clients conflict:
// the seed at hand may not show the failure any more, while another one may.
const reseeds = 6

// cut is try, with other seeds, too.
func (k *shrinker) cut(edit func(p *Plan) bool) bool {
	if k.try(edit) {
		return true
	}
	for seed := range uint64(reseeds) {
		if k.try(func(p *Plan) bool {
			p.Seed = seed + 1
			return edit(p)
		}) {
			return true
		}
	}
	return false
}

func (k *shrinker) faults() {
	k.try(func(p *Plan) bool {
		had := len(p.Faults) > 0
		p.Faults = nil
		return had
	})
	for i := len(k.best.Faults) - 1; i >= 0; i-- {
		k.cut(func(p *Plan) bool {
			p.Faults = slices.Delete(p.Faults, i, i+1)
			return true
		})
	}
}

func (k *shrinker) workers() {
	for w := len(k.best.Work) - 1; w >= 0; w-- {
		k.cut(func(p *Plan) bool {
			if w >= len(p.Work) || len(p.Work[w]) == 0 {
				return false
			}
			p.Work[w] = nil
			for len(p.Work) > 1 && len(p.Work[len(p.Work)-1]) == 0 {
				p.Work = p.Work[:len(p.Work)-1] // the visitor's number, and nothing else, depends on the length
			}
			return true
		})
	}
}

// operations cuts ever smaller pieces out of the workers' scripts, the last ones first.
func (k *shrinker) operations() {
	for size := maxOps; size >= 1; size /= 2 {
		for w := range k.best.Work {
			n := len(k.best.Work[w])
			if size > n && size > 1 {
				continue
			}
			for from := n - size; from > -size; from -= size {
				edit := func(p *Plan) bool {
					ops := p.Work[w]
					low, high := max(from, 0), min(max(from, 0)+size, len(ops))
					if low >= high || high-low == len(ops) {
						return false // that is the worker itself
					}
					p.Work[w] = slices.Delete(ops, low, high)
					return true
				}
				if size > 2 {
					k.cut(edit)
				} else {
					k.try(edit)
				}
			}
		}
	}
}

// shape takes nodes and replicas away.
func (k *shrinker) shape() {
	for k.cut(func(p *Plan) bool { p.Nodes--; return p.Nodes > 0 }) {
	}
	k.cut(func(p *Plan) bool { p.Spares--; p.Nodes--; return p.Spares >= 0 })
	k.cut(func(p *Plan) bool {
		grows := p.Levels > 0
		p.Levels = 0
		return grows
	})
	k.cut(func(p *Plan) bool {
		large := p.Value > 0
		p.Value = 0
		for _, ops := range p.Work {
			for i := range ops {
				if ops[i].writes() {
					ops[i].Size = min(ops[i].Size, k.subject.withDefaults().MaxValue)
				}
			}
		}
		return large
	})
	for _, r := range k.subject.withDefaults().Replicas {
		k.cut(func(p *Plan) bool {
			less := r[0]+r[1] < p.Index+p.Data
			p.Nodes -= max(p.Index, p.Data) - max(r[0], r[1])
			p.Index, p.Data = r[0], r[1]
			return less && p.survives()
		})
	}
}

// survives reports whether the plan leaves one replica of everything: a smaller pool must not fail
// for want of nodes.
func (p *Plan) survives() bool {
	lost := len(p.lost())
	return lost < min(p.Index, p.Data) || lost == 0
}

func (k *shrinker) network() {
	k.cut(func(p *Plan) bool { had := p.Net.Fly > 0; p.Net.Fly, p.Net.FlyMax = 0, 0; return had })
	k.cut(func(p *Plan) bool { had := p.Net.Tear; p.Net.Tear = false; return had })
	k.cut(func(p *Plan) bool { had := p.Net.Reorder; p.Net.Reorder = false; return had })
	for _, most := range []time.Duration{2 * time.Microsecond, 10 * time.Microsecond} {
		k.cut(func(p *Plan) bool { had := p.Net.Max > most; p.Net.Max = max(most, p.Net.Min); return had })
	}
	k.cut(func(p *Plan) bool { had := p.Pause > 0; p.Pause = 0; return had })
	k.try(func(p *Plan) bool { had := p.Cache; p.Cache = false; return had })
}

// values makes keys few and values small.
func (k *shrinker) values() {
	each := func(edit func(op *Op) bool) func(p *Plan) bool {
		return func(p *Plan) (changed bool) {
			for _, ops := range p.Work {
				for i := range ops {
					changed = edit(&ops[i]) || changed
				}
			}
			return changed
		}
	}
	for key := k.best.keys() - 1; key > 0; key-- {
		k.cut(each(func(op *Op) bool {
			had := op.Key == key
			if had {
				op.Key = 0
			}
			return had
		}))
	}
	k.try(each(func(op *Op) bool {
		had := op.writes() && op.Size > check.MinValue
		if op.writes() {
			op.Size = check.MinValue
		}
		return had
	}))
}

// moments lets faults happen earlier and last for a shorter time.
func (k *shrinker) moments() {
	for i := range k.best.Faults {
		for _, less := range []func(f *sim.Fault) bool{
			func(f *sim.Fault) bool { f.Verb /= 2; return f.Verb > 0 },
			func(f *sim.Fault) bool { f.Verb -= min(f.Verb, 1+f.Verb/8); return f.Verb > 0 },
			func(f *sim.Fault) bool { f.Verb -= min(f.Verb, 1); return f.Verb > 0 },
			func(f *sim.Fault) bool { f.At /= 2; return f.At > 0 },
			func(f *sim.Fault) bool { f.For /= 2; return f.For > 0 },
		} {
			for range 64 { // halving ends long before
				if !k.try(func(p *Plan) bool { return less(&p.Faults[i]) }) {
					break
				}
			}
		}
	}
}
