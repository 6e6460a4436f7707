package explore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// keepers is how many keepers a run begins with: two, so that one can crash. mostKeepers bounds all
// keepers of a run. A keeper that crashed, or was taken for dead, is replaced, as an operator would
// start its process again.
const (
	keepers     = 2
	mostKeepers = 6
)

// Tenures are short against an operation's timeout, so that recovery ends before operations that
// depend on it give up.
const (
	leasesATimeout = 10
	patienceLeases = 3
)

// guard is a keeper with what it did.
type guard struct {
	name string
	w    *sim.Worker
	did  []uint64 // the verbs that it had sent when it had done something
}

func (r *run) guard() {
	if len(r.guards) == mostKeepers {
		return
	}
	g := &guard{name: keeperName(len(r.guards))}
	r.guards = append(r.guards, g)
	g.w = r.s.Go(g.name, func(ep rdma.Endpoint) { r.keep(g, ep) })
	g.w.WhenCrashed(r.guard)
}

func (r *run) keep(g *guard, ep rdma.Endpoint) {
	lease := r.subject.Timeout / leasesATimeout
	err := cluster.Keep(ep, r.kept(), r.subject.Recoverer(r.s), cluster.Options{
		Lease: lease, NodePatience: patienceLeases * lease, Stop: r.quiet,
		Log: func(e cluster.Event) {
			g.did = append(g.did, g.w.Sent())
			if r.tell != nil {
				r.tell("%12v  %s: %s", r.s.Now(), g.name, e)
			}
			if e.What == cluster.Failed {
				r.trouble = fmt.Errorf("%s: %w", g.name, e.Err)
			}
		},
	})
	if errors.Is(err, rdma.ErrRevoked) && !r.quiet() {
		r.guard() // the process lives, and begins again
	}
}

// kept is the pool that keepers keep.
func (r *run) kept() rdma.Fabric {
	if r.plan.outages() > 0 {
		return sim.Returning{Sim: r.s}
	}
	return r.s
}

// sweep recovers the pool once more at the end of a run, as an operator would. The last keeper may
// not have come to it. It frees what crashes left, as far as only a walk over the pool finds it.
func (r *run) sweep() *Failure {
	if !r.mended() {
		return nil
	}
	var failed error
	r.s.Go("recover", func(ep rdma.Endpoint) {
		lease := r.subject.Timeout / leasesATimeout
		o := cluster.Options{Lease: lease, NodePatience: patienceLeases * lease}
		_, failed = cluster.Once(ep, r.kept(), r.subject.Recoverer(r.s), o)
	})
	if f := ofRun(r.s.Run()); f != nil {
		return f
	}
	if failed != nil {
		return &Failure{Unrecovered, failed}
	}
	return nil
}

// recoveryTimeouts is how many operation timeouts recovery may take after the last player, or the
// last death, behind which it begins again: failures are tried again after up to 64 leases.
const recoveryTimeouts = 20

// quiet tells keepers that nothing is left for them to do, or that they had time enough. Then they
// leave, and what happens later is not mended: a node that is to die at a verb does not any more,
// though its server goes on.
func (r *run) quiet() bool {
	if slices.ContainsFunc(r.players, func(p *player) bool { return !p.w.Finished() && !p.w.Crashed() }) {
		return false
	}
	if r.s.Now() < r.lastStroke() {
		return false
	}
	if n := r.lost(); r.calm == 0 || n > r.losses {
		r.calm, r.losses = r.s.Now(), n
	}
	over := r.s.Now()-r.calm > recoveryTimeouts*r.subject.Timeout || r.unfinished() == ""
	if over {
		r.spare()
	}
	return over
}

// lost counts the nodes that are dead, and the keepers: another one begins for each that crashes
// or is fenced off.
func (r *run) lost() int {
	n := len(r.guards)
	for i := range r.plan.Nodes {
		if r.s.Dead(i) {
			n++
		}
	}
	return n
}

// spare keeps nodes alive that have not met the verb at which they were to die.
func (r *run) spare() {
	for n := range r.plan.Nodes {
		r.s.KillNodeAt(n, 0)
	}
}

// lastStroke is the time of the last fault of a node that has a fixed time: its begin, or its end
// if the node comes back.
func (r *run) lastStroke() (at time.Duration) {
	for _, f := range r.plan.Faults {
		if f.Kind == sim.SlowFault || f.Kind == sim.CrashFault && f.Client == "" {
			at = max(at, f.At)
		}
		if f.Outage() {
			at = max(at, f.At+f.For+1)
		}
	}
	return at
}

// unfinished returns a text on what keepers still have to do; "": nothing.
func (r *run) unfinished() string {
	v := r.s.View()
	if v.Busy {
		return fmt.Sprintf("the view of epoch %d is busy", v.Epoch)
	}
	for _, c := range r.s.Clients() {
		if !c.Alive {
			return fmt.Sprintf("client %d (%s) is dead and has not been recovered", c.ID, c.Name)
		}
	}
	for n, m := range v.Members {
		if !m.Gone && r.s.Dead(n) && !r.subject.Majority {
			return fmt.Sprintf("node %d is dead, and the view of epoch %d has it", n, v.Epoch)
		}
	}
	return r.vacant(v)
}

// vacant names a node that is gone while a spare could stand for it.
func (r *run) vacant(v rdma.View) string {
	first := r.plan.Nodes - r.plan.Spares
	spare, filled := -1, make([]bool, len(v.Members))
	for n, m := range v.Members {
		if m.Replaces > 0 {
			filled[m.Replaces-1] = true
		}
		if n >= first && m == (rdma.Member{}) {
			spare = n
		}
	}
	for n, m := range v.Members {
		if m.Gone && (n < first || m.Replaces > 0) && !filled[n] && spare >= 0 {
			return fmt.Sprintf("node %d is gone, and spare %d does not stand for it", n, spare)
		}
	}
	return ""
}

// interrupted returns a plan in which a keeper that did recovery work crashes in the middle of that
// work; nil if no live keeper did any. The run's own plan must have passed.
func (r *run) interrupted(rng *rand.Rand) *Plan {
	var busy []*guard
	for _, g := range r.guards {
		if len(g.did) > 1 && !g.w.Crashed() { // the first is its election
			busy = append(busy, g)
		}
	}
	if len(busy) == 0 {
		return nil
	}
	g := busy[rng.IntN(len(busy))]
	i := 1 + rng.IntN(len(g.did)-1)
	sent := g.did[i] - g.did[i-1]
	if sent == 0 {
		return nil
	}
	p := r.plan.clone()
	verb := g.did[i] - rng.Uint64N(min(sent, mostMending))
	p.Faults = append(p.Faults, sim.Fault{Kind: sim.CrashFault, Client: g.name, Verb: verb})
	return p
}

// mostMending is about how many verbs one recovery takes. Before these a keeper was idle.
const mostMending = 200
