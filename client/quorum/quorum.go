// Package quorum asks replicas: a mere majority first, and all when one is slow (SWARM, section 6),
// so that a node that dies costs one step the timer and those behind it nothing. What is asked, and
// which answers count, is its users' business.
package quorum

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Options of a Quorum.
type Options struct {
	// Slow is how long a step waits for a mere majority before it asks all replicas. 0: it follows
	// from what steps usually take here.
	Slow time.Duration
	// Timeout bounds a step of which fewer than are needed answer; default 1 s.
	Timeout time.Duration
	// Attempts bounds how often one replica is asked in a step.
	Attempts int
}

const defaultTimeout = time.Second

// Stats count what leaves the fast path. They only grow.
type Stats struct {
	Widened  uint64 // steps that asked all replicas, since one was slow, failed or refused
	Retries  uint64 // replicas that were asked once more in a step
	Attempts int    // the most of one replica in a step
}

// Quorum is the state of one worker's steps, one at a time: of each replica at most one chain is in
// flight, so there are no more flights than replicas. It is not safe for concurrent use.
type Quorum struct {
	// Limit bounds a step of which fewer than are needed answer. It is the options' Timeout until it
	// is set.
	Limit time.Duration
	// Attempts bounds how often one replica is asked in a step.
	Attempts int
	// Rejoin is called when a verb was fenced off because the pool's next epoch has begun. Where
	// Rejoin has joined that epoch and returns nil, the step goes on, and asks once more those
	// replicas of which it has no answer. In any case answers from before are not used. nil: the step
	// ends with rdma.ErrStale.
	Rejoin func() error

	ep      rdma.Endpoint
	timeout time.Duration
	timer   timer
	stats   Stats
	avoid   kit.SlowNodes // those that are asked last

	flights [MaxReplicas]flight
	n       int // flights
	turn    int // which one is waited for
	idle    Mask
	again   Mask // to be asked once more
	flying  Mask
	done    Mask
	refused Mask // that will not count
	unsent  Mask // asked in a batch that was not posted
	late    Mask // whose asking ended in a timeout: they may be asked once more
	last    bool // which they were
	asked   [MaxReplicas]int
	wide    bool // not a mere majority
	posted  bool // anything
	since   time.Duration
	err     error // of a replica that failed
}

// flight is a batch with a chain for each of some replicas.
type flight struct {
	b      *rdma.Batch
	chains [MaxReplicas]Chain
	n      int
	left   Mask // whose answers were not looked at
	posted bool
}

// Chain is what a step asked one replica: the ops First to End-1 of a batch.
type Chain struct{ Replica, First, End int }

// Verdict is what becomes of a replica that answered.
type Verdict uint8

// Verdicts on an answer.
const (
	Again Verdict = iota // ask it once more
	Done                 // it counts
	Never                // it will not count in this step: others have to
)

var (
	// ErrAttempts is wrapped when a replica did not count after as many attempts as the bound. It is
	// then one that failed.
	ErrAttempts = errors.New("word changes too often")
	// ErrRefused is wrapped when too many replicas were judged as ones that Never count.
	ErrRefused = errors.New("too few replicas agree")
)

// New returns a worker's quorum.
func New(ep rdma.Endpoint, o Options) Quorum {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	q := Quorum{Limit: o.Timeout, Attempts: o.Attempts, ep: ep, timeout: o.Timeout,
		timer: timer{slow: o.Slow, fixed: o.Slow > 0}}
	q.timer.follow()
	return q
}

// Stats returns the counters.
func (q *Quorum) Stats() Stats { return q.stats }

// Slow returns how long a step waits for a mere majority now.
func (q *Quorum) Slow() time.Duration { return q.timer.slow }

// Hurry returns how long asking may wait for a replica, 0 when the step fails without it.
func (q *Quorum) Hurry() time.Duration {
	if q.last {
		return 0
	}
	return q.timer.slow
}

// Timeout returns what bounds a step by the options.
func (q *Quorum) Timeout() time.Duration { return q.timeout }

// Done returns the replicas that count in the last step.
func (q *Quorum) Done() Mask { return q.done }

// Posted reports whether the last step has sent anything.
func (q *Quorum) Posted() bool { return q.posted }

// Refused returns the replicas that were judged as ones that Never count in the last step.
func (q *Quorum) Refused() Mask { return q.refused }

// Flying returns the replicas that the last step asked, and of which it has no answer: see
// Unresolved.
func (q *Quorum) Flying() Mask { return q.flying }

// Unsent returns the replicas whose chains the last step did not send, since it failed before.
func (q *Quorum) Unsent() Mask { return q.unsent }

// Gather asks replicas of from until need of them are done; step names that. at are the addresses
// of all replicas, each on a node of its own; those that are asked first begin with the replica
// first. ask adds a replica's chain to a batch; answer looks at it when it is complete. Where ask
// fails with rdma.ErrNodeDown or rdma.ErrTimeout the replica counts as one that is dead; any other
// failure ends the step. What is in flight when Gather returns stays there, see Unresolved. The
// batches live until the next step.
func (q *Quorum) Gather(step rdma.Step, at []rdma.Addr, first int, from Mask, need int,
	ask func(b *rdma.Batch, r int) error,
	answer func(r int, b *rdma.Batch, ch Chain) Verdict) error {
	q.Release()
	q.idle, q.again, q.flying, q.done, q.refused, q.unsent, q.wide, q.posted, q.turn, q.err = from, 0, 0, 0, 0, 0, false, false, 0, nil
	q.late, q.last = 0, false
	clear(q.asked[:len(at)])
	next := q.choose(at, first, from, need)
	began := q.timer.begin(q.ep)
	for {
		err := q.turnOver(step, at, first, next, ask, answer)
		if err != nil {
			err = q.rejoin(err)
		}
		if err != nil {
			return err
		}
		if q.done.Len() >= need {
			q.timer.end(q.ep, began)
			return nil
		}
		next = q.again
		if q.wide {
			next |= q.idle
		}
		if (q.done | q.flying | next).Len() < need {
			next |= q.late // once more: without them it is over
			q.late, q.last = 0, true
		}
		if (q.done | q.flying | next).Len() < need {
			return fmt.Errorf("%d of %d replicas answered, and %d are needed: %w", q.done.Len(), from.Len(), need,
				q.err)
		}
	}
}

// turnOver asks some replicas, and looks at the next answers of any.
func (q *Quorum) turnOver(step rdma.Step, at []rdma.Addr, first int, next Mask, ask func(b *rdma.Batch, r int) error,
	answer func(r int, b *rdma.Batch, ch Chain) Verdict) error {
	if next != 0 {
		if err := q.send(step, at, first, next, ask); err != nil {
			return err
		}
	}
	if q.flying == 0 {
		return nil
	}
	if err := q.await(at); err != nil {
		return err
	}
	return q.harvest(at, answer)
}

// rejoin lets a step go on in the next epoch, if it was fenced off. Batches with answers stay,
// since what was read may lie in them.
func (q *Quorum) rejoin(err error) error {
	if q.Rejoin == nil || !errors.Is(err, rdma.ErrStale) {
		return err
	}
	err = q.Rejoin()
	kept := 0
	for i := range q.n {
		f := &q.flights[i]
		q.again |= f.left
		if f.left.Len() == f.n || !f.posted {
			f.b.Release()
			continue
		}
		f.left = 0
		q.flights[kept], q.flights[i] = q.flights[i], q.flights[kept]
		kept++
	}
	q.n, q.turn = kept, 0
	q.again |= q.unsent
	q.idle &^= q.again
	q.flying, q.unsent = 0, 0
	q.makeRoom()
	return err
}

// choose returns the replicas to ask first: beginning with the one that is first, without nodes
// that were slow or failed lately.
func (q *Quorum) choose(at []rdma.Addr, first int, from Mask, need int) (m Mask) {
	for _, avoiding := range [2]bool{true, false} {
		r := first
		for range at {
			if from.Has(r) && !m.Has(r) && (!avoiding || !q.Avoids(at[r].Node())) {
				m |= Only(r)
				if need--; need == 0 {
					return m
				}
			}
			r = next(r, len(at))
		}
	}
	return m
}

// next returns the replica behind r of n, around.
func next(r, n int) int {
	if r++; r < n {
		return r
	}
	return 0
}

func (q *Quorum) send(step rdma.Step, at []rdma.Addr, first int, to Mask, ask func(b *rdma.Batch, r int) error) error {
	b := q.ep.Batch()
	f := &q.flights[q.n]
	f.b, f.n, f.left, f.posted = b, 0, 0, false
	q.n++
	q.turn = 0 // which is behind the latest
	q.unsent = to
	for r, left := first, to.Len(); left > 0; r = next(r, len(at)) {
		if !to.Has(r) {
			continue
		}
		left--
		b.Chain()
		first := b.Len()
		switch err := ask(b, r); {
		case err == nil:
			f.left |= Only(r)
		case errors.Is(err, rdma.ErrNodeDown), errors.Is(err, rdma.ErrTimeout):
			if !q.last && errors.Is(err, rdma.ErrTimeout) {
				q.late |= Only(r)
			}
			q.fail(at, r, err)
			continue
		default:
			return err
		}
		f.chains[f.n] = Chain{r, first, b.Len()}
		f.n++
		if q.asked[r]++; q.asked[r] > 1 {
			q.stats.Retries++
			q.stats.Attempts = max(q.stats.Attempts, q.asked[r])
		}
	}
	q.idle &^= to
	q.again &^= to
	if f.left == 0 {
		q.n--
		b.Release()
		q.unsent = 0
		return nil
	}
	if err := q.ep.Post(b.As(step)); err != nil {
		return err
	}
	f.posted, q.posted, q.unsent = true, true, 0
	q.flying |= f.left
	return nil
}

// fail takes a replica for dead.
func (q *Quorum) fail(at []rdma.Addr, r int, err error) {
	q.err = err
	q.widen(at, 0)
	q.shun(at[r].Node(), q.ep.Now())
}

// await waits for a whole batch as long as no replica is slow, and then for the next answer of any,
// in turns, the latest first.
func (q *Quorum) await(at []rdma.Addr) error {
	if q.wide && q.ep.Now()-q.since > q.Limit {
		return fmt.Errorf("wait for replicas for %v: %w", q.Limit, rdma.ErrTimeout)
	}
	for range q.n {
		q.turn = (q.turn + q.n - 1) % q.n
		if q.flights[q.turn].left != 0 {
			break
		}
	}
	f := &q.flights[q.turn]
	n := rdma.All
	if q.wide {
		n = min(f.b.Done()+1, f.b.Chains())
	}
	err := q.ep.Wait(f.b, n, q.timer.slow)
	if errors.Is(err, rdma.ErrTimeout) {
		q.widen(at, f.left)
		return nil
	}
	return err
}

// widen asks all replicas from now on, and asks the slow ones last for a while.
func (q *Quorum) widen(at []rdma.Addr, slow Mask) {
	now := q.ep.Now()
	if !q.wide {
		q.wide, q.since = true, now
		q.stats.Widened++
	}
	for i := range q.n {
		f := &q.flights[i]
		for _, ch := range f.chains[:f.n] {
			if slow.Has(ch.Replica) && f.left.Has(ch.Replica) && !completed(f.b, ch) {
				q.shun(at[ch.Replica].Node(), now)
			}
		}
	}
}

func completed(b *rdma.Batch, ch Chain) bool {
	for i := ch.First; i < ch.End; i++ {
		if !b.Completed(i) {
			return false
		}
	}
	return true
}

// harvest looks at the chains that are complete and gives back the batches that are.
func (q *Quorum) harvest(at []rdma.Addr, answer func(r int, b *rdma.Batch, ch Chain) Verdict) error {
	for i := range q.n {
		f := &q.flights[i]
		for _, ch := range f.chains[:f.n] {
			if r := ch.Replica; f.left.Has(r) && completed(f.b, ch) {
				f.left &^= Only(r)
				q.flying &^= Only(r)
				if err := q.judge(at, f.b, ch, answer); err != nil {
					if errors.Is(err, rdma.ErrStale) { // as if it were in flight
						f.left |= Only(r)
						q.flying |= Only(r)
					}
					return err
				}
			}
		}
	}
	q.makeRoom()
	return nil
}

// makeRoom gives back batches that were looked at when there is none left: a step asked replicas
// again, so that what it read is no more than what it was told. The others stay.
func (q *Quorum) makeRoom() {
	if q.n < len(q.flights) {
		return
	}
	kept := 0
	for i := range q.n {
		if q.flights[i].left == 0 {
			q.flights[i].b.Release()
			continue
		}
		q.flights[kept], q.flights[i] = q.flights[i], q.flights[kept]
		kept++
	}
	q.n, q.turn = kept, 0
}

// judge looks at one replica's chain. Only a dead node is a failure that others make up for.
func (q *Quorum) judge(at []rdma.Addr, b *rdma.Batch, ch Chain,
	answer func(r int, b *rdma.Batch, ch Chain) Verdict) error {
	r := ch.Replica
	for i := ch.First; i < ch.End; i++ {
		err := b.Op(i).Err
		if err == nil {
			continue
		}
		if !errors.Is(err, rdma.ErrNodeDown) {
			return err
		}
		q.fail(at, r, err)
		return nil
	}
	switch v := answer(r, b, ch); {
	case v == Done:
		q.done |= Only(r)
	case v == Never:
		q.refused |= Only(r)
		q.err = ErrRefused
		q.widen(at, 0)
	case q.asked[r] < q.Attempts:
		q.again |= Only(r)
	default:
		q.err = fmt.Errorf("replica %d, after %d attempts: %w", r, q.Attempts, ErrAttempts)
		q.widen(at, 0)
	}
	return nil
}

// Release ends the life of the last step's batches; what is in flight goes on.
func (q *Quorum) Release() {
	for i := range q.n {
		q.flights[i].b.Release()
		q.flights[i].b = nil
	}
	q.n = 0
}
