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

// library is a pool's memory as a library of transactions divides it: that of package rtx, or that
// of package dtx. Both promise the same: transactions are strictly serializable, all or nothing,
// and see a state that existed.
type library interface {
	// prepare backs the tables of a new pool.
	prepare(f rdma.Fabric) error
	// open returns a worker's view, which remembers what it has met within a budget. A transaction has
	// so much time.
	open(ep rdma.Endpoint, timeout time.Duration, budget int) (objects, error)
	// leaveOut leaves parts of the protocol out for those that open behind it.
	leaveOut(w Without)
	// mender returns what a pool's master uses.
	mender(ep rdma.Endpoint, v *kit.Member, timeout time.Duration) (cluster.Mender, error)
	describe(a rdma.Addr) string
	root() btree.Ref
	// bytes returns how many bytes of a node are there for what objects have, with their headers.
	bytes() uint64
	// survey tells what the memory of a pool was handed out for.
	survey(ep rdma.Endpoint, each time.Duration) (survey, error)
	// peek returns what an object has now; nil: there is none, or it changes.
	peek(ep rdma.Endpoint, r btree.Ref, timeout time.Duration) ([]byte, error)
}

// survey is what the memory of a pool was handed out for.
type survey struct {
	sizes  []int    // of what chunks have
	chunks []uint64 // by size
	most   uint64   // chunks that there are
	uses   []client.Use
}

// objects are what a tree is made of, its nodes and the values beside its leaves, and the
// transactions over them.
type objects interface {
	// span begins the time that an operation has, for all its transactions together, and over says
	// whether it has ended.
	span()
	over() bool
	// run runs a transaction: see rtx.Worker.Run.
	run(f func(tx transaction) error) error
	// each reads objects, each as it was at some moment of the call. take gets nil where there is
	// none; data is valid until take returns.
	each(refs []btree.Ref, take func(i int, data []byte)) error
	// look returns what an object has in a pool that no client is using, or errGone. It is valid until
	// the next call.
	look(r btree.Ref) ([]byte, error)
	// check looks at all objects of such a pool, and reports. clients are those that there are, and
	// whether they are alive.
	check(r *client.Report, clients map[rdma.ClientID]bool) (audit, error)
	counts(to []telemetry.Counter) []telemetry.Counter
	close() error
}

// audit is what a check of a pool's objects has found.
type audit struct {
	objects    uint64
	unfinished bool // some may be in part as they were before a transaction
	facts      []fact
}

type fact struct {
	name  string
	count int
}

// transaction is one that runs. Its methods return an error when it has to be run again, which the
// closure returns.
type transaction interface {
	// read returns an object's data, valid until the closure returns, or errGone.
	read(r btree.Ref) ([]byte, error)
	// lock keeps others from changing an object from now on.
	lock(r btree.Ref) error
	write(r btree.Ref, data []byte) error
	// create makes an object, which may have so many bytes later.
	create(data []byte, room int) (btree.Ref, error)
	free(r btree.Ref) error
}

// errGone ends the read of an object that is not there.
var errGone = errors.New("no such object")

// known is what a worker remembers of the objects that it has met last, M of each, within a budget,
// so that one that is known is read and locked in fewer trips. It is the part of a transaction that
// both libraries do alike.
type known[R ~uint64, M any] struct {
	none  error // of an object that is not there, as the library has it
	metas *locations.Cache[M]
	met   []R // by the transaction that runs
	tx    libraryTx[R, M]
	late  bool // it locks nothing before it commits
}

// libraryTx is a transaction of a library that runs.
type libraryTx[R ~uint64, M any] interface {
	Guess(r R, m M)
	Read(r R) ([]byte, error)
	Lock(r R) error
	Write(r R, data []byte) error
	Free(r R) error
}

// hashOf spreads the names of objects.
func hashOf(r uint64) uint64 {
	h := r * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

// begin begins an attempt of a transaction.
func (k *known[R, M]) begin(tx libraryTx[R, M]) { k.tx, k.met = tx, k.met[:0] }

func (k *known[R, M]) find(r R) (m M, ok bool) {
	if found := k.metas.Find(hashOf(uint64(r))); found != nil {
		return *found, true
	}
	return m, false
}

func (k *known[R, M]) learn(r R, m M) { *k.metas.Put(hashOf(uint64(r))) = m }

// learnMet notes what the last attempt has left, as far as the library has seen it.
func (k *known[R, M]) learnMet(seen func(r R) (M, bool)) {
	for _, r := range k.met {
		if m, ok := seen(r); ok {
			k.learn(r, m)
		}
	}
}

// meet notes that the transaction meets an object, with what is known of it.
func (k *known[R, M]) meet(ref btree.Ref) R {
	r := R(ref)
	if m, ok := k.find(r); ok {
		k.tx.Guess(r, m)
	}
	k.met = append(k.met, r)
	return r
}

func (k *known[R, M]) read(ref btree.Ref) ([]byte, error) {
	data, err := k.tx.Read(k.meet(ref))
	return data, k.gone(err)
}

func (k *known[R, M]) lock(ref btree.Ref) error {
	if k.late {
		if _, err := k.read(ref); err != errGone { // which a root may be that is written, and the next read says again
			return err
		}
		return nil
	}
	return k.gone(k.tx.Lock(k.meet(ref)))
}

func (k *known[R, M]) write(ref btree.Ref, data []byte) error {
	return k.gone(k.tx.Write(R(ref), data))
}

func (k *known[R, M]) free(ref btree.Ref) error { return k.gone(k.tx.Free(k.meet(ref))) }

// gone is an error of the library in this package's words.
func (k *known[R, M]) gone(err error) error {
	if err != nil && errors.Is(err, k.none) {
		return errGone
	}
	return err
}

// shapeError is what is wrong with parameters.
func shapeError(err error) error { return fmt.Errorf("%w: %w", ErrParams, err) }
