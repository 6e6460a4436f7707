package dtx

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

const (
	// mostTorn bounds how often an object is READ that is torn though its lock
	// stays the same. A slow READ may meet each change of it once; more often it
	// is damage.
	mostTorn = 64
	// mostAsked bounds how often a transaction is validated again because an
	// object has changed that ReadIf allows to.
	mostAsked = 8
)

// load returns an object with its data, as it was at one moment, together with
// all that the transaction has met before.
//
// One READ returns lock, version and data of the object, as of the moment at
// which its lock was read. After that load looks at what was met before. If that
// is as it was, all of it existed at that moment.
//
// If the version of the object was known before the READ was posted, both go in
// one trip. All of it existed at the moment at which the batch was posted then:
// the order of the READs in the batch does not matter.
//
// The pointer is valid until the next object is added.
func (tx *Tx) load(r Ref) (*object, error) {
	if err := tx.dead(); err != nil {
		return nil, err
	}
	if i, ok := tx.index[r]; ok {
		return &tx.objects[i], nil
	}
	if !tx.w.valid(r) {
		return nil, fmt.Errorf("%v: %w", r, ErrNoObject)
	}
	o := tx.add(r)
	known, guessed := tx.guessed(r)
	valid, err := tx.read(o, known, guessed)
	if err == nil && !valid {
		err = tx.validate((*object).met, o)
	}
	if err != nil {
		delete(tx.index, r)
		tx.objects = tx.objects[:len(tx.objects)-1]
		return nil, tx.fail(err)
	}
	return o, nil
}

// read reads an object, and waits until it is not locked. valid: all that was met
// before was looked at, too. It reads again while the READ is torn. mostTorn
// counts READs under one version only.
func (tx *Tx) read(o *object, known Version, guessed bool) (valid bool, err error) {
	w := tx.w
	last := Version(0)
	for torn := 0; torn < mostTorn; torn++ {
		now, whole, valid, err := tx.readOnce(o, known, guessed)
		if err != nil || whole {
			return valid, err
		}
		switch {
		case !now.Held():
			w.stats.Torn++
		// A transaction that holds locks waits for none, so no two transactions
		// wait for each other.
		case tx.held > 0:
			return false, tx.conflict(o.ref, true)
		default:
			if err := w.await(o.ref); err != nil {
				return false, err
			}
		}
		if now != last {
			last, torn = now, 0
		}
		if w.trips.Over() {
			return false, errTime
		}
	}
	return false, fmt.Errorf("%v at %v has no data of version %#x: %w", o.ref, o.at, uint64(last), client.ErrDamaged)
}

// readOnce READs an object, and with a guess the locks of what was met before. It
// returns the word of the object's lock, and whether it has the data of that
// version.
func (tx *Tx) readOnce(o *object, known Version, guessed bool) (now Version, whole, valid bool, err error) {
	w := tx.w
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	_, bytes := w.Object(o.ref)
	op := b.Read(o.at, bytes)
	others := tx.others((*object).met, o)
	if guessed {
		tx.readLocks(b, (*object).met, o)
	}
	if err := w.trips.Do(stepRead, b); err != nil {
		return 0, false, false, fmt.Errorf("read %v: %w", o.ref, err)
	}
	// The data under a lock may be half written.
	if now = Version(op.Word(0)); now.Held() {
		return now, false, false, nil
	}
	if !tx.take(o, op.Buf, now) {
		return now, false, false, nil
	}
	if !others {
		return now, true, true, nil
	}
	// The object's version was not known when the batch was posted: the looks at
	// the others may be of moments before it.
	if !guessed || now != known {
		return now, true, false, nil
	}
	asked, err := tx.judge(b, 1, (*object).met, o)
	return now, true, !asked, err
}

// take takes an object's data out of what was READ of it, if it is that of
// version v. The data is copied.
func (tx *Tx) take(o *object, p []byte, v Version) bool {
	now, ok := decode(p, v)
	if !ok {
		return false
	}
	o.seen, o.there = v, now.is(o.ref)
	o.data = append(o.data[:0], now.data...)
	return true
}

// met reports whether an object belongs to the state that the closure has seen,
// and may be changed by other clients.
func (o *object) met() bool { return !o.created && !o.relaxed && o.lock == 0 }

// stays reports whether an object must be as it was when the transaction commits,
// without being changed. What is changed or locked needs no look: its lock says
// that it is as it was.
func (o *object) stays() bool { return o.met() && o.change == unchanged }

// others reports whether there is any object, other than but, for which of
// returns true.
func (tx *Tx) others(of func(o *object) bool, but *object) bool {
	for i := range tx.objects {
		if o := &tx.objects[i]; o != but && of(o) {
			return true
		}
	}
	return false
}

// readLocks adds READs of the locks of those objects.
func (tx *Tx) readLocks(b *rdma.Batch, of func(o *object) bool, but *object) {
	for i := range tx.objects {
		if o := &tx.objects[i]; o != but && of(o) {
			b.Read(o.at, 8)
		}
	}
}

// judge compares what readLocks has read, from op first on, with what was seen. A
// change ends the attempt, unless the closure accepts the object as it is now.
// Then judge returns asked: what was read is not of one moment, and the caller
// has to look at all objects once more.
func (tx *Tx) judge(b *rdma.Batch, first int, of func(o *object) bool, but *object) (asked bool, err error) {
	for i := range tx.objects {
		o := &tx.objects[i]
		if o == but || !of(o) {
			continue
		}
		now := Version(b.Op(first).Word(0))
		first++
		if now == o.seen {
			continue
		}
		if now.Held() || o.same == nil || o.change != unchanged {
			return false, tx.conflict(o.ref, now.Held())
		}
		if err := tx.ask(o, now); err != nil {
			return false, err
		}
		asked = true
	}
	return asked, nil
}

// ask reads an object that has changed, and asks the closure. The object then
// counts as seen now, for later validations. Its data stays what the closure has
// read.
func (tx *Tx) ask(o *object, now Version) error {
	w := tx.w
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	_, bytes := w.Object(o.ref)
	op := b.Read(o.at, bytes)
	if err := w.trips.Do(stepRead, b); err != nil {
		return fmt.Errorf("read %v again: %w", o.ref, err)
	}
	next, ok := decode(op.Buf, now)
	if Version(op.Word(0)) != now || !ok {
		return tx.conflict(o.ref, false)
	}
	if !next.is(o.ref) {
		next.data = nil
	}
	if !o.same(next.data) {
		return tx.conflict(o.ref, false)
	}
	o.seen, o.there = now, next.is(o.ref)
	return nil
}

// validate looks again at all objects, other than but, for which of returns true.
// If one of them has changed, and may, validate looks at all of them once more:
// what was read is of one moment only if nothing changed.
func (tx *Tx) validate(of func(o *object) bool, but *object) error {
	for range mostAsked {
		asked, err := tx.validateOnce(of, but)
		if err != nil || !asked {
			return err
		}
	}
	return tx.fail(errConflict)
}

// validateOnce is one look. In a commit, where but is nil, it does the closure's
// checks as well.
func (tx *Tx) validateOnce(of func(o *object) bool, but *object) (asked bool, err error) {
	w := tx.w
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	tx.readLocks(b, of, but)
	own, step := b.Len(), stepAgain
	if but == nil { // of a commit
		step = stepValidate
		for _, c := range tx.checks {
			c.post(b)
		}
	}
	if err := w.trips.Do(step, b); err != nil {
		return false, fmt.Errorf("validate: %w", err)
	}
	if own > 0 {
		if asked, err = tx.judge(b, 0, of, but); err != nil {
			return false, err
		}
	}
	if but == nil {
		for _, c := range tx.checks {
			if !c.ok() {
				return false, tx.fail(errConflict)
			}
		}
	}
	return asked, nil
}

// Lock locks an object from now on, so that no other transaction changes it
// before this one ends. A locked object is not looked at again. Lock waits for
// locks of others only if the transaction has none; else the transaction is run
// again. The lock has no lease: a client that meets it waits.
//
// For an object that was not met before Lock takes a trip more than Read, and
// only one if a guess is right. A Read of it takes none then.
func (tx *Tx) Lock(r Ref) error {
	if err := tx.dead(); err != nil {
		return err
	}
	if err := tx.number(); err != nil {
		return err
	}
	if _, met := tx.index[r]; !met && tx.w.valid(r) {
		if known, ok := tx.guessed(r); ok {
			if done, err := tx.lockGuessed(r, known); done || err != nil {
				return err
			}
		}
	}
	o, err := tx.load(r)
	if err != nil {
		return err
	}
	if o.lock != 0 || o.created {
		return nil
	}
	b := tx.w.ep.Batch()
	defer tx.w.trips.Drop(b)
	cas := b.CompareSwap(o.at, uint64(o.seen), uint64(lockOf(tx.w.id, tx.sequence)))
	if err := tx.w.trips.Do(stepLock, b); err != nil {
		tx.unsure(o, cas, b)
		return tx.fail(fmt.Errorf("lock %v: %w", r, err))
	}
	if !cas.Swapped() {
		return tx.conflict(r, Version(cas.Result).Held())
	}
	tx.hold(o)
	return nil
}

// lockGuessed locks an object of a known version, READs it, and looks at all that
// was met before, in one trip. If the lock is taken, the object was at the moment
// of posting as it is now, as for load. done: it is locked. If the guess was
// wrong it is not, and the object leaves the transaction.
func (tx *Tx) lockGuessed(r Ref, known Version) (done bool, err error) {
	w := tx.w
	o := tx.add(r)
	o.seen = known
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	cas := b.CompareSwap(o.at, uint64(known), uint64(lockOf(w.id, tx.sequence)))
	_, bytes := w.Object(r)
	op := b.Read(o.at, bytes)
	tx.readLocks(b, (*object).met, o)
	if err := w.trips.Do(stepLock, b); err != nil {
		tx.unsure(o, cas, b)
		return false, tx.fail(fmt.Errorf("lock %v: %w", r, err))
	}
	if !cas.Swapped() {
		delete(tx.index, r)
		tx.objects = tx.objects[:len(tx.objects)-1]
		return false, nil
	}
	tx.hold(o)
	// The CAS has found the version, so no transaction writes the body: data that
	// does not belong to it is damage.
	if !tx.take(o, op.Buf, known) {
		return false, tx.fail(fmt.Errorf("%v at %v has no data of version %#x: %w", r, o.at, uint64(known),
			client.ErrDamaged))
	}
	asked, err := tx.judge(b, 2, (*object).met, o)
	if asked && err == nil {
		err = tx.validate((*object).met, o)
	}
	return err == nil, err
}

// hold notes that an object is locked.
func (tx *Tx) hold(o *object) {
	o.lock = lockOf(tx.w.id, tx.sequence)
	tx.held++
}

// unsure notes a lock that may be held, or may yet be, after a batch that failed.
// abort releases it like one that is held, and once more when nothing is in
// flight.
func (tx *Tx) unsure(o *object, cas *rdma.Op, b *rdma.Batch) {
	if tx.w.trips.Sent && (!b.Finished() || cas.Err != nil || cas.Swapped()) {
		tx.hold(o)
		o.unsure = true
	}
}
