package rtx

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
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
	takes    time.Duration // what the closure says that it takes
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
	at      rdma.Addr // of its metadata
	seen    Meta      // of the execution phase: what it is validated by
	there   bool      // it has data
	created bool      // by the transaction
	relaxed bool      // it is not validated
	same    func(now []byte) bool
	change  change
	lock    Lock   // that is held; 0: none
	data    []byte // as it was read
	next    []byte // as it is to be, where it is written
	item    item   // the buffer for that
	slot    slot   // of an object that is created
}

type guess struct {
	ref  Ref
	meta Meta
}

type check struct {
	post func(b *rdma.Batch)
	ok   func() bool
}

// errConflict ends an attempt: another transaction was in the way.
var errConflict = errors.New("transaction has to be run again")

// conflicts paces the attempts of a transaction. A pause is about what another transaction takes,
// and differs between clients: two that are in each other's way do not meet again and again. From
// some tries on one of them has the time for a whole transaction.
func conflicts(w *Worker) kit.Retry {
	own := time.Duration(w.id%8) * time.Microsecond
	pause := kit.Spread(own, kit.Doubling(2*time.Microsecond, 500*time.Microsecond))
	return kit.Retry{Env: w.ep, Pause: kit.Unless(w.late, pause), Over: w.over}
}

// Run runs a transaction: what f reads existed at one moment, at which everything that it changes
// takes effect, all or nothing, whenever the client crashes. It runs f again until no other
// transaction is in the way, for Options.Timeout at most. f must have no other effects than by its
// Tx, and must not keep it. When f returns an error, or panics, nothing is changed, and that is
// what Run returns.
//
// The error wraps client.ErrUncertain when the transaction may have taken effect, or may yet;
// rdma.ErrTimeout when it found no end in time, and changed nothing.
func (w *Worker) Run(f func(tx *Tx) error) error {
	w.begin()
	if err := w.resume(); err != nil {
		return fmt.Errorf("settle the transaction before: %w", err)
	}
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
	tx.writes, tx.held, tx.sequence, tx.takes = 0, 0, 0, 0
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
func (tx *Tx) conflict(o *object, blocked bool) error {
	if blocked && tx.blocked == 0 {
		tx.blocked = o.ref
	}
	return tx.fail(errConflict)
}

// Read returns the data of an object, or an error wrapping ErrNoObject. It is valid until f
// returns, and not to be changed. All that the transaction has read existed at one moment: when it
// does not, the error tells f to return. It takes 2 trips, and none when the transaction has the
// object.
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

// Guess says what an object's metadata is, as far as the caller knows: from Worker.Seen, or from a
// READ of its own. Where it is right the transaction takes a trip less to read the object, or to
// lock it; where not, as many as without. An attempt behind the first one makes no guesses.
func (tx *Tx) Guess(r Ref, m Meta) {
	if !m.Lock.Held() && !tx.again {
		tx.guesses = append(tx.guesses, guess{r, m})
	}
}

// guessed takes what was guessed of an object, once.
func (tx *Tx) guessed(o *object) bool {
	for i := range tx.guesses {
		if g := &tx.guesses[i]; g.ref == o.ref {
			o.seen, g.ref = g.meta, 0
			return true
		}
	}
	return false
}

// Seen returns the metadata of an object as the worker's last transaction has left it, or has read
// it, for Tx.Guess. Others may have changed it since.
func (w *Worker) Seen(r Ref) (m Meta, ok bool) {
	if i, ok := w.tx.index[r]; ok {
		return w.tx.objects[i].seen, true
	}
	return Meta{}, false
}

// ReadIf is Read for an object that may change behind the transaction's back (OPT2): same tells of
// its data as it is now whether what f did is still right; nil data: it was freed. It is called
// while the transaction goes on, and must not use it. An object that f changes, too, is not asked
// about.
func (tx *Tx) ReadIf(r Ref, same func(now []byte) bool) ([]byte, error) {
	data, err := tx.Read(r)
	if err == nil {
		tx.objects[tx.index[r]].same = same
	}
	return data, err
}

// Relax takes an object out of what is validated (OPT2): f has used it to find its way, and what it
// found says of itself whether it is right, as fence keys do. Objects that are changed, or locked,
// stay.
func (tx *Tx) Relax(r Ref) {
	if i, ok := tx.index[r]; ok {
		tx.objects[i].relaxed = true
	}
}

// Check adds verbs of the caller's to the validation of a transaction that changes something
// (OPT2): post adds them to the batch that validates, behind the locks, and ok says, when they are
// complete, whether the transaction may commit. They must be READs.
func (tx *Tx) Check(post func(b *rdma.Batch), ok func() bool) {
	tx.checks = append(tx.checks, check{post, ok})
}

// Takes says for how long the transaction may hold its locks beyond what its objects take, 100 µs
// each: a client that waits for them does not suspect it earlier. It is called before Lock.
// Longest: see Lock. What takes long calls Renew.
func (tx *Tx) Takes(d time.Duration) { tx.takes = max(tx.takes, d) }

// Write replaces the data of an object, or gives data to a root that has none. data is copied. The
// error wraps ErrNoObject, client.ErrTooLarge or ErrTooMany.
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

// New makes an object, on the nodes in turn, and returns its name. The error wraps client.ErrFull
// or those of Write.
func (tx *Tx) New(data []byte) (Ref, error) {
	w := tx.w
	w.memory.turn++
	return tx.NewOn(w.memory.turn%w.Nodes, data)
}

// NewOn is New on a node, or another one if that is full.
func (tx *Tx) NewOn(node int, data []byte) (Ref, error) {
	if err := tx.dead(); err != nil {
		return 0, err
	}
	if err := tx.fits(data); err != nil {
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
		return 0, tx.cannot(err)
	}
	r := Ref(s.number | tx.life()<<48)
	o := tx.add(r)
	o.seen, o.slot, o.created = s.seen, s, true
	return r, tx.change(o, written, data)
}

// life tells objects of the same metadata apart.
func (tx *Tx) life() uint64 { return (tx.sequence*0x9e37 + uint64(tx.w.id)) & 0xffff }

// Free frees an object. A root is without data then.
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

// change notes what becomes of an object.
func (tx *Tx) change(o *object, c change, data []byte) error {
	if err := tx.fits(data); err != nil {
		return err
	}
	if c == freed && tx.w.Absent(o.seen.Pointer) { // it was made by this transaction
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

func (tx *Tx) fits(data []byte) error {
	if _, ok := tx.w.classOf(len(data)); !ok {
		return fmt.Errorf("an object of %d bytes: %w", len(data), client.ErrTooLarge)
	}
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
	o.ref, o.at = r, tx.w.Meta(r)
	tx.index[r] = n
	return o
}

// cannot ends the attempt with an error of the pool.
func (tx *Tx) cannot(err error) error { return tx.fail(err) }
