package rcuckoo

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// vigil is the failure detector: what a worker knows of the other clients while it cannot go on
// (section 4.1). The paper's timers restart when a row's checksum changes. Here they restart when
// an intent changes: an intent shows which client blocks the worker, and whether that client
// makes progress. What the client does in other shards does not matter, nor on which of the rows
// under the lock it works. For each client the vigil keeps since when the client's intent is
// unchanged. Sequences and heartbeats only grow, so an intent that is the same at two looks did
// not change between them.
//
// The timers run only while the worker looks. Between two looks the vigil's clock advances by at
// most a share of a failure timer: when a machine stops for a while, all of its clients stop, and
// the first to go on must not take the others for dead.
type vigil struct {
	// shard and word are what the worker waits for. shard is -1 when nothing that was seen counts
	// any more.
	shard int
	word  uint32
	// last is when a blocked operation last asked, and next is when it is to look again.
	last time.Duration
	next time.Duration
	// looked is the time of the last look, and clock the clock of the timers then.
	looked time.Duration
	clock  time.Duration
	// records are the intents of all clients in the shard, as they were read last.
	records []byte
	// seen is by client: the state and the heartbeat of its intent.
	seen []sighting
	// dead is by client: since when the pool says that the client is dead; 0: it was alive when
	// the pool was asked last, or was not asked about.
	dead []time.Duration
	// quiet is of the word and its lease.
	quiet sighting
	// leases are the leases that another client held when this one wanted them.
	leases []leaseSeen
}

// sighting is a pair of words, and since when it is unchanged. since is 0 if it was not seen yet.
type sighting struct {
	a, b  uint64
	since time.Duration
}

// see notes the words at a time, and returns for how long they are unchanged.
func (g *sighting) see(a, b uint64, now time.Duration) time.Duration {
	if g.a != a || g.b != b || g.since == 0 {
		*g = sighting{a, b, max(now, 1)}
	}
	return now - g.since
}

// leaseSeen is since when the lease of a word is unchanged.
type leaseSeen struct {
	word uint32
	sighting
}

const (
	// lookShares is how many looks there are in the time of a failure timer.
	lookShares = 8
	// gapShares bounds how far the clock advances between two looks: a quarter of a failure timer.
	gapShares = 4
)

// due reports whether it is time for a look. A worker that cannot go on because of a lock word
// calls it again and again. If the word is another one than before, or the worker has not asked
// for a while, the first look is a share of a failure timer away: most locks are free again
// sooner.
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

// slow reports whether a client that blocks the worker has made no progress for half a failure
// timer, so that it is worth asking the pool. It is for workers that have an intent. It does not
// ask the pool itself: that may block on unreachable nodes, and the worker's own heartbeat would
// stop meanwhile.
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
	if !slow { // perhaps the word is left from a repair that was cut off
		still, _, err := s.stranded(shard, word, blocked)
		if err != nil {
			return false, err
		}
		slow = still >= s.opt.Failure/2
	}
	if slow {
		v.next = v.last // so that stuck looks at once
	}
	return slow, nil
}

// stuck reports whether there is something to repair: a client that blocks the worker died, or
// has neither made progress nor released the lock for a failure timer. It is for workers that
// have no intent in the shard, as it asks the pool.
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

// watch begins with another shard, and forgets what was seen in the one before.
func (s *Store) watch(shard int) {
	v := &s.vigil
	if v.seen == nil {
		v.records, v.seen, v.dead = make([]byte, s.table.Clients*table.IntentBytes),
			make([]sighting, s.table.Clients+1), make([]time.Duration, s.table.Clients+1)
	}
	if v.shard != shard {
		v.shard, v.last, v.leases = shard, 0, v.leases[:0]
		clear(v.seen)
		clear(v.dead)
	}
}

// stranded returns for how long a locked word and its repair lease have not changed, and the
// holder of the lease. So it finds a word that no intent names any more: its repair was cut off.
// The time is 0 while the word is free, and while a client claims the lock and no client repairs
// the word.
func (s *Store) stranded(shard int, word uint32, claimed bool) (still time.Duration, holder rdma.ClientID, err error) {
	b := s.ep.Batch()
	defer b.Release()
	lock, lease := b.Read(s.table.LockAt(shard, int(word)), 8), b.Read(s.table.LeaseAt(shard, int(word)), 8)
	if err := s.do(steps.ReadIntents, b); err != nil {
		return 0, 0, fmt.Errorf("read lock word %d of shard %d: %w", word, shard, err)
	}
	v, bits, held := &s.vigil, le.Uint64(lock.Buf), le.Uint64(lease.Buf)
	if bits == 0 || claimed && bits&table.LockRepair == 0 {
		v.quiet = sighting{}
		return 0, 0, nil
	}
	return v.quiet.see(bits, held, v.clock), table.LeaseHolder(held), nil
}

// look reads all intents of a shard, and advances the clock and the timers of all clients.
func (s *Store) look(shard int) error {
	s.watch(shard)
	v := &s.vigil
	if err := s.readIntents(shard); err != nil {
		return err
	}
	now := s.ep.Now()
	v.clock += min(now-v.looked, s.opt.Failure/gapShares) // a machine that stops does not advance it further
	v.looked = now
	for c := 1; c <= s.table.Clients; c++ {
		if t := v.intentOf(rdma.ClientID(c)); table.Idle(t.State) { // its client blocks no other one
			v.seen[c] = sighting{}
		} else {
			v.seen[c].see(t.State, t.Heartbeat, v.clock)
		}
	}
	return nil
}

// ask asks the pool for its clients, and notes which of them are dead. It may take long when
// nodes do not answer, so first the worker gives up what could make other clients wait for it.
// nil: there is no Pool.
func (s *Store) ask() []rdma.Client {
	if s.opt.Pool == nil {
		return nil
	}
	s.ended(true) // a WRITE that was lost is noticed now, and its intent given up
	s.abandonPending()
	v, list := &s.vigil, s.opt.Pool.Clients()
	for _, c := range list {
		switch {
		case int(c.ID) > s.table.Clients:
		case c.Alive:
			v.dead[c.ID] = 0
		case v.dead[c.ID] == 0:
			v.dead[c.ID] = max(v.clock, 1)
		}
	}
	return list
}

// askAbout asks the pool if there is a client that may have to be fenced off. A client that gave
// its operation up does not have to be, so its repair does not wait for the pool's answer.
func (s *Store) askAbout() []rdma.Client {
	for c := rdma.ClientID(1); int(c) <= s.table.Clients; c++ {
		if !s.fenced(c) && s.still(c) >= s.opt.Failure/2 {
			return s.ask()
		}
	}
	return nil
}

// dead reports whether the pool has said for a while, and without interruption, that a client is
// dead. So a client that loses its connection and is about to connect again does not count as
// dead.
func (s *Store) dead(c rdma.ClientID) bool {
	if c == 0 || c == s.id || int(c) > s.table.Clients {
		return false
	}
	since := s.vigil.dead[c]
	return since != 0 && s.vigil.clock-since >= s.opt.Failure/lookShares
}

// expired reports whether a client that has made no progress for some time counts as dead: after
// a failure timer, or after half of one if the pool says that it is dead, too. The pool's answer
// alone is not enough: it may have been asked twice, each time while a client that makes progress
// was cut off for a moment.
func (s *Store) expired(c rdma.ClientID, still time.Duration) bool {
	return still >= s.opt.Failure || still >= s.opt.Failure/2 && s.dead(c)
}

// still returns for how long a client's intent is unchanged; 0 if it was idle at the last look.
func (s *Store) still(c rdma.ClientID) time.Duration {
	g := s.vigil.seen[c]
	if g.since == 0 {
		return 0
	}
	return s.vigil.clock - g.since
}

// fenced reports whether no verb that belongs to a client's intent can land any more: the client
// gave the operation up, was fenced off, or is the worker itself, which has nothing in flight
// when it repairs.
func (s *Store) fenced(c rdma.ClientID) bool {
	return c == s.id || c == s.condemned || s.vigil.seen[c].b == table.GivenUp
}

// gone reports whether a client with an intent that was seen counts as dead, or gave its
// operation up. The condemned client is gone, too. So is the worker itself: if its own intent is
// not idle, that intent is what is to be repaired.
func (s *Store) gone(c rdma.ClientID) bool { return s.fenced(c) || s.expired(c, s.still(c)) }

// claimants yields the clients that have an intent which names one of some lock words, as of the
// last look. A torn intent names none: its client held nothing when it was read (I2).
func (s *Store) claimants(words []uint32) func(yield func(rdma.ClientID) bool) {
	return func(yield func(rdma.ClientID) bool) {
		for c := rdma.ClientID(1); int(c) <= s.table.Clients; c++ {
			t := s.vigil.intentOf(c)
			if !table.Idle(t.State) && !t.Torn && t.Names(words) && !yield(c) {
				return
			}
		}
	}
}

// intentChunk is how many intents one READ returns at most.
const intentChunk = 64

// readIntents reads the intents of all clients in a shard into the vigil's records. The READ is
// not atomic: each intent is checked by its own sum.
func (s *Store) readIntents(shard int) error {
	v := &s.vigil
	b := s.ep.Batch()
	for from := 0; from < s.table.Clients; from += intentChunk {
		b.Read(s.table.IntentAt(shard, rdma.ClientID(from+1)), table.IntentBytes*min(intentChunk, s.table.Clients-from))
	}
	if err := s.do(steps.ReadIntents, b); err != nil {
		b.Release()
		return fmt.Errorf("read the intents of shard %d: %w", shard, err)
	}
	for i := range b.Len() {
		copy(v.records[i*intentChunk*table.IntentBytes:], b.Op(i).Buf)
	}
	b.Release()
	return nil
}

// intentOf returns a client's intent as readIntents read it last. It shares the records, so the
// next readIntents overwrites it.
func (v *vigil) intentOf(c rdma.ClientID) table.Intent {
	return table.DecodeIntent(v.records[int(c-1)*table.IntentBytes:][:table.IntentBytes], v.shard, c)
}
