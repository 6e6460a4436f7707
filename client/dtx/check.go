package dtx

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Usage is what Check has found.
type Usage struct {
	// Objects counts the objects that are there, roots among them.
	Objects int
	// Held counts locks of transactions that are over: the next client that meets
	// one releases it.
	Held int
	// Waiting counts locks of transactions that are not over, of clients that
	// Check was told. If such a client is dead, its recovery ends them. Some of
	// their objects may be as they were before.
	Waiting int
	// Places counts the places of chunks that were handed out, and roots.
	Places int
	// Owned counts the chunks that a client has, and Handed those that were
	// handed out.
	Owned  int
	Handed int
	// Lost counts chunks of clients of which Check was told that they are not
	// there.
	Lost int
}

// mostErrors bounds the errors that Check returns.
const mostErrors = 10

// audit is the state of a Check.
type audit struct {
	*Worker
	Usage
	there func(rdma.ClientID) bool
	errs  []error
}

// fail notes an error that wraps client.ErrDamaged.
func (a *audit) fail(format string, args ...any) {
	if len(a.errs) < mostErrors {
		a.errs = append(a.errs, fmt.Errorf(format+": %w", append(args, client.ErrDamaged)...))
	}
}

// Check looks at all objects of a pool that no client is using. Each is whole.
// Each that is locked is held by a transaction that is over, or by a client that
// is there: it is alive, or it is dead and is to be recovered. there reports
// whether a client is. The error wraps client.ErrDamaged when the pool is
// damaged; the Usage is valid all the same.
func (w *Worker) Check(there func(rdma.ClientID) bool) (Usage, error) {
	a := &audit{Worker: w, there: there}
	w.trips.Begin()
	for i := range w.Roots {
		if err := a.object(w.Root(i)); err != nil {
			return a.Usage, err
		}
	}
	for n := range w.Nodes {
		entries, err := w.memory.table.Read(&w.chunks, n)
		if err != nil {
			return a.Usage, err
		}
		for i, e := range entries {
			if err := a.chunk(n, i, e); err != nil {
				return a.Usage, err
			}
		}
	}
	return a.Usage, errors.Join(a.errs...)
}

// chunk looks at the objects of a chunk.
func (a *audit) chunk(n, index int, e node.Entry) error {
	switch {
	case e == 0:
		return nil
	case e.Owner() == 0 || e.Class() >= len(a.Sizes):
		a.fail("the word of chunk %d of node %d is %v", index, n, e)
		return nil
	case e.Owner() != node.Left:
		a.Owned++
		if !a.there(e.Owner()) {
			a.Lost++
		}
	}
	a.Handed++
	for i := range a.perChunk(e.Class()) {
		if err := a.object(a.placeOf(n, index, e.Class(), i)); err != nil {
			return err
		}
	}
	return nil
}

// object looks at a place: its body is whole, and has the version that its lock
// says.
func (a *audit) object(place Ref) error {
	a.trips.Begin()
	a.Places++
	at, bytes := a.Object(place)
	b := a.ep.Batch()
	defer a.trips.Drop(b)
	op := b.Read(at, bytes)
	if err := a.trips.Do(stepRead, b); err != nil {
		return fmt.Errorf("check %v: %w", place, err)
	}
	lock, head := Version(op.Word(0)), Version(op.Word(versionAt/8))
	if lock.Held() {
		ended, err := a.ended(lock)
		switch {
		case err != nil:
			return fmt.Errorf("check %v: %w", place, err)
		case ended:
			a.Held++
		case a.there(lock.owner()):
			a.Waiting++
			return nil
		default:
			a.fail("%v is held by transaction %d of client %d, which is not over", place, lock.sequence(), lock.owner())
		}
		lock = head
	}
	o, ok := decode(op.Buf, lock)
	if !ok {
		a.fail("%v at %v has version %#x, and data of %#x", place, at, uint64(lock), uint64(head))
		return nil
	}
	if o.there {
		a.Objects++
	}
	return nil
}

// ended reports whether the transaction that holds a lock is over.
func (w *Worker) ended(lock Version) (bool, error) {
	c := lock.owner()
	if c == 0 || int(c) > w.Clients {
		return false, nil
	}
	ended, _, err := w.look(w.log(c).Add(endedAt), 0)
	return uint64(ended) >= lock.sequence(), err
}

// Look returns the data of an object, whatever its lock says. It is meant for
// pools that no client is using. The error wraps ErrNoObject if there is none.
// The data is valid until the next call.
func (w *Worker) Look(r Ref) ([]byte, error) {
	w.trips.Begin()
	if !w.valid(r) {
		return nil, fmt.Errorf("look at %v: %w", r, ErrNoObject)
	}
	at, bytes := w.Object(r)
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	op := b.Read(at, bytes)
	if err := w.trips.Do(stepRead, b); err != nil {
		return nil, fmt.Errorf("look at %v: %w", r, err)
	}
	v := Version(op.Word(0))
	if v.Held() {
		v = Version(op.Word(versionAt / 8))
	}
	o, whole := decode(op.Buf, v)
	switch {
	case !whole:
		return nil, fmt.Errorf("%v has no data at %v: %w", r, at, client.ErrDamaged)
	case !o.is(r):
		return nil, fmt.Errorf("look at %v: %w", r, ErrNoObject)
	}
	w.seenData = append(w.seenData[:0], o.data...)
	return w.seenData, nil
}
