package swarm

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// mask is a set of replicas.
type mask uint8

func only(r int) mask         { return 1 << r }
func (m mask) has(r int) bool { return m>>r&1 != 0 }
func (m mask) len() int       { return bits.OnesCount8(uint8(m)) }
func (l *Layout) all() mask   { return 1<<l.Replicas - 1 }

// quorum is the state of one step: of each replica at most one chain is in flight, so there are no more flights than replicas.
type quorum struct {
	flights [MaxReplicas]flight
	n       int // flights
	turn    int // which one is waited for
	idle    mask
	again   mask // to be asked once more
	flying  mask
	done    mask
	asked   [MaxReplicas]int
	wide    bool // not a mere majority
	posted  bool // anything
	since   time.Duration
	err     error // of a replica that failed
}

// flight is a batch with a chain for each of some replicas.
type flight struct {
	b      *rdma.Batch
	chains [MaxReplicas]chain
	n      int
	left   mask // whose answers were not looked at
}

type chain struct{ replica, first, end int } // ops

// errAttempts is wrapped when a word changed so often that the bound was reached. The replica counts as one that failed: of
// a lock that nobody knows who has it, a reader says that it is not its own, and a writer that its outcome is unknown.
var errAttempts = errors.New("word changes too often")

// gather asks replicas of from until need of them are done (section 6: a mere majority first, all when one is slow). ask
// adds a replica's chain to a batch; answer looks at it when it is complete, and tells whether the replica is done; otherwise
// it is asked once more. What is in flight then stays there: nobody looks at it. The batches live until the next step.
func (c *Client) gather(k *Register, from mask, need int, ask func(b *rdma.Batch, r int) error, answer func(r int, b *rdma.Batch, ch chain) bool) error {
	c.release()
	q := &c.quorum
	q.idle, q.again, q.flying, q.done, q.wide, q.posted, q.turn, q.err = from, 0, 0, 0, false, false, 0, nil
	clear(q.asked[:c.Replicas])
	next := c.choose(k, from, need)
	began := c.timer.begin(c.ep)
	for {
		if next != 0 {
			if err := c.send(k, next, ask); err != nil {
				return err
			}
		}
		if err := c.await(k); err != nil {
			return err
		}
		if err := c.harvest(k, answer); err != nil {
			return err
		}
		if q.done.len() >= need {
			c.timer.end(c.ep, began)
			return nil
		}
		next = q.again
		if q.wide {
			next |= q.idle
		}
		if (q.done | q.flying | next).len() < need {
			return fmt.Errorf("%d of %d replicas answered, and %d are needed: %w", q.done.len(), from.len(), need, q.err)
		}
	}
}

// choose returns the replicas to ask first: beginning with the one that has data in place, without nodes that were slow or
// failed lately.
func (c *Client) choose(k *Register, from mask, need int) (m mask) {
	for _, avoiding := range [2]bool{true, false} {
		r := k.InPlace
		for range c.Replicas {
			if from.has(r) && !m.has(r) && (!avoiding || !c.avoids(k.At[r].Node())) {
				m |= only(r)
				if need--; need == 0 {
					return m
				}
			}
			r = c.next(r)
		}
	}
	return m
}

// next returns the replica behind r, around.
func (l *Layout) next(r int) int {
	if r++; r < l.Replicas {
		return r
	}
	return 0
}

func (c *Client) send(k *Register, to mask, ask func(b *rdma.Batch, r int) error) error {
	q := &c.quorum
	b := c.ep.Batch()
	f := &q.flights[q.n]
	f.b, f.n, f.left = b, 0, to
	q.n++
	q.turn = 0 // which is behind the latest
	for r, left := k.InPlace, to.len(); left > 0; r = c.next(r) {
		if !to.has(r) {
			continue
		}
		left--
		b.Chain()
		first := b.Len()
		if err := ask(b, r); err != nil {
			return err
		}
		f.chains[f.n] = chain{r, first, b.Len()}
		f.n++
		if q.asked[r]++; q.asked[r] > 1 {
			c.stats.Retries++
			c.stats.Attempts = max(c.stats.Attempts, q.asked[r])
		}
	}
	q.idle &^= to
	q.again &^= to
	q.flying |= to
	err := c.ep.Post(b)
	q.posted = q.posted || err == nil
	return err
}

// await waits for a whole batch, for as long as nobody is slow; then for the next answer of any, in turns, the latest first.
func (c *Client) await(k *Register) error {
	q := &c.quorum
	if q.wide && c.ep.Now()-q.since > c.limit {
		return fmt.Errorf("wait for replicas for %v: %w", c.limit, rdma.ErrTimeout)
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
	err := c.ep.Wait(f.b, n, c.timer.slow)
	if errors.Is(err, rdma.ErrTimeout) {
		c.widen(k, f.left)
		return nil
	}
	return err
}

// widen asks everybody from now on, and the slow ones last for a while.
func (c *Client) widen(k *Register, slow mask) {
	q := &c.quorum
	now := c.ep.Now()
	if !q.wide {
		q.wide, q.since = true, now
		c.stats.Widened++
	}
	for i := range q.n {
		f := &q.flights[i]
		for _, ch := range f.chains[:f.n] {
			if slow.has(ch.replica) && f.left.has(ch.replica) && !completed(f.b, ch) {
				c.shun(k.At[ch.replica].Node(), now)
			}
		}
	}
}

func completed(b *rdma.Batch, ch chain) bool {
	for i := ch.first; i < ch.end; i++ {
		if !b.Completed(i) {
			return false
		}
	}
	return true
}

// harvest looks at the chains that are complete and gives back the batches that are.
func (c *Client) harvest(k *Register, answer func(r int, b *rdma.Batch, ch chain) bool) error {
	q := &c.quorum
	for i := range q.n {
		f := &q.flights[i]
		for _, ch := range f.chains[:f.n] {
			if r := ch.replica; f.left.has(r) && completed(f.b, ch) {
				f.left &^= only(r)
				q.flying &^= only(r)
				if err := c.judge(k, f.b, ch, answer); err != nil {
					return err
				}
			}
		}
	}
	// A batch that has been looked at makes room for the next; the others, and what the last one read, stay.
	if q.n == len(q.flights) {
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
	return nil
}

// judge looks at one replica's chain. Only a dead node is a failure that others make up for.
func (c *Client) judge(k *Register, b *rdma.Batch, ch chain, answer func(r int, b *rdma.Batch, ch chain) bool) error {
	q, r := &c.quorum, ch.replica
	for i := ch.first; i < ch.end; i++ {
		err := b.Op(i).Err
		if err == nil {
			continue
		}
		if !errors.Is(err, rdma.ErrNodeDown) {
			return err
		}
		q.err = err
		c.widen(k, 0)
		c.shun(k.At[r].Node(), c.ep.Now())
		return nil
	}
	switch {
	case answer(r, b, ch):
		q.done |= only(r)
	case q.asked[r] < c.bound:
		q.again |= only(r)
	default:
		q.err = fmt.Errorf("replica %d, after %d attempts: %w", r, c.bound, errAttempts)
		c.widen(k, 0)
	}
	return nil
}

// release ends the life of the last step's batches.
func (c *Client) release() {
	q := &c.quorum
	for i := range q.n {
		q.flights[i].b.Release()
		q.flights[i].b = nil
	}
	q.n = 0
}

// shunned is how long a node that was slow or failed is asked last, in units of the timer: an operation in as many is
// that much slower when the node does not recover.
const shunned = 100

func (c *Client) shun(node int, now time.Duration) {
	for len(c.avoid) <= node {
		c.avoid = append(c.avoid, 0)
	}
	if c.avoid[node] == 0 {
		c.avoided++
	}
	c.avoid[node] = now + shunned*c.timer.slow
}

// avoids tells whether a node is asked last. It looks at the clock only when there is one.
func (c *Client) avoids(node int) bool {
	if c.avoided == 0 || node >= len(c.avoid) || c.avoid[node] == 0 {
		return false
	}
	if c.ep.Now() < c.avoid[node] {
		return true
	}
	c.avoid[node] = 0
	c.avoided--
	return false
}
