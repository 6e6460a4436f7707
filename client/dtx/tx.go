package dtx

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Tx is a transaction that is being run: see Worker.Run. Its methods return an error when it has to
// be run again; the closure returns it, or any other.
type Tx struct {
	w        *Worker
	objects  []object
	index    map[Ref]int
	writes   int // objects that are changed
	held     int // locks that were taken early
	sequence uint64
	checks   []check
	guesses  []guess
	err      error // why it cannot go on
	blocked  Ref   // whose lock is in the way; 0: nothing is
	late     int   // calls behind err
	again    bool  // it is not the first attempt
}

// change is what a transaction does to an object.
type change uint8

const (
	unchanged change = iota
	written
	freed
)

// object is one that a transaction has met.
type object struct {
	ref     Ref
	at      rdma.Addr // of its lock
	seen    Version   // of the execution phase: what it is validated by
	there   bool      // it has data
	created bool      // by the transaction
	relaxed bool      // it is not validated
	same    func(now []byte) bool
	change  change
	lock    Version // that is held; 0: none
	unsure  bool    // it is not known whether it is
	data    []byte  // as it was read
	next    []byte  // as it is to be, where it is written
	slot    slot    // of an object that is created
}

type guess struct {
	ref     Ref
	version Version
}

type check struct {
	post func(b *rdma.Batch)
	ok   func() bool
}

// errConflict ends an attempt: another transaction was in the way.
var errConflict = errors.New("transaction has to be run again")

// Run runs a transaction: what f reads existed at one moment, at which everything that it changes
// takes effect, all or nothing, whenever the client crashes. It runs f again until no other
// transaction is in the way, for Options.Timeout at most. Locks of a dead client are in the way
// until the client is recovered: see Mender, Worker.Adopt. f must have no other effects than by its
// Tx, and must not keep it. When f returns an error, or panics, nothing is changed, and that is
// what Run returns.
//
// The error wraps client.ErrUncertain when the transaction may have taken effect, or may yet;
// rdma.ErrTimeout when it found no end in time, and changed nothing.
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

// attempt runs f once, and commits. It returns what is in the way, too.
func (w *Worker) attempt(f func(tx *Tx) error) (blocked Ref, err error) {
	tx := &w.tx
	tx.begin()
	committing := false
	defer func() {
		if !committing { // f panicked, at a state that existed
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

func (tx *Tx) begin() {
	if tx.index == nil {
		tx.index = map[Ref]int{}
	}
	clear(tx.index)
	tx.objects, tx.checks, tx.guesses = tx.objects[:0], tx.checks[:0], tx.guesses[:0]
	tx.writes, tx.held, tx.sequence = 0, 0, 0
	tx.err, tx.blocked, tx.late = nil, 0, 0
}

// mostLate bounds how often a closure may go on behind an error: one that never looks at errors
// would not end.
const mostLate = 1000

// fail ends the attempt. All later calls return the same error.
func (tx *Tx) fail(err error) error {
	if tx.err == nil {
		tx.err = err
	}
	return tx.err
}

// dead returns why the transaction cannot go on, if so.
func (tx *Tx) dead() error {
	if tx.err == nil {
		return nil
	}
	if tx.late++; tx.late > mostLate {
		panic(tx.err)
	}
	return tx.err
}

// conflict ends the attempt because of an object; blocked: its lock is held.
func (tx *Tx) conflict(r Ref, blocked bool) error {
	if blocked && tx.blocked == 0 {
		tx.blocked = r
	}
	return tx.fail(errConflict)
}

// Read returns the data of an object, or an error wrapping ErrNoObject. It is valid until f
// returns, and not to be changed. All that the transaction has read existed at one moment: when it
// does not, the error tells f to return. It takes a trip, and one more where others have to be
// looked at again: see Guess, Relax and Lock. It takes none when the transaction has the object.
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

// Guess says which version of an object the caller has seen, before: from Worker.Seen, or by Decode
// of a READ of its own. Where the object still has it, its state is older than the READ, so the
// transaction looks at what it has met before in the same trip; and Lock takes a trip only. A wrong
// one costs nothing, and Lock a trip. An attempt behind the first one makes no guesses.
func (tx *Tx) Guess(r Ref, v Version) {
	if !v.Held() && !tx.again {
		tx.guesses = append(tx.guesses, guess{r, v})
	}
}

// guessed returns what was guessed of an object, once.
func (tx *Tx) guessed(r Ref) (Version, bool) {
	for i := range tx.guesses {
		if g := &tx.guesses[i]; g.ref == r {
			g.ref = 0
			return g.version, true
		}
	}
	return 0, false
}

// Seen returns the version of an object as the worker's last transaction has left it, or has read
// it, for Tx.Guess. Others may have changed it since.
func (w *Worker) Seen(r Ref) (Version, bool) {
	if i, ok := w.tx.index[r]; ok {
		return w.tx.objects[i].seen, true
	}
	return 0, false
}

// ReadIf is Read for an object that may change behind the transaction's back: same tells of its
// data as it is now whether what f did is still right; nil data: it was freed. It is called while
// the transaction goes on, and must not use it. An object that f changes, or locks, too, is not
// asked about.
func (tx *Tx) ReadIf(r Ref, same func(now []byte) bool) ([]byte, error) {
	data, err := tx.Read(r)
	if err == nil {
		tx.objects[tx.index[r]].same = same
	}
	return data, err
}

// Relax takes an object out of what is validated: f has used it to find its way, and what it found
// says of itself whether it is right, as fence keys do. Objects that are changed, or locked, stay.
func (tx *Tx) Relax(r Ref) {
	if i, ok := tx.index[r]; ok {
		tx.objects[i].relaxed = true
	}
}

// Check adds verbs of the caller's to the validation of a transaction that changes something: post
// adds them to the batch that validates, behind the locks, and ok says, when they are complete,
// whether the transaction may commit. They must be READs. Both may be called more than once.
func (tx *Tx) Check(post func(b *rdma.Batch), ok func() bool) {
	tx.checks = append(tx.checks, check{post, ok})
}

// Write replaces the data of an object, or gives data to a root that has none. data is copied. The
// error wraps ErrNoObject, ErrTooMany, or client.ErrTooLarge where the object has no room for it:
// see Layout.Room.
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

// New makes an object, on the nodes in turn, and returns its name. It has room for as much data as
// the least of Shape.Sizes that fits. The error wraps client.ErrFull or those of Write.
func (tx *Tx) New(data []byte) (Ref, error) {
	w := tx.w
	w.memory.turn++
	return tx.NewOn(w.memory.turn%w.Nodes, data)
}

// NewOn is New on a node, or another one if that is full.
func (tx *Tx) NewOn(node int, data []byte) (Ref, error) { return tx.NewRoom(node, data, len(data)) }

// NewRoom is NewOn of an object that has room for so many bytes of data, for later.
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

// life tells objects of the same place apart.
func (tx *Tx) life() uint64 { return (tx.sequence*0x9e37 + uint64(tx.w.id)) & 0xffff }

// Free frees an object. A root is without data then.
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

// change notes what becomes of an object.
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

// add adds an object that the transaction has met.
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

// number gives the transaction its sequence.
func (tx *Tx) number() (err error) {
	if tx.sequence == 0 {
		if tx.sequence, err = tx.w.number(); err != nil {
			tx.sequence = 0
			return tx.fail(err)
		}
	}
	return nil
}
