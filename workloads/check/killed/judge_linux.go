package killed

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
)

// settled is how old an operation is when it is judged: gauges that were kept waiting meanwhile
// have noted it by then.
const settled = time.Second

// hung is how much is judged of an operation that has not ended: its beginning.
const hung = 250 * time.Millisecond

// unknown are the trips of an operation that has not ended.
const unknown = -1

// judgeSlow judges the operations that ended some time ago and took long.
func (r *run) judgeSlow() error {
	now := realtime.Now()
	for number := range r.judged {
		own := r.ledger.worker(number)
		noted := own[slowAt].Load()
		if noted-r.judged[number] > slowOps {
			return fmt.Errorf("worker %d had more than %d slow operations at once", number, slowOps)
		}
		for ; r.judged[number] < noted; r.judged[number]++ {
			at := slowsAt + slowWords*int(r.judged[number]%slowOps)
			began, ended := time.Duration(own[at].Load()), time.Duration(own[at+1].Load())
			if now-ended < settled {
				break
			}
			if err := r.judge(number, what(own[at+2].Load()), int(own[at+3].Load()), began, ended); err != nil {
				return err
			}
		}
	}
	return nil
}

// unended judges what living processes have been doing for long, when they have noted what kept
// them waiting meanwhile. An operation that a kill interrupts is not judged by itself: what its
// process has not noted by then is lost.
func (r *run) unended() error {
	now := realtime.Now()
	for _, p := range r.places {
		gauged := time.Duration(r.ledger.worker(p.First)[gaugedAt].Load())
		for number := p.First; !p.killed && number < p.First+p.Workers; number++ {
			own := r.ledger.worker(number)
			began := time.Duration(own[beganAt].Load())
			if began > 0 && gauged > began+hung && now > began+2*hung && r.Lease > 0 {
				if err := r.judge(number, what(own[whatAt].Load()), unknown, began, began+hung); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// judge compares how long an operation took with how long processors kept workers waiting
// meanwhile. It may have met two dead clients, one behind the other, where several processes died
// around that time, or one while it waited: that one may have been about to repair what the first
// had left.
func (r *run) judge(number int, did what, trips int, began, ended time.Duration) error {
	took, delay := ended-began, r.ledger.delay(began, ended)
	each := r.Lease + delayShare*delay
	dead, met, when := 0, 1, ""
	for _, at := range r.killed {
		switch {
		case at > began-each && at < began:
			dead++
		case at > began && at < ended:
			dead++
			met = 2
		default:
			continue
		}
		when += fmt.Sprintf(" %v", at-began)
	}
	if trips != unknown {
		r.counts.slow++
		r.slowest, r.delay = max(r.slowest, took), max(r.delay, delay)
		if took > each {
			r.several++
		}
	}
	if took > each*time.Duration(min(max(dead, met), 2)) {
		cost := fmt.Sprintf("took %v, for %d trips", took, trips)
		if trips == unknown {
			cost = fmt.Sprintf("has taken %v so far", took)
		}
		return fmt.Errorf("%v of worker %d %s; the lease is %v, the longest delay was %v, and %d processes died, "+
			"counted from its beginning at%s", did, number, cost, r.Lease, delay, dead, when)
	}
	return nil
}
