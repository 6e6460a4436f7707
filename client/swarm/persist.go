package swarm

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// rustAfter is the share of an operation's timeout after which an idle client assumes that epochs
// may have begun without its knowledge. In real time this is less than a keeper's tick, and two
// epochs are at least a tick apart.
const rustAfter = 100

// mayOutdate reports whether a fence during a WRITE to a cached object might be the second one
// since the object was known to exist. Then the object would be outdated, and the outcome of the
// WRITE unknown. So the caller reads first: a READ that is cut off has no effect. RAW's READs do
// not prove that an object exists, so its caller asks the directory.
func (s *Store) mayOutdate(k *Register, now time.Duration) bool {
	return k.epoch < s.member.Epoch || now-s.proven > s.c.opt.Timeout/rustAfter
}

// lastSweep returns the latest epoch that a master has begun to sweep. The master notes the epoch
// on each node that is not gone before it examines anything, so any node that the view has can
// answer.
func (s *Store) lastSweep(v *rdma.View) (epoch uint64, err error) {
	err = rdma.ErrNodeDown
	for n := 0; n < s.nodes && err != nil && !errors.Is(err, rdma.ErrStale); n++ {
		if !v.Members[n].Gone && !s.c.quorum.IsSlow(n) {
			epoch, err = s.values.Swept(n)
		}
	}
	return epoch, err
}

// begin prepares an operation: it joins the view again after a verb was fenced off, and under a
// busy view, which may be idle by now.
func (s *Store) begin() error {
	if !s.stale && !s.member.Busy {
		return nil
	}
	if err := s.member.Join(); err != nil {
		return err
	}
	s.stale = false
	return nil
}

// tries counts the failed attempts of an operation.
type tries struct {
	// stale and full count attempts that were fenced off, and that found no memory.
	stale, full int
	// began is when the operation began; or for a GET, when it had to wait first.
	began time.Duration
	// outages counts attempts that too few nodes answered.
	outages int
	// young is when the operation first found only retired objects that may not be claimed yet.
	young time.Duration
}

// If a client, or its nodes, stood still for long, its connections are cut, and it has new ones a
// few trips later. Until then its verbs fail at once. So an operation pauses between its
// attempts: first for timeout/firstReach, and at most for timeout/lastReach.
const (
	firstReach = 10_000
	lastReach  = 50
)

// mostSweeps bounds the sweeps that an operation waits for: other clients may take what each of
// them frees.
const mostSweeps = 3

// noSweepFor is for how many timeouts a client does not wait for sweeps after it has waited for
// one in vain, for at least 1/noSweepShare of a timeout: then the pool has no keeper, and
// operations that find no memory fail at once. A shorter wait, or one during which the client
// could not join the view, says nothing about the keeper. The same holds for epochs without a
// sweep. Each kind counts for itself, since a keeper that rests between sweeps begins such epochs.
const (
	noSweepFor   = 4
	noSweepShare = 2
)

// again reports whether an operation that failed is tried once more, after it has waited for what
// the operation needs. It is if several epochs have begun meanwhile, if there was no memory, or
// if too few nodes were in reach; and only if the failed attempt has had no effect. A bucket that
// is full of existing keys stays full: no sweep drops one.
func (s *Store) again(t *tries, err error) bool {
	switch {
	case errors.Is(err, client.ErrUncertain):
		return false
	case errors.Is(err, rdma.ErrStale):
		s.stale = true // begin joins the view
		t.stale++
		return t.stale < turns
	case errors.Is(err, client.ErrBucketFull):
		return false
	case errors.Is(err, errYoung):
		t.young = cmp.Or(t.young, s.ep.Now())
		if s.ep.Now()-t.young < s.c.opt.Timeout {
			return s.nextEpoch(t, buffers.AskFence)
		}
		s.ask(buffers.AskSweep) // for later operations: it may find objects that crashes have left
		return false
	case errors.Is(err, client.ErrFull):
		t.full++
		return t.full <= 2*mostSweeps && s.nextEpoch(t, buffers.AskSweep)
	}
	return unreachable(err) && s.reach(t)
}

// unreachable reports whether an operation failed because too few nodes were in reach, which may
// pass.
func unreachable(err error) bool {
	return errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrUnreachable)
}

// reach pauses before the next attempt of an operation that too few nodes answered; false: its
// timeout is over.
func (s *Store) reach(t *tries) bool {
	now, timeout := s.ep.Now(), s.c.opt.Timeout
	if t.began = cmp.Or(t.began, now); now-t.began >= timeout {
		return false
	}
	s.ep.Sleep(kit.Doubling(timeout/firstReach, timeout/lastReach)(t.outages, s.ep.Rand()))
	t.outages++
	return true
}

// longestSweep is for how many timeouts a client waits for a sweep that has begun. The duration
// of a sweep grows with the pool.
const longestSweep = 16

// nextEpoch asks the master for a sweep, or an epoch without one. It waits until the operation's
// timeout for it to begin: on a busy machine, or while the pool has no master, that may be late.
// Then it waits for the end. false: no epoch began, or it did not end. Under a busy view the
// epoch has already begun. Then it does not ask: the sweep that is under way may suffice, and a
// request behind its begin would cause the next one. The operation asks if it fails again.
func (s *Store) nextEpoch(t *tries, what uint64) bool {
	now, timeout := s.ep.Now(), s.c.opt.Timeout
	t.began = cmp.Or(t.began, now)
	if now < s.inVain[what] {
		return false
	}
	next := s.member.Epoch + 1
	if s.member.Busy {
		next--
	} else {
		s.ask(what)
	}
	within := max(t.began+timeout-now, 0)
	ok, err := s.member.Await(next, within)
	for n := 1; err == nil && !ok && s.member.Busy && n < longestSweep; n++ {
		ok, err = s.member.Await(next, timeout)
	}
	if ok {
		t.began = s.ep.Now() // several epochs may be needed, each with a timeout of its own
	}
	// No epoch has begun in a wait that was long enough: there is no keeper.
	if err == nil && !ok && s.member.Epoch < next && within >= timeout/noSweepShare {
		s.inVain[what] = s.ep.Now() + noSweepFor*timeout
	}
	return err == nil && ok
}

// ask asks the master for a sweep or an epoch, on all nodes, of which some may not answer it. It
// asks for a sweep, too, once for all objects that retire has left to one.
func (s *Store) ask(what uint64) {
	if s.leaves {
		what |= buffers.AskSweep
		s.leaves = false
	}
	for n := range s.nodes {
		s.values.Ask(n, what)
	}
}

// persist repeats an operation that changes something until it succeeds, or again gives it up. In
// each new epoch the client first drops its dying entries, since some client may be short of
// objects.
func (s *Store) persist(what string, do func() error) error {
	began := s.ep.Now()
	t := tries{began: began}
	for {
		if now := s.member.Epoch; s.droppedIn != now {
			s.droppedIn = now
			s.dropPending(0)
		}
		err := do()
		if err == nil {
			s.proven = began
			return nil
		}
		if !s.again(&t, err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		began = s.ep.Now()
	}
}
