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
			at := slowsAt + 3*int(r.judged[number]%slowOps)
			began, ended := time.Duration(own[at].Load()), time.Duration(own[at+1].Load())
			if now-ended < settled {
				break
			}
			if err := r.judge(number, what(own[at+2].Load()), began, ended); err != nil {
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
			if err := r.judge(p.First+i, what(own[whatAt].Load()), began, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// judge compares how long an operation took with how long processors kept workers waiting meanwhile.
func (r *run) judge(number int, did what, began, ended time.Duration) error {
	took, delay := ended-began, r.ledger.delay(began, ended)
	r.counts.slow++
	r.slowest, r.delay = max(r.slowest, took), max(r.delay, delay)
	r.delays = max(r.delays, float64(took-r.Lease)/float64(max(delay, time.Millisecond)))
	if took > r.Lease+delayShare*delay {
		return fmt.Errorf("%v of worker %d took %v; the lease is %v, and the longest delay was %v", did, number, took, r.Lease,
			delay)
	}
	return nil
}
