package sherman

import (
	"errors"

	"github.com/farkv/farkv/client/sherman/btree"
	"github.com/farkv/farkv/node/telemetry"
)

// objects are what a tree is made of, its nodes and the values beside its leaves, and the transactions over them. Both
// are those of package rtx, or of another one that promises the same: transactions are strictly serializable, all or
// nothing, and see a state that existed.
type objects interface {
	// root names the object of the root, which is there for ever.
	root() btree.Ref
	// span begins the time that an operation has, for all its transactions together, and over says whether it has ended.
	span()
	over() bool
	// run runs a transaction: see rtx.Worker.Run.
	run(f func(tx transaction) error) error
	// each reads objects, each as it was at some moment of the call. take gets nil where there is none; data is valid
	// until take returns.
	each(refs []btree.Ref, take func(i int, data []byte)) error
	counts(to []telemetry.Counter) []telemetry.Counter
	close() error
}

// transaction is one that runs. Its methods return an error when it has to be run again, which the closure returns.
type transaction interface {
	// read returns an object's data, valid until the closure returns, or errGone.
	read(r btree.Ref) ([]byte, error)
	// lock keeps others from changing an object from now on.
	lock(r btree.Ref) error
	write(r btree.Ref, data []byte) error
	create(data []byte) (btree.Ref, error)
	free(r btree.Ref) error
}

// errGone ends the read of an object that is not there.
var errGone = errors.New("no such object")
