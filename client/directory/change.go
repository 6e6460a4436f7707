package directory

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Change replaces the entries of a hash's bucket, all at once, by what decide makes of them.
// decide gets all entries of the bucket, of any hash. It may change them in place, append to
// them, and return any part of them. It is called again whenever another client was faster, so
// only its last call counts. It may use the endpoint for other work. By the id a client
// recognizes its change if another client has completed it: the lower 16 bits are the client's
// number, and the rest is higher than in its changes before.
//
// If decide returns an error, and the entries that it saw were chosen, the change ends with that
// error and has had no effect. Other errors wrap client.ErrBucketFull when decide returns more than
// Slots entries, client.ErrFull when there is no buffer, and rdma.ErrNodeDown or rdma.ErrTimeout
// as those of Lookup. If the error wraps client.ErrUncertain, the change may have taken effect,
// or still may.
func (c *Client) Change(hash, id uint64, decide func(bucket []Entry) ([]Entry, error)) error {
	c.begin(c.BucketOf(hash))
	ch := change{id: id, decide: decide}
	err := c.run(&ch)
	if err != nil && ch.refused == nil {
		err = fmt.Errorf("change bucket %d: %w", c.bucket, err)
	}
	return err
}

// change is what an operation proposes. The zero change proposes what is there: it only settles
// what other clients left half done.
type change struct {
	id     uint64
	decide func(bucket []Entry) ([]Entry, error)
	// refused is the error of the last call of decide.
	refused error
	// over: the outcome is known.
	over bool
	// sent: an accept of the change may have taken effect.
	sent bool
	// first is the lowest number (value.changes) that the change would have had by such an accept.
	first uint64
}

// run makes attempts at a change until its outcome is known. An attempt that a fence cuts off is
// repeated in the next epoch.
func (c *Client) run(ch *change) error {
	for {
		err := c.try(ch)
		if c.member == nil || !errors.Is(err, rdma.ErrStale) || ch.over {
			return err
		}
		if err := c.member.Join(); err != nil {
			return ch.failed(err)
		}
		c.follow()
	}
}

// try makes attempts at a change within one epoch: it looks, and then proposes, unless another
// client seems to be active on the bucket. A zero change needs no proposal if the bucket is
// settled. Attempts that lose to other clients pause: see patience.
func (c *Client) try(ch *change) error {
	p := patience{Retry: c.pace}
	for {
		settled, err := c.look()
		if err != nil {
			return ch.failed(err)
		}
		if settled && ch.decide == nil {
			return nil
		}
		if settled || !c.wait(&p) {
			done, err := c.attempt(ch, settled)
			c.giveSpares()
			if done && ch.decide == nil {
				c.stats.Settled++
			}
			if done {
				ch.over = true
				return err
			}
			if !passing(err) {
				return ch.failed(err)
			}
			c.stats.Lost++
		}
		if err := p.again(c); err != nil {
			return ch.failed(err)
		}
	}
}

// failed returns the error of a change that ends without an outcome.
func (ch *change) failed(err error) error {
	if ch.sent {
		return uncertain(err)
	}
	return err
}

// loose reports whether a change that decide has refused may still take effect: an earlier
// attempt has sent accepts, and other clients may continue from those until a higher round is
// accepted.
func (ch *change) loose() bool { return ch.sent && ch.refused != nil }

// maxIdleLooks is how many looks at an unchanged bucket let another proposer go first, which
// counts as dead afterwards. maxYields bounds all pauses of an operation that let others go
// first.
const maxIdleLooks, maxYields = 2, 8

// wait reports whether another proposer is active on the bucket: a word is promised. To propose now
// would only start a duel, in which neither proposer ends.
func (c *Client) wait(p *patience) bool {
	var top Word
	busy := false
	for r := range c.Replicas {
		k := &c.replicas[r]
		top = max(top, k.word)
		busy = busy || k.known && !k.word.accepted() && k.word != 0
	}
	if top != p.top {
		p.top, p.idle = top, 0
	}
	p.idle++
	return busy && p.idle <= maxIdleLooks && p.Tries < maxYields
}

// attempt runs the two phases of Paxos. done: err is the change's outcome. Otherwise another
// attempt may follow, if err is passing. settled: the look before has found a chosen value, and
// decide sees it at once: an error then ends the change without another step.
//
// The value that a majority had accepted when it promised is the base. If that is not the one
// that decide saw, decide is called again. A refusal is proposed as well, with the base
// unchanged, so that the entries that decide saw become chosen. That need not succeed if n, a
// majority, had accepted them: they were chosen already.
//
// What a crash here leaves: see prepare and accept.
func (c *Client) attempt(ch *change, settled bool) (done bool, err error) {
	final := false
	c.base = value{}
	if c.has {
		c.rebase()
	}
	if settled {
		// If an earlier attempt has sent accepts, this value is above them: a majority has
		// promised a higher round.
		if final, ch.refused = c.decide(ch); final {
			return true, ch.refused
		}
	}
	decided := c.base.round
	// A zero change goes on without buffers: prepare may show that a majority had accepted the
	// value.
	if err := c.reserve(); err != nil && (ch.decide != nil || errors.Is(err, rdma.ErrStale)) {
		return false, err
	}
	if err := c.prepare(); err != nil {
		return false, err
	}
	round, n := c.newest(func(k *replica) bool { return k.mine }) // of those that promised
	if c.base.round != round {
		if ok, err := c.load(round); !ok {
			return false, cmp.Or(err, errLost)
		}
		c.rebase()
	}
	if !settled || decided != round {
		final, ch.refused = c.decide(ch)
	}
	err = c.accept(ch, final)
	if err != nil && (!final || ch.loose() || n < c.majority()) {
		return false, err
	}
	if ch.decide == nil {
		// A lookup reads the entries from what it has settled.
		c.found, c.has = c.next.encode(c.saved[:], c.bucket), true
	}
	return true, ch.refused
}

// errLost is wrapped when another client was faster.
var errLost = fmt.Errorf("another client changes the bucket: %w", quorum.ErrRefused)

// rebase makes what was found the base. base is a copy.
func (c *Client) rebase() {
	c.base = value{}
	if c.found != nil {
		c.base.decode(c.found)
	}
}

// errForgotten is wrapped when so many other clients have changed a bucket since an attempt that
// the bucket does not show any more whether one of them completed it.
var errForgotten = fmt.Errorf("%d other clients changed the bucket since", remembered)

// decide makes next from base. final: there is nothing left to change. Then err is nil if the
// change was made, also by another client; otherwise the change was refused, or its outcome is
// unknown.
func (c *Client) decide(ch *change) (final bool, err error) {
	c.next = c.base
	switch {
	case ch.decide == nil:
		return true, nil
	case c.base.has(ch.id):
		c.stats.Helped++
		return true, nil
	case ch.sent && !c.base.tells(ch.id, ch.first):
		return true, uncertain(errForgotten)
	}
	next, err := ch.decide(c.next.entries[:c.next.n])
	if err == nil && len(next) > Slots {
		err = fmt.Errorf("%d entries in a bucket (at most %d): %w", len(next), Slots, client.ErrBucketFull)
	}
	if err != nil {
		c.next = c.base
		return true, err
	}
	c.next.n = copy(c.next.entries[:], next)
	c.next.add(ch.id)
	return false, nil
}

// reserve allocates buffers for the replicas that were read, before any word is promised.
// Otherwise a client that then finds no buffer would leave the bucket promised, with no proposer
// active. A node that does not answer is left out: other replicas make the majority.
func (c *Client) reserve() error {
	for r := range c.Replicas {
		if k := &c.replicas[r]; k.known {
			if _, err := c.spare(r); errors.Is(err, client.ErrFull) || errors.Is(err, rdma.ErrStale) {
				return err
			}
		}
	}
	return nil
}

// spare returns the address of the operation's buffer at a replica, which it allocates if there is
// none.
func (c *Client) spare(r int) (rdma.Addr, error) {
	node := c.at[r].Node()
	if c.spares[r] != 0 {
		return c.alloc.Resolve(node, c.bucket, c.spares[r]), nil
	}
	pointer, at, err := c.alloc.Allocate(node, c.bucket)
	c.spares[r] = pointer
	return at, err
}

// giveSpares gives back the buffers that the operation owns: those that were not needed, and those
// that its CASes replaced. None of them has a verb in flight: owned has taken those out.
func (c *Client) giveSpares() {
	c.follow()
	for r := range c.Replicas {
		c.alloc.Give(c.at[r].Node(), c.bucket, c.spares[r])
		c.spares[r] = 0
	}
}

// prepare makes a majority promise a round above all that are known. If the round of a replica's
// value is not known, its buffer is read before the CAS of its word. If the CAS succeeds, the
// word has not changed in between, so the buffer held the value when the promise was made.
//
// What a crash here leaves: promises, which keep no other client out: the next attempt takes a
// higher round.
func (c *Client) prepare() error {
	c.promise = 0
	// A replica that was not read may have promised a round as high: then it refuses this one.
	for r := range c.Replicas {
		c.promise = max(c.promise, c.replicas[r].word.round()+1)
	}
	if c.promise > maxRound {
		return fmt.Errorf("round %d (at most %d): %w", c.promise, uint64(maxRound), client.ErrDamaged)
	}
	c.has = false
	return c.briefly(stepPrepare, c.all(), c.majority(),
		func(b *rdma.Batch, r int) error {
			k := &c.replicas[r]
			switch {
			case !k.known:
				return c.askWord(b, r)
			case !k.sure:
				return c.askBuffer(b, r)
			default:
				b.CompareSwap(c.at[r], uint64(k.word), uint64(promise(c.promise, k.word.pointer())))
			}
			return nil
		},
		func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
			k, op := &c.replicas[r], b.Op(ch.First)
			switch {
			case !k.known:
				if k.meet(Word(le.Uint64(op.Buf))); k.word.round() >= c.promise {
					return quorum.Never
				}
				return quorum.Again
			case !k.sure:
				return c.dated(k, op.Buf)
			case op.Swapped():
				// since stays: the value is the one that the word named before.
				k.word, k.mine = Word(op.Value), true
				return quorum.Done
			}
			k.meet(Word(op.Result))
			return quorum.Never
		})
}

// dated notes the round in which a replica accepted the value in its buffer, of which p is a
// copy. If the buffer was reused, p may be of any round, or torn. Then the word has changed, too,
// and its CAS fails.
func (c *Client) dated(k *replica, p []byte) quorum.Verdict {
	v, ok := whole(p, c.bucket)
	if !ok {
		return quorum.Never
	}
	k.since, k.sure = roundOf(v), true
	if k.since > c.base.round {
		c.base.decode(v)
	}
	return quorum.Again
}

// accept brings next to a majority. Only the client with a majority's promises of a round accepts
// in that round. So it may also accept at a replica that has promised the round to another
// client's CAS, or that has not promised it.
//
// It notes whether an accept may have taken effect: some replica has accepted, or its chain is in
// flight or has failed. first becomes the lowest number of such an accept: the next attempt need
// not see all that this one was based on.
//
// What a crash here leaves: next at some replicas, buffers that no word names, and the buffers that
// words named before.
func (c *Client) accept(ch *change, final bool) error {
	c.next.round, c.offered = c.promise, 0
	err := c.briefly(stepAccept, c.all(), c.majority(), c.offer, c.took)
	maybe := c.owned()
	c.unresolved.Keep(&c.quorum, c.bucket)
	for r := range c.Replicas {
		maybe = maybe || c.replicas[r].word.accepted() && c.replicas[r].mine
	}
	if maybe && !final {
		if !ch.sent || c.next.changes < ch.first {
			ch.first = c.next.changes
		}
		ch.sent = true
	}
	return err
}

// offer asks one replica to accept: in one chain it writes a buffer, CASes the word to it, and at
// the first replica writes in place. If the word is not known, or is above the round, it is read
// instead.
func (c *Client) offer(b *rdma.Batch, r int) error {
	k := &c.replicas[r]
	if b.Len() == 0 { // a new batch
		c.encoded = nil
	}
	if !k.known || c.above(k) {
		return c.askWord(b, r)
	}
	at, err := c.spare(r)
	if err != nil {
		return err
	}
	if c.encoded == nil { // one batch, one copy
		c.encoded = c.next.encode(b.Alloc(BufferBytes), c.bucket)
	}
	b.Write(at, c.encoded)
	b.CompareSwap(c.at[r], uint64(k.word), uint64(accept(c.promise, c.spares[r])))
	if r == 0 {
		b.Write(c.at[r].Add(wordBytes), c.encoded)
	}
	c.offered |= quorum.Only(r)
	return nil
}

// above reports whether a replica's word is above each accept of this attempt.
func (c *Client) above(k *replica) bool { return k.word >= accept(c.promise, 0) }

// took examines the answer of one replica. If the CAS succeeded, the operation owns the buffer that
// the word named before; otherwise it still owns the one that it wrote.
func (c *Client) took(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
	if op := b.Op(ch.First); op.Verb == rdma.Read {
		k := &c.replicas[r]
		if k.meet(Word(le.Uint64(op.Buf))); c.above(k) {
			return quorum.Never
		}
		return quorum.Again
	}
	c.offered &^= quorum.Only(r)
	k, op := &c.replicas[r], b.Op(ch.First+1)
	if !op.Swapped() {
		k.meet(Word(op.Result))
		return quorum.Never
	}
	c.spares[r] = Word(op.Expect).pointer() // what it held before
	k.meet(Word(op.Value))
	k.mine = true
	return quorum.Done
}

// owned settles the owners of the buffers in chains without an answer: the operation does not own
// them. If the chain is in flight it is unresolved; if it failed, the buffers leak. maybe: there is
// such a chain, so the accept may have taken effect.
func (c *Client) owned() (maybe bool) {
	for r := range c.Replicas {
		m := quorum.Only(r)
		if c.offered&m == 0 || c.quorum.Unsent()&m != 0 {
			continue
		}
		maybe = true
		c.spares[r] = 0
		if c.quorum.Flying()&m == 0 {
			c.stats.Leaked++
		}
	}
	return maybe
}

// settleUnresolved gives back the buffers of accepts that are complete by now, and forgets those
// of an earlier term.
func (c *Client) settleUnresolved() {
	c.follow()
	if c.unresolved.Len() > 0 {
		c.unresolved.Settle(c.landed)
	}
}

// landed settles the owners of the buffers of a complete accept: the client owns the buffer that
// the CAS replaced, or the one that it wrote if the CAS failed. If a verb failed, both leak. A
// chain of one verb is a READ.
func (c *Client) landed(bucket uint64, b *rdma.Batch, ch quorum.Chain) {
	if ch.End-ch.First < 2 {
		return
	}
	write, cas := b.Op(ch.First), b.Op(ch.First+1)
	switch {
	case write.Err != nil || cas.Err != nil:
		c.stats.Leaked++
	case cas.Swapped():
		c.alloc.Give(cas.Addr.Node(), bucket, Word(cas.Expect).pointer())
	default:
		c.alloc.Give(cas.Addr.Node(), bucket, Word(cas.Value).pointer())
	}
}
