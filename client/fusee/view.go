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

// Where everything lies follows from the pool's view: an item's replicas are its original ones on
// nodes that are not gone, in their order, and then those on stand-ins, in the order in which they
// came. So the first replica, the primary, changes only when its node died.
//
// What a client relies on:
//   - Masters change slots and tables only in a busy view, and only when no verb of an earlier epoch can land any more.
//     So a client that has joined a busy view only reads; it writes again when the view is idle.
//   - In an idle view all replicas of a slot were equal when it became idle. A write that was cut off by the change finds
//     there what became of it: see resolve.
//   - A primary that is read was never anything but the primary: readers need not know the view at all until a node fails
//     them.

// placement is where items lay when the pool was made.
type placement struct {
	index, space [][]node.Replica
}

// applyView places everything as a view says. Lists are made anew: a list that a caller kept does
// not change.
func (l *layout) applyView(v *rdma.View) {
	l.resize(v, len(l.index.Place))
	l.space.Place, l.regions = kit.Place(v, l.original.space)
	if l.holders = kit.Holders(v, l.nodes-l.Spares); len(l.holders) == 0 {
		l.holders = []int{0}
	}
}

// isLost reports whether the only replica of an item that is left in the list is on a node that is
// gone.
func (c *Client) isLost(place []node.Replica) bool {
	n := place[0].Node
	return n < len(c.view.Members) && c.view.Members[n].Gone
}

// applyView learns where everything lies in a view that the worker joins.
func (c *Client) applyView(v *rdma.View) {
	c.sized = c.sized && v.Epoch == c.view.Epoch && !v.Busy
	if !slices.Equal(v.Members, c.view.Members) {
		before := c.index.Place
		c.oldSpace = append(c.oldSpace, c.space.Place)
		c.layout.applyView(v)
		c.slow.Clear()
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

// interrupted reports whether a failure may end with the next view, and leaves nothing in flight.
func interrupted(err error) bool {
	return (errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrNodeDown)) && !errors.Is(err, rdma.ErrTimeout)
}

// settled waits for an idle view behind the one in which an operation was cut off, for as long as
// the operation may take. It returns false when there is none, because the failed node was
// unreachable for this client alone and answers again: then nothing is known about the verbs that
// failed.
func (c *Client) settled(cause error) (bool, error) {
	c.stats.Mended++
	limit, epoch := c.waitLimit(), c.view.Epoch
	for r := c.retryUntil(kit.WhileBusy, limit); ; {
		unknown := c.view.Join()
		if unknown != nil && !errors.Is(unknown, rdma.ErrUnreachable) {
			return false, unknown
		}
		switch {
		case unknown != nil: // the keeper of the view may be back in time
		case c.view.Busy:
		case c.view.Epoch > epoch || errors.Is(cause, rdma.ErrStale):
			err := c.catchUp()
			if err == nil || !interrupted(err) {
				return err == nil, err
			}
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
			return false, fmt.Errorf("wait for the pool to be mended (epoch %d): %w: %w", c.view.Epoch, errDeadline, cause)
		}
	}
}

// catchUp makes up for what changes of the view did to this client's memory.
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

// keepUp lets a client write only in an idle view, to which its memory has caught up.
func (c *Client) keepUp() error {
	if c.view.Busy || c.behind {
		if _, err := c.settled(rdma.ErrStale); err != nil {
			return err
		}
	}
	c.endRounds()
	return nil
}

// resolve finds out what became of a write that a change of the view cut off, now that the master
// has made all replicas of its slot equal. What cuts that off, too, is waited for again.
func (c *Client) resolve(w *write, op opcode, cause error) (verdict, error) {
	for r := c.pace; ; {
		v, cut, err := c.resolveOnce(w, op, cause)
		if !cut || !interrupted(err) || !r.Again() {
			return v, err
		}
		cause = err
	}
}

// resolveOnce is resolve within one view; cut: it failed before it knew.
func (c *Client) resolveOnce(w *write, op opcode, cause error) (v verdict, cut bool, err error) {
	ok, err := c.settled(cause)
	if err != nil {
		return undecided, false, cause
	}
	w.slot = c.index.Where(w.slot, w.hash)
	if !ok {
		// A node did not answer this client alone, and now it does. Nothing is in flight, and no master
		// will come: the client ends its own round, as a master would if it were dead. Others may be
		// waiting for it.
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
	switch { // an INSERT's slot that has one replica may be pending
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

// predecessor returns the word that a slot held before the one that it holds now, by the log of
// that one's object (FUSEE 4.5). It is not known of a tombstone, of the only replica's INSERT, and
// of a write that a master completed.
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

// outcome tells what became of a write from what its slot holds in an idle view.
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
		return overtaken, nil // before it or instead of it another write came: this one took effect just before that
	case op == opInsert && w.yielded:
		return gaveWay, nil
	case op == opInsert && !w.finalizing:
		return lost, nil // no master completes what is pending
	}
	return undecided, cause
}

// blip returns nil when a verb failed only because its node was out of this client's reach for a
// moment, in a view that has not changed: the same may be tried again. Otherwise it returns why
// not.
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

// finishOwn ends this client's own round, and returns the word that has won it, even when it fails;
// 0: there was nothing to end. It is not ended when another writer has won it.
func (c *Client) finishOwn(slot race.Slot, unit uint64, op opcode) (word race.Word, ended bool, err error) {
	r := &recovery{Mender: &Mender{Client: c}, dead: c.id, ops: map[uint64]opcode{unit: op}}
	ended, err = r.finish(slot, nil)
	return r.result, ended, err
}

// commitLate commits the log of a write that a master completed, so that recovery knows what it
// replaced. Where that is cut off, and this client dies before it frees what it replaced, a sweep
// finds it.
func (c *Client) commitLate(w *write) {
	if !w.decided {
		b := c.ep.Batch()
		defer b.Release()
		c.logOld(b, w)
		_ = c.do(stepCommitLog, b)
	}
}

// again is the error of a write that was undone, for the operations that do not begin again by
// themselves.
func again(op opcode) error {
	if op == opUpdate {
		return fmt.Errorf("write a slot: undone: %w", rdma.ErrStale)
	}
	return nil
}

// kept reports whether a backup that held a slot's word when that had won is still among the
// replicas, so that masters saw it.
func (c *Client) kept(s race.Slot, holders []node.Replica) bool {
	return slices.ContainsFunc(c.index.PlaceOf(s), func(now node.Replica) bool {
		return slices.ContainsFunc(holders[1:], func(backup node.Replica) bool { return backup.Node == now.Node })
	})
}

// isGone reports whether the node that failed a verb is gone from the view by which the verb was
// sent: then what was asked for has no other replica.
func (c *Client) isGone(cause error) bool {
	n, ok := rdma.FailedNode(cause)
	return ok && n < len(c.view.Members) && c.view.Members[n].Gone
}

// answers reports whether the node that failed a verb serves after all.
func (c *Client) answers(cause error) bool {
	n, ok := rdma.FailedNode(cause)
	if ok {
		_, err := c.read(stepProbe, rdma.At(n, 0), 8)
		ok = err == nil
	}
	return ok
}
