package rcuckoo

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// vigil is what a worker knows of the other clients while it cannot go on: the failure timers
// (section 4.1). The paper's timers restart when a row's checksum changes. An intent shows more
// exactly which client blocks the worker, and whether that client makes progress. What the client
// does elsewhere does not matter, nor which of the rows that share the lock it works on. Of each
// client it keeps since when its intent is what it is: as sequences and beats only grow, an intent
// that is the same at two looks has not moved between them.
//
// Its timers run while it looks on. Between two looks no more passes than a share of a failure
// timer: when a machine stops for a while all of its clients do, and the first to go on must not
// take the others for dead.
type vigil struct {
	shard   int
	word    uint32
	last    time.Duration   // when a blocked operation last asked
	next    time.Duration   // when to look again
	looked  time.Duration   // at the last look
	clock   time.Duration   // of the timers
	records []byte          // all intents of the shard, as they were read
	seen    []sighting      // by client
	dead    []time.Duration // by client: since when the pool says so; 0: it is alive, as far as it was asked
	quiet   sighting        // of the word and its lease
	leases  []leaseSeen
}

// sighting is since when something is what it is.
type sighting struct {
	a, b  uint64
	since time.Duration
}

// see tells how long it has been like that.
func (g *sighting) see(a, b uint64, now time.Duration) time.Duration {
	if g.a != a || g.b != b || g.since == 0 {
		*g = sighting{a, b, max(now, 1)}
	}
	return now - g.since
}

type leaseSeen struct {
	word uint32
	sighting
}

const (
	// lookShares is how many looks a failure timer has, and gapShares what one of them counts at most.
	lookShares = 8
	gapShares  = 4
)

// due tells a worker that cannot go on because of a lock word, and asks again and again, when it is
// time for a look.
func (s *Store) due(shard int, word uint32) bool {
	v := &s.vigil
	now := s.ep.Now()
	s.watch(shard)
	if share := s.opt.Failure / lookShares; v.last == 0 || v.word != word || now-v.last > share {
		v.word, v.next, v.quiet = word, now+share, sighting{}
	}
	v.last = max(now, 1)
	if now < v.next || s.opt.Pool == nil {
		return false
	}
	v.next = now + s.opt.Failure/lookShares
	return true
}

// slow reports, to a worker whose intent others see, whether a client that blocks the worker has
// made no progress for half a failure timer, so that it is worth asking the pool. It does not ask
// the pool itself: that takes as long as there are nodes that do not answer, and the worker would
// make no progress meanwhile, either.
func (s *Store) slow(shard int, word uint32) (bool, error) {
	if !s.due(shard, word) {
		return false, nil
	}
	if err := s.look(shard); err != nil {
		return false, err
	}
	v, blocked, slow := &s.vigil, false, false
	for c := range s.claimants([]uint32{word}) {
		if c != s.id {
			blocked, slow = true, slow || s.fenced(c) || s.still(c) >= s.opt.Failure/2
		}
	}
	if !slow {
		still, _, err := s.stranded(shard, word, blocked)
		if err != nil {
			return false, err
		}
		slow = still >= s.opt.Failure/2
	}
	if slow {
		v.next = v.last // it is asked at once
	}
	return slow, nil
}

// stuck reports, to a worker that has no intent there, whether there is something to repair: a
// client that blocks the worker died, or has neither moved nor let go for a failure timer.
func (s *Store) stuck(shard int, word uint32) (bool, error) {
	if !s.due(shard, word) {
		return false, nil
	}
	if err := s.look(shard); err != nil {
		return false, err
	}
	s.ask()
	blocked := false
	for c := range s.claimants([]uint32{word}) {
		if c != s.id && s.gone(c) {
			return true, nil
		}
		blocked = blocked || c != s.id
	}
	still, holder, err := s.stranded(shard, word, blocked)
	return err == nil && s.expired(holder, still), err
}

// watch forgets what is known of another shard.
func (s *Store) watch(shard int) {
	v := &s.vigil
	if v.seen == nil {
		v.records, v.seen, v.dead = make([]byte, s.Clients*intentBytes), make([]sighting, s.Clients+1), make([]time.Duration, s.Clients+1)
	}
	if v.shard != shard {
		v.shard, v.last, v.leases = shard, 0, v.leases[:0]
		clear(v.seen)
		clear(v.dead)
	}
}

// stranded returns for how long a locked word and its repair lease have not changed, and the holder
// of the lease. The time is 0 while the word is free, and while a client claims the lock and no
// client repairs the word.
func (s *Store) stranded(shard int, word uint32, claimed bool) (still time.Duration, holder rdma.ClientID, err error) {
	b := s.ep.Batch()
	defer b.Release()
	lock, lease := b.Read(s.lockAt(shard, int(word)), 8), b.Read(s.leaseAt(shard, int(word)), 8)
	if err := s.do(stepReadIntents, b); err != nil {
		return 0, 0, fmt.Errorf("read lock word %d of shard %d: %w", word, shard, err)
	}
	v, bits, held := &s.vigil, le.Uint64(lock.Buf), le.Uint64(lease.Buf)
	if bits == 0 || claimed && bits&lockRepair == 0 {
		v.quiet = sighting{}
		return 0, 0, nil
	}
	return v.quiet.see(bits, held, v.clock), leaseHolder(held), nil
}

// look reads all intents of a shard.
func (s *Store) look(shard int) error {
	s.watch(shard)
	v := &s.vigil
	if err := s.readIntents(shard); err != nil {
		return err
	}
	now := s.ep.Now()
	v.clock += min(now-v.looked, s.opt.Failure/gapShares)
	v.looked = now
	for c := 1; c <= s.Clients; c++ {
		if t := v.intentOf(rdma.ClientID(c)); idle(t.state) {
			v.seen[c] = sighting{}
		} else {
			v.seen[c].see(t.state, t.beat, v.clock)
		}
	}
	return nil
}

// ask asks the pool for its clients, and notes which of them are dead.
func (s *Store) ask() []rdma.Client {
	if s.opt.Pool == nil {
		return nil
	}
	s.ended(true) // it may take long, in which what was lost would not be given up
	s.abandonPending()
	v, list := &s.vigil, s.opt.Pool.Clients()
	for _, c := range list {
		switch {
		case int(c.ID) > s.Clients:
		case c.Alive:
			v.dead[c.ID] = 0
		case v.dead[c.ID] == 0:
			v.dead[c.ID] = max(v.clock, 1)
		}
	}
	return list
}

// askAbout asks the pool if there is a client that may have to be fenced off. A client that gave
// its operation up does not have to be: while nodes do not answer, the clients that settle what it
// left have enough to wait for.
func (s *Store) askAbout() []rdma.Client {
	for c := rdma.ClientID(1); int(c) <= s.Clients; c++ {
		if !s.fenced(c) && s.still(c) >= s.opt.Failure/2 {
			return s.ask()
		}
	}
	return nil
}

// dead reports whether the pool says so of a client, and has not said otherwise for a moment: one
// whose process is about to connect again is not.
func (s *Store) dead(c rdma.ClientID) bool {
	if c == 0 || c == s.id || int(c) > s.Clients {
		return false
	}
	since := s.vigil.dead[c]
	return since != 0 && s.vigil.clock-since >= s.opt.Failure/lookShares
}

// expired reports whether a client that has not moved for some time is dead: for a failure timer,
// or for half of one when the pool says so, too. What the pool says is not enough: it may have been
// asked twice, and each time at a moment at which a client that moves was cut off.
func (s *Store) expired(c rdma.ClientID, still time.Duration) bool {
	return still >= s.opt.Failure || still >= s.opt.Failure/2 && s.dead(c)
}

// still is for how long a client's intent has been what it is.
func (s *Store) still(c rdma.ClientID) time.Duration {
	g := s.vigil.seen[c]
	if g.since == 0 {
		return 0
	}
	return s.vigil.clock - g.since
}

// fenced reports whether nothing of a client lands any more that belongs to its intent.
func (s *Store) fenced(c rdma.ClientID) bool {
	return c == s.id || c == s.condemned || s.vigil.seen[c].b == givenUp
}

// gone reports whether a client whose intent was seen is dead, or gave it up. The condemned client
// is gone, too, and so is the worker itself: where its own intent is not idle, that intent is what
// is to be repaired.
func (s *Store) gone(c rdma.ClientID) bool { return s.fenced(c) || s.expired(c, s.still(c)) }

// claimants yields the clients whose intents name one of some lock words. One that is torn names
// none: its client held nothing when it was read (I2).
func (s *Store) claimants(words []uint32) func(yield func(rdma.ClientID) bool) {
	return func(yield func(rdma.ClientID) bool) {
		for c := rdma.ClientID(1); int(c) <= s.Clients; c++ {
			t := s.vigil.intentOf(c)
			if !idle(t.state) && !t.torn && t.names(words) && !yield(c) {
				return
			}
		}
	}
}
