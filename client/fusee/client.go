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
// Where the paper, followed to the letter, would return a wrong answer, this package departs from
// it: see the comments in snapshot.go, duplicate.go, object.go and reclaim.go.
//
// A master repairs what crashes leave (package cluster). It uses this package's Mender: mend.go
// for nodes, restore.go for their replacement, recover.go for clients. It also lets the index
// grow: grow.go. Without a master, an operation that depends on a dead node or client ends at its
// timeout.
package fusee

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/locations"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// maxReplicas bounds the replicas of a slot or a pair, so that lists of them are arrays and need
// no allocation.
const maxReplicas = 8

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
	// later. One that gives a block another size class sleeps for one timeout of the pool's more.
	// An INSERT that waits for the index to grow has as much time again whenever that has grown,
	// and 16 timeouts at most.
	Timeout time.Duration
}

const (
	// DefaultCache is the default of Options.CacheBytes.
	DefaultCache = 8 << 20
	// DefaultThreshold is the default of Options.CacheThreshold.
	DefaultThreshold = 0.5
	defaultTimeout   = 2 * time.Second
)

// Client is one worker's view of a FUSEE pool. It implements client.Store and is not safe for
// concurrent use.
type Client struct {
	*layout
	ep  rdma.Endpoint
	id  rdma.ClientID
	opt Options
	// The pool's membership. applyView runs whenever a view is joined.
	view *kit.Member
	// promoted tells, by subtable, whether its primary died under the busy view that was joined.
	// Its replicas may differ until the master has mended them.
	promoted []bool
	// sized: the index has the size that it has in the view that was joined, and the view is
	// idle. So the size cannot change before the next view.
	sized bool
	// asked is the largest size of the index for which askEarly has asked.
	asked int
	// behind: the view has changed since resync. No operation writes before the next resync.
	behind bool
	// Nodes that did not answer a while ago. Their pairs are read on other nodes.
	slow kit.SlowNodes
	// Where regions lay in views for which resync has not made up yet.
	oldSpace [][][]node.Replica
	cache    *locations.Cache[entry]
	// Free objects by class, in blocks of own.
	slabs []slab
	// Blocks in which this client allocates or which it is about to leave, as it knows them. The
	// primary's block allocation table decides: see tidy.
	own map[node.Block]*block
	// Numbers for operations and tombstones: see ceiling.go.
	numbers numbers
	gets    uint64
	// draft is what the current operation writes. Its key and value are the caller's.
	draft draft
	// held owns what the last Get returned. It is released by the next operation.
	held    *rdma.Batch
	reclaim reclaim
	// Writes of unknown outcome. Their objects and journal words are not used again before they
	// are resolved.
	unresolved kit.Unresolved[unresolvedWrite]
	// damage is the first damage that was seen in the background. Every later operation returns
	// it.
	damage error
	// deadline of the current operation; see until.
	deadline time.Duration
	// pace of an operation that waits for other clients. Each loop takes a copy of it.
	pace  kit.Retry
	stats Stats
	// scratch is what the primary held in the candidate slots when the current INSERT did not
	// find its key: see alone.
	scratch [race.Candidates]race.Word
}

// Stats count what the protocol did beyond its fast path. They only grow.
type Stats struct {
	// Accesses to the index cache, by how they ended.
	Hits, Misses, Invalid, Bypassed uint64
	// Writes won by rule 1, 2, 3; at 0 those lost.
	Rules [4]uint64
	// INSERTs that gave way to another of the same key.
	Yields uint64
	// Blocks allocated, adopted, given a new size class, and left to others in a full pool.
	Blocks, Adopted, Converted, Lent uint64
	// Objects that others freed and this client took back.
	Reclaimed uint64
	// Pauses of operations that wait for other clients.
	Retries uint64
	// Operations that were cut off and waited for the master.
	Mended uint64
	// Pairs read from another replica than the first, of which the node did not answer.
	Backups uint64
}

// Open returns a worker's view of the pool that ep reaches. The error wraps node.ErrOtherStore
// when the pool was made for the other protocol, rdma.ErrFull when the client's identity has no
// journal, and ErrParams when its timeout is longer than the pool's.
func Open(ep rdma.Endpoint, opt Options) (*Client, error) {
	c, err := open(ep, opt)
	if err == nil && c.Sequential != opt.Sequential {
		return nil, fmt.Errorf("open fusee: %w: it was made for %q, not %q",
			node.ErrOtherStore, formatName(c.Sequential), formatName(opt.Sequential))
	}
	return c, err
}

// open tries again while masters change the view under it, for the default timeout: the pool's
// own is not known before its header is read. Nothing is in flight when an attempt has failed so.
func open(ep rdma.Endpoint, opt Options) (*Client, error) {
	start := ep.Now()
	r := kit.Retry{Env: ep, Pause: kit.WhileBusy, Over: func() bool { return ep.Now()-start > defaultTimeout }}
	for {
		c, err := openOnce(ep, opt)
		if err == nil || !interrupted(err) || !r.Again() {
			return c, err
		}
	}
}

// openOnce is open within one view. Nothing is written: a crash leaves an identity that owns
// nothing.
func openOnce(ep rdma.Endpoint, opt Options) (*Client, error) {
	l, v, err := readLayoutInView(ep)
	if err != nil {
		return nil, fmt.Errorf("open fusee: %w", err)
	}
	if int(ep.Client()) > l.Clients {
		return nil, fmt.Errorf(
			"open fusee: client %d has no place for its journal, the pool was made for %d clients: %w",
			ep.Client(), l.Clients, rdma.ErrFull)
	}
	opt.CacheThreshold = cmp.Or(opt.CacheThreshold, new(DefaultThreshold))
	opt.Timeout = cmp.Or(opt.Timeout, l.Timeout)
	if opt.Timeout > l.Timeout {
		return nil, fmt.Errorf("open fusee: a timeout of %v: the pool was made for %v at most: %w",
			opt.Timeout, l.Timeout, ErrParams)
	}
	c := &Client{
		layout: l, ep: ep, id: ep.Client(), opt: opt,
		slabs: make([]slab, len(l.classes.units)), own: map[node.Block]*block{},
		view: v, promoted: make([]bool, len(l.index.Place)), sized: !v.Busy, deadline: never,
	}
	c.makeCache()
	for sub := range c.promoted {
		// A client that opens while a master mends does not know which primaries died.
		c.promoted[sub] = v.Busy
	}
	v.Follow(c.applyView)
	c.pace = kit.Retry{Env: ep, Pause: aLittleBit, Over: c.overdue, Total: &c.stats.Retries}
	c.reclaim.rest = l.quarantine()
	if err := c.readCeiling(); err != nil {
		return nil, fmt.Errorf("open fusee: %w", err)
	}
	return c, nil
}

// makeCache makes an empty cache, for as many keys as there can be and within the budget. What
// the old one knew is lost, which costs each key one miss.
func (c *Client) makeCache() {
	budget := *cmp.Or(c.opt.CacheBytes, new(DefaultCache))
	c.cache = locations.New[entry](locations.Enough(budget, entryBytes, c.index.Slots()), entryBytes)
}

// Stats returns the worker's counters.
func (c *Client) Stats() Stats { return c.stats }

// Counts implements client.Countable. The names are those that reports and monitors show.
func (c *Client) Counts(to []telemetry.Counter) []telemetry.Counter {
	s := &c.stats
	return append(to,
		telemetry.Counter{Name: "won by rule 1", Count: s.Rules[rule1]},
		telemetry.Counter{Name: "won by rule 2", Count: s.Rules[rule2]},
		telemetry.Counter{Name: "won by rule 3", Count: s.Rules[rule3]},
		telemetry.Counter{Name: "lost", Count: s.Rules[lose]},
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

// MaxPair returns the largest sum of a key's and a value's length in bytes. It is a multiple of
// 8, to which pairs are padded.
func (c *Client) MaxPair() int { return (c.classes.largest()*node.Unit - objectBytes(0, 0)) / 8 * 8 }

// maxKey bounds keys. With objects of the largest class it also bounds values: an object has two
// bytes for each length.
const maxKey = 1<<16 - 1

// admit refuses what no object can hold, with client.ErrTooLarge, and every write after damage
// was seen. Nothing was changed then.
func (c *Client) admit(key, value []byte) error {
	if len(key) > maxKey || unitsFor(len(key), len(value)) > c.classes.largest() {
		return fmt.Errorf("store a key of %d bytes with a value of %d (together at most %d): %w",
			len(key), len(value), c.MaxPair(), client.ErrTooLarge)
	}
	return c.damage
}

// releaseHeld ends the life of what the last Get returned: its buffer may be used again.
func (c *Client) releaseHeld() {
	if c.held != nil {
		c.held.Release()
		c.held = nil
	}
}

// do posts a batch as a step of the protocol and waits for all of it. The caller releases the
// batch. The error wraps rdma.ErrTimeout when verbs are still in flight; those end in the batch's
// own buffers.
func (c *Client) do(step rdma.Step, b *rdma.Batch) error {
	return rdma.Do(c.ep, b.As(step), c.opt.Timeout)
}

// read reads n bytes as a step of the protocol. The caller owns what it returns.
func (c *Client) read(step rdma.Step, a rdma.Addr, n int) ([]byte, error) {
	return rdma.ReadBytes(c.ep, step, a, n, c.opt.Timeout)
}

// Values of Client.deadline besides a time. A Close and a master's work never end at a deadline,
// since they are no operations: each of their waits has a limit of its own.
const (
	unset time.Duration = 0 // the operation has not read the clock yet
	never time.Duration = math.MaxInt64
)

// start begins an operation: it has no deadline yet, and has not waited for frees.
func (c *Client) start() { c.deadline, c.reclaim.waited = unset, 0 }

// until returns the current operation's deadline. start has cleared it, and the first call sets
// it. So a SEARCH that waits for nothing does not read the clock. An operation that begins again
// in another view keeps its deadline.
func (c *Client) until() time.Duration {
	if c.deadline == unset {
		c.deadline = c.ep.Now() + c.opt.Timeout
	}
	return c.deadline
}

// aLittleBit is how long an operation sleeps while it waits for another client (Algorithm 1, line
// 18). It begins with about a round trip: a winner needs two or three.
var aLittleBit = kit.Doubling(2*time.Microsecond, 200*time.Microsecond)

// overdue reports whether the current operation has used up its time.
func (c *Client) overdue() bool { return c.ep.Now() > c.until() }

// waitLimit returns when a wait that begins now has to end: at the operation's deadline, and
// after one timeout at most, also where there is no deadline.
func (c *Client) waitLimit() time.Duration { return min(c.until(), c.ep.Now()+c.opt.Timeout) }

// retryUntil paces work that ends at a limit of its own, not at the operation's deadline.
func (c *Client) retryUntil(p kit.Pause, limit time.Duration) kit.Retry {
	return kit.Retry{Env: c.ep, Pause: p, Over: func() bool { return c.ep.Now() > limit }}
}

// errDeadline is wrapped when an operation ran out of time without having changed anything, and
// with nothing in flight. It wraps rdma.ErrTimeout, so code that asks whether verbs are in flight
// has to look for both: see inFlight.
var errDeadline = fmt.Errorf("the operation %w", rdma.ErrTimeout)

// errTimeout returns an error that wraps errDeadline.
func errTimeout(what string) error { return fmt.Errorf("%s: %w", what, errDeadline) }

// uncertain wraps the failure of a write that may have taken effect with client.ErrUncertain,
// once.
func uncertain(what string, err error) error {
	if errors.Is(err, client.ErrUncertain) {
		return err
	}
	return fmt.Errorf("%s: %w: %w", what, client.ErrUncertain, err)
}
