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
	// Format is one of Formats, which the pool has to be; "": any of them.
	Format string
	// Timeout bounds an operation. Default and maximum are the pool's.
	Timeout time.Duration
	// Splits is the share of INSERTs that split their key's subtable though there
	// is room, so that tests inject faults into rehashes. Only subtables at less
	// than half of the greatest local depth are split so.
	Splits float64
}

// Store is one worker's view of a pool. It implements client.Store and is not
// safe for concurrent use. Trips:
//
//	GET     1. READ of both combined buckets
//	        2. READ of the pairs with the key's fingerprint, and of the subtable's
//	           lock and pointer: the look
//	UPDATE  1. and 2. as GET, the new pair's WRITE in 1
//	        3. CAS of the slot   4. look
//	DELETE  as UPDATE; what it puts in the slot it takes away in the background
//	INSERT  1. WRITE of the pair, READ of both buckets, and, where there are pairs
//	           with the fingerprint, as 2 of GET
//	        2. CAS of an empty slot: a proposal   3. READ of both buckets, look
//	        4. CAS of the slot: the pair          5. look
type Store struct {
	*session
	directory *directory
	memory    memory
	// op is the operation that runs.
	op operation
	// value is what the last GET has returned; it is valid until the next call.
	value []byte
	// unresolved are words that may be in slots, or may come there yet. The next
	// write settles them first.
	unresolved []unresolvedWord
	// removal is what the last DELETE has left.
	removal removal
	// splits reports whether an INSERT splits a subtable of some local depth
	// though there is room: see Options.Splits; nil: none does.
	splits func(depth int) bool
}

// splitsEarly reports whether an INSERT is to split its key's subtable though there
// is room.
func (s *Store) splitsEarly(in subtable) bool { return s.splits != nil && s.splits(in.depth) }

// unresolvedWord is a word that may be in a slot, left by an operation that gave up.
// hash says in which buckets, and block which block the word names. A proposal or void
// word is taken away; a live one stays.
type unresolvedWord struct{ hash, block uint64 }

// Stats count what leaves the common case. They only grow.
type Stats struct {
	// Retries counts attempts of operations that met another client's operation.
	Retries uint64
	// Looks counts looks that found a rehash, or what one has done.
	Looks uint64
	// Moved counts CASes that may have come behind the copy of a rehash.
	Moved uint64
	// Splits counts rehashes.
	Splits uint64
	// Swept counts slots of keys that had moved.
	Swept uint64
	// Duplicates counts INSERTs that met another one of the same key, or of the
	// same fingerprint.
	Duplicates uint64
	// Ended counts proposals of other clients that were ended.
	Ended uint64
}

var _ client.Store = (*Store)(nil)

// Open returns a worker's view of the pool that ep reaches. It gives back what an
// earlier holder of the identity has left. The endpoint stays the caller's, and
// must not be used otherwise until Close.
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

// openOn is Open with a layout that was read before. With RTX and DTX opening the
// directory finishes a rehash of an earlier holder of the identity. After that
// the chunks of that holder are given back, and its delete record is cleared.
func openOn(ep rdma.Endpoint, l *layout, o Options) (*Store, error) {
	o.Timeout = cmp.Or(o.Timeout, l.Timeout)
	e := &session{layout: l, ep: ep, id: ep.Client()}
	e.trips = kit.NewTrips(ep, kit.NewBudget(ep, o.Timeout, trustedBatches), errTime)
	s := &Store{session: e, directory: &directory{session: e}, op: operation{looks: new(looks)}}
	switch {
	case s.id == 0 || int(s.id) > l.Clients:
		return nil, fmt.Errorf("client %d: the pool was made for %d: %w", s.id, l.Clients, rdma.ErrFull)
	case o.Timeout > l.Timeout:
		return nil, fmt.Errorf("a timeout of %v: the pool was made for %v at most: %w", o.Timeout, l.Timeout, ErrParams)
	}
	// A pause is about what another client's CAS takes, and differs between clients that met once.
	pause := kit.Spread(time.Microsecond, kit.Doubling(2*time.Microsecond, 500*time.Microsecond))
	s.pace = kit.Retry{Env: ep, Pause: kit.Unless(s.late, pause), Over: s.trips.Over, Total: &s.stats.Retries}
	if o.Splits > 0 {
		s.splits = func(depth int) bool { return 2*depth < s.Depth && ep.Rand().Float64() < o.Splits }
	}
	// Opening the directory may take as long as an operation, and so may what
	// follows.
	s.trips.Begin()
	s.memory = memory{session: e, directory: s.directory}
	s.memory.open()
	var err error
	if s.directory.shared, err = openShared(s, o); err != nil {
		return nil, err
	}
	s.trips.Begin()
	if err := s.memory.leave(s.id); err != nil { // what an earlier holder left
		return nil, err
	}
	return s, s.openRecord()
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

// MaxPair returns how many bytes a key and its value may have together.
func (s *Store) MaxPair() int { return s.PairBytes }

// Close gives back what the worker holds in the pool. The endpoint stays open. If
// the error wraps client.ErrUncertain the client is to be recovered.
func (s *Store) Close() error {
	s.trips.Begin()
	err := s.leave()
	for err != nil && s.retryable(err) {
		err = s.leave()
	}
	if err != nil {
		return fmt.Errorf("close client %d: %w: %w", s.id, client.ErrUncertain, err)
	}
	return nil
}

// leave does what Close does, once. Void words and proposals go first: as long as
// one names a block, its chunk is not given back. A crash in between leaves the
// rest to the recovery.
func (s *Store) leave() error {
	// Words that name the client's blocks must be gone before its chunks are.
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.awaitRemoval(); err != nil {
		return err
	}
	// The answer to a question for a chunk is missing: the chunk may be the
	// client's yet.
	if s.memory.table.Late {
		return fmt.Errorf("a node may hand a chunk out to it yet: %w", client.ErrUncertain)
	}
	if err := s.memory.leave(s.id); err != nil {
		return err
	}
	s.memory.open()
	return s.directory.shared.close()
}

// session is how a worker reaches the pool, and the time that its operation has.
type session struct {
	*layout
	ep rdma.Endpoint
	id rdma.ClientID
	// pace is copied by each operation.
	pace kit.Retry
	// trips have the time of the operation. No block that a verb in flight names may be
	// used again.
	trips kit.Trips
	stats Stats
}

// trustedBatches are posted between two looks at the clock: those of an operation
// without retries.
const trustedBatches = 6

// lateShare: an operation is late when this part of its time has passed, one of
// so many.
const lateShare = 8

// late reports whether the operation has waited for so long that it makes no
// pauses any more.
func (s *session) late() bool { return s.trips.Used(lateShare) }

// errTime ends what has used up its time.
var errTime = fmt.Errorf("operation %w", rdma.ErrTimeout)

// retryable reports whether it is useful to go on after an error: the pool's view
// has changed, which the worker has joined, or a node does not answer, which may
// be out of reach for a moment. When it returns true, what was posted has landed,
// or never will.
func (s *session) retryable(err error) bool {
	stale, down := errors.Is(err, rdma.ErrStale), errors.Is(err, rdma.ErrNodeDown)
	if !stale && !down || s.trips.Over() || errors.Is(err, client.ErrUncertain) {
		return false
	}
	v, joined := s.ep.Join()
	switch n, known := rdma.FailedNode(err); {
	case joined != nil && (stale || !errors.Is(joined, rdma.ErrNodeDown) && !errors.Is(joined, rdma.ErrUnreachable)):
		return false
	// Only the view has changed: the operation begins again under the new one.
	case stale:
		return true
	// What a node had that is gone is lost. And a node that does not answer is
	// waited for during a part of the operation's time only.
	case known && v.Gone(n), s.trips.Used(reachShare):
		return false
	}
	s.ep.Sleep(reachPause)
	return true
}

const (
	// reachShare is the part of its timeout for which an operation waits for a
	// node that is out of reach. reachPause is the time between two tries.
	reachShare = 4
	reachPause = 500 * time.Microsecond
)

// settle ends what earlier operations have left: verbs in flight, a rehash, and
// unresolved words. A write begins with it, since its block must not be named by
// a verb or word of an earlier one.
func (s *Store) settle() error {
	// A verb in flight may still put a word into a slot, or take one out.
	if err := s.trips.Land(nil); err != nil {
		return fmt.Errorf("verbs of an earlier operation: %w", err)
	}
	// A rehash may hold a lock that the search for a word below would wait for.
	if err := s.directory.shared.settle(); err != nil {
		return fmt.Errorf("a rehash of an earlier operation: %w", err)
	}
	for len(s.unresolved) > 0 {
		// One stays unresolved until its slots are clear: an error leaves it to
		// the next write.
		d := s.unresolved[len(s.unresolved)-1]
		if err := s.directory.clear(d.hash, d.block); err != nil {
			return fmt.Errorf("a word of an earlier operation: %w", err)
		}
		s.unresolved = s.unresolved[:len(s.unresolved)-1]
	}
	return nil
}

// operation is the state of the operation that runs. It is set anew by start.
type operation struct {
	// key and value are the caller's, and hash is that of the key.
	key, value []byte
	hash       uint64
	// at names the key's two combined buckets, which are the same in each
	// subtable.
	at race.Buckets
	// insert: the operation is an INSERT, which also looks for an empty slot.
	insert bool
	word   word // of the pair that it writes, or of the delete record; 0: it writes none
	// block is where that pair lies.
	block block
	// written: the WRITE of the pair is complete. No CAS installs the word
	// before.
	written bool
	slot    race.Slot // where an INSERT has put the pair
	// suspects are words that have met no pair of theirs.
	suspects []suspect
	*looks
}

// looks are what the operation has read of its key's slots. They are large, so
// that a Store has them once.
type looks struct {
	// slots are the words of the key's slots, as they were when it looked for the key.
	slots [race.Candidates]race.Word
	// alike are those of them with live pairs that have the key's fingerprint.
	alike []slotWord
	// again are the words as they were behind the operation's proposal.
	again [race.Candidates]race.Word
	// passing are words that their clients are to take away.
	passing [race.Candidates]passing
}

// passing is a word in a slot that is not live, and since when the operation sees it there.
type passing struct {
	word  word
	since time.Duration
}

// slotWord is a slot, and the word that was read there.
type slotWord struct {
	slot race.Slot
	// word is that of the pair that it writes, or of the delete record; 0: it writes
	// none.
	word word
}

// suspect is a word of which the block holds no pair of that word. Either the
// slot has another word by now, or the key has moved. Or the pair is torn, though
// its header says that it belongs there: that is damage.
type suspect struct {
	// place is that of the subtable.
	place uint64
	slotWord
	// torn: its header is whole, and says that the pair belongs to this subtable.
	torn bool
	// seen: the word was looked for once more since it became a suspect.
	seen bool
}

// start begins an operation on a key. key stays the caller's, and must not change
// while the operation runs.
func (s *Store) start(key []byte) {
	s.trips.Begin()
	o := &s.op
	*o = operation{key: key, hash: race.Hash(key), suspects: o.suspects[:0], looks: o.looks}
	o.at = s.index.Locate(o.hash)
}

// startWrite begins an operation that writes a pair. It takes a block for the
// pair, which the operation gives back or notes as used. The error wraps
// client.ErrTooLarge or client.ErrFull, or is that of what earlier operations
// have left.
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

// write adds the WRITE of the operation's pair, once. A void word's header has no
// key: only the hash matters to the recovery.
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
