package directory

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Change replaces the entries of the bucket in which a hash lies, all at once, by what decide makes
// of them. It gets all of the bucket's, whatever their hashes, and may change them where they are,
// append to them, and return any part of them. It is called again whenever another client was
// faster, so that only its last call counts, and it may do other work, which is in flight with the
// first step when it was posted before. By its id a client knows its change again when others have
// finished it: the lower 16 bits are the client's number, and the rest is higher than in its
// changes before.
//
// An error of decide ends the change, if the entries that it saw were chosen: then it has had no
// effect. Others wrap ErrBucketFull when the bucket has more than its Slots, and client.ErrFull
// when there is no buffer; rdma.ErrNodeDown and rdma.ErrTimeout as Lookup's; and besides
// client.ErrUncertain, when the change may have taken effect, or still may.
func (c *Client) Change(hash, id uint64, decide func(bucket []Entry) ([]Entry, error)) error {
	c.begin(c.BucketOf(hash))
	ch := change{id: id, decide: decide}
	err := c.run(&ch)
	if err != nil && ch.refused == nil {
		err = fmt.Errorf("change bucket %d: %w", c.bucket, err)
	}
	return err
}

// change is what an operation is about. The zero one changes nothing, but settles what others left
// half done.
type change struct {
	id      uint64
	decide  func(bucket []Entry) ([]Entry, error)
	refused error
	over    bool   // its outcome is known
	sent    bool   // an accept of it may have taken effect
	first   uint64 // lowest number of the change that this would have been, at such accepts
}

// run makes attempts at a change until one tells its outcome. One that a fence cuts off begins
// again in the next epoch.
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

func (ch *change) failed(err error) error {
	if ch.sent {
		return uncertain(err)
	}
	return err
}

// loose reports whether a change that is refused may still take effect: others may go on from what
// an attempt of it sent, until a higher round is accepted.
func (ch *change) loose() bool { return ch.sent && ch.refused != nil }

// polite is how often an operation finds a bucket as another client left it before it takes that
// one for dead; and impolite how often it lets others go first.
const polite, impolite = 2, 8

// wait reports whether another client seems to be at work at the bucket. Clients that cut each
// other off would not end.
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
	return busy && p.idle <= polite && p.Tries < impolite
}

// attempt runs the two phases of Paxos. done: err is the change's outcome. Otherwise it is worth
// another attempt, unless err is one that does not pass.
func (c *Client) attempt(ch *change, settled bool) (done bool, err error) {
	final := false
	c.base = value{}
	if c.has {
		c.rebase()
	}
	if settled {
		// Behind what was sent nothing is settled but what is above it: a majority has promised that
		// round.
		if final, ch.refused = c.decide(ch); final {
			return true, ch.refused
		}
	}
	decided := c.base.round
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
	if err != nil && (!final || ch.loose() || n < c.majority()) { // what a majority had accepted when it promised was chosen
		return false, err
	}
	if ch.decide == nil {
		c.found, c.has = c.next.encode(c.saved[:], c.bucket), true
	}
	return true, ch.refused
}

// errLost is wrapped when another client was faster.
var errLost = fmt.Errorf("somebody else is at the bucket: %w", quorum.ErrRefused)

// rebase makes what was found the base.
func (c *Client) rebase() {
	c.base = value{}
	if c.found != nil {
		c.base.decode(c.found)
	}
}

// errForgotten is wrapped when so many have changed a bucket since an attempt that it is not known
// whether one finished it.
var errForgotten = fmt.Errorf("%d other clients changed the bucket since", remembered)

// decide makes next of base. final: there is nothing left to change, be it done or refused.
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
		err = fmt.Errorf("%d entries in a bucket (at most %d): %w", len(next), Slots, ErrBucketFull)
	}
	if err != nil {
		c.next = c.base
		return true, err
	}
	c.next.n = copy(c.next.entries[:], next)
	c.next.add(ch.id)
	return false, nil
}

// reserve takes buffers for the replicas that were read before other clients are kept from their
// work: without them a bucket would be left promised, and to no client. A node that does not answer
// is another replica's business.
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

// spare returns the address of the operation's buffer at a replica.
func (c *Client) spare(r int) (rdma.Addr, error) {
	node := c.at[r].Node()
	if c.spares[r] != 0 {
		return c.alloc.Resolve(node, c.bucket, c.spares[r]), nil
	}
	pointer, at, err := c.alloc.Allocate(node, c.bucket)
	c.spares[r] = pointer
	return at, err
}

func (c *Client) giveSpares() {
	c.follow()
	for r := range c.Replicas {
		if c.spares[r] != 0 {
			c.alloc.Give(c.at[r].Node(), c.bucket, c.spares[r])
			c.spares[r] = 0
		}
	}
}

// prepare has a majority promise a round above all that is known. A replica's buffer is read before
// its word is CASed, so that it was its value's when the promise was made.
func (c *Client) prepare() error {
	c.promise = 0
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
				k.word, k.mine = Word(op.Value), true
				return quorum.Done
			}
			k.meet(Word(op.Result))
			return quorum.Never
		})
}

// dated notes since when a replica has the value in its buffer, which is p. One that was used again
// may tell anything, if it is whole at all: then the word has changed, and its CAS fails.
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

// accept brings next to a majority. The client with a majority's promises of a round alone accepts
// in it, also where the promise was to another client's CAS, or to none of that round.
//
// What a crash here leaves: next at some replicas, buffers that no word names, and those that words
// named before.
func (c *Client) accept(ch *change, final bool) error {
	c.next.round, c.offered = c.promise, 0
	err := c.briefly(stepAccept, c.all(), c.majority(), c.offer, c.took)
	maybe := c.owned()
	c.unresolved.Keep(&c.quorum, c.bucket)
	for r := range c.Replicas {
		maybe = maybe || c.replicas[r].word.accepted() && c.replicas[r].mine
	}
	if maybe && !final {
		if !ch.sent || c.next.changes < ch.first { // not all that an attempt was based on need be there at the next
			ch.first = c.next.changes
		}
		ch.sent = true
	}
	return err
}

// offer asks one replica to accept.
func (c *Client) offer(b *rdma.Batch, r int) error {
	k := &c.replicas[r]
	if b.Len() == 0 { // a new batch, though it may have been one of this step's before
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

// above reports whether a replica has promised or accepted what is above an accept of this attempt.
func (c *Client) above(k *replica) bool { return k.word >= accept(c.promise, 0) }

// took looks at what one replica answered. Whose CAS succeeds takes the buffer that the word named.
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

// owned settles the owners of the buffers that were offered: the owner is unknown for a chain in
// flight, and for one to a node that failed.
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

// settleUnresolved gives back the buffers of accepts that are complete by now.
func (c *Client) settleUnresolved() {
	c.follow()
	if c.unresolved.Len() > 0 {
		c.unresolved.Settle(c.landed)
	}
}

func (c *Client) landed(bucket uint64, b *rdma.Batch, ch quorum.Chain) {
	if ch.End-ch.First < 2 {
		return
	}
	write, cas := b.Op(ch.First), b.Op(ch.First+1)
	switch {
	case write.Err != nil || cas.Err != nil:
		c.stats.Leaked++
		return
	case cas.Swapped():
		if pointer := Word(cas.Expect).pointer(); pointer != 0 {
			c.alloc.Give(cas.Addr.Node(), bucket, pointer)
		}
	default:
		c.alloc.Give(cas.Addr.Node(), bucket, Word(cas.Value).pointer())
	}
}
