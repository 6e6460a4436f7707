package swarm

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/directory"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// epoch returns the one that the worker joined last.
func (s *Store) epoch() uint64 {
	if s.member == nil {
		return 0
	}
	return s.member.Epoch
}

// busy reports whether a sweep is under way, as far as the worker knows.
func (s *Store) busy() bool { return s.member != nil && s.member.Busy }

// current reports whether an object is still the one that the worker knows.
func (s *Store) current(k *Register) bool { return s.member == nil || s.c.current(k) == nil }

// rustAfter is what share of an operation's timeout a client may be idle before it takes it that
// epochs may have begun that it has not heard of: on wall clocks less than a keeper's tick, which
// lies between any two.
const rustAfter = 100

// mayOutdate reports whether a fence in the midst of a WRITE to a cached object could be the second
// one since it was known to be there. Then the outcome of the WRITE would be unknown; so a READ
// comes first, which may be cut off and has no effect; of RAW, whose READs do not prove that an
// object is there, a lookup.
func (s *Store) mayOutdate(k *Register, now time.Duration) bool {
	return s.member != nil && (k.epoch < s.member.Epoch || now-s.proven > s.c.opt.Timeout/rustAfter)
}

// lastSweep returns the latest epoch that a master has begun to sweep. It has written that down at
// each node that the view has by now.
func (s *Store) lastSweep(v *rdma.View) (epoch uint64, err error) {
	err = rdma.ErrNodeDown
	for n := 0; n < s.nodes && err != nil && !errors.Is(err, rdma.ErrStale); n++ {
		if !v.Members[n].Gone && !s.c.quorum.Avoids(n) {
			epoch, err = s.values.Swept(n)
		}
	}
	return epoch, err
}

// begin prepares an operation.
func (s *Store) begin() error {
	if s.member == nil || !s.stale && !s.member.Busy {
		return nil
	}
	if err := s.member.Join(); err != nil {
		return err
	}
	s.stale = false
	return nil
}

// tries is how often an operation has failed.
type tries struct {
	stale, full int
	began       time.Duration // the operation; a GET, when it first had to wait
	outages     int           // attempts of it whose nodes were out of reach
	young       time.Duration // when it first found retired objects only
}

// A client that stood still, or whose nodes did, finds its connections cut, and has new ones a few
// trips later. Until then its verbs fail at once, so an operation pauses between its attempts:
// first for so small a share of the timeout, at last for so large a one.
const (
	firstReach = 10_000
	lastReach  = 50
)

// mostSweeps is how many sweeps may pass until one frees what an operation needs: others may be
// faster.
const mostSweeps = 3

// hopelessFor is for how many timeouts a client does not wait for sweeps after none has begun
// within a good share of one: the pool has no keeper. Its user is told at once that the pool is
// full. A shorter wait, or a client that could not join the view, shows nothing of the keeper.
const (
	hopelessFor   = 4
	hopelessShare = 2
)

// again reports whether an operation that failed is tried once more: one that met several epochs,
// found no memory, or could not reach a majority of nodes, and has had no effect.
func (s *Store) again(t *tries, err error) bool {
	switch {
	case s.member == nil || errors.Is(err, client.ErrUncertain):
		return false
	case errors.Is(err, rdma.ErrStale):
		s.stale = true
		t.stale++
		return t.stale < turns
	case errors.Is(err, directory.ErrBucketFull): // with entries of the living: no sweep drops one
		return false
	case errors.Is(err, errYoung):
		t.young = cmp.Or(t.young, s.ep.Now())
		return s.ep.Now()-t.young < s.c.opt.Timeout && s.nextEpoch(t, buffers.AskFence) // others may be faster
	case errors.Is(err, client.ErrFull):
		t.full++
		return t.full <= 2*mostSweeps && s.nextEpoch(t, buffers.AskSweep)
	}
	return unreachable(err) && s.reach(t)
}

// unreachable reports whether too few nodes were in reach: they may be, a moment later.
func unreachable(err error) bool {
	return errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrUnreachable)
}

// reach pauses before the next attempt of an operation whose nodes are out of reach; false: its
// timeout is over.
func (s *Store) reach(t *tries) bool {
	now, timeout := s.ep.Now(), s.c.opt.Timeout
	if t.outages == 0 {
		t.began = cmp.Or(t.began, now)
	}
	if now-t.began >= timeout {
		return false
	}
	s.ep.Sleep(kit.Doubling(timeout/firstReach, timeout/lastReach)(t.outages, s.ep.Rand()))
	t.outages++
	return true
}

// longestSweep is for how many timeouts a client waits for a sweep that has begun: it takes longer
// the larger the pool is.
const longestSweep = 16

// nextEpoch asks for a sweep, or an epoch without one, waits for it to begin until the operation's
// timeout is over, and then for its end; false: there is none. On a busy machine, and while the
// pool has no master, it may begin late.
func (s *Store) nextEpoch(t *tries, what uint64) bool {
	now, timeout := s.ep.Now(), s.c.opt.Timeout
	t.began = cmp.Or(t.began, now)
	if now < s.hopeless {
		return false
	}
	next := s.member.Epoch + 1
	if s.member.Busy { // it has begun
		next--
	}
	for n := range s.nodes {
		s.values.Ask(n, what)
	}
	within := max(t.began+timeout-now, 0)
	ok, err := s.member.Await(next, within)
	for n := 1; err == nil && !ok && s.member.Busy && n < longestSweep; n++ {
		ok, err = s.member.Await(next, timeout)
	}
	if ok {
		t.began = s.ep.Now() // what frees memory may take several
	}
	if err == nil && !ok && s.member.Epoch < next && within >= timeout/hopelessShare {
		s.hopeless = s.ep.Now() + hopelessFor*timeout
	}
	return err == nil && ok
}

// persist tries an operation that changes something until it is known what became of it.
func (s *Store) persist(what string, do func() error) error {
	began := s.ep.Now()
	t := tries{began: began}
	for {
		if now := s.epoch(); s.filled != now { // where epochs come, objects are short
			s.filled = now
			s.fill(0)
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
