package rcuckoo

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// vigil is what a worker knows of others while it cannot go on: the failure timers (section 4.1). The paper's restart when a
// row's checksum changes; an intent tells more exactly who is in the way and whether he moves, and what he does elsewhere
// does not matter, nor whose row it is that shares a lock. Of each client it keeps since when its intent is what it is: as
// sequences and beats only grow, one that is the same at two looks has not moved between them.
type vigil struct {
	shard   int
	word    uint32
	last    time.Duration   // when somebody asked
	next    time.Duration   // when to look again
	records []byte          // all intents of the shard, as they were read
	seen    []sighting      // by client
	dead    []time.Duration // by client: since when the pool says so; 0: it is alive
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

// lookShares is how many looks a failure timer has.
const lookShares = 8

// stuck is asked again and again by a worker that cannot go on because of a lock word. It tells whether somebody died who is
// in the way, or neither moved nor let go for a failure timer, so that there is something to repair.
func (s *Store) stuck(shard int, word uint32) (bool, error) {
	v := &s.vigil
	now := s.ep.Now()
	s.watch(shard)
	if share := s.opt.Failure / lookShares; v.last == 0 || v.word != word || now-v.last > share {
		v.word, v.next, v.quiet = word, now+share, sighting{}
	}
	v.last = max(now, 1)
	if now < v.next || s.opt.Pool == nil {
		return false, nil
	}
	v.next = now + s.opt.Failure/lookShares
	if err := s.look(shard); err != nil {
		return false, err
	}
	blocked := false
	for c := range s.claimants([]uint32{word}) {
		if c != s.id && s.gone(c) {
			return true, nil
		}
		blocked = blocked || c != s.id
	}
	return s.stranded(shard, word, blocked)
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

// stranded tells whether a word is locked, and nobody who claims to have locked it, or whoever repairs it, moves.
func (s *Store) stranded(shard int, word uint32, claimed bool) (bool, error) {
	b := s.ep.Batch()
	defer b.Release()
	lock, lease := b.Read(s.lockAt(shard, int(word)), 8), b.Read(s.leaseAt(shard, int(word)), 8)
	if err := s.do("read intents", b); err != nil {
		return false, fmt.Errorf("read lock word %d of shard %d: %w", word, shard, err)
	}
	v, bits, held := &s.vigil, le.Uint64(lock.Buf), le.Uint64(lease.Buf)
	if bits == 0 || claimed && bits&lockRepair == 0 {
		v.quiet = sighting{}
		return false, nil
	}
	return v.quiet.see(bits, held, s.ep.Now()) >= s.opt.Failure || s.dead(leaseHolder(held)), nil
}

// look reads all intents of a shard, and who is dead.
func (s *Store) look(shard int) error {
	s.watch(shard)
	v := &s.vigil
	if err := s.readIntents(shard); err != nil {
		return err
	}
	now := s.ep.Now()
	for c := 1; c <= s.Clients; c++ {
		if t := v.intentOf(rdma.ClientID(c)); idle(t.state) {
			v.seen[c] = sighting{}
		} else {
			v.seen[c].see(t.state, t.beat, now)
		}
	}
	if s.opt.Pool == nil {
		return nil
	}
	for _, c := range s.opt.Pool.Clients() {
		switch {
		case int(c.ID) > s.Clients:
		case c.Alive:
			v.dead[c.ID] = 0
		case v.dead[c.ID] == 0, v.seen[c.ID].since > v.dead[c.ID]: // whoever has moved since was not
			v.dead[c.ID] = max(now, 1)
		}
	}
	return nil
}

// dead tells whether the pool says so of a client, which has not moved for half a failure timer since: one whose process is about to
// connect again is not.
func (s *Store) dead(c rdma.ClientID) bool {
	if c == s.id || int(c) > s.Clients {
		return false
	}
	since := s.vigil.dead[c]
	return since != 0 && s.ep.Now()-since >= s.opt.Failure/2
}

// fenced tells whether nothing of a client lands any more that belongs to its intent.
func (s *Store) fenced(c rdma.ClientID) bool {
	return c == s.id || c == s.condemned || s.vigil.seen[c].b == givenUp
}

// gone tells whether a client whose intent was seen is dead, has not moved for a failure timer, or gave it up. So is whoever is condemned,
// and the worker itself: where its own intent is not idle it is what is to be repaired.
func (s *Store) gone(c rdma.ClientID) bool {
	g := s.vigil.seen[c]
	return s.fenced(c) || s.dead(c) || g.since != 0 && s.ep.Now()-g.since >= s.opt.Failure
}

// claimants yields the clients whose intents name one of some lock words. One that is torn names none: its client held nothing
// when it was read (I2).
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
