package explore

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// DefaultSearch bounds the search for an order of a run's operations, in wall time: the only
// judgment that depends on the machine. Hardly any history comes near it. A run that exceeds it is
// counted as undecided.
const DefaultSearch = 2 * time.Second

// judge judges a run after its end: the visitor has left.
func (r *run) judge() *Failure {
	var history check.History
	for _, p := range r.players {
		if f := r.left(p); f != nil {
			return f
		}
		if p.history == nil {
			continue
		}
		h := p.history.History()
		history = append(append(history, h...), p.history.Found()...)
		for i := range h {
			if f := r.answer(p, &h[i]); f != nil {
				return f
			}
		}
	}
	err := check.Linearizable(history, check.Options{Timeout: r.subject.Search})
	switch {
	case errors.Is(err, check.ErrUndecided):
		r.stats.Undecided = 1
	case err != nil:
		return &Failure{Disorder, err}
	}
	return r.sound()
}

// troubled reports whether something goes wrong in the plan that may cost others' operations their
// outcome. A verb that is late or a clock that is wrong for less than a timeout is no excuse.
func (r *run) troubled() bool { return len(r.plan.Faults) > 0 }

// struck reports whether a fault other than a crash is the player's own.
func (r *run) struck(p *player) bool {
	return slices.ContainsFunc(r.plan.Faults, func(f sim.Fault) bool {
		return f.Kind != sim.CrashFault && (f.Client == p.name || f.Client == sim.AnyClient)
	})
}

// slowed reports whether some node is slow: then operations take as long as they take.
func (r *run) slowed() bool {
	return slices.ContainsFunc(r.plan.Faults, func(f sim.Fault) bool { return f.Kind == sim.SlowFault })
}

// visitor reports whether p came when all was over.
func (r *run) visitor(p *player) bool { return p.number == len(r.plan.Work) }

// left judges how a player opened and closed its store.
func (r *run) left(p *player) *Failure {
	if p.err == nil {
		return nil
	}
	if r.troubled() && !(r.visitor(p) && r.mended()) {
		for _, excuse := range []error{client.ErrUncertain, rdma.ErrTimeout, rdma.ErrNodeDown} {
			if errors.Is(p.err, excuse) {
				return nil
			}
		}
		if errors.Is(p.err, rdma.ErrRevoked) && r.struck(p) {
			return nil
		}
	}
	return &Failure{Failed, p.err}
}

// answer judges one operation by itself.
func (r *run) answer(p *player, op *check.Op) *Failure {
	excused := r.troubled()
	switch {
	case r.subject.Majority: // no operation waits for a crashed client or node
		// An object's location is used for two epochs (package kit, R3). So a write that is in
		// flight while the view moves on twice cannot look what became of it.
		excused = r.struck(p) || r.slowed() || op.Answer == check.Uncertain && p.passed[op.Seq]
	case r.visitor(p):
		excused = excused && !r.mended()
	}
	switch op.Answer {
	case check.Pending:
		if !p.w.Crashed() {
			return guilty(Failed, "%s has not returned", op)
		}
		return nil
	case check.TimedOut, check.Uncertain:
		switch {
		case excused:
		case r.trouble != nil:
			return guilty(Failed, "%s; what a keeper could not do last: %w", op, r.trouble)
		default:
			return guilty(Failed, "%s", op)
		}
	case check.Refused:
		return guilty(Failed, "%s", op)
	case check.Failed:
		if !p.fenced || !r.struck(p) {
			return guilty(Failed, "%s", op)
		}
	}
	most := r.longest()
	if op.Kind == check.Scan { // the limit is that of each of its parts
		most *= time.Duration(len(r.keys) + 1)
	}
	if took := op.Return - op.Call; took > most && !r.struck(p) && !r.slowed() {
		return guilty(Late, "took %v, and the operation timeout is %v: %s", took, r.subject.Timeout, op)
	}
	return nil
}

// longest is how long an operation may take. A store checks the clock between waits, each of which
// has the same limit. Without recovery, waits for crashed clients end only at that limit, and an
// operation may have several of them in a row.
func (r *run) longest() time.Duration {
	if r.crashed() && !r.mended() {
		return 3 * r.subject.Timeout
	}
	return r.subject.Timeout * 3 / 2
}

// sound checks the structure of the pool.
func (r *run) sound() *Failure {
	report, err := r.subject.Check(r.s)
	switch {
	case err != nil:
		return guilty(Damage, "check: %w", err)
	case len(report.Damage) > 0:
		return guilty(Damage, "%s", strings.Join(report.Damage, "\n  "))
	case !r.mended() && (r.crashed() || r.subject.Majority && r.troubled()):
		return nil // what the dead left waits, as it should, and so does what was not waited for
	case len(report.Waiting) > 0:
		return guilty(Waiting, "%s", strings.Join(report.Waiting, "\n  "))
	}
	if left := r.s.Clients(); len(left) > 0 {
		return guilty(Waiting, "client %d (%s) has neither left nor been recovered", left[0].ID, left[0].Name)
	}
	return nil
}

// crashed reports whether some client crashed.
func (r *run) crashed() bool {
	return slices.ContainsFunc(r.players, func(p *player) bool { return p.w.Crashed() })
}

// recovered reports whether the keepers came to the end of their work.
func (r *run) recovered() *Failure {
	if !r.mended() {
		return nil
	}
	why := r.unfinished()
	switch {
	case why == "":
		return nil
	case r.trouble != nil:
		return guilty(Unrecovered, "%s; the last failure: %w", why, r.trouble)
	}
	return guilty(Unrecovered, "%s", why)
}
