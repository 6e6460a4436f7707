package killed

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma/wall"
)

// settled is how old an operation is when it is judged: gauges that were kept waiting meanwhile have noted it by then.
const settled = time.Second

// judgeSlow judges the operations that ended some time ago and took long.
func (r *run) judgeSlow() error {
	now := wall.Now()
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
			if err := r.judge(number, what(own[at+2].Load()), own[at+3].Load(), began, ended); err != nil {
				return err
			}
		}
	}
	return nil
}

// interrupted judges what the workers of a process were doing when it was killed.
func (r *run) interrupted(p *process) error {
	now := wall.Now()
	for i := range p.Workers {
		own := r.ledger.worker(p.First + i)
		if began := time.Duration(own[beganAt].Swap(0)); began > 0 && now-began > r.Lease && r.Lease > 0 {
			if err := r.judge(p.First+i, what(own[whatAt].Load()), 0, began, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// judge compares how long an operation took with how long processors kept workers waiting meanwhile. It may wait for
// each of the clients that died around that time, if each had a lock that it needs.
func (r *run) judge(number int, did what, trips uint64, began, ended time.Duration) error {
	took, delay := ended-began, r.ledger.delay(began, ended)
	each := r.Lease + delayShare*delay
	r.counts.slow++
	r.slowest, r.delay = max(r.slowest, took), max(r.delay, delay)
	dead := 0
	for _, at := range r.killed {
		if at > began-each && at < ended {
			dead++
		}
	}
	if took > each {
		r.several++
	}
	if took > each*time.Duration(max(dead, 1)) {
		return fmt.Errorf("%v of worker %d took %v, for %d trips; the lease is %v, the longest delay was %v, and %d processes died",
			did, number, took, trips, r.Lease, delay, dead)
	}
	return nil
}
