package extendible

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Options of a worker. Zero values mean defaults.
type Options struct {
	// Format is RTX or Locked, which the pool has to be; "": either.
	Format string
	// Timeout bounds an operation; default, and at most, the pool's.
	Timeout time.Duration
	// Splits is the share of INSERTs that split their key's subtable though there is room, so that
	// faults are found in rehashes: of subtables above half of the greatest local depth.
	Splits float64
}

// Store is one worker's view of a pool. It implements client.Store and is not safe for concurrent
// use. Trips:
//
//	GET     1. READ of both combined buckets
//	        2. READ of the pairs with the key's fingerprint, and of the subtable's lock and pointer: the look
//	UPDATE  1. and 2. as GET, the new pair's WRITE in 1
//	        3. CAS of the slot   4. look
//	DELETE  as UPDATE; what it puts in the slot it takes away in the background
//	INSERT  1. WRITE of the pair, READ of both buckets, and, where there are pairs with the fingerprint, as 2 of GET
//	        2. CAS of an empty slot: a proposal   3. READ of both buckets, look
//	        4. CAS of the slot: the pair          5. look
type Store struct {
	*layout
	ep        rdma.Endpoint
	id        rdma.ClientID
	timeout   time.Duration
	directory *directory
	memory    memory
	pace      kit.Retry     // copied by each operation
	spare     time.Duration // that is left of the operation's time, as of looked
	looked    time.Duration
	sent      bool          // the last batch was posted
	flying    []*rdma.Batch // that are not waited for, or that a wait gave up
	op        operation
	value     []byte
	doubts    []doubt
	grave     grave
	stats     Stats
	splits    func(depth int) bool // see Options.Splits; nil: none is
	// forgets, unless nil, has a write forget which blocks are free, so that tests see many scans.
	forgets func() bool
}

// restless reports whether an INSERT is to split its key's subtable though there is room.
func (s *Store) restless(in subtable) bool { return s.splits != nil && s.splits(in.depth) }

// doubt is a proposal that may be in a slot, of an operation that gave up.
type doubt struct{ hash, block uint64 }

// Stats count what leaves the common case. They only grow.
type Stats struct {
	Retries    uint64 // attempts of operations that met another client's
	Looks      uint64 // that found a rehash, or what one has done
	Moved      uint64 // CASes that a rehash came before
	Splits     uint64 // rehashes
	Swept      uint64 // slots of keys that had moved
	Duplicates uint64 // INSERTs that met another one of the same key
	Ended      uint64 // proposals of others
}

var _ client.Store = (*Store)(nil)

// Open returns a worker's view of the pool that ep reaches.
func Open(ep rdma.Endpoint, o Options) (*Store, error) {
	l, _, err := readLayout(ep)
	if err == nil && o.Format != "" && o.Format != l.format {
		err = node.Header{Store: l.format}.Expect(o.Format, FormatVersion)
	}
	if err == nil {
		var s *Store
		if s, err = openOn(ep, l, o); err == nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("open %s: %w", cmp.Or(o.Format, "a pool of RACE hashing"), err)
}

func openOn(ep rdma.Endpoint, l *layout, o Options) (*Store, error) {
	o.Timeout = cmp.Or(o.Timeout, l.Timeout)
	s := &Store{layout: l, ep: ep, id: ep.Client(), timeout: o.Timeout, op: operation{looks: new(looks)}}
	switch {
	case s.id == 0 || int(s.id) > l.Clients:
		return nil, fmt.Errorf("client %d: the pool was made for %d: %w", s.id, l.Clients, rdma.ErrFull)
	case o.Timeout > l.Timeout:
		return nil, fmt.Errorf("a timeout of %v: the pool was made for %v at most: %w", o.Timeout, l.Timeout, ErrParams)
	}
	// A pause is about what another client's CAS takes, and differs between clients that met once.
	pause := kit.Spread(time.Microsecond, kit.Doubling(2*time.Microsecond, 500*time.Microsecond))
	s.pace = kit.Retry{Env: ep, Pause: kit.Unless(s.late, pause), Over: s.over, Total: &s.stats.Retries}
	if o.Splits > 0 {
		s.splits = func(depth int) bool { return 2*depth < s.Depth && ep.Rand().Float64() < o.Splits }
	}
	s.begin()
	s.memory.open(s)
	s.directory = &directory{Store: s}
	var err error
	if s.directory.shared, err = openShared(s, o); err != nil {
		return nil, err
	}
	s.begin()
	if err := s.memory.leave(s.id); err != nil { // what an earlier holder left
		return nil, err
	}
	return s, s.openGrave()
}

// Stats returns the worker's counters.
func (s *Store) Stats() Stats { return s.stats }

// Counts implements client.Countable.
func (s *Store) Counts(to []telemetry.Counter) []telemetry.Counter {
	to = append(to,
		telemetry.Counter{Name: "retries", Count: s.stats.Retries},
		telemetry.Counter{Name: "looks that met a rehash", Count: s.stats.Looks},
		telemetry.Counter{Name: "slots moved under a CAS", Count: s.stats.Moved},
		telemetry.Counter{Name: "subtables split", Count: s.stats.Splits},
		telemetry.Counter{Name: "slots swept", Count: s.stats.Swept},
		telemetry.Counter{Name: "duplicate INSERTs", Count: s.stats.Duplicates},
		telemetry.Counter{Name: "proposals ended", Count: s.stats.Ended},
		telemetry.Counter{Name: "chunks of pairs claimed", Count: s.memory.stats.Claims},
		telemetry.Counter{Name: "chunks of pairs scanned", Count: s.memory.stats.Scans},
		telemetry.Counter{Name: "pairs' blocks found", Count: s.memory.stats.Found},
	)
	return s.directory.shared.counts(to)
}

// MaxPair returns the most bytes that a key and its value may have together.
func (s *Store) MaxPair() int { return s.PairBytes }

// Close gives back what the worker holds in the pool. The endpoint stays open. The error wraps
// client.ErrUncertain: the client is to be recovered.
func (s *Store) Close() error {
	s.begin()
	err := s.leave()
	for err != nil && s.retryable(err) {
		err = s.leave()
	}
	if err != nil {
		return fmt.Errorf("close client %d: %w: %w", s.id, client.ErrUncertain, err)
	}
	return nil
}

func (s *Store) leave() error {
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.closeGrave(); err != nil {
		return err
	}
	if s.memory.table.Late {
		return fmt.Errorf("a node may hand a chunk out to it yet: %w", client.ErrUncertain)
	}
	if err := s.memory.leave(s.id); err != nil {
		return err
	}
	s.memory.open(s)
	return s.directory.shared.close()
}

// begin sets an operation's limit in time.
func (s *Store) begin() { s.spare, s.looked = s.timeout, s.ep.Now() }

// timeShares is into how many parts an operation's time falls. What passes between two looks at the
// clock counts as one part at most: the clock may have been set.
const timeShares = 4

// left returns how much of the time is left.
func (s *Store) left() time.Duration {
	now := s.ep.Now()
	s.spare = max(s.spare-min(max(now-s.looked, 0), s.timeout/timeShares), 0)
	s.looked = now
	return s.spare
}

func (s *Store) over() bool { return s.left() == 0 }

// lateShare: an operation is late when so much of its time has passed, one part of so many.
const lateShare = 8

// late reports whether the operation has waited for so long that it does not pause any more.
func (s *Store) late() bool { return s.left() < s.timeout-s.timeout/lateShare }

// errTime ends what has used up its time.
var errTime = fmt.Errorf("operation %w", rdma.ErrTimeout)

// do posts a batch as a step of the protocol and waits for all of it, as long as there is time;
// with none left it posts nothing.
func (s *Store) do(step rdma.Step, b *rdma.Batch) error {
	s.sent = false
	left := s.left()
	if left == 0 {
		return errTime
	}
	if b.Len() == 0 {
		return nil
	}
	if err := s.ep.Post(b.As(step)); err != nil {
		return err
	}
	s.sent = true
	if err := s.ep.Wait(b, rdma.All, left); err != nil {
		return err
	}
	return b.Err()
}

// drop releases a batch once nothing of it is in flight.
func (s *Store) drop(b *rdma.Batch) {
	if b.Finished() {
		b.Release()
		return
	}
	s.flying = append(s.flying, b)
}

// land waits for verbs that are in flight. Until they have landed no block may be used again that
// they name.
func (s *Store) land() error {
	for len(s.flying) > 0 {
		b := s.flying[len(s.flying)-1]
		if err := s.ep.Wait(b, rdma.All, max(s.left(), 1)); err != nil && !b.Finished() {
			return err
		}
		b.Release()
		s.flying = s.flying[:len(s.flying)-1]
	}
	return nil
}

// retryable reports whether it makes sense to go on behind an error: the pool's view has changed,
// which the worker has joined, or a node does not answer, which may be out of reach for a moment.
// What was posted has landed then, or never will.
func (s *Store) retryable(err error) bool {
	stale, down := errors.Is(err, rdma.ErrStale), errors.Is(err, rdma.ErrNodeDown)
	if !stale && !down || s.over() || errors.Is(err, client.ErrUncertain) {
		return false
	}
	v, joined := s.ep.Join()
	switch n, known := rdma.FailedNode(err); {
	case joined != nil:
		return false
	case stale:
		return true
	case known && n < len(v.Members) && v.Members[n].Gone, s.left() < s.timeout-s.timeout/reachShare:
		return false
	}
	s.ep.Sleep(reachPause)
	return true
}

// An operation waits for a node that is out of reach for a share of its timeout.
const (
	reachShare = 4
	reachPause = 500 * time.Microsecond
)

// settle brings to an end what earlier operations have left.
func (s *Store) settle() error {
	if err := s.land(); err != nil {
		return fmt.Errorf("verbs of an earlier operation: %w", err)
	}
	if err := s.directory.shared.settle(); err != nil {
		return fmt.Errorf("a rehash of an earlier operation: %w", err)
	}
	for len(s.doubts) > 0 {
		d := s.doubts[len(s.doubts)-1]
		if err := s.clear(d.hash, d.block); err != nil {
			return fmt.Errorf("a proposal of an earlier operation: %w", err)
		}
		s.doubts = s.doubts[:len(s.doubts)-1]
	}
	return nil
}

// swap is a CAS of one word, whose outcome is known when there is no error.
func (s *Store) swap(step rdma.Step, at rdma.Addr, old, new uint64) (ok bool, err error) {
	b := s.ep.Batch()
	defer s.drop(b)
	op := b.CompareSwap(at, old, new)
	err = s.do(step, b)
	return err == nil && op.Swapped(), err
}

// operation is the one at work.
type operation struct {
	key, value []byte
	hash       uint64
	at         race.Buckets
	insert     bool
	word       word  // of the pair that it writes, or of the grave; 0: it writes none
	block      block // of that pair
	written    bool
	slot       race.Slot // where an INSERT has put the pair
	suspects   []suspect
	*looks
	rival  word          // a proposal that it gave way to
	since  time.Duration // when it met that first
	full   time.Duration // when it met no empty slot, and passed, first; 0: never
	passed uint64        // what was on its way out of the slots then
}

// looks are what the operation has read of its key's slots. They are there once a Store.
type looks struct {
	slots [race.Candidates]slotWord // as they were when it looked for the key
	alike []slotWord                // of them those of live pairs that have the key's fingerprint
	again [race.Candidates]slotWord // behind its proposal
}

// slotWord is a slot, and the word that was read there.
type slotWord struct {
	slot race.Slot
	word word
}

// suspect is a word whose block holds no pair of it. Either the slot has another word by now, or
// the key has moved, or the pair is torn, though its header says that it belongs there: that is
// damage.
type suspect struct {
	place uint64
	slotWord
	torn bool
	seen bool // behind that it was looked for once more
}

// start begins an operation on a key.
func (s *Store) start(key []byte) {
	s.begin()
	o := &s.op
	*o = operation{key: key, hash: race.Hash(key), suspects: o.suspects[:0], looks: o.looks}
	o.at = s.index.Locate(o.hash)
}

// startWrite begins one that writes a pair.
func (s *Store) startWrite(key, value []byte) error {
	s.start(key)
	if len(key)+len(value) > s.PairBytes {
		return fmt.Errorf("a key of %d bytes and a value of %d, of %d together: %w", len(key), len(value), s.PairBytes,
			client.ErrTooLarge)
	}
	if err := s.settle(); err != nil {
		return err
	}
	b, err := s.memory.take()
	if err != nil {
		return err
	}
	s.op.block, s.op.value = b, value
	s.name()
	return nil
}

// name gives the operation's pair the word of the next use of its block.
func (s *Store) name() {
	o := &s.op
	o.word = s.word(o.hash, unitsOf(pairBytes(len(o.key), len(o.value))), o.block.tag, o.block.number)
	o.written = false
}

// write adds the WRITE of the operation's pair, once.
func (s *Store) write(b *rdma.Batch) {
	o := &s.op
	if o.word == 0 || o.written {
		return
	}
	key := o.key
	if o.word.kind() == void {
		key = nil
	}
	p := b.Alloc(pairBytes(len(key), len(o.value)))
	encodePair(p, o.word, o.hash, key, o.value)
	b.Write(s.blockAt(s.block(o.word)), p)
}
