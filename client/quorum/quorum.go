// Package quorum asks replicas: only a majority first, and all when one is slow (SWARM, section 6).
// So a node that dies costs one step the time of the timer, and later steps nothing. Its users
// decide what is asked and which answers count.
//
// The order within a step: all chains of a turn are posted in one batch, and do not depend on each
// other. A replica is asked again only when its last chain is complete. So its chains do not
// overtake each other, and a user knows what a replica's word held before it makes the next CAS of
// it. There is no order between replicas.
//
// Where a step ends early, the chains that were posted and have no answer may land at any later
// time, unless a fence of the pool's view drops them. Unresolved keeps them. A client that crashes
// in the middle leaves the effect of any of the step's chains, each up to any of its ops.
package quorum

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Options parameterize a Quorum.
type Options struct {
	// Slow is how long a step waits for a mere majority before it asks all replicas. 0: it adapts
	// to how long steps usually take.
	Slow time.Duration
	// Timeout bounds a step that fewer replicas than it needs answer; default 1 s.
	Timeout time.Duration
	// Attempts bounds how often one replica is asked in a step.
	Attempts int
}

const defaultTimeout = time.Second

// Stats count what leaves the fast path. They only grow.
type Stats struct {
	// Steps that asked all replicas, because one was slow, failed or refused.
	Widened uint64
	// Requests to a replica that was asked before in the same step.
	Retries uint64
	// The most requests to one replica in a step.
	Attempts int
}

// Quorum is the state of one worker's steps, of which there is one at a time. Of each replica at
// most one chain is in flight, so there are at most as many flights as replicas. It is not safe for
// concurrent use.
type Quorum struct {
	// Limit bounds a step that fewer replicas than it needs answer. It is the options' Timeout
	// until the user sets it.
	Limit time.Duration
	// Attempts bounds how often one replica is asked in a step.
	Attempts int
	// Rejoin is called when a verb was fenced off because the pool's next epoch has begun. If it
	// joins that epoch and returns nil, the step goes on, and asks those replicas again of which it
	// has no answer. Answers from before that are pending are not used. nil: the step ends with
	// rdma.ErrStale.
	Rejoin func() error

	ep      rdma.Endpoint
	timeout time.Duration
	timer   timer
	stats   Stats
	avoid   kit.SlowNodes // those that are asked last

	// The batches of the step, of which n are used. turn is the one that is waited for. Those with
	// answers stay until the next step, since answers refer to their buffers.
	flights [MaxReplicas]flight
	n       int
	turn    int
	// The state of each replica in the step. idle: not asked yet. again: to be asked once more.
	// flying: asked, and not answered. done: it counts. refused: it will not count. unsent: asked
	// in a batch that was not posted, or in vain, since its chain failed without effect. late:
	// asking ended in a timeout, so it may be asked once more. A replica is in one of idle, again,
	// flying, done and refused at most; in none of them it has failed. unsent and late say more of
	// those that have no answer.
	idle    Mask
	again   Mask
	flying  Mask
	done    Mask
	refused Mask
	unsent  Mask
	late    Mask
	// The late ones were asked once more: the step fails without them, so ask may wait longer for a
	// node: see HedgeDelay.
	last bool
	// By replica: how often it was asked.
	asked [MaxReplicas]int
	// The step asks all replicas, since the time since.
	wide bool
	// The step has sent something.
	posted bool
	since  time.Duration
	// Why the last replica failed. It is wrapped when the step ends with too few answers.
	err error
}

// flight is a batch with one chain for each of some replicas. The Quorum owns the batch until
// Release.
type flight struct {
	b      *rdma.Batch
	chains [MaxReplicas]Chain
	n      int
	// Replicas of which no answer was examined yet: the chain is in flight, or complete.
	left   Mask
	posted bool
}

// Chain is what a step asked one replica: the ops First to End-1 of a batch. They are posted in
// their order to one node, where only what follows a READ or a CAS may pass it.
type Chain struct{ Replica, First, End int }

// Ask adds the chain of a replica to a batch.
type Ask func(b *rdma.Batch, r int) error

// Answer judges the chain of a replica that is complete.
type Answer func(r int, b *rdma.Batch, ch Chain) Verdict

// Verdict says what an answer means for the step.
type Verdict uint8

// The verdicts.
const (
	Again Verdict = iota // the replica is asked once more
	Done                 // it counts
	Never                // it does not count in this step: others have to
)

var (
	// ErrAttempts is wrapped when a replica did not count after Attempts requests. It is treated as
	// one that failed.
	ErrAttempts = errors.New("word changes too often")
	// ErrRefused is wrapped when too many replicas were judged Never.
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

// Slow returns how long a step currently waits for a mere majority.
func (q *Quorum) Slow() time.Duration { return q.timer.slow }

// HedgeDelay returns how long ask may wait for a replica; 0: the step fails without that replica.
func (q *Quorum) HedgeDelay() time.Duration {
	if q.last {
		return 0
	}
	return q.timer.slow
}

// Timeout returns the bound of a step by the options.
func (q *Quorum) Timeout() time.Duration { return q.timeout }

// Done returns the replicas that counted in the last step. Other replicas that were asked may have
// changed as well.
func (q *Quorum) Done() Mask { return q.done }

// Posted reports whether the last step has sent anything. If not, it had no effect.
func (q *Quorum) Posted() bool { return q.posted }

// Refused returns the replicas that were judged Never in the last step.
func (q *Quorum) Refused() Mask { return q.refused }

// Flying returns the replicas that the last step asked without getting an answer: see Unresolved.
// Their chains may take effect at any later time.
func (q *Quorum) Flying() Mask { return q.flying }

// Unsent returns the replicas of which the last step did not send the chains, because it failed
// before, or because the node was out of reach. These had no effect and never will: what they name
// is the caller's still.
func (q *Quorum) Unsent() Mask { return q.unsent }

// Gather asks replicas of the set from, until need of them are done. at has the addresses of all
// replicas, each on a node of its own. The first ones asked are those from replica first on. ask
// adds a replica's chain to a batch. answer judges the chain when it is complete. If ask fails with
// rdma.ErrNodeDown or rdma.ErrTimeout the replica counts as dead; any other error ends the step.
// What is in flight when Gather returns stays in flight: see Unresolved. The batches are valid
// until the next step.
//
// A step ends as soon as need are done, so slower answers are not waited for, and not judged. It
// fails with q.err once too few replicas are left; until then it waits, for Limit at most once it
// is wide.
func (q *Quorum) Gather(step rdma.Step, at []rdma.Addr, first int, from Mask, need int, ask Ask, answer Answer) error {
	// The last step's batches are not needed any more.
	q.Forget()
	q.idle, q.again = from, 0
	q.wide, q.turn, q.err = false, 0, nil
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
		// Replicas that were not asked yet are asked, too.
		if q.wide {
			next |= q.idle
		}
		if (q.done | q.flying | next).Len() < need {
			// Without the late replicas the step has failed: they are asked once more.
			next |= q.late
			q.late, q.last = 0, true
		}
		if (q.done | q.flying | next).Len() < need {
			return fmt.Errorf("%d of %d replicas answered, and %d are needed: %w", q.done.Len(), from.Len(), need,
				q.err)
		}
	}
}

// turnOver asks the replicas in next, and examines the next answers of any replica. If nothing is
// in flight it returns at once: asking has failed for all of them.
func (q *Quorum) turnOver(step rdma.Step, at []rdma.Addr, first int, next Mask, ask Ask, answer Answer) error {
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

// rejoin continues a step in the next epoch if it was fenced off. Batches with answers are kept,
// since the user may read from them.
//
// A replica that was asked and did not answer is asked again, though its chain may have landed
// before the fence did. So a user's chains must be such that the second one notices what the first
// one did, by the CAS or by a READ.
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

// choose returns the replicas to ask first: need of them, beginning with first, and without nodes
// that were slow or failed lately, unless there are too few others.
func (q *Quorum) choose(at []rdma.Addr, first int, from Mask, need int) (m Mask) {
	for _, avoiding := range [2]bool{true, false} {
		r := first
		for range at {
			if from.Has(r) && !m.Has(r) && (!avoiding || !q.IsSlow(at[r].Node())) {
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

// next returns the replica that follows r of n, cyclically.
func next(r, n int) int {
	if r++; r < n {
		return r
	}
	return 0
}

// send asks the replicas in to, in one batch. A replica that ask fails for is left out, and counts
// as dead. Any other error of ask ends the step; then nothing of the batch was posted, and to is
// unsent.
func (q *Quorum) send(step rdma.Step, at []rdma.Addr, first int, to Mask, ask Ask) error {
	b := q.ep.Batch()
	f := &q.flights[q.n]
	f.b, f.n, f.left, f.posted = b, 0, 0, false
	q.n++
	q.turn = 0 // await decrements it, cyclically, so the latest flight comes first
	// Until Post has succeeded: see Unsent.
	q.unsent |= to
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
		// What ask has added before, such as a READ, is posted with the batch, and not examined.
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
		q.unsent &^= to
		return nil
	}
	if err := q.ep.Post(b.As(step)); err != nil {
		return err
	}
	f.posted, q.posted = true, true
	q.unsent &^= to
	q.flying |= f.left
	return nil
}

// fail treats a replica as dead in this step. Its node is asked last for a while, also by later
// steps.
func (q *Quorum) fail(at []rdma.Addr, r int, err error) {
	q.err = err
	q.widen()
	q.MarkSlow(at[r].Node())
}

// await waits for a whole batch as long as no replica is slow. Once the step is wide it waits for
// the next answer of any batch, in turns, the latest first. A wait of timer.slow that ends in a
// timeout is no error: it widens the step, or, in a wide one, gives the next batch its turn. The
// replicas that are late are asked last for a while.
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
	if !errors.Is(err, rdma.ErrTimeout) {
		return err
	}
	q.widen()
	for _, ch := range f.chains[:f.n] {
		// Only replicas that are late in this very batch are to blame.
		if f.left.Has(ch.Replica) && !completed(f.b, ch) {
			q.MarkSlow(at[ch.Replica].Node())
		}
	}
	return nil
}

// widen makes the step ask all replicas. since is set once: the Limit counts from the first trouble
// of the step.
func (q *Quorum) widen() {
	if !q.wide {
		q.wide, q.since = true, q.ep.Now()
		q.stats.Widened++
	}
}

// completed reports whether all ops of a chain are complete. Its ops may be read from then on,
// whether or not the batch is complete.
func completed(b *rdma.Batch, ch Chain) bool {
	for i := ch.First; i < ch.End; i++ {
		if !b.Completed(i) {
			return false
		}
	}
	return true
}

// harvest judges the chains that are complete. All that are complete are judged, also where the
// step has enough: they are its answers, and no longer in flight.
func (q *Quorum) harvest(at []rdma.Addr, answer Answer) error {
	for i := range q.n {
		f := &q.flights[i]
		for _, ch := range f.chains[:f.n] {
			if r := ch.Replica; f.left.Has(r) && completed(f.b, ch) {
				// It is judged once.
				f.left &^= Only(r)
				q.flying &^= Only(r)
				if err := q.judge(at, f.b, ch, answer); err != nil {
					if errors.Is(err, rdma.ErrStale) { // it counts as in flight: rejoin asks it again
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

// makeRoom releases batches without pending answers if all flights are used. That happens only in a
// step that asked replicas again; its user must not rely on what it read before. The other batches
// are kept. There is room afterwards: at most one chain a replica is in flight, and the batches
// with no pending answer go.
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

// judge judges one replica's chain. A dead node is made up for by other replicas; any other error
// ends the step. An op that failed with ErrNodeDown may have landed, unless the chain is known to
// have had no effect: the replica is not done, and does not count as refused.
func (q *Quorum) judge(at []rdma.Addr, b *rdma.Batch, ch Chain, answer Answer) error {
	r := ch.Replica
	for i := ch.First; i < ch.End; i++ {
		err := b.Op(i).Err
		if err == nil {
			continue
		}
		if !errors.Is(err, rdma.ErrNodeDown) {
			return err
		}
		if b.HadNoEffect(ch.First, ch.End) {
			q.unsent |= Only(r)
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
		q.widen()
	// It is asked once more in the next turn.
	case q.asked[r] < q.Attempts:
		q.again |= Only(r)
	default:
		q.err = fmt.Errorf("replica %d, after %d attempts: %w", r, q.Attempts, ErrAttempts)
		q.widen()
	}
	return nil
}

// Forget ends a step that sends nothing, in place of Gather: the step before it, and what that has
// in flight, is not taken for this one.
func (q *Quorum) Forget() {
	q.Release()
	q.flying, q.done, q.refused, q.unsent, q.posted = 0, 0, 0, 0, false
}

// Release releases the last step's batches. What is in flight stays in flight. Each batch owns its
// buffers until the last straggler has landed.
func (q *Quorum) Release() {
	for i := range q.n {
		q.flights[i].b.Release()
		q.flights[i].b = nil
	}
	q.n = 0
}
