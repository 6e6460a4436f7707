package fusee

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Where everything lies follows from the pool's view. An item's replicas are its original ones on
// nodes that are not gone, in their order, and then those on stand-ins, in the order in which
// they came. So the first replica, the primary, changes only when its node died.
//
// What a client relies on:
//   - Masters change slots and tables only in a busy view, and only when no verb of an earlier
//     epoch can land any more. So a client that has joined a busy view only reads; it writes
//     again when the view is idle.
//   - In an idle view all replicas of a slot were equal when it became idle. A write that the
//     change cut off finds its outcome there: see resolve.
//   - A primary that is read was never anything but the primary. So readers need not know the
//     view until a node fails them.

// placement is where items lay when the pool was made: by item, its replicas, the primary first.
type placement struct {
	index, space [][]node.Replica
}

// applyView places everything as a view says. It makes new lists: a list that a caller kept does
// not change. There is always a holder, so that reads of a pool without any node fail with that
// node's error.
func (l *layout) applyView(v *rdma.View) {
	l.resize(v, len(l.index.Place))
	l.space.Place, l.regions = kit.Place(v, l.original.space)
	if l.holders = kit.Holders(v, l.nodes-l.Spares); len(l.holders) == 0 {
		l.holders = []int{0}
	}
}

// isLost reports whether an item has no replica left. The view then places it on a node that is
// gone, so that the list is never empty.
func (c *Client) isLost(place []node.Replica) bool {
	n := place[0].Node
	return n < len(c.view.Members) && c.view.Members[n].Gone
}

// applyView places everything as a view says that the worker joins, and notes for resync what
// changed. It posts nothing. Until resync has run, own and the slabs are as they were in the old
// view.
func (c *Client) applyView(v *rdma.View) {
	c.sized = c.sized && v.Epoch == c.view.Epoch && !v.Busy
	if v.Epoch != c.view.Epoch {
		c.asked = 0 // the node that was told may be gone
	}
	if !slices.Equal(v.Members, c.view.Members) {
		before := c.index.Place
		c.oldSpace = append(c.oldSpace, c.space.Place)
		c.layout.applyView(v)
		c.slow.Clear()
		// A subtable with a new primary may have replicas that differ until the view is idle.
		for sub := range c.index.Place {
			if c.index.Place[sub][0].Node != before[sub][0].Node {
				c.promoted[sub] = true
			}
		}
	}
	c.behind = c.behind || v.Epoch != c.view.Epoch || v.Busy
	if !v.Busy {
		clear(c.promoted)
	}
}

// interrupted reports whether an operation that failed so may succeed in the next view, and has
// nothing in flight: its view is stale, or a node is down. A wait that timed out has verbs in
// flight.
func interrupted(err error) bool {
	return (errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrNodeDown)) && !errors.Is(err, rdma.ErrTimeout)
}

// settled waits for an idle view later than the one in which an operation was cut off, and for
// resync to catch up with it, up to waitLimit. It returns true then: no verb of the operation can
// land any more, and the master has made all replicas equal.
//
// It returns false without an error when no such view comes, because the failed node was
// unreachable for this client alone and answers again. Then nothing is known about the verbs that
// failed, but none of them is in flight. The error wraps errDeadline when the time is over, and
// cause.
func (c *Client) settled(cause error) (bool, error) {
	c.stats.Mended++
	limit, epoch := c.waitLimit(), c.view.Epoch
	for r := c.retryUntil(kit.WhileBusy, limit); ; {
		unknown := c.view.Join()
		if unknown != nil && !errors.Is(unknown, rdma.ErrUnreachable) {
			return false, unknown
		}
		switch {
		case unknown != nil: // the nodes that keep the view may be back in time
		case c.view.Busy:
		case c.view.Epoch > epoch || errors.Is(cause, rdma.ErrStale):
			// No verb of the old epoch can land, and all replicas are equal.
			err := c.catchUp()
			if err == nil || !interrupted(err) {
				return err == nil, err
			}
			// Another view came meanwhile: wait for an idle one after it.
			epoch, cause = c.view.Epoch, err
		case c.isGone(cause):
			return false, fmt.Errorf("the last replica is gone (epoch %d): %w", c.view.Epoch, cause)
		case c.answers(cause):
			return false, nil
		}
		if !r.Again() {
			if unknown != nil {
				cause = fmt.Errorf("%w: %w", cause, unknown)
			}
			return false, fmt.Errorf("wait for the pool to be mended (epoch %d): %w: %w",
				c.view.Epoch, errDeadline, cause)
		}
	}
}

// catchUp brings this client's memory up to the view that it has joined, which is idle: the size
// of the index, and the blocks. A region of which the primary has moved has lost its hints. When
// it fails behind stays set, and the next attempt begins again.
func (c *Client) catchUp() error {
	if err := c.learnSize(); err != nil {
		return fmt.Errorf("rejoin the pool: %w", err)
	}
	old := c.oldSpace
	err := c.resync(func(region int) bool {
		now := c.space.Place[region][0].Node
		return slices.ContainsFunc(old, func(place [][]node.Replica) bool { return place[region][0].Node != now })
	})
	if err != nil {
		return fmt.Errorf("rejoin the pool: %w", err)
	}
	c.behind = false
	return nil
}

// keepUp lets a client write only in an idle view, to which its memory has caught up. Then it
// ends the rounds of its unresolved writes, since the next write may meet them.
func (c *Client) keepUp() error {
	if c.view.Busy || c.behind {
		if _, err := c.settled(rdma.ErrStale); err != nil {
			return err
		}
	}
	c.endRounds()
	return nil
}

// resolve finds out how a write ended that a change of the view cut off. It relies on the master:
// in the next idle view all replicas of the slot are equal. When resolve itself is cut off, it
// waits again, up to the operation's deadline. An undecided verdict comes with an error that
// wraps client.ErrUncertain.
func (c *Client) resolve(w *write, op opcode, cause error) (verdict, error) {
	for r := c.pace; ; {
		v, cut, err := c.resolveOnce(w, op, cause)
		if !cut || !interrupted(err) || !r.Again() {
			return v, err
		}
		cause = err
	}
}

// resolveOnce is resolve within one view. With cut set it failed before it knew the outcome, and
// may be tried in the next view.
func (c *Client) resolveOnce(w *write, op opcode, cause error) (v verdict, cut bool, err error) {
	ok, err := c.settled(cause)
	if err != nil {
		return undecided, false, cause
	}
	// A split may have moved the slot.
	w.slot = c.index.Where(w.slot, w.hash)
	if !ok {
		// The node did not answer this client alone, and answers now. Nothing is in flight, and
		// no master will come. So the client ends its own round, as recovery would if the client
		// were dead: other writers may be waiting for it.
		word, ended, err := c.finishOwn(w.slot, w.obj.unit, op)
		if word == w.new {
			c.decide(w)
		}
		switch {
		case err != nil:
			return undecided, true, uncertain("write a slot", err)
		case !ended:
			v, err := c.awaitWinner(w)
			return v, err != nil, err
		case word != 0 && word == w.new && !w.yielded:
			return won, false, nil
		case word != 0 && op == opInsert:
			return gaveWay, false, nil
		}
	}
	now, err := c.readSlot(stepReadPrimary, w.slot, 0)
	if err != nil {
		return undecided, true, uncertain("write a slot", err)
	}
	switch { // an INSERT's word may be pending still where its slot has one replica
	case w.pending == 0 || now != w.pending:
	case w.finalizing && !w.yielded:
		if err := c.casPrimary(stepFinalize, w, now, w.new); err != nil {
			return undecided, true, uncertain("write a slot", err)
		}
		return won, false, nil
	default:
		v, err := c.giveWay(w)
		return v, err != nil, err
	}
	if v, err = c.outcome(w, op, now, cause); v != undecided {
		return v, false, err
	}
	switch before, known, failed := c.predecessor(now); {
	case failed != nil:
		return undecided, true, uncertain("write a slot", failed)
	case known && before == w.new:
		return won, false, nil
	case known && before == w.old:
		return lost, false, again(op)
	}
	return undecided, false, err
}

// predecessor returns the word that a slot held before the one that it holds now. It reads the
// log of the object of that word (FUSEE 4.5). The word before is not known for a tombstone, for
// an INSERT into a slot of one replica, and for a write that a master completed. A tombstone
// names no object; the logs of the others are not committed.
func (c *Client) predecessor(now race.Word) (before race.Word, known bool, err error) {
	if now.Empty() {
		return 0, false, nil
	}
	b := c.ep.Batch()
	defer b.Release()
	op, err := c.readPair(b, now.Final())
	if err == nil {
		err = c.do(stepReadPairs, b)
	}
	if err != nil {
		return 0, false, err
	}
	if f, ok := c.pairOf(now.Final(), op.Buf); ok {
		before, _, known = getLog(op.Buf[logAt(len(f.key), len(f.value))+opBytes:])
	}
	return before, known, nil
}

// outcome tells how a write ended, by what its slot holds in an idle view, in which all replicas
// are equal:
//   - The slot holds the write's word: it has won, or given way where that word is a tombstone.
//   - It holds the old word: the master took the proposal back.
//   - It holds another word, and the write had been decided on a backup that the master saw: it
//     had won, and was replaced since.
//   - Otherwise another write came after an UPDATE or instead of it. The UPDATE is ordered just
//     before that write: it counts as overtaken.
//   - Nothing completes a pending word. So an INSERT that had not made its word final has lost.
//
// Otherwise the write is undecided, and the error is the cause.
func (c *Client) outcome(w *write, op opcode, now race.Word, cause error) (verdict, error) {
	v := won
	if w.yielded {
		v = gaveWay
	}
	switch {
	case now == w.new:
		c.commitLate(w)
		return v, nil
	case now == w.old:
		return lost, again(op)
	case w.decided && c.kept(w.decidedAt, w.holders):
		return v, nil
	case op == opUpdate:
		return overtaken, nil
	case op == opInsert && w.yielded:
		return gaveWay, nil
	case op == opInsert && !w.finalizing:
		return lost, nil
	}
	return undecided, cause
}

// blip returns nil when a verb failed only because its node was out of this client's reach for a
// moment, in a view that has not changed: the same verb may be tried again. Otherwise it returns
// the error; it wraps rdma.ErrStale when the view has changed.
func (c *Client) blip(err error) error {
	if !interrupted(err) || errors.Is(err, rdma.ErrStale) {
		return err
	}
	switch changed, e := c.settled(err); {
	case e != nil:
		return err
	case changed:
		return fmt.Errorf("%w: %w", rdma.ErrStale, err)
	}
	return nil
}

// finishOwn ends this client's own round on a slot, as recovery ends a dead client's (finish). It
// returns the word that has won the round, even when it fails; 0: there was no round to end. It
// is not ended when another writer has won.
func (c *Client) finishOwn(slot race.Slot, unit uint64, op opcode) (word race.Word, ended bool, err error) {
	r := &recovery{Mender: &Mender{Client: c}, dead: c.id, ops: map[uint64]opcode{unit: op}}
	ended, err = r.finish(slot, nil)
	return r.result, ended, err
}

// commitLate commits the log of a write that a master completed, so that recovery knows what the
// write replaced. It may fail: when this client dies before it frees what it replaced, a sweep
// finds that.
func (c *Client) commitLate(w *write) {
	if !w.decided {
		b := c.ep.Batch()
		defer b.Release()
		c.logOld(b, w)
		_ = c.do(stepCommitLog, b)
	}
}

// again returns the error of a write that was undone. An UPDATE begins again when it gets
// ErrStale; DELETE and INSERT begin again at the verdict lost.
func again(op opcode) error {
	if op == opUpdate {
		return fmt.Errorf("write a slot: undone: %w", rdma.ErrStale)
	}
	return nil
}

// kept reports whether a backup that held a slot's word when the word had won is still among the
// replicas. A master that mended the slot has seen the word then.
func (c *Client) kept(s race.Slot, holders []node.Replica) bool {
	return slices.ContainsFunc(c.index.PlaceOf(s), func(now node.Replica) bool {
		return slices.ContainsFunc(holders[1:], func(backup node.Replica) bool { return backup.Node == now.Node })
	})
}

// isGone reports whether the node that failed a verb is gone from the view by which the verb was
// sent. Then what was asked for has no other replica, and waiting for a later view is no use.
func (c *Client) isGone(cause error) bool {
	n, ok := rdma.FailedNode(cause)
	return ok && n < len(c.view.Members) && c.view.Members[n].Gone
}

// answers reports whether the node that failed a verb serves after all: it reads one word of its
// header.
func (c *Client) answers(cause error) bool {
	n, ok := rdma.FailedNode(cause)
	if ok {
		_, err := c.read(stepProbe, rdma.At(n, 0), 8)
		ok = err == nil
	}
	return ok
}
