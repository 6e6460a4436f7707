package rtx

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Tx is a transaction that runs: see Worker.Run. When a method returns an error,
// the transaction has to be run again, or cannot succeed. The closure returns
// that error, or another one. A Tx is the worker's, and is used again by its next
// attempt.
type Tx struct {
	w *Worker
	objectSet
	// writes counts the objects that are changed; at most Shape.Writes.
	writes int
	// held counts the locks that were taken before the commit. While it is not 0
	// the transaction must not wait for a lock: two of them could wait for each
	// other.
	held int
	// aside: they were released before it: see stepAside.
	aside bool
	// sequence is 0 until the attempt needs a lock or metadata: see number.
	sequence uint64
	// takes is what the closure has declared by Takes.
	takes   time.Duration
	checks  []check
	guesses []guess
	// err ends the attempt: all later calls return it.
	err error
	// blocked is the object of which the lock is in the way; 0: there is none.
	blocked Ref
	// late counts calls after err was set.
	late int
	// again: it is not the first attempt.
	again bool
}

// change is what a transaction does to an object.
type change uint8

const (
	unchanged change = iota
	written
	freed
)

// object is an object that a transaction has met.
type object struct {
	ref Ref
	// at is the address of the metadata.
	at rdma.Addr
	// seen is the metadata as the execution phase has READ it. The validation
	// compares with it, and the CASes of the commit expect it.
	seen Meta
	// there: the object has data, as far as the transaction sees it.
	there bool
	// created: the transaction makes the object.
	created bool
	// relaxed: the object is not validated (OPT2).
	relaxed bool
	// same is asked when the object has changed (OPT2); nil: any change ends the
	// attempt.
	same   func(now []byte) bool
	change change
	// lock is the word that the transaction has put there, and holds; 0: none. It
	// may also be a lock of which the CAS has an unknown outcome: see unsure.
	lock Lock
	// data is a copy of what was READ.
	data []byte
	// next is a copy of the data that the commit installs, if the object is
	// written.
	next []byte
	// item is the buffer for next, from takeBuffers until settled.
	item item
	// slot is the metadata of an object that is created.
	slot slot
}

// objectSet is what an attempt has met.
type objectSet struct {
	// objects are in the order in which they were met. Their buffers are used again
	// by later attempts.
	objects []object
	// index finds an object in objects.
	index map[Ref]int
}

// add adds an object, whose metadata is at an address. It keeps the buffers of
// the object that had this place before. The pointer is valid until the next add.
func (s *objectSet) add(r Ref, at rdma.Addr) *object {
	n := len(s.objects)
	if n < cap(s.objects) {
		s.objects = s.objects[:n+1]
		s.objects[n] = object{data: s.objects[n].data[:0], next: s.objects[n].next[:0]}
	} else {
		s.objects = append(s.objects, object{})
	}
	o := &s.objects[n]
	o.ref, o.at = r, at
	s.index[r] = n
	return o
}

// guess is the metadata of an object as the caller has seen it: see Tx.Guess.
type guess struct {
	ref  Ref
	meta Meta
}

// check is what the closure adds to the validation: see Tx.Check.
type check struct {
	post func(b *rdma.Batch)
	ok   func() bool
}

// errConflict ends an attempt because another transaction was in the way. The
// attempt has changed nothing, and Run makes another one.
var errConflict = errors.New("transaction has to be run again")

// conflicts paces the attempts of a transaction. A pause is about what another
// transaction takes, from 2 to 500 µs, and differs between clients: so two
// clients that collide do not do so again and again. A late transaction makes no
// pauses.
func conflicts(w *Worker) kit.Retry {
	own := time.Duration(w.id%8) * time.Microsecond
	pause := kit.Spread(own, kit.Doubling(2*time.Microsecond, 500*time.Microsecond))
	return kit.Retry{Env: w.ep, Pause: kit.Unless(w.late, pause), Over: w.trips.Over}
}

// Run runs a transaction. What f reads existed at one moment, at which everything
// that it changes takes effect: all or nothing, whenever the client crashes. Run
// calls f again until no other transaction is in the way, for Options.Timeout at
// most. f must have no effects other than by its Tx, and must not keep the Tx.
// When f returns an error, or panics, nothing is changed, and Run returns that
// error, or panics.
//
// The error wraps client.ErrUncertain when the transaction may have taken effect,
// or may yet. It wraps rdma.ErrTimeout when the transaction found no end in time,
// and changed nothing.
func (w *Worker) Run(f func(tx *Tx) error) error {
	w.begin()
	if err := w.resume(); err != nil {
		return fmt.Errorf("settle the transaction before: %w", err)
	}
	w.memory.near = false
	for r := w.conflicts; ; {
		w.tx.again = r.Tries > 0
		blocked, err := w.attempt(f)
		if err == nil || !errors.Is(err, errConflict) && !w.rejoin(err) || errors.Is(err, client.ErrUncertain) {
			return err
		}
		w.stats.Retries++
		w.reap()
		if blocked != 0 {
			if _, err := w.await(blocked, true); err != nil && !w.rejoin(err) {
				return err
			}
		}
		if !r.Again() {
			return errTime
		}
	}
}

// attempt runs f once, and commits. It also returns the object of which the lock
// is in the way.
//
// A panic of f is passed on after the locks were released: f has only seen a
// state that existed. A panic of Tx.dead, in a closure that ignores errors,
// becomes the error of the attempt.
func (w *Worker) attempt(f func(tx *Tx) error) (blocked Ref, err error) {
	tx := &w.tx
	tx.begin()
	committing := false
	defer func() {
		if !committing {
			tx.abort()
			if tx.late > mostLate && recover() != nil {
				blocked, err = tx.blocked, tx.err
			}
		}
	}()
	err = f(tx)
	committing = true
	switch {
	case tx.err != nil:
		err = tx.err
	case err == nil:
		return tx.blocked, tx.commit()
	}
	tx.abort()
	return tx.blocked, err
}

// begin empties the transaction for another attempt. Maps and buffers are used
// again.
func (tx *Tx) begin() {
	if tx.index == nil {
		tx.index = map[Ref]int{}
	}
	clear(tx.index)
	tx.objects, tx.checks, tx.guesses = tx.objects[:0], tx.checks[:0], tx.guesses[:0]
	tx.writes, tx.held, tx.sequence, tx.takes = 0, 0, 0, 0
	tx.err, tx.blocked, tx.late, tx.aside = nil, 0, 0, false
}

// mostLate bounds how often a closure may go on behind an error. A closure that
// never looks at errors would not end.
const mostLate = 1000

// fail ends the attempt. All later calls return the first error.
func (tx *Tx) fail(err error) error {
	if tx.err == nil {
		tx.err = err
	}
	return tx.err
}

// dead returns the error that has ended the attempt, if any. It panics behind
// mostLate calls, to end a closure that does not return.
func (tx *Tx) dead() error {
	if tx.err == nil {
		return nil
	}
	if tx.late++; tx.late > mostLate {
		panic(tx.err)
	}
	return tx.err
}

// conflict ends the attempt because an object was changed, or is locked. blocked:
// its lock is held, and Run waits for it before the next attempt.
func (tx *Tx) conflict(o *object, blocked bool) error {
	if blocked && tx.blocked == 0 {
		tx.blocked = o.ref
	}
	return tx.fail(errConflict)
}

// Read returns the data of an object, or an error wrapping ErrNoObject. The data
// is the transaction's: it is valid until f returns, and must not be changed. All
// that the transaction has read existed at one moment. Where there is no such
// moment the error tells f to return. Read takes 2 trips, and none when the
// transaction has the object.
func (tx *Tx) Read(r Ref) ([]byte, error) {
	o, err := tx.load(r, false)
	if err != nil {
		return nil, err
	}
	switch {
	case !o.there:
		return nil, fmt.Errorf("read %v: %w", r, ErrNoObject)
	case o.change == written:
		return o.next, nil
	}
	return o.data, nil
}

// Guess says what an object's metadata is, as far as the caller knows: from
// Worker.Seen, or from a READ of its own. If the guess is right, the transaction
// takes a trip less to read or lock the object. If it is wrong, the transaction
// takes as many trips as without. Attempts after the first one make no guesses.
func (tx *Tx) Guess(r Ref, m Meta) {
	if !m.Lock.Held() && !tx.again {
		tx.guesses = append(tx.guesses, guess{r, m})
	}
}

// guessed puts a guess of an object into o.seen. Each guess is used once: a wrong
// one must not be tried again.
func (tx *Tx) guessed(o *object) bool {
	for i := range tx.guesses {
		if g := &tx.guesses[i]; g.ref == o.ref {
			o.seen, g.ref = g.meta, 0
			return true
		}
	}
	return false
}

// Seen returns the metadata of an object as the worker's last transaction has
// left or read it, for Tx.Guess. Other clients may have changed it since.
func (w *Worker) Seen(r Ref) (m Meta, ok bool) {
	if i, ok := w.tx.index[r]; ok {
		return w.tx.objects[i].seen, true
	}
	return Meta{}, false
}

// ReadIf is Read of an object that may change before the transaction commits
// (OPT2). When it has changed, same is called with its data as it is now; nil: it
// was freed. same reports whether what f did is still right. It is called while
// the transaction goes on, and must not use the Tx. It is not called for an
// object that f changes, too.
func (tx *Tx) ReadIf(r Ref, same func(now []byte) bool) ([]byte, error) {
	data, err := tx.Read(r)
	if err == nil {
		tx.objects[tx.index[r]].same = same
	}
	return data, err
}

// Relax leaves an object out of the validation (OPT2). f has used the object to
// find its way only, and what it found there shows by itself whether it is right,
// as fence keys do. Objects that are changed or locked are validated all the
// same.
func (tx *Tx) Relax(r Ref) {
	if i, ok := tx.index[r]; ok {
		tx.objects[i].relaxed = true
	}
}

// Check adds verbs of the caller's to the validation of a transaction that
// changes something (OPT2). post adds them to the batch that validates, behind
// the locks. When they are complete, ok reports whether the transaction may
// commit. They must be READs: a validation may be made several times, and its
// attempt may fail. The batch stays the transaction's.
func (tx *Tx) Check(post func(b *rdma.Batch), ok func() bool) {
	tx.checks = append(tx.checks, check{post, ok})
}

// Takes says for how long the transaction may hold its locks beyond the 100 µs
// that each of its objects adds. A client that waits for the locks does not
// suspect it earlier. Takes is called before Lock. The longest lease is 3.3 s: a
// transaction that takes longer calls Renew.
func (tx *Tx) Takes(d time.Duration) { tx.takes = max(tx.takes, d) }

// Write replaces the data of an object, or gives data to a root that has none.
// data is copied. The error wraps ErrNoObject, client.ErrTooLarge or ErrTooMany.
func (tx *Tx) Write(r Ref, data []byte) error {
	o, err := tx.load(r, true)
	if err != nil {
		return err
	}
	if !o.there && r.number() > uint64(tx.w.Roots) {
		return fmt.Errorf("write %v: %w", r, ErrNoObject)
	}
	return tx.change(o, written, data)
}

// New makes an object, on the nodes in turn, and returns its name. The name is
// valid if the transaction commits. The error wraps client.ErrFull, or is one of
// Write's.
func (tx *Tx) New(data []byte) (Ref, error) {
	w := tx.w
	w.memory.turn++
	return tx.NewOn(w.memory.turn%w.Nodes, data)
}

// NewOn is New on a node, or on another one if that is full.
func (tx *Tx) NewOn(node int, data []byte) (Ref, error) {
	if err := tx.dead(); err != nil {
		return 0, err
	}
	if err := tx.w.fits(data); err != nil {
		return 0, err
	}
	if node < 0 || node >= tx.w.Nodes {
		return 0, fmt.Errorf("make an object on node %d of %d: %w", node, tx.w.Nodes, rdma.ErrAccess)
	}
	if err := tx.number(); err != nil {
		return 0, err
	}
	s, err := tx.w.memory.takeSlot(node)
	if err != nil {
		return 0, tx.fail(err)
	}
	r := Ref(s.number | tx.life()<<48)
	o := tx.add(r, tx.w.Meta(r))
	o.seen, o.slot, o.created = s.seen, s, true
	if tx.aside {
		return 0, tx.conflict(nil, false)
	}
	return r, tx.change(o, written, data)
}

// life distinguishes objects that have the same metadata one after another. It
// mixes owner and sequence, so it repeats rarely, but it may.
func (tx *Tx) life() uint64 { return (tx.sequence*0x9e37 + uint64(tx.w.id)) & 0xffff }

// Free frees an object. A root is without data then, and may be written again.
func (tx *Tx) Free(r Ref) error {
	o, err := tx.load(r, true)
	if err != nil {
		return err
	}
	if !o.there {
		return fmt.Errorf("free %v: %w", r, ErrNoObject)
	}
	return tx.change(o, freed, nil)
}

// change notes what becomes of an object, and counts the objects that change. An
// object that the transaction made and frees again does not change.
func (tx *Tx) change(o *object, c change, data []byte) error {
	if err := tx.w.fits(data); err != nil {
		return err
	}
	if c == freed && tx.w.Absent(o.seen.Pointer) {
		c = unchanged
	}
	switch {
	case o.change == unchanged && c != unchanged:
		if tx.writes == tx.w.Writes {
			return fmt.Errorf("more than %d objects: %w", tx.w.Writes, ErrTooMany)
		}
		tx.writes++
	case o.change != unchanged && c == unchanged:
		tx.writes--
	}
	o.change, o.there = c, c == written
	o.next = append(o.next[:0], data...)
	return nil
}

// fits returns an error if no buffer is large enough.
func (l *Layout) fits(data []byte) error {
	if _, ok := l.classOf(len(data)); !ok {
		return fmt.Errorf("an object of %d bytes: %w", len(data), client.ErrTooLarge)
	}
	return nil
}
