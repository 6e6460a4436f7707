package sherman

import (
	"errors"

	"github.com/farkv/farkv/client/locations"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/client/sherman/btree"
	"github.com/farkv/farkv/node/telemetry"
)

// rtxObjects are objects of package rtx. They remember the metadata of those that the worker has met last, within a
// budget: an object whose metadata is known is read in one trip, and locked with its data in one.
type rtxObjects struct {
	w     *rtx.Worker
	metas *locations.Cache[rtx.Meta]
	met   []rtx.Ref // by the transaction that runs

	// What runs, and functions that are made once, so that operations allocate nothing.
	tx      *rtx.Tx
	f       func(tx transaction) error
	runTx   func(tx *rtx.Tx) error
	refs    []rtx.Ref
	take    func(i int, data []byte)
	guess   func(r rtx.Ref) (rtx.Meta, bool)
	takeRef func(i int, m rtx.Meta, data []byte, there bool)
}

// metaBytes is what an entry of the metadata that is remembered counts for: an object's name, and its metadata.
const metaBytes = 8 + rtx.MetaBytes

func newRTXObjects(w *rtx.Worker, budget int) *rtxObjects {
	o := &rtxObjects{w: w, metas: locations.New[rtx.Meta](budget, metaBytes)}
	o.runTx, o.guess, o.takeRef = o.runOne, o.metaOf, o.takeOne
	return o
}

func (o *rtxObjects) root() btree.Ref { return btree.Ref(o.w.Root(0)) }

func (o *rtxObjects) span() { o.w.Span() }

func (o *rtxObjects) over() bool { return o.w.Over() }

func (o *rtxObjects) run(f func(tx transaction) error) error {
	o.f = f
	err := o.w.Run(o.runTx)
	for _, r := range o.met { // of the last attempt
		if m, ok := o.w.Seen(r); ok {
			*o.metas.Put(hashOf(r)) = m
		}
	}
	return err
}

// runOne is an attempt.
func (o *rtxObjects) runOne(tx *rtx.Tx) error {
	o.tx, o.met = tx, o.met[:0]
	return o.f(o)
}

// hashOf spreads the names of objects.
func hashOf(r rtx.Ref) uint64 {
	h := uint64(r) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

func (o *rtxObjects) metaOf(r rtx.Ref) (rtx.Meta, bool) {
	if m := o.metas.Find(hashOf(r)); m != nil {
		return *m, true
	}
	return rtx.Meta{}, false
}

// meet notes that the transaction meets an object, with what is known of it.
func (o *rtxObjects) meet(r rtx.Ref) {
	if m, ok := o.metaOf(r); ok {
		o.tx.Guess(r, m)
	}
	o.met = append(o.met, r)
}

func (o *rtxObjects) each(refs []btree.Ref, take func(i int, data []byte)) error {
	o.refs, o.take = o.refs[:0], take
	for _, r := range refs {
		o.refs = append(o.refs, rtx.Ref(r))
	}
	return gone(o.w.Each(o.refs, o.guess, o.takeRef))
}

func (o *rtxObjects) takeOne(i int, m rtx.Meta, data []byte, there bool) {
	*o.metas.Put(hashOf(o.refs[i])) = m
	if !there {
		data = nil
	}
	o.take(i, data)
}

func (o *rtxObjects) read(r btree.Ref) ([]byte, error) {
	o.meet(rtx.Ref(r))
	data, err := o.tx.Read(rtx.Ref(r))
	return data, gone(err)
}

func (o *rtxObjects) lock(r btree.Ref) error {
	o.meet(rtx.Ref(r))
	return gone(o.tx.Lock(rtx.Ref(r)))
}

func (o *rtxObjects) write(r btree.Ref, data []byte) error { return gone(o.tx.Write(rtx.Ref(r), data)) }

func (o *rtxObjects) create(data []byte) (btree.Ref, error) {
	r, err := o.tx.New(data)
	if err == nil {
		o.met = append(o.met, r)
	}
	return btree.Ref(r), err
}

func (o *rtxObjects) free(r btree.Ref) error {
	o.meet(rtx.Ref(r))
	return gone(o.tx.Free(rtx.Ref(r)))
}

func (o *rtxObjects) counts(to []telemetry.Counter) []telemetry.Counter { return o.w.Counts(to) }

func (o *rtxObjects) close() error { return o.w.Close() }

// gone is an error of package rtx in this package's words.
func gone(err error) error {
	if err != nil && errors.Is(err, rtx.ErrNoObject) {
		return errGone
	}
	return err
}
