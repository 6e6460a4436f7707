package locks

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

var le = binary.LittleEndian

// Detector is the failure detector: what a worker knows of the other clients while it cannot go on
// (section 4.1). The paper's timers restart when a row's checksum changes. Here they restart when
// an intent changes: an intent shows which client blocks the worker, and whether that client
// makes progress. What the client does in other shards does not matter, nor on which of the rows
// under the lock it works. For each client the detector keeps since when the client's intent is
// unchanged. Sequences and heartbeats only grow, so an intent that is the same at two looks did
// not change between them.
//
// What a worker does that meets the same lock again and again, by how long the client in its way
// has made no progress, in shares of the failure timer:
//
//	from the first try   it tries again, with a heartbeat each time: Locks.Acquire
//	each 1/8             it looks at all intents of the shard
//	from 1/2 on          it releases its locks and asks the pool which clients are dead
//	1/2, and dead        it repairs, if the pool has said so for 1/8
//	1                    it repairs, whatever the pool says
//
// The timers run only while the worker looks. Between two looks the detector's clock advances by at
// most a share of a failure timer: when a machine stops for a while, all of its clients stop, and
// the first to go on must not take the others for dead.
type Detector struct {
	s *session.Session
	// GiveUp gives up what earlier operations left, before the detector waits for the pool.
	GiveUp func(*session.Op)
	// Condemned are the clients that count as fenced off, whatever the pool says: those that the
	// master recovers.
	Condemned map[rdma.ClientID]bool
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
	// seen is by client: the state and the heartbeat of its intent in the shard.
	seen []lastChange
	// byShard is seen of each shard that the worker has looked at. A client's timer goes on while
	// the worker looks at another shard: intents that are the same at two looks did not change
	// between them. Else a master that recovers clients of several shards in turn would wait for
	// each of them anew.
	byShard map[int][]lastChange
	// dead is by client: since when the pool says that the client is dead; 0: it was alive when
	// the pool was asked last, or was not asked about.
	dead []time.Duration
	// quiet is of the word and its lease.
	quiet lastChange
	// leases are the leases that another client held when this one wanted them.
	leases []leaseSeen
}

// NewDetector returns the detector of a worker that has seen no other client yet.
func NewDetector(s *session.Session) *Detector {
	return &Detector{s: s, shard: -1, Condemned: map[rdma.ClientID]bool{}, byShard: map[int][]lastChange{}}
}

// Restart forgets what was seen: the timers of all clients start again.
func (d *Detector) Restart() {
	d.shard = -1
	clear(d.byShard)
}

// lastChange is a pair of words, and since when it is unchanged. since is 0 if it was not seen yet.
type lastChange struct {
	a, b  uint64
	since time.Duration
}

// see notes the words at a time, and returns for how long they are unchanged.
func (g *lastChange) see(a, b uint64, now time.Duration) time.Duration {
	if g.a != a || g.b != b || g.since == 0 {
		*g = lastChange{a, b, max(now, 1)}
	}
	return now - g.since
}

// leaseSeen is since when the lease of a word is unchanged.
type leaseSeen struct {
	word uint32
	lastChange
}

const (
	// gapShares bounds how far the clock advances between two looks: a quarter of a failure timer.
	gapShares = 4
)

// due reports whether it is time for a look. A worker that cannot go on because of a lock word
// calls it again and again. If the word is another one than before, or the worker has not asked
// for a while, the first look is a share of a failure timer away: most locks are free again
// sooner.
func (d *Detector) due(shard int, word uint32) bool {
	v := d
	now := d.s.EP.Now()
	d.watch(shard)
	if share := d.s.Opt.Failure / session.LookShares; v.last == 0 || v.word != word || now-v.last > share {
		v.word, v.next, v.quiet = word, now+share, lastChange{}
	}
	v.last = max(now, 1)
	if now < v.next || d.s.Opt.Pool == nil {
		return false
	}
	v.next = now + d.s.Opt.Failure/session.LookShares
	return true
}

// slow reports whether a client that blocks the worker has made no progress for half a failure
// timer, so that it is worth asking the pool. It is for workers that have an intent. It does not
// ask the pool itself: that may block on unreachable nodes, and the worker's own heartbeat would
// stop meanwhile.
func (d *Detector) slow(o *session.Op, shard int, word uint32) (bool, error) {
	if !d.due(shard, word) {
		return false, nil
	}
	if err := d.Look(o, shard); err != nil {
		return false, err
	}
	v, blocked, slow := d, false, false
	for c := range d.Claimants([]uint32{word}) {
		if c != o.ID {
			blocked, slow = true, slow || d.Fenced(c) || d.still(c) >= o.Opt.Failure/2
		}
	}
	if !slow { // perhaps the word is left from a repair that was cut off
		still, _, err := d.stranded(o, shard, word, blocked)
		if err != nil {
			return false, err
		}
		slow = still >= o.Opt.Failure/2
	}
	if slow {
		v.next = v.last // so that stuck looks at once
	}
	return slow, nil
}

// Stuck reports whether there is something to repair: a client that blocks the worker died, or
// has neither made progress nor released the lock for a failure timer. While the pool's clients
// cannot be listed, only a client that gave its operation up counts, and a repair that was cut off.
// It is for workers that have no intent in the shard, as it asks the pool.
func (d *Detector) Stuck(o *session.Op, shard int, word uint32) (bool, error) {
	if !d.due(shard, word) {
		return false, nil
	}
	if err := d.Look(o, shard); err != nil {
		return false, err
	}
	listed := d.Ask(o) != nil
	blocked := false
	for c := range d.Claimants([]uint32{word}) {
		if c != o.ID && (d.Fenced(c) || listed && d.Gone(c)) {
			return true, nil
		}
		blocked = blocked || c != o.ID
	}
	still, holder, err := d.stranded(o, shard, word, blocked)
	return err == nil && d.Expired(holder, still), err
}

// watch begins with another shard, and forgets which clients the pool said are dead.
func (d *Detector) watch(shard int) {
	v := d
	if v.records == nil {
		v.records = make([]byte, d.s.Table.Clients*table.IntentBytes)
		v.dead = make([]time.Duration, d.s.Table.Clients+1)
	}
	if v.shard != shard {
		v.shard, v.last, v.leases = shard, 0, v.leases[:0]
		clear(v.dead)
		if v.seen = v.byShard[shard]; v.seen == nil {
			v.seen = make([]lastChange, d.s.Table.Clients+1)
			v.byShard[shard] = v.seen
		}
	}
}

// stranded returns for how long a locked word and its repair lease have not changed, and the
// holder of the lease. So it finds a word that no intent names any more: its repair was cut off.
// The time is 0 while the word is free, and while a client claims the lock and no client repairs
// the word.
func (d *Detector) stranded(o *session.Op, shard int, word uint32, claimed bool) (
	still time.Duration, holder rdma.ClientID, err error,
) {
	b := o.EP.Batch()
	defer b.Release()
	lock, lease := b.Read(o.Table.LockAt(shard, int(word)), 8), b.Read(o.Table.LeaseAt(shard, int(word)), 8)
	if err := o.Do(steps.ReadIntents, b); err != nil {
		return 0, 0, fmt.Errorf("read lock word %d of shard %d: %w", word, shard, err)
	}
	v, bits, held := d, le.Uint64(lock.Buf), le.Uint64(lease.Buf)
	if bits == 0 || claimed && bits&table.LockRepair == 0 {
		v.quiet = lastChange{}
		return 0, 0, nil
	}
	return v.quiet.see(bits, held, v.clock), table.LeaseHolder(held), nil
}

// Look reads all intents of a shard, and advances the clock and the timers of all clients.
func (d *Detector) Look(o *session.Op, shard int) error {
	d.watch(shard)
	v := d
	if err := d.readIntents(o, shard); err != nil {
		return err
	}
	now := o.EP.Now()
	v.clock += min(now-v.looked, o.Opt.Failure/gapShares) // a machine that stops does not advance it further
	v.looked = now
	for c := 1; c <= o.Table.Clients; c++ {
		if t := v.IntentOf(rdma.ClientID(c)); table.Idle(t.State) { // its client blocks no other one
			v.seen[c] = lastChange{}
		} else {
			v.seen[c].see(t.State, t.Heartbeat, v.clock)
		}
	}
	return nil
}

// Ask asks the pool for its clients, and notes which of them are dead. It may take long when
// nodes do not answer, so first the worker gives up what could make other clients wait for it.
// nil: there is no Pool, or its clients cannot be listed now.
func (d *Detector) Ask(o *session.Op) []rdma.Client {
	if o.Opt.Pool == nil {
		return nil
	}
	o.Ended(true) // a WRITE that was lost is noticed now, and its intent given up
	d.GiveUp(o)
	list, err := rdma.ListClients(o.Opt.Pool)
	if err != nil {
		return nil
	}
	v := d
	for _, c := range list {
		switch {
		case int(c.ID) > o.Table.Clients:
		case c.Alive:
			v.dead[c.ID] = 0
		case v.dead[c.ID] == 0:
			v.dead[c.ID] = max(v.clock, 1)
		}
	}
	return list
}

// AskAbout asks the pool if there is a client that may have to be fenced off. A client that gave
// its operation up does not have to be, so its repair does not wait for the pool's answer.
func (d *Detector) AskAbout(o *session.Op) []rdma.Client {
	for c := rdma.ClientID(1); int(c) <= o.Table.Clients; c++ {
		if !d.Fenced(c) && d.still(c) >= o.Opt.Failure/2 {
			return d.Ask(o)
		}
	}
	return nil
}

// isDead reports whether the pool has said for a while, and without interruption, that a client is
// dead. So a client that loses its connection and is about to connect again does not count as
// dead.
func (d *Detector) isDead(c rdma.ClientID) bool {
	if c == 0 || c == d.s.ID || int(c) > d.s.Table.Clients {
		return false
	}
	since := d.dead[c]
	return since != 0 && d.clock-since >= d.s.Opt.Failure/session.LookShares
}

// Expired reports whether a client that has made no progress for some time counts as dead: after
// a failure timer, or after half of one if the pool says that it is dead, too. The pool's answer
// alone is not enough: it may have been asked twice, each time while a client that makes progress
// was cut off for a moment.
func (d *Detector) Expired(c rdma.ClientID, still time.Duration) bool {
	return still >= d.s.Opt.Failure || still >= d.s.Opt.Failure/2 && d.isDead(c)
}

// still returns for how long a client's intent is unchanged; 0 if it was idle at the last look.
func (d *Detector) still(c rdma.ClientID) time.Duration {
	g := d.seen[c]
	if g.since == 0 {
		return 0
	}
	return d.clock - g.since
}

// Fenced reports whether no verb that belongs to a client's intent can land any more: the client
// gave the operation up, was fenced off, or is the worker itself, which has nothing in flight
// when it repairs.
func (d *Detector) Fenced(c rdma.ClientID) bool {
	return c == d.s.ID || d.Condemned[c] || d.seen[c].b == table.GivenUp
}

// Gone reports whether a client with an intent that was seen counts as dead, or gave its
// operation up. Condemned clients are gone, too. So is the worker itself: if its own intent is
// not idle, that intent is what is to be repaired.
func (d *Detector) Gone(c rdma.ClientID) bool { return d.Fenced(c) || d.Expired(c, d.still(c)) }

// Claimants yields the clients that have an intent which names one of some lock words, as of the
// last look. A torn intent names none: its client held nothing when it was read (I2).
func (d *Detector) Claimants(words []uint32) func(yield func(rdma.ClientID) bool) {
	return func(yield func(rdma.ClientID) bool) {
		for c := rdma.ClientID(1); int(c) <= d.s.Table.Clients; c++ {
			t := d.IntentOf(c)
			if !table.Idle(t.State) && !t.Torn && t.Names(words) && !yield(c) {
				return
			}
		}
	}
}

// intentChunk is how many intents one READ returns at most.
const intentChunk = 64

// readIntents reads the intents of all clients in a shard into the detector's records. The READ is
// not atomic: each intent is checked by its own sum.
func (d *Detector) readIntents(o *session.Op, shard int) error {
	v := d
	b := o.EP.Batch()
	for from := 0; from < o.Table.Clients; from += intentChunk {
		b.Read(o.Table.IntentAt(shard, rdma.ClientID(from+1)), table.IntentBytes*min(intentChunk, o.Table.Clients-from))
	}
	if err := o.Do(steps.ReadIntents, b); err != nil {
		b.Release()
		return fmt.Errorf("read the intents of shard %d: %w", shard, err)
	}
	for i := range b.Len() {
		copy(v.records[i*intentChunk*table.IntentBytes:], b.Op(i).Buf)
	}
	b.Release()
	return nil
}

// IntentOf returns a client's intent as readIntents read it last. It shares the records, so the
// next readIntents overwrites it.
func (d *Detector) IntentOf(c rdma.ClientID) table.Intent {
	return table.DecodeIntent(d.records[int(c-1)*table.IntentBytes:][:table.IntentBytes], d.shard, c)
}

// LeaseStill returns for how long the repair lease of a word is unchanged.
func (d *Detector) LeaseStill(word uint32, lease uint64) time.Duration {
	i := slices.IndexFunc(d.leases, func(l leaseSeen) bool { return l.word == word })
	if i < 0 {
		i = len(d.leases)
		d.leases = append(d.leases, leaseSeen{word: word})
	}
	return d.leases[i].see(lease, 0, d.clock)
}
