package fusee

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// follower brings what a client knows up to the pool's view: the size of the index, its memory, its
// unresolved writes and its cache. An operation that a change of the view cut off waits here.
//
// The view that was joined is one of these:
//   - idle, and the client has caught up with it (behind is false): all operations run.
//   - idle, and the client has not: it reads by the cache and the index, and resyncs before it
//     writes.
//   - busy: it reads (getMeanwhile), and writes wait (settled).
type follower struct {
	s          *session.Session
	mem        *memory.Allocator
	unresolved *unresolvedWrites
	pairs      *pairs
	cache      *indexCache
	// sized: the index has the size that it has in the view that was joined, and the view is
	// idle. So the size cannot change before the next view.
	sized bool
	// asked is the largest size of the index for which askEarly has asked.
	asked int
	// behind: the view has changed since resync. No operation writes before the next resync.
	behind bool
	// Where regions lay in views for which resync has not made up yet.
	oldSpace [][][]node.Replica
}

// applyView places everything as a view says that the worker joins, and notes for resync what
// changed. It posts nothing. Until resync has run, the memory is as it was in the old view.
func (f *follower) applyView(v *rdma.View) {
	f.sized = f.sized && v.Epoch == f.s.View.Epoch && !v.Busy
	if v.Epoch != f.s.View.Epoch {
		f.asked = 0 // the node that was told may be gone
	}
	if !slices.Equal(v.Members, f.s.View.Members) {
		before := f.s.Index.Place
		f.oldSpace = append(f.oldSpace, f.s.Space.Place)
		f.s.Layout.ApplyView(v)
		f.pairs.slow.Clear()
		// A subtable with a new primary may have replicas that differ until the view is idle.
		for sub := range f.s.Index.Place {
			if f.s.Index.Place[sub][0].Node != before[sub][0].Node {
				f.pairs.promoted[sub] = true
			}
		}
	}
	f.behind = f.behind || v.Epoch != f.s.View.Epoch || v.Busy
	if !v.Busy {
		clear(f.pairs.promoted)
	}
}

// settled waits for an idle view later than the one in which an operation was cut off, and for
// resync to catch up with it, up to WaitLimit. It returns true then: no verb of the operation can
// land any more, and the master has made all replicas equal.
//
// It returns false without an error when no such view comes, because the failed node was
// unreachable for this client alone and answers again. Then nothing is known about the verbs that
// failed, but none of them is in flight. The error wraps ErrDeadline when the time is over, and
// cause.
func (f *follower) settled(cause error) (bool, error) {
	f.s.Stats.Mended++
	limit, epoch := f.s.WaitLimit(), f.s.View.Epoch
	for r := f.s.RetryUntil(kit.WhileBusy, limit); ; {
		unknown := f.s.View.Join()
		if unknown != nil && !errors.Is(unknown, rdma.ErrUnreachable) {
			return false, unknown
		}
		switch {
		case unknown != nil: // the nodes that keep the view may be back in time
		case f.s.View.Busy:
		case f.s.View.Epoch > epoch || errors.Is(cause, rdma.ErrStale):
			// No verb of the old epoch can land, and all replicas are equal.
			err := f.catchUp()
			if err == nil || !session.Interrupted(err) {
				return err == nil, err
			}
			// Another view came meanwhile: wait for an idle one after it.
			epoch, cause = f.s.View.Epoch, err
		case f.s.IsGone(cause):
			return false, fmt.Errorf("the last replica is gone (epoch %d): %w", f.s.View.Epoch, cause)
		case !f.s.Answers(cause):
		case !f.behind:
			return false, nil
		default: // the view has changed, and only catching up with it has failed
			cause = fmt.Errorf("%w: %w", rdma.ErrStale, cause)
		}
		if !r.Again() {
			if unknown != nil {
				cause = fmt.Errorf("%w: %w", cause, unknown)
			}
			return false, fmt.Errorf("wait for the pool to be mended (epoch %d): %w: %w",
				f.s.View.Epoch, session.ErrDeadline, cause)
		}
	}
}

// catchUp brings what this client knows up to the view that it has joined, which is idle, and in
// which it has placed its items: the size of the index, and its memory. Until now its verbs may
// have failed, and none of them is in flight any more. A region of which the primary has moved has
// lost its hints, the bitmaps of its blocks.
//
// What the steps rely on, in their order:
//   - Resync of the memory: what was in flight, and the tables, decide which blocks and objects
//     are this client's.
//   - settle: all replicas of slots are equal, and nothing is in flight, so unresolved writes can
//     be resolved.
//   - Resume: stuck frees come last, as they post verbs that nothing waits for.
//
// When it fails behind stays set, and it may be called again, in the same view or in the next: it
// goes on with the blocks that are left. It also fails at the operation's deadline, with
// ErrDeadline.
func (f *follower) catchUp() error {
	err := f.learnSize()
	if err == nil {
		f.mem.Suspect(func(region int) bool {
			now := f.s.Space.Place[region][0].Node
			return slices.ContainsFunc(f.oldSpace, func(p [][]node.Replica) bool { return p[region][0].Node != now })
		})
		// Blocks of moved regions are marked now. What is read of them here is not read again in
		// another try.
		f.oldSpace = nil
		err = f.mem.Resync()
	}
	if err != nil {
		return fmt.Errorf("rejoin the pool: %w", err)
	}
	// No verb of an earlier epoch can land any more.
	f.unresolved.landed()
	f.unresolved.settle(!f.behind)
	f.mem.Resume()
	f.behind = false
	return nil
}

// keepUp lets a client write only in an idle view, to which its memory has caught up. Then it
// resolves what it can of its unresolved writes: the next write may meet their rounds, for which
// other clients wait, and no block is left to others meanwhile. Where there are none it posts
// nothing.
func (f *follower) keepUp() error {
	if f.s.View.Busy || f.behind {
		if _, err := f.settled(rdma.ErrStale); err != nil {
			return err
		}
	}
	f.unresolved.settle(!f.behind)
	return nil
}

// blip returns nil when a verb failed only because its node was out of this client's reach for a
// moment, in a view that has not changed: the same verb may be tried again. Otherwise it returns
// the error; it wraps rdma.ErrStale when the view has changed.
func (f *follower) blip(err error) error {
	if !session.Interrupted(err) || errors.Is(err, rdma.ErrStale) {
		return err
	}
	switch changed, e := f.settled(err); {
	case e != nil:
		return err
	case changed:
		return fmt.Errorf("%w: %w", rdma.ErrStale, err)
	}
	return nil
}

// learnSize reads the index's size in the view that this client has joined, and makes up for
// splits. Under an idle view it need not be read again.
//
// The new subtables were written on all replicas that there are, so they count as having their
// primary. Unresolved writes follow their pairs. The index may also be smaller than before: see
// tentative.
func (f *follower) learnSize() error {
	before := len(f.s.Index.Place)
	if err := f.s.ReadSize(); err != nil {
		return err
	}
	f.sized = !f.s.View.Busy
	if size := len(f.s.Index.Place); size != before {
		f.pairs.promoted = append(f.pairs.promoted[:min(before, size)], make([]bool, max(0, size-before))...)
		f.unresolved.followPairs()
		// The cache was sized for half of the slots.
		if size >= 2*before {
			f.cache.reset(f.s.Index.Slots())
		}
	}
	return nil
}

// tentative reports whether a slot may be in no subtable of the next idle view. A node that has the
// index's next size alone may die with the master that wrote it, and then no split takes place. So
// a slot of the last subtable is not cached under a busy view: its words would stay as they are.
func (f *follower) tentative(s race.Slot) bool {
	last := len(f.s.Index.Place) - 1
	return f.s.View.Busy && last >= f.s.Subtables && f.s.Index.Subtable(s) == last
}

// grewMeanwhile reports whether the index has grown since this client looked for a key and did
// not find it. Under an idle view it cannot have.
func (f *follower) grewMeanwhile() (bool, error) {
	if !f.s.View.Busy {
		return false, nil
	}
	before := len(f.s.Index.Place)
	err := f.learnSize()
	return len(f.s.Index.Place) != before, err
}

// ask tells the master that the index should have so many subtables. Clients overwrite each
// other's words, and one that is overwritten asks again as long as it waits.
func (f *follower) ask(size int) error {
	b := f.s.Batch()
	defer b.Release()
	b.WriteWord(f.s.Wanted(f.s.Holders[0]), uint64(size))
	return f.s.Do(session.StepAskSize, b)
}

// askEarly asks for a larger index when a key's buckets are nearly full, once for each size. When
// it fails another INSERT will ask.
func (f *follower) askEarly(hash uint64) {
	want := f.s.Index.SizeToSplit(f.s.Index.SubtableOf(hash))
	if want <= f.s.MostSubtables() && f.asked < want && f.ask(want) == nil {
		f.asked = want
	}
}

// awaitGrowth waits until the subtable of a key has been split, since there is no slot for the
// key. It waits for the operation's time, and as long again whenever the index has grown, since
// other subtables may come first. The operation has changed nothing, and has its whole time after
// that. The error wraps client.ErrFull when the index may not grow further, or when no master
// splits it.
func (f *follower) awaitGrowth(hash uint64) error {
	full := fmt.Errorf("all %d slots of the key's buckets are taken: index: %w", race.Candidates, client.ErrFull)
	want := f.s.Index.SizeToSplit(f.s.Index.SubtableOf(hash))
	last := f.s.Now() + longestGrowth*f.s.OpTimeout
	for r := (kit.Retry{Env: f.s.Endpoint, Pause: kit.WhileBusy, Over: f.s.Overdue}); want <= f.s.MostSubtables(); {
		// A request may be lost with its node, or be overwritten: it is repeated with each pause.
		if err := f.ask(want); err != nil && !session.Interrupted(err) {
			return fmt.Errorf("ask for a larger index: %w", err)
		}
		if !r.Again() {
			return full
		}
		size := len(f.s.Index.Place)
		if err := f.s.View.Join(); err != nil {
			return fmt.Errorf("wait for a larger index: %w", err)
		}
		if err := f.keepUp(); err != nil {
			return err
		}
		// The index grows, so a master is at work.
		if len(f.s.Index.Place) > size {
			f.s.Deadline = min(last, f.s.Now()+f.s.OpTimeout)
		}
		if f.s.Index.SizeToSplit(f.s.Index.SubtableOf(hash)) != want {
			// It has been split: want was the size that splits it, and its parts come next.
			f.s.Start()
			return nil
		}
	}
	return full
}

// journalWord returns the index of a journal word that no unresolved write holds. Where all are
// held it tries to resolve them for as long as the operation may take. The error wraps
// rdma.ErrStale when the view has changed meanwhile, and ErrDeadline when none is resolved in
// time.
func (f *follower) journalWord() (int, error) {
	for r := f.s.Pace; ; {
		if i, ok := f.unresolved.freeWord(); ok {
			return i, nil
		}
		// All words are held: find out which writes have landed, and resolve those.
		if err := f.s.View.Join(); err != nil {
			return 0, fmt.Errorf("journal a write: %w", err)
		}
		if f.s.View.Busy || f.behind {
			return 0, fmt.Errorf("journal a write: %w", rdma.ErrStale)
		}
		f.unresolved.settle(!f.behind)
		if !r.Again() {
			return 0, session.TimedOut(
				fmt.Sprintf("journal a write: %d earlier ones are unresolved", len(f.unresolved.list)))
		}
	}
}

const (
	// littleRoom is how few empty slots of 28 an INSERT sees in its buckets when it asks for a
	// larger index. Of the pairs that an index is sized for, one in 10,000 INSERTs sees so few.
	littleRoom = 2
	// longestGrowth is for how many timeouts an INSERT waits at most for an index that is
	// growing.
	longestGrowth = 16
)
