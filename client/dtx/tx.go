package dtx

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Tx is a transaction that runs: see Worker.Run. When a method returns an error,
// the transaction has to be run again, or cannot succeed. The closure returns
// that error, or another one. A Tx is the worker's, and is used again by its next
// attempt.
type Tx struct {
	w *Worker
	// objects has all that the attempt has met, in this order. Their buffers are
	// used again by later attempts.
	objects []object
	// index finds an object in objects.
	index map[Ref]int
	// writes counts the objects that are changed; at most Shape.Writes.
	writes int
	// held counts the locks that were taken before the commit. While it is not 0
	// the transaction must not wait for a lock: two of them could wait for each
	// other.
	held int
	// sequence is 0 until the attempt needs a lock or a place: see number.
	sequence uint64
	checks   []check
	guesses  []guess
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
	// at is the address of the lock.
	at rdma.Addr
	// seen is the version that the execution phase has READ. The validation
	// compares with it, the lock's CAS expects it, and an abort puts it back.
	seen Version
	// there: the object has data, as far as the transaction sees it.
	there bool
	// created: the transaction makes the object.
	created bool
	// relaxed: the object is not validated.
	relaxed bool
	// same is asked when the object has changed; nil: any change ends the
	// attempt.
	same   func(now []byte) bool
	change change
	// lock is the word that the transaction has put there; 0: none.
	lock Version
	// unsure: it is not known whether the CAS of the lock has succeeded, or will.
	unsure bool
	// data is a copy of what was READ.
	data []byte
	// next is a copy of the data that the commit writes, if the object is
	// written.
	next []byte
	// slot is the place of an object that is created, until settled.
	slot slot
}

// guess is the version of an object as the caller has seen it: see Tx.Guess.
type guess struct {
	ref     Ref
	version Version
}

// check is what the closure adds to the validation: see Tx.Check.
type check struct {
	post func(b *rdma.Batch)
	ok   func() bool
}

// errConflict ends an attempt because another transaction was in the way. The
// attempt has changed nothing, and Run makes another one.
var errConflict = errors.New("transaction has to be run again")

// Run runs a transaction. What f reads existed at one moment, at which everything
// that it changes takes effect: all or nothing, whenever the client crashes. Run
// calls f again until no other transaction is in the way, for Options.Timeout at
// most. Locks of a dead client are in the way until the client is recovered: see
// Recoverer and Worker.Adopt. f must have no effects other than by its Tx, and must
// not keep the Tx. When f returns an error, or panics, nothing is changed, and
// Run returns that error, or panics.
//
// The error wraps client.ErrUncertain when the transaction may have taken effect,
// or may yet. It wraps rdma.ErrTimeout when the transaction found no end in time,
// and changed nothing.
func (w *Worker) Run(f func(tx *Tx) error) error {
	w.begin()
	if err := w.settle(); err != nil {
		return fmt.Errorf("settle the transaction before: %w", err)
	}
	for r := w.conflicts; ; {
		w.tx.again = r.Tries > 0
		blocked, err := w.attempt(f)
		if err == nil || !errors.Is(err, errConflict) && !w.rejoin(err) || errors.Is(err, client.ErrUncertain) {
			return err
		}
		w.stats.Retries++
		if blocked != 0 {
			if err := w.await(blocked); err != nil && !w.rejoin(err) {
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
		err = tx.err // whatever f made of it
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
	tx.writes, tx.held, tx.sequence = 0, 0, 0
	tx.err, tx.blocked, tx.late = nil, 0, 0
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
func (tx *Tx) conflict(r Ref, blocked bool) error {
	if blocked && tx.blocked == 0 {
		tx.blocked = r
	}
	return tx.fail(errConflict)
}

// Read returns the data of an object, or an error wrapping ErrNoObject. The data
// is the transaction's: it is valid until f returns, and must not be changed. All
// that the transaction has read existed at one moment. Where there is no such
// moment the error tells f to return. Read takes a trip, and one more when other
// objects have to be looked at again: see Guess, Relax and Lock. It takes none
// when the transaction has the object.
func (tx *Tx) Read(r Ref) ([]byte, error) {
	o, err := tx.load(r)
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

// Guess says which version of an object the caller has seen before: from
// Worker.Seen, or by Decode of a READ of its own. If the object still has it, its
// state is older than the READ. So the transaction looks at what it has met
// before in the same trip, and Lock takes one trip only. A wrong guess costs Read
// nothing, and Lock a trip. Attempts after the first one make no guesses.
func (tx *Tx) Guess(r Ref, v Version) {
	if !v.Held() && !tx.again {
		tx.guesses = append(tx.guesses, guess{r, v})
	}
}

// guessed returns what was guessed of an object. Each guess is used once: a wrong
// one must not be tried again.
func (tx *Tx) guessed(r Ref) (Version, bool) {
	for i := range tx.guesses {
		if g := &tx.guesses[i]; g.ref == r {
			g.ref = 0
			return g.version, true
		}
	}
	return 0, false
}

// Seen returns the version of an object as the worker's last transaction has left
// or read it, for Tx.Guess. Other clients may have changed it since.
func (w *Worker) Seen(r Ref) (Version, bool) {
	if i, ok := w.tx.index[r]; ok {
		return w.tx.objects[i].seen, true
	}
	return 0, false
}

// ReadIf is Read of an object that may change before the transaction commits.
// When it has changed, same is called with its data as it is now; nil: it was
// freed. same reports whether what f did is still right. It is called while the
// transaction goes on, and must not use the Tx. It is not called for an object
// that f changes or locks, too.
func (tx *Tx) ReadIf(r Ref, same func(now []byte) bool) ([]byte, error) {
	data, err := tx.Read(r)
	if err == nil {
		tx.objects[tx.index[r]].same = same
	}
	return data, err
}

// Relax leaves an object out of the validation. f has used the object to find its
// way only, and what it found there shows by itself whether it is right, as fence
// keys do. Objects that are changed or locked are validated all the same.
func (tx *Tx) Relax(r Ref) {
	if i, ok := tx.index[r]; ok {
		tx.objects[i].relaxed = true
	}
}

// Check adds verbs of the caller's to the validation of a transaction that
// changes something. post adds them to the batch that validates, behind the
// locks. When they are complete, ok reports whether the transaction may commit.
// They must be READs. Both functions may be called more than once. The batch
// stays the transaction's.
func (tx *Tx) Check(post func(b *rdma.Batch), ok func() bool) {
	tx.checks = append(tx.checks, check{post, ok})
}

// Write replaces the data of an object, or gives data to a root that has none.
// data is copied. The error wraps ErrNoObject, ErrTooMany, or client.ErrTooLarge
// if the object has no room for the data: see Layout.Room.
func (tx *Tx) Write(r Ref, data []byte) error {
	o, err := tx.load(r)
	if err != nil {
		return err
	}
	if !o.there && !tx.w.isRoot(r) {
		return fmt.Errorf("write %v: %w", r, ErrNoObject)
	}
	return tx.change(o, written, data)
}

// New makes an object, on the nodes in turn, and returns its name, which is valid
// if the transaction commits. The object has room for the least of Shape.Sizes
// that fits. The error wraps client.ErrFull, or is one of Write's.
func (tx *Tx) New(data []byte) (Ref, error) {
	w := tx.w
	w.memory.turn++
	return tx.NewOn(w.memory.turn%w.Nodes, data)
}

// NewOn is New on a node, or on another one if that is full.
func (tx *Tx) NewOn(node int, data []byte) (Ref, error) { return tx.NewRoom(node, data, len(data)) }

// NewRoom is NewOn of an object that has room for so many bytes of data, for
// later Writes.
func (tx *Tx) NewRoom(node int, data []byte, room int) (Ref, error) {
	if err := tx.dead(); err != nil {
		return 0, err
	}
	class, ok := tx.w.classOf(max(room, len(data)))
	if !ok {
		return 0, fmt.Errorf("an object of %d bytes: %w", max(room, len(data)), client.ErrTooLarge)
	}
	if node < 0 || node >= tx.w.Nodes {
		return 0, fmt.Errorf("make an object on node %d of %d: %w", node, tx.w.Nodes, rdma.ErrAccess)
	}
	if err := tx.number(); err != nil {
		return 0, err
	}
	s, err := tx.w.memory.take(class, node)
	if err != nil {
		return 0, tx.fail(err)
	}
	r := s.place | Ref(tx.life()<<lifeShift)
	o := tx.add(r)
	o.seen, o.slot, o.created = s.seen, s, true
	return r, tx.change(o, written, data)
}

// life distinguishes objects that have the same place one after another. It mixes
// owner and sequence, so it repeats rarely, but it may.
func (tx *Tx) life() uint64 { return (tx.sequence*0x9e37 + uint64(tx.w.id)) & 0xffff }

// Free frees an object. A root is without data then, and may be written again.
func (tx *Tx) Free(r Ref) error {
	o, err := tx.load(r)
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
	if room := tx.w.Room(o.ref); len(data) > room {
		return fmt.Errorf("%d bytes for %v, which has room for %d: %w", len(data), o.ref, room, client.ErrTooLarge)
	}
	if c == freed && o.created {
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

// add adds an object that the transaction has met. It keeps the buffers of the
// object that had this place before. The pointer is valid until the next add.
func (tx *Tx) add(r Ref) *object {
	n := len(tx.objects)
	if n < cap(tx.objects) {
		tx.objects = tx.objects[:n+1]
		tx.objects[n] = object{data: tx.objects[n].data[:0], next: tx.objects[n].next[:0]}
	} else {
		tx.objects = append(tx.objects, object{})
	}
	o := &tx.objects[n]
	o.ref = r
	o.at, _ = tx.w.Object(r)
	tx.index[r] = n
	return o
}

// number gives the transaction its sequence, once an attempt.
func (tx *Tx) number() (err error) {
	if tx.sequence == 0 {
		if tx.sequence, err = tx.w.number(); err != nil {
			tx.sequence = 0
			return tx.fail(err)
		}
	}
	return nil
}
