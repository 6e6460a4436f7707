package sherman

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/locations"
	"github.com/farkv/farkv/client/sherman/btree"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// library is a pool's memory as a library of transactions divides it, package rtx
// or package dtx. Both promise the same: transactions are strictly serializable,
// all or nothing, and see a state that existed.
type library interface {
	// prepare backs the tables of a new pool.
	prepare(f rdma.Fabric) error
	// open returns a worker's view, which remembers what it has met within a
	// budget of bytes. A transaction takes no longer than timeout.
	open(ep rdma.Endpoint, timeout time.Duration, budget int) (objects, error)
	// leaveOut leaves parts of the protocol out, for workers that open
	// afterwards.
	leaveOut(w Without)
	// recoverer returns what a pool's master uses to recover dead clients.
	recoverer(ep rdma.Endpoint, v *kit.Member, timeout time.Duration) (cluster.Recoverer, error)
	// describe says what lies at an address.
	describe(a rdma.Addr) string
	// root returns the object that is the root of the tree for ever.
	root() btree.Ref
	// bytes returns how many bytes of a node hold objects, including headers.
	bytes() uint64
	// survey says what the memory of a pool was handed out for.
	survey(ep rdma.Endpoint, each time.Duration) (survey, error)
	// peek returns what an object has now; nil: there is none, or it changes. Any
	// endpoint will do, and clients may work meanwhile.
	peek(ep rdma.Endpoint, r btree.Ref, timeout time.Duration) ([]byte, error)
}

// survey is what the memory of a pool was handed out for.
type survey struct {
	// sizes are those of objects, and chunks the chunks of each.
	sizes  []int
	chunks []uint64
	// most is the number of chunks in the pool.
	most uint64
	// uses is what else there is to report.
	uses []client.Use
}

// objects are the nodes of a tree and the values beside its leaves, with the
// transactions over them. It is one worker's, and not safe for concurrent use.
type objects interface {
	// span begins the time that an operation has, for all of its transactions
	// together. over reports whether that time has ended.
	span()
	over() bool
	// run runs a transaction: see rtx.Worker.Run. f may be called several times.
	run(f func(tx transaction) error) error
	// each reads objects, each as it was at some moment of the call. take gets
	// nil if there is no such object. Data is valid until take returns.
	each(refs []btree.Ref, take func(i int, data []byte)) error
	// look returns what an object has, or errGone, in a pool that no client is
	// using. The data is valid until the next call.
	look(r btree.Ref) ([]byte, error)
	// check looks at all objects of such a pool, and reports. clients are those
	// that the pool lists, and whether they are alive.
	check(r *client.Report, clients map[rdma.ClientID]bool) (audit, error)
	counts(to []telemetry.Counter) []telemetry.Counter
	// settle releases what a transaction that has failed has locked, if others would wait for that.
	settle() error
	close() error
}

// audit is what a check of a pool's objects has found.
type audit struct {
	objects uint64
	// unfinished: some objects may be as they were before a transaction, and
	// others as they are behind it.
	unfinished bool
	facts      []fact
}

// fact is a number for the report.
type fact struct {
	name  string
	count int
}

// transaction is a transaction that runs. When a method returns an error the
// transaction has to be run again, or cannot succeed; the closure returns that
// error.
type transaction interface {
	// read returns an object's data, or errGone. The data is valid until the
	// closure returns, and must not be changed.
	read(r btree.Ref) ([]byte, error)
	// lock keeps other clients from changing an object from now on.
	lock(r btree.Ref) error
	// write replaces an object's data, which is copied.
	write(r btree.Ref, data []byte) error
	// create makes an object, which has room for so many bytes of data later.
	create(data []byte, room int) (btree.Ref, error)
	// free frees an object, or returns errGone.
	free(r btree.Ref) error
}

// errGone ends the read of an object that is not there.
var errGone = errors.New("no such object")

// known is what a worker remembers of the objects that it has met last: an M of
// each, within a budget, so that such an object is read and locked in fewer
// trips. It is the part of a transaction that both libraries do alike.
type known[R ~uint64, M any] struct {
	// none is the library's error for an object that is not there.
	none error
	// metas may be out of date: what it has is only a guess for the library.
	metas *locations.Cache[M]
	// met are the objects that the running transaction has met.
	met []R
	// tx is the transaction that runs.
	tx libraryTx[R, M]
	// late: the transaction locks nothing before it commits: see EarlyLocks.
	late bool
}

// libraryTx is a running transaction of a library.
type libraryTx[R ~uint64, M any] interface {
	Guess(r R, m M)
	Read(r R) ([]byte, error)
	Lock(r R) error
	Write(r R, data []byte) error
	Free(r R) error
}

// hashOf spreads the names of objects over the cache.
func hashOf(r uint64) uint64 {
	h := r * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

// begin begins an attempt of a transaction.
func (k *known[R, M]) begin(tx libraryTx[R, M]) { k.tx, k.met = tx, k.met[:0] }

// find returns what is remembered of an object.
func (k *known[R, M]) find(r R) (m M, ok bool) {
	if found := k.metas.Find(hashOf(uint64(r))); found != nil {
		return *found, true
	}
	return m, false
}

// learn remembers an object.
func (k *known[R, M]) learn(r R, m M) { *k.metas.Put(hashOf(uint64(r))) = m }

// learnMet remembers what the last attempt has left, as far as the library has
// seen it.
func (k *known[R, M]) learnMet(seen func(r R) (M, bool)) {
	for _, r := range k.met {
		if m, ok := seen(r); ok {
			k.learn(r, m)
		}
	}
}

// meet notes that the transaction meets an object, and tells the library what is
// remembered of it.
func (k *known[R, M]) meet(ref btree.Ref) R {
	r := R(ref)
	if m, ok := k.find(r); ok {
		k.tx.Guess(r, m)
	}
	// After the attempt what it has met is remembered again, as the library has
	// seen it.
	k.met = append(k.met, r)
	return r
}

// read implements transaction.
func (k *known[R, M]) read(ref btree.Ref) ([]byte, error) {
	data, err := k.tx.Read(k.meet(ref))
	return data, k.gone(err)
}

// lock implements transaction. Without early locks it only reads the object.
func (k *known[R, M]) lock(ref btree.Ref) error {
	if k.late {
		// A root without data may be written all the same, and the next read
		// returns errGone again.
		if _, err := k.read(ref); err != errGone {
			return err
		}
		return nil
	}
	return k.gone(k.tx.Lock(k.meet(ref)))
}

// write implements transaction.
func (k *known[R, M]) write(ref btree.Ref, data []byte) error {
	return k.gone(k.tx.Write(R(ref), data))
}

// free implements transaction.
func (k *known[R, M]) free(ref btree.Ref) error { return k.gone(k.tx.Free(k.meet(ref))) }

// gone translates an error of the library.
func (k *known[R, M]) gone(err error) error {
	if err != nil && errors.Is(err, k.none) {
		return errGone
	}
	return err
}

// shapeError makes an error about a library's shape one about parameters.
func shapeError(err error) error { return fmt.Errorf("%w: %w", ErrParams, err) }
