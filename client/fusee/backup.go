package fusee

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// A pair is read from its first replica, or from another one while the first one's node does not
// answer: a SEARCH need not wait until the dead node is out of the view.
//
// Each replica of a pair is as good as the first, because of an order that every write keeps:
//   - A writer posts the CASes of a slot (trip 2) when its object has landed on all replicas of
//     the view that it joined (trip 1: draft.write, of which all verbs have succeeded). So where
//     any replica of a slot holds a word, the object of that word is complete on all replicas of
//     its region. A crash between the two trips leaves objects that no slot names.
//   - A view drops a replica when its node is gone, and adds one when Restore has copied all that
//     the others have. The view is busy meanwhile, so no client writes, and a crash of the master
//     leaves a spare that is in no view. A reader of an older view that knows fewer replicas
//     knows none that is incomplete; verbs of an older epoch are fenced off.
//   - The object stays as it is while a slot names it. What frees it writes its mark, which
//     readers do not use. When it is used again the slot has changed. As on the first replica,
//     pairOf finds that by the checksum and the incarnation, which is no longer the slot's.
//
// For slots this does not hold. A backup holds words that have not won their round. It also holds
// words that have won while the primary still holds the old one, which other clients may go on
// reading. So a backup's word is an answer only when the primary's node is out of the view, and
// all replicas agree (getMeanwhile). A SEARCH of a slot of which the primary does not answer
// waits for the master's fence, up to its timeout.

const (
	// silentShare is the part of an operation's time for which a READ of a pair may be unanswered
	// before the next replica is asked.
	silentShare = 4
	// shunned is for how long a node that did not answer is asked last, in units of the time for
	// which it kept an operation waiting: operations are slower by a hundredth at most.
	shunned = 100
	// leastShunned is for how long at least. Most nodes that are down are known to the fabric,
	// and cost no wait.
	leastShunned = 10 * time.Millisecond
)

// errSilent is wrapped when a READ of a pair was given up. Its node counts as slow from then on.
// It wraps rdma.ErrNodeDown, so the operation may be repeated.
var errSilent = fmt.Errorf("it is silent: %w", rdma.ErrNodeDown)

// pairAt returns where an object is read: at its first replica of which the node is not known to
// be slow. When all are slow it is the first.
func (c *Client) pairAt(unit uint64) rdma.Addr {
	at := c.space.UnitAt(unit, 0)
	if !c.slow.Any() || !c.slow.Has(at.Node(), c.ep) {
		return at
	}
	for r := 1; r < c.space.CopiesOf(unit); r++ {
		if other := c.space.UnitAt(unit, r); !c.slow.Has(other.Node(), c.ep) {
			c.stats.Backups++
			return other
		}
	}
	return at
}

// doPairs is do for a batch of READs, of which those from first on are of pairs. It gives up a
// pair that is not read within a share of the operation's time, when everything before it is, and
// its node was not slow before. The error wraps errSilent then. What is still in flight ends in
// the batch's own buffers.
func (c *Client) doPairs(step rdma.Step, b *rdma.Batch, first int) error {
	if c.DataReplicas == 1 {
		return c.do(step, b)
	}
	if err := c.ep.Post(b.As(step)); err != nil {
		return err
	}
	patience := c.opt.Timeout / silentShare
	err := c.ep.Wait(b, rdma.All, patience)
	if errors.Is(err, rdma.ErrTimeout) {
		if silent := c.silent(b, first, patience); silent != nil {
			return silent
		}
		err = c.ep.Wait(b, rdma.All, c.opt.Timeout-patience)
	}
	if err != nil {
		return err
	}
	return b.Err()
}

// silent marks the node of the first pair that is not read yet as slow, and returns an error of
// it. It returns nil when the batch waits for something else, or for nodes that are known to be
// slow.
func (c *Client) silent(b *rdma.Batch, first int, waited time.Duration) error {
	var silent *rdma.Op
	for i := range b.Len() {
		if b.Completed(i) {
			continue
		}
		if op := b.Op(i); i < first || c.slow.Has(op.Addr.Node(), c.ep) {
			return nil
		} else if silent == nil {
			silent = op
		}
	}
	if silent == nil {
		return nil
	}
	c.slow.Mark(silent.Addr.Node(), c.ep.Now()+shunned*waited)
	return &rdma.OpError{Verb: silent.Verb, Addr: silent.Addr, Len: silent.Len(), Err: errSilent}
}

// elsewhere reports whether a SEARCH that has failed may succeed at once on another replica: the
// node that failed it is asked last from now on, and was not before. began is when the SEARCH
// began, if that is known: the node is asked last for so many times as long.
func (c *Client) elsewhere(err error, began time.Duration) bool {
	n, ok := rdma.FailedNode(err)
	switch {
	case errors.Is(err, errSilent):
		return true
	case !ok || !interrupted(err) || errors.Is(err, rdma.ErrStale) || c.slow.Has(n, c.ep):
		return false
	}
	now, rest := c.ep.Now(), leastShunned
	if began != unset {
		rest = max(rest, shunned*(now-began))
	}
	c.slow.Mark(n, now+rest)
	return true
}
