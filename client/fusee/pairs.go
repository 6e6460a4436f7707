package fusee

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// pairs reads pairs by what slots hold.
//
// Each READ brings the whole object. Its checksum and its incarnation say whether it is what the
// slot's word names (layout.PairOf). No lock is needed: an object changes only after its slot has.
type pairs struct {
	s *session.Session
	// promoted tells, by subtable, whether its primary died under the busy view that was joined.
	// Its replicas may differ until the master has mended them.
	promoted []bool
	// Nodes that did not answer a while ago. Their pairs are read on other nodes.
	slow kit.SlowNodes
}

// read adds the READ of what a live word points at, on a node that is not known to be slow.
// The word was read from the pool, so it is checked. The error wraps client.ErrDamaged when it
// points into no block.
func (p *pairs) read(b *rdma.Batch, w race.Word) (*rdma.Op, error) {
	// The whole object must lie in one block.
	if blk, off, ok := p.s.Space.BlockOf(w.Unit()); !ok || off+uint64(w.Units())*64 > p.s.Space.BlockBytes {
		return nil, fmt.Errorf("follow %v into block %v: %w", w, blk, client.ErrDamaged)
	}
	return b.Read(p.pairAt(w.Unit()), w.Units()*64), nil
}

// readOthers adds the READs of the other replicas while the first may not be right: its slots
// lost their primary, and no master has mended them yet. A word that all of them have is what the
// master will leave there (FUSEE 5.2), so it may be returned.
func (p *pairs) readOthers(b *rdma.Batch, at race.Buckets) (views []race.View) {
	if !p.s.View.Busy || !p.promoted[p.s.Index.Subtable(at[0])] {
		return nil
	}
	for r := 1; r < p.s.Index.Copies(at[0]); r++ {
		views = append(views, p.s.Index.Read(b, at, r))
	}
	return views
}

// match reads the pairs of the candidates in one trip and returns the key's. Candidates are at
// most those of two combined buckets, usually one. The pair lies in the batch that it returns,
// which the caller releases. A candidate is returned as stale if its pair is no longer its
// slot's, and the key's pair was not found: then the caller has to read the slot again.
//
// Pairs are compared by their keys, since a fingerprint has 8 bits. A pair of another key is
// neither returned nor stale.
func (p *pairs) match(key []byte, slots []candidate) (
	slot race.Slot, word race.Word, pair layout.Fields, held *rdma.Batch, stale candidate, err error) {
	b := p.s.Batch()
	// A word that points into no block ends the search: the index is damaged.
	for _, s := range slots {
		if _, err = p.read(b, s.word); err != nil {
			break
		}
	}
	if err == nil {
		err = p.do(session.StepReadPairs, b, 0)
	}
	for i := 0; err == nil && i < len(slots); i++ {
		pair, ok := p.s.PairOf(slots[i].word, b.Op(i).Buf)
		if ok && bytes.Equal(pair.Key, key) {
			return slots[i].slot, slots[i].word, pair, b, candidate{}, nil
		}
		// The first stale candidate is enough: it makes the caller read the slots again.
		if !ok && stale.word == 0 {
			stale = slots[i]
		}
	}
	b.Release()
	return 0, 0, layout.Fields{}, nil, stale, err
}

// predecessor returns the word that a slot held before the one that it holds now. It reads the
// log of the object of that word (FUSEE 4.5). The word before is not known for a tombstone, for
// an INSERT into a slot of one replica, and for a write that a master completed. A tombstone
// names no object; the logs of the others are not committed.
func (p *pairs) predecessor(now race.Word) (before race.Word, known bool, err error) {
	if now.Empty() {
		return 0, false, nil
	}
	b := p.s.Batch()
	defer b.Release()
	op, err := p.read(b, now.Final())
	if err == nil {
		err = p.s.Do(session.StepReadPairs, b)
	}
	if err != nil {
		return 0, false, err
	}
	if f, ok := p.s.PairOf(now.Final(), op.Buf); ok {
		before, _, known = layout.GetLog(op.Buf[layout.LogAt(len(f.Key), len(f.Value))+layout.OpBytes:])
	}
	return before, known, nil
}

// isKey reports whether a word's object is a pair of the given key. It is not known when the
// object was used again since: then the slot holds another word by now.
func (p *pairs) isKey(w race.Word, key []byte) (same, known bool, err error) {
	b := p.s.Batch()
	defer b.Release()
	op, err := p.read(b, w)
	if err == nil {
		err = p.s.Do(session.StepReadRival, b)
	}
	if err != nil {
		return false, false, err
	}
	pair, known := p.s.PairOf(w, op.Buf)
	return known && bytes.Equal(pair.Key, key), known, nil
}

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
//     PairOf finds that by the checksum and the incarnation, which is no longer the slot's.
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
func (p *pairs) pairAt(unit uint64) rdma.Addr {
	at := p.s.Space.UnitAt(unit, 0)
	if !p.slow.Any() || !p.slow.Has(at.Node(), p.s.Endpoint) {
		return at
	}
	for r := 1; r < p.s.Space.CopiesOf(unit); r++ {
		if other := p.s.Space.UnitAt(unit, r); !p.slow.Has(other.Node(), p.s.Endpoint) {
			p.s.Stats.Backups++
			return other
		}
	}
	return at
}

// do is Session.Do for a batch of READs, of which those from first on are of pairs. It gives up a
// pair that is not read within a share of the operation's time, when everything before it is, and
// its node was not slow before. The error wraps errSilent then. What is still in flight ends in
// the batch's own buffers.
func (p *pairs) do(step rdma.Step, b *rdma.Batch, first int) error {
	if p.s.DataReplicas == 1 {
		return p.s.Do(step, b)
	}
	if err := p.s.Post(b.As(step)); err != nil {
		return err
	}
	patience := p.s.OpTimeout / silentShare
	err := p.s.Wait(b, rdma.All, patience)
	if errors.Is(err, rdma.ErrTimeout) {
		if silent := p.silent(b, first, patience); silent != nil {
			return silent
		}
		err = p.s.Wait(b, rdma.All, p.s.OpTimeout-patience)
	}
	if err != nil {
		return err
	}
	return b.Err()
}

// silent marks the node of the first pair that is not read yet as slow, and returns an error of
// it. It returns nil when the batch waits for something else, or for nodes that are known to be
// slow.
func (p *pairs) silent(b *rdma.Batch, first int, waited time.Duration) error {
	var silent *rdma.Op
	for i := range b.Len() {
		if b.Completed(i) {
			continue
		}
		if op := b.Op(i); i < first || p.slow.Has(op.Addr.Node(), p.s.Endpoint) {
			return nil
		} else if silent == nil {
			silent = op
		}
	}
	if silent == nil {
		return nil
	}
	p.slow.Mark(silent.Addr.Node(), p.s.Now()+shunned*waited)
	return &rdma.OpError{Verb: silent.Verb, Addr: silent.Addr, Len: silent.Len(), Err: errSilent}
}

// elsewhere reports whether a SEARCH that has failed may succeed at once on another replica: the
// node that failed it is asked last from now on, and was not before. began is when the SEARCH
// began, if that is known: the node is asked last for so many times as long.
func (p *pairs) elsewhere(err error, began time.Duration) bool {
	n, ok := rdma.FailedNode(err)
	switch {
	case errors.Is(err, errSilent):
		return true
	case !ok || !session.Interrupted(err) || errors.Is(err, rdma.ErrStale) || p.slow.Has(n, p.s.Endpoint):
		return false
	}
	now, rest := p.s.Now(), leastShunned
	if began != session.Unset {
		rest = max(rest, shunned*(now-began))
	}
	p.slow.Mark(n, now+rest)
	return true
}
