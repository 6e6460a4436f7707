package extendible

import (
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// descriptorBytes is the size of a descriptor: local depth, and where the
// subtable lies.
const descriptorBytes = 16

// encode returns the descriptor of a subtable.
func (s subtable) encode() []byte {
	return le.AppendUint64(le.AppendUint64(nil, uint64(s.depth)), s.place)
}

// The entries of race-rtx and race-dtx are objects of a library of transactions.
// To a rehash the libraries differ in two things: how much a lock hides, which is
// the descriptor with DTX alone, and what ends the transaction of a client that
// died: whichever client meets its lock, behind the lease, or the master.

// tx is a transaction of rTX or DTX. R names its objects.
type tx[R any] interface {
	Lock(R) error
	Read(R) ([]byte, error)
	Write(R, []byte) error
}

// transactions is what both libraries have: see their Worker.
type transactions[R any, T tx[R]] interface {
	Run(func(T) error) error
	Await(R) error
	Recover(rdma.ClientID) error
	Counts([]telemetry.Counter) []telemetry.Counter
	Close() error
}

// entries is a directory with entries that are objects of transactions: a rehash
// is one transaction.
type entries[R any, T tx[R]] struct {
	t transactions[R, T]
	// root returns the object that is the entry of a suffix.
	root func(suffix int) R
	// begin, unless nil, is called when the transaction of a rehash begins.
	begin func(tx T, r *rehash)
}

// await waits for a lock. rTX repairs what a client has left when the lease of
// that client is over. DTX waits until the master has recovered it.
func (e *entries[R, T]) await(suffix uint64) error { return e.t.Await(e.root(int(suffix))) }

// create makes the descriptor of the subtable of all keys.
func (e *entries[R, T]) create(place uint64) error {
	return e.t.Run(func(tx T) error { return tx.Write(e.root(0), subtable{place: place}.encode()) })
}

// split is one transaction: it locks the subtable, makes memory that no entry
// names hold what moves, and changes two descriptors. It relies on the lock for
// the copy only: a slot that changes meanwhile, and was not copied, is changed
// again by its client, which looks. If the transaction is run again the memory is
// written again. A crash before the commit leaves memory that is claimed again,
// and behind the commit a transaction that other clients finish: with DTX the
// master, to which a client that dies earlier leaves the lock.
//
// split returns false if the subtable was split already.
func (e *entries[R, T]) split(r *rehash) (done bool, err error) {
	from := r.from
	err = e.t.Run(func(tx T) error {
		done = false
		if e.begin != nil {
			e.begin(tx, r)
		}
		root := e.root(int(from.suffix))
		// From here on no other client splits the subtable. Operations on keys
		// that move wait for the lock. With DTX the lock hides the descriptor, so
		// all operations on the subtable wait, also those on keys that stay.
		if err := tx.Lock(root); err != nil {
			return err
		}
		data, err := tx.Read(root)
		// The subtable was split since the client has read the entry.
		if err != nil || int(le.Uint64(data)) != from.depth {
			return err
		}
		if err := r.take(); err != nil {
			return err
		}
		// The memory that is written here is named by no entry yet, so a copy
		// that is given up does no harm.
		if err := r.copy(); err != nil {
			return err
		}
		done = true
		// Both descriptors change in one transaction, so no search finds a
		// subtable without its keys.
		if err := tx.Write(root, subtable{depth: from.depth + 1, place: from.place}.encode()); err != nil {
			return err
		}
		return tx.Write(e.root(int(from.child())), subtable{depth: from.depth + 1, place: r.to}.encode())
	})
	return done && err == nil, err
}

// settle has nothing to do: the next transaction settles what an earlier one has
// left.
func (e *entries[R, T]) settle() error { return nil }

// recover ends the transactions of a client: rehashes that were decided are
// finished, and the locks of others released.
func (e *entries[R, T]) recover(c rdma.ClientID) error { return e.t.Recover(c) }

// close gives back what the worker holds of the library's memory.
func (e *entries[R, T]) close() error { return e.t.Close() }

// counts appends what the library counts.
func (e *entries[R, T]) counts(to []telemetry.Counter) []telemetry.Counter { return e.t.Counts(to) }
