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
	Objects int // that are there, roots among them
	Held    int // locks, of transactions that are over
	Places  int // of chunks that were handed out, and roots
	Owned   int // chunks that a client has
	Handed  int // chunks that were handed out
	// Lost are chunks of clients that are none of those that Check was told.
	Lost int
}

// mostErrors bounds what Check tells.
const mostErrors = 10

// audit is a Check at work.
type audit struct {
	*Worker
	Usage
	errs []error
}

func (a *audit) fail(format string, args ...any) {
	if len(a.errs) < mostErrors {
		a.errs = append(a.errs, fmt.Errorf(format+": %w", append(args, client.ErrDamaged)...))
	}
}

// Check looks at all objects of a pool that no client is using, and whose dead clients were recovered: each is whole, and
// held, if at all, by a transaction that is over. alive reports whether a client is there, for the chunks that it has.
func (w *Worker) Check(alive func(rdma.ClientID) bool) (Usage, error) {
	a := &audit{Worker: w}
	w.extend()
	for i := range w.Roots {
		if err := a.object(w.Root(i)); err != nil {
			return a.Usage, err
		}
	}
	for n := range w.Nodes {
		for from := 0; from < w.chunks; from += tableAtOnce {
			entries, err := w.readEntries(n, from)
			if err != nil {
				return a.Usage, err
			}
			for i, e := range entries {
				if err := a.chunk(n, from+i, e, alive); err != nil {
					return a.Usage, err
				}
			}
		}
	}
	return a.Usage, errors.Join(a.errs...)
}

func (a *audit) chunk(n, index int, e node.Entry, alive func(rdma.ClientID) bool) error {
	switch {
	case e == 0:
		return nil
	case e.Owner() == 0 || e.Class() >= len(a.Sizes):
		a.fail("the word of chunk %d of node %d is %v", index, n, e)
		return nil
	case e.Owner() != node.Left:
		a.Owned++
		if !alive(e.Owner()) {
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

// object looks at a place.
func (a *audit) object(place Ref) error {
	a.extend()
	a.Places++
	at, bytes := a.Object(place)
	b := a.ep.Batch()
	defer a.drop(b)
	op := b.Read(at, bytes)
	if err := a.do(stepRead, b); err != nil {
		return fmt.Errorf("check %v: %w", place, err)
	}
	lock, head := Version(op.Word(0)), Version(op.Word(versionAt/8))
	if lock.Held() {
		a.Held++
		_, ended, err := a.look(at, lock.owner())
		if err != nil {
			return fmt.Errorf("check %v: %w", place, err)
		}
		if ended < lock.sequence() {
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
