// Package fusee is FUSEE, a fully memory-disaggregated key-value store (Shen et al., FAST 2023): a
// RACE hash index replicated by clients with the SNAPSHOT protocol, two-level memory management and
// an embedded operation log.
//
// A Client is one worker. Every operation is written as the paper's phases, a batch of verbs
// each:
//
//	SEARCH    1. read the primary slot and the pair that the cache names;
//	             on a miss, both buckets
//	          2. on a miss, read the pair
//	UPDATE,   1. write the object to all its replicas and read the primary slot
//	DELETE       (on a miss: both buckets, then the pair)
//	          2. CAS the backup slots (SNAPSHOT's rules decide a winner)
//	          3. write the old value to the log
//	          4. CAS the primary slot
//	INSERT    as UPDATE, reading both buckets in 1, and once more on the first backup in 3
//	          (see duplicate.go)
//
// Where the paper, followed to the letter, would return a wrong answer, this code departs from it:
// see the comments in write.go and duplicate.go, and those of packages layout and memory.
//
// The paper's parts are packages, each of which uses those before it:
//
//	layout    where everything lies, and how it is encoded
//	session   a worker in the pool: its view, its deadline, its numbers
//	snapshot  SNAPSHOT's rules
//	memory    blocks, objects, and how freed objects come back
//	recovery  the master's work
//
// This package has the operations. The parts of a Client use those before them, too:
//
//	unresolvedWrites  writes of unknown outcome (unresolved.go)
//	pairs             reads pairs by what slots hold (pairs.go)
//	follower          brings what the client knows up to a new view (follow.go)
//	writer            writes slots by SNAPSHOT (write.go, duplicate.go, resolve.go)
//	Client            the operations (search.go, modify.go, find.go)
//
// A master repairs what crashes leave and lets the index grow (package cluster, with a
// recovery.Recoverer). Without a master, an operation that depends on a dead node or client ends at
// its timeout.
package fusee

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/fusee/snapshot"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Options of a worker. Zero values mean defaults.
type Options struct {
	// CacheBytes is the budget of the index cache. A key takes 24 bytes of it and a fifth more of
	// memory, see package locations. 0: no cache (FUSEE-NC). nil: 8 MiB.
	CacheBytes *int
	// CacheThreshold is the share of invalid hits above which a cached pointer is bypassed (FUSEE
	// 4.6). nil: 0.5.
	CacheThreshold *float64
	// Sequential replaces SNAPSHOT by CASing one replica after the other (FUSEE-CR). The pool
	// must have been made for it: writers of the two protocols do not agree on a slot's winner.
	Sequential bool
	// Splits is the share of INSERTs that ask for a larger index though their buckets have room.
	// Tests set it to make indexes grow that are large enough.
	Splits float64
	// Timeout bounds an operation and each wait for a node. Default, and at most, what the pool
	// was made for. An operation looks at its deadline between waits, so it may end one wait
	// later. Its time begins behind a wait for verbs of earlier writes that timed out. One that
	// gives a block another size class sleeps for one timeout of the pool's more, and again if
	// other clients have taken it.
	// What one does to leave blocks to others does not count.
	// An INSERT that waits for the index to grow has as much time again whenever that has grown,
	// and 16 timeouts at most.
	Timeout time.Duration
}

const (
	// DefaultCache is the default of Options.CacheBytes.
	DefaultCache = 8 << 20
	// DefaultThreshold is the default of Options.CacheThreshold.
	DefaultThreshold = 0.5
)

// Client is one worker's view of a FUSEE pool. It implements client.Store and is not safe for
// concurrent use.
type Client struct {
	s   *session.Session
	opt Options
	// Parts that know of each other in this order: each uses those before it.
	mem        *memory.Allocator
	unresolved *unresolvedWrites
	pairs      *pairs
	cache      *indexCache
	views      *follower
	writer     *writer
	gets       uint64
	// draft is what the current operation writes. Its key and value are the caller's.
	draft draft
	// held owns what the last Get returned. It is released by the next operation.
	held *rdma.Batch
	// scratch is what the primary held in the candidate slots when the current INSERT did not
	// find its key: see alone.
	scratch [race.Candidates]race.Word
}

// Open returns a worker's view of the pool that ep reaches. The error wraps node.ErrOtherStore
// when the pool was made for the other protocol, rdma.ErrFull when the client's identity has no
// journal, and layout.ErrParams when its timeout is longer than the pool's.
func Open(ep rdma.Endpoint, opt Options) (*Client, error) {
	s, err := session.Open(ep, opt.Timeout)
	if err != nil {
		return nil, err
	}
	if s.Sequential != opt.Sequential {
		return nil, fmt.Errorf("open fusee: %w: it was made for %q, not %q",
			node.ErrOtherStore, layout.FormatName(s.Sequential), layout.FormatName(opt.Sequential))
	}
	c := &Client{s: s, opt: opt, mem: memory.New(s)}
	// A client that opens while a master mends does not know which primaries died.
	c.pairs = &pairs{s: s, promoted: slices.Repeat([]bool{s.View.Busy}, len(s.Index.Place))}
	c.cache = &indexCache{budget: *cmp.Or(opt.CacheBytes, new(DefaultCache)),
		threshold: *cmp.Or(opt.CacheThreshold, new(DefaultThreshold))}
	c.cache.reset(s.Index.Slots())
	c.unresolved = &unresolvedWrites{s: s, mem: c.mem}
	c.views = &follower{s: s, mem: c.mem, unresolved: c.unresolved, pairs: c.pairs, cache: c.cache,
		sized: !s.View.Busy}
	c.writer = &writer{s: s, views: c.views, pairs: c.pairs}
	s.View.Follow(c.views.applyView)
	return c, nil
}

// Stats returns the worker's counters.
func (c *Client) Stats() session.Stats { return c.s.Stats }

// Counts implements client.Countable. The names are those that reports and monitors show.
func (c *Client) Counts(to []telemetry.Counter) []telemetry.Counter {
	s := &c.s.Stats
	return append(to,
		telemetry.Counter{Name: "won by rule 1", Count: s.Rules[snapshot.Rule1]},
		telemetry.Counter{Name: "won by rule 2", Count: s.Rules[snapshot.Rule2]},
		telemetry.Counter{Name: "won by rule 3", Count: s.Rules[snapshot.Rule3]},
		telemetry.Counter{Name: "lost", Count: s.Rules[snapshot.Lose]},
		telemetry.Counter{Name: "retries", Count: s.Retries},
		telemetry.Counter{Name: "waits for the master", Count: s.Mended},
		telemetry.Counter{Name: "pairs read from backups", Count: s.Backups},
		telemetry.Counter{Name: "cache hits", Count: s.Hits},
		telemetry.Counter{Name: "cache misses", Count: s.Misses},
		telemetry.Counter{Name: "cache invalid", Count: s.Invalid},
		telemetry.Counter{Name: "cache bypassed", Count: s.Bypassed},
		telemetry.Counter{Name: "inserts that gave way", Count: s.Yields},
		telemetry.Counter{Name: "blocks allocated", Count: s.Blocks},
		telemetry.Counter{Name: "blocks adopted", Count: s.Adopted},
		telemetry.Counter{Name: "blocks lent", Count: s.Lent},
		telemetry.Counter{Name: "objects reclaimed", Count: s.Reclaimed},
	)
}

// MaxPair returns the largest sum of a key's and a value's length in bytes.
func (c *Client) MaxPair() int { return c.s.MaxPair() }

// admit refuses what no object can hold, with client.ErrTooLarge, and every write after damage
// was seen. Nothing was changed then.
func (c *Client) admit(key, value []byte) error {
	if layout.UnitsFor(len(key), len(value)) > c.s.Classes.Largest() {
		return fmt.Errorf("store a key of %d bytes with a value of %d (together at most %d): %w",
			len(key), len(value), c.MaxPair(), client.ErrTooLarge)
	}
	return c.s.Damage
}

// releaseHeld ends the life of what the last Get returned: its buffer may be used again.
func (c *Client) releaseHeld() {
	if c.held != nil {
		c.held.Release()
		c.held = nil
	}
}

// uncertain wraps the failure of a write that may have taken effect with client.ErrUncertain,
// once.
func uncertain(what string, err error) error {
	if errors.Is(err, client.ErrUncertain) {
		return err
	}
	return fmt.Errorf("%s: %w: %w", what, client.ErrUncertain, err)
}

// mostCuts bounds how often Close begins again where it was cut off. Close handles the client's
// blocks one after the other. So on a bad network it is cut off many times and still gets on. Its
// timeout bounds each wait for the pool.
const mostCuts = 256

// Close gives back what the client holds: it ends its background work, marks its free objects and
// leaves its blocks to others. The value of the last Get ends with it. A client with a write that
// may still go either way cannot leave: others may be waiting for it. The error wraps
// client.ErrUncertain then.
//
// When Close fails the client still owns blocks, and may be closed again. Its identity must not
// be given back (client.Leave), so that it is recovered as a dead one when its process ends. A
// crash leaves the same.
func (c *Client) Close() error {
	c.releaseHeld()
	c.s.Deadline = session.Never
	err := c.shut()
	// Each attempt goes on where the last one was cut off.
	for cut := 0; err != nil && session.Interrupted(err) && cut < mostCuts; err, cut = c.shut(), cut+1 {
		if _, e := c.views.settled(err); e != nil {
			err = e
			break
		}
	}
	if err != nil {
		return fmt.Errorf("close fusee: %w", err)
	}
	return nil
}

// drain ends all background work, also that of unresolved writes. It ends what can be ended also
// when some write stays unresolved.
func (c *Client) drain() error {
	unknown := c.unresolved.settleAll(!c.views.behind)
	return cmp.Or(c.mem.Drain(), unknown)
}

// shut is Close within one view. Background work ends before blocks are left: no recovery uses
// the logs in blocks that were left.
func (c *Client) shut() error {
	if err := c.views.keepUp(); err != nil {
		return err
	}
	// All frees and scans end, and rested objects become free. An unresolved write keeps its object
	// and its journal word: recovery has to find them.
	err := c.drain()
	if err = cmp.Or(c.s.Damage, err); err != nil {
		return err
	}
	return c.mem.LeaveAll()
}

// Steps returns the steps of clients with these options. Traces show them, and faults can be set
// to them. Without an index cache there are two less, and FUSEE-CR's backups need not be fixed.
func Steps(o Options) []rdma.Step {
	return slices.DeleteFunc(slices.Clone(session.Steps), func(s rdma.Step) bool {
		cached := s == session.StepReadSlotAndPair || s == session.StepWriteReadSlot
		return o.CacheBytes != nil && *o.CacheBytes == 0 && cached ||
			o.Sequential && s == session.StepFixBackups
	})
}
