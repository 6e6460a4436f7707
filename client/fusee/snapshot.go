package fusee

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// rule is what Algorithm 2 returns: by which rule a writer has won its round, or that it has not.
type rule uint8

const (
	lose   rule = iota // another writer wins the round
	rule1              // all backups took our word
	rule2              // a majority did
	rule3              // no majority, and ours is the least word
	finish             // the round is over: the primary changed
)

// write is one WRITE of SNAPSHOT (Algorithm 1): it moves a slot from old, read from the primary,
// to new.
//
// Old and new are unlike any other word that the slot may hold while any client remembers one:
// tags differ, and a quarantine is longer than an operation lasts. So a CAS that lands late finds
// another word and fails. This keeps three and more replicas from being undecided by ABA, and
// makes "changed from old" mean that the round is over.
//
// What a crash leaves:
//   - Before propose: nothing in the slot, and an object that no slot names.
//   - After propose: backups that hold new or other writers' words while the primary holds old.
//     Later writers of the slot wait until recovery (recover.go).
//   - After the primary's CAS: nothing.
type write struct {
	slot race.Slot
	// new is pending while an INSERT has not looked for duplicates. It is the word that this
	// client last proposed or wrote: the final word or a tombstone takes its place.
	old, new race.Word
	obj      *object
	// inc is the incarnation of what old points at; 0 when it points at nothing.
	inc uint32
	// key is set for an INSERT: its duplicates are looked for. The caller's.
	key []byte
	// hash is that of the key, whatever the operation.
	hash uint64
	// began is a time before old was read. The write is proposed at most a timeout after it.
	began time.Duration
	// list is, by backup, the word to which it was first changed in this round.
	list [maxReplicas]race.Word
	// visible: some replica may hold new. The object must not be used again before the round is
	// over.
	visible bool
	// epoch is that of the view in which the write was proposed.
	epoch uint64

	// What follows is for resolve, when the view changes in the midst of the write.

	// decided: all backups hold new, which is final. No other writer can win the round.
	decided bool
	// decidedAt is the slot, and holders are its replicas, when that was decided: a split may
	// have moved the pair since.
	decidedAt race.Slot
	holders   []node.Replica
	// pending is the word that an INSERT proposed.
	pending race.Word
	// finalizing: the final word of the INSERT may be on some replica.
	finalizing bool
	// yielded: new is a tombstone, and the INSERT gives way.
	yielded bool
}

// verdict is how a write ended.
type verdict uint8

const (
	won       verdict = iota + 1
	lost              // another writer's word replaced old; the round is over
	overtaken         // it won or lost, which is unknown, and its slot has another word since
	gaveWay           // an INSERT found its key elsewhere and left a tombstone
	undecided         // the round may still go either way
)

// write runs w: propose, then commit or wait for the winner. With an undecided verdict the error
// says why, and wraps client.ErrUncertain. With any other the error is nil, unless no replica
// holds the word: then the object may be used again at once.
//
// It proposes nothing when old was read more than a timeout ago: the word may come around by
// then, and the CAS would replace another pair (see quarantine).
func (c *Client) write(w *write) (verdict, error) {
	if now := c.ep.Now(); now > c.until() || now > w.began+c.opt.Timeout {
		return lost, errTimeout("write a slot")
	}
	w.epoch = c.view.Epoch
	if w.key != nil {
		w.new = w.new.Pending()
		w.pending = w.new
	}
	if c.index.Copies(w.slot) == 1 {
		return c.writeSingle(w)
	}
	var win rule
	var err error
	if c.Sequential {
		win, err = c.proposeInTurn(w)
	} else {
		win, err = c.propose(w)
	}
	if err != nil {
		return undecided, uncertain("write a slot", err)
	}
	switch win {
	case lose:
		c.stats.Rules[0]++
		return c.awaitWinner(w)
	case finish:
		c.stats.Rules[0]++
		return lost, nil
	}
	c.stats.Rules[win]++
	return c.commit(w)
}

// propose CASes all backups from old to new and evaluates the rules (Algorithm 1, lines 6 to 16).
// Under rules 2 and 3 it then gives the winner's word to the other backups. When it fails the
// word may be on any backup, and visible stays set.
func (c *Client) propose(w *write) (rule, error) {
	n := c.index.Copies(w.slot) - 1
	// From here on the word may be on backups.
	w.visible = true
	if err := c.casBackups(w, w.list[:n]); err != nil {
		return lose, err
	}
	// All CASes are complete: the word is where they found old.
	w.visible = false
	for i, v := range w.list[:n] {
		if v == w.old { // Algorithm 1, line 9
			w.list[i] = w.new
			w.visible = true
		}
	}
	win, err := c.evaluate(w, w.list[:n])
	if err != nil || win == lose || win == finish || win == rule1 {
		return win, err
	}
	return win, c.fixBackups(stepFixBackups, w, w.list[:n])
}

// casBackups CASes all backups from old to new, in one trip, and stores what they held before. An
// error leaves before as it was: some of the CASes may have landed.
func (c *Client) casBackups(w *write, before []race.Word) error {
	b := c.ep.Batch()
	defer b.Release()
	for i := range before {
		b.CompareSwap(c.index.Address(w.slot, 1+i), uint64(w.old), uint64(w.new))
	}
	if err := c.do(stepCASBackups, b); err != nil {
		return err
	}
	for i := range before {
		before[i] = race.Word(b.Op(i).Result)
	}
	return nil
}

// evaluate is Algorithm 2. The list holds what each backup was first changed to in this round.
// Where a CAS was late, it holds what a later round has brought.
//
// Before rule 3 it reads the primary: when that has changed the round is over, and the list may
// be of words of two rounds.
func (c *Client) evaluate(w *write, list []race.Word) (rule, error) {
	// The words of one round are either all pending, of INSERTs, or none is. A word of the other
	// kind came after the round was decided: it is an INSERT's second word, or of a later round.
	// Ours has not won then.
	if slices.ContainsFunc(list, func(v race.Word) bool { return v.IsPending() != w.new.IsPending() }) {
		return lose, nil
	}
	winner, by := roundWinner(list) // a later round's words lack a majority, and have changed the primary
	if by == rule3 {
		if !w.visible {
			return lose, nil
		}
		now, err := c.readSlot(stepReadPrimary, w.slot, 0)
		switch {
		case err != nil:
			return lose, err
		case now != w.old:
			return finish, nil
		}
	}
	if winner == w.new {
		return by, nil
	}
	return lose, nil
}

// roundWinner returns the word that wins a round, and the rule of Algorithm 2 by which it does.
// The list has the words to which the backups were first changed in the round. Rule 3 holds only
// as long as the primary has its old word.
//
// In a round of INSERTs a word that is not pending is the final word or the tombstone of the
// round's winner. The list is no longer the one by which it won then. Only recovery gets here
// with such a list: evaluate returns before.
func roundWinner(list []race.Word) (race.Word, rule) {
	second := slices.IndexFunc(list, func(w race.Word) bool { return !w.IsPending() })
	if second >= 0 && slices.ContainsFunc(list, race.Word.IsPending) {
		return list[second], rule1
	}
	switch majority, count := mostFrequent(list); {
	case count == len(list):
		return majority, rule1
	case 2*count > len(list):
		return majority, rule2
	}
	return slices.Min(list), rule3
}

// mostFrequent returns the word that is most often in the list, and how often. Of several it
// takes the first.
func mostFrequent(list []race.Word) (most race.Word, count int) {
	for _, v := range list {
		n := 0
		for _, u := range list {
			if u == v {
				n++
			}
		}
		if n > count {
			most, count = v, n
		}
	}
	return most, count
}

// fixBackups is the winner's second broadcast under rules 2 and 3 (Algorithm 1, line 14): backups
// that another writer changed get the winner's word. No other writer changes them in this round,
// so a CAS that fails is damage. A crash leaves some backups with losers' words; the rules still
// choose the same winner for recovery, since backups only change to the winner's word.
func (c *Client) fixBackups(step rdma.Step, w *write, list []race.Word) error {
	b := c.ep.Batch()
	defer b.Release()
	for i, v := range list {
		if v != w.new {
			b.CompareSwap(c.index.Address(w.slot, 1+i), uint64(v), uint64(w.new))
		}
	}
	if err := c.do(step, b); err != nil {
		return err
	}
	for i := range b.Len() {
		if op := b.Op(i); !op.Swapped() {
			return fmt.Errorf("backup slot %d at %s holds %v, not the loser's %v: %w", w.slot, op.Addr,
				race.Word(op.Result), race.Word(op.Expect), client.ErrDamaged)
		}
	}
	return nil
}

// proposeInTurn is FUSEE-CR: the backups are CASed one after the other, and the first one
// decides. A writer that has changed it finds old on all others, so anything else there is
// damage. A crash leaves the word on the first backups in the order, and recovery brings it to
// the others.
func (c *Client) proposeInTurn(w *write) (rule, error) {
	for r := 1; r < c.index.Copies(w.slot); r++ {
		w.visible = true
		before, err := c.swap(stepCASBackups, c.index.Address(w.slot, r), uint64(w.old), uint64(w.new))
		switch {
		case err != nil:
			return lose, err
		case race.Word(before) == w.old:
		case r == 1:
			w.visible = false
			return lose, nil
		default:
			return lose, fmt.Errorf("replica %d of slot %d holds %v behind the first backup's %v: %w",
				r, w.slot, race.Word(before), w.new, client.ErrDamaged)
		}
	}
	return rule1, nil
}

// commit ends a won round. It writes the log's old value, then changes the primary. An INSERT
// looks for duplicates in the trip that writes the log, and makes its word final on the backups
// in another.
//
// What each step relies on:
//   - The log is complete before the primary changes. So recovery knows what a committed write
//     replaced (FUSEE 4.5).
//   - All backups hold an INSERT's final word before the primary does. So when the primary's node
//     dies, a word that is still pending was not committed.
//
// What a crash leaves: the word on all backups, and the old one on the primary. Recovery
// completes the round. Where no backup has the final word of an INSERT yet, it lets the INSERT
// give way.
func (c *Client) commit(w *write) (verdict, error) {
	if w.key == nil {
		c.decide(w)
	}
	b := c.ep.Batch()
	c.logOld(b, w)
	var view race.View
	if w.key != nil {
		view = c.index.Read(b, c.index.Locate(w.hash), 1)
	}
	err := c.do(stepCommitLog, b)
	alone := true
	if err == nil && w.key != nil {
		alone, err = c.alone(w, &view)
	}
	b.Release()
	if err != nil {
		return undecided, uncertain("commit a slot", err)
	}
	if !alone {
		return c.giveWay(w)
	}
	if w.key != nil {
		w.finalizing = true
		if err := c.changeBackups(stepFinalizeBackups, w, w.new.Final()); err != nil {
			return undecided, uncertain("commit a slot", err)
		}
		c.decide(w)
	}
	if err := c.casPrimary(stepCASPrimary, w, w.old, w.new); err != nil {
		return undecided, uncertain("commit a slot", err)
	}
	return won, nil
}

// decide remembers that the round is won whatever happens, and on which replicas that can be
// seen.
func (c *Client) decide(w *write) {
	w.decided, w.decidedAt, w.holders = true, w.slot, c.index.PlaceOf(w.slot)
}

// changeBackups replaces w's word on all backups. Only the round's winner may: all of them hold
// its word.
func (c *Client) changeBackups(step rdma.Step, w *write, to race.Word) error {
	list := w.list[:c.index.Copies(w.slot)-1]
	for i := range list {
		list[i] = w.new
	}
	w.new = to
	return c.fixBackups(step, w, list)
}

// casPrimary changes the primary slot. Only the round's winner may, so that a word other than old
// there is damage.
func (c *Client) casPrimary(step rdma.Step, w *write, old, new race.Word) error {
	at := c.index.Address(w.slot, 0)
	found, err := c.swap(step, at, uint64(old), uint64(new))
	if err == nil && race.Word(found) != old {
		err = fmt.Errorf("primary slot %d at %s holds %v, not the winner's old %v: %w",
			w.slot, at, race.Word(found), old, client.ErrDamaged)
	}
	return err
}

// logOld adds the commit of an object's log entry: the old value, its object's incarnation and
// their CRC, on every replica (FUSEE 4.5). The batch owns the buffer.
func (c *Client) logOld(b *rdma.Batch, w *write) {
	p := b.Alloc(commitBytes)
	putLog(p, logged(w.old), w.inc)
	for r := range c.space.CopiesOf(w.obj.unit) {
		b.Write(c.space.UnitAt(w.obj.unit, r).Add(uint64(w.obj.oldAt)), p)
	}
}

// awaitWinner waits until the round's winner has changed the primary (Algorithm 1, lines 17 to
// 21). The verdict is lost then. At the deadline it returns an error that wraps
// client.ErrUncertain. The verdict is undecided then, unless no replica holds the write's word.
func (c *Client) awaitWinner(w *write) (verdict, error) {
	for r := c.pace; ; {
		now, err := c.readSlot(stepAwaitWinner, w.slot, 0)
		if err != nil {
			if err = c.blip(err); err == nil {
				r.Tries++ // it has waited
				continue
			}
			return undecided, uncertain("wait for the winner of a slot", err)
		}
		if now != w.old {
			return lost, nil
		}
		if !r.Again() {
			err := uncertain("write a slot", errTimeout("wait for the winner"))
			if !w.visible {
				return lost, err // no replica holds our word: the object may be used again
			}
			return undecided, err
		}
	}
}

// readSlot reads one replica of a slot; 0 is the primary.
func (c *Client) readSlot(step rdma.Step, s race.Slot, replica int) (race.Word, error) {
	w, err := rdma.ReadWord(c.ep, step, c.index.Address(s, replica), c.opt.Timeout)
	return race.Word(w), err
}

// swap CASes one word, and returns what it held. What it returns means nothing when there is an
// error.
func (c *Client) swap(step rdma.Step, a rdma.Addr, expect, value uint64) (found uint64, err error) {
	b := c.ep.Batch()
	defer b.Release()
	op := b.CompareSwap(a, expect, value)
	err = c.do(step, b)
	return op.Result, err
}
