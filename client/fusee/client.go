// Package fusee is FUSEE, a fully memory-disaggregated key-value store (Shen et al., FAST 2023): a
// RACE hash index replicated by clients with the SNAPSHOT protocol, two-level memory management and
// an embedded operation log.
//
// A Client is one worker. Every operation is written as the paper's phases, a batch of verbs each:
//
//	SEARCH    1. read the primary slot and the pair that the cache names; on a miss, both buckets
//	          2. on a miss, read the pair
//	UPDATE,   1. write the object to all its replicas and read the primary slot (on a miss: both buckets, then the pair)
//	DELETE    2. CAS the backup slots (SNAPSHOT's rules decide a winner)
//	          3. write the old value to the log
//	          4. CAS the primary slot
//	INSERT    as UPDATE, reading both buckets in 1, and once more on the first backup in 3 (see duplicate.go)
//
// Where the paper, followed to the letter, would return a wrong answer, this package departs from
// it: see the comments in snapshot.go, duplicate.go, object.go and reclaim.go.
//
// What crashes leave is mended by a master (package cluster), which uses this package's Mender:
// mend.go for nodes, restore.go for their replacement, recover.go for clients. It also lets the
// index grow: grow.go. Without a master, an operation that depends on what died ends at its timeout.
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

// maxReplicas bounds the replicas of a slot or a pair, so that lists of them need no allocation.
const maxReplicas = 8

// Options of a worker. Zero values mean defaults.
type Options struct {
	// CacheBytes is the budget of the index cache, of which a key takes 24 and a fifth more of memory,
	// see package locations; 0 for none (FUSEE-NC); default 8 MiB.
	CacheBytes *int
	// CacheThreshold is the share of invalid hits above which a cached pointer is bypassed (FUSEE
	// 4.6); default 0.5.
	CacheThreshold *float64
	// Sequential replaces SNAPSHOT by CASing one replica after the other (FUSEE-CR). The two do not
	// mix: the pool must have been made for it.
	Sequential bool
	// Splits is a share of INSERTs that ask for a larger index though their buckets have room: tests
	// make indexes grow so that are large enough.
	Splits float64
	// Timeout bounds an operation and each wait for a node; default, and at most, what the pool was
	// made for. An operation looks at its deadline between waits. One that gives a block another size
	// class sleeps for one timeout of the pool's more.
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
	ep   rdma.Endpoint
	id   rdma.ClientID
	opt  Options
	view *kit.Member // in the pool's view
	// promoted tells, by subtable, whose primary died under the busy view that was joined: its
	// replicas may differ.
	promoted   []bool
	sized      bool               // the index has the size that it has in the view that was joined, which is idle
	asked      int                // the size of the index that this client has asked for in this view
	behind     bool               // the view has changed since resync
	slow       kit.SlowNodes      // whose pairs are read elsewhere
	oldSpace   [][][]node.Replica // where regions lay before: what resync has not made up for yet
	cache      *locations.Cache[entry]
	slabs      []slab // by class
	own        map[node.Block]*block
	numbers    numbers
	gets       uint64
	draft      draft       // what the current operation writes
	held       *rdma.Batch // owns what the last Get returned
	reclaim    reclaim
	unresolved kit.Unresolved[unresolvedWrite] // of writes whose outcome is unknown: not used again by this client
	damage     error                           // what was seen in the background: everything ends with it
	deadline   time.Duration                   // of the current operation: see until
	pace       kit.Retry                       // paces an operation that waits for other clients
	stats      Stats
	scratch    [race.Candidates]race.Word // what the primary held when the current INSERT did not find its key
}

// Stats count what the protocol did beyond its fast path. They only grow.
type Stats struct {
	Hits, Misses, Invalid, Bypassed uint64    // of the index cache
	Rules                           [4]uint64 // writes won by rule 1, 2, 3; at 0 those lost
	Yields                          uint64    // INSERTs that gave way to another of the same key
	Blocks, Adopted, Converted      uint64    // blocks allocated, adopted from departed clients, given a new size class
	Reclaimed                       uint64    // objects that others freed and this client took back
	Retries                         uint64    // pauses of operations that wait for other clients
	Mended                          uint64    // operations that were cut off and waited for the master
	Backups                         uint64    // pairs read from another replica than the first, whose node did not answer
}

// Open returns a worker's view of the pool that ep reaches.
func Open(ep rdma.Endpoint, opt Options) (*Client, error) {
	c, err := open(ep, opt)
	if err == nil && c.Sequential != opt.Sequential {
		return nil, fmt.Errorf("open fusee: %w: it was made for %q, not %q", node.ErrOtherStore, formatName(c.Sequential), formatName(opt.Sequential))
	}
	return c, err
}

// open tries again while masters change the view under it.
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

func openOnce(ep rdma.Endpoint, opt Options) (*Client, error) {
	l, v, err := readLayoutInView(ep)
	if err != nil {
		return nil, fmt.Errorf("open fusee: %w", err)
	}
	if int(ep.Client()) > l.Clients {
		return nil, fmt.Errorf("open fusee: client %d has no place for its journal, the pool was made for %d clients: %w", ep.Client(), l.Clients, rdma.ErrFull)
	}
	opt.CacheThreshold = cmp.Or(opt.CacheThreshold, new(DefaultThreshold))
	opt.Timeout = cmp.Or(opt.Timeout, l.Timeout)
	if opt.Timeout > l.Timeout {
		return nil, fmt.Errorf("open fusee: a timeout of %v: the pool was made for %v at most: %w", opt.Timeout, l.Timeout, ErrParams)
	}
	c := &Client{
		layout: l, ep: ep, id: ep.Client(), opt: opt,
		slabs: make([]slab, len(l.classes.units)), own: map[node.Block]*block{},
		view: v, promoted: make([]bool, len(l.index.Place)), sized: !v.Busy, deadline: never,
	}
	c.makeCache()
	for sub := range c.promoted { // a client that comes in the midst of mending does not know what is mended
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

// makeCache makes an empty cache: for as many keys as there can be, and within the budget.
func (c *Client) makeCache() {
	budget := *cmp.Or(c.opt.CacheBytes, new(DefaultCache))
	c.cache = locations.New[entry](locations.Enough(budget, entryBytes, c.index.Slots()), entryBytes)
}

// Stats returns the worker's counters.
func (c *Client) Stats() Stats { return c.stats }

// Counts implements client.Countable.
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
		telemetry.Counter{Name: "objects reclaimed", Count: s.Reclaimed},
	)
}

// MaxPair returns the largest sum of a key's and a value's length in bytes.
func (c *Client) MaxPair() int { return (c.classes.largest()*node.Unit - objectBytes(0, 0)) / 8 * 8 }

// maxKey bounds keys, and with the largest class values: both lengths have two bytes.
const maxKey = 1<<16 - 1

// admit refuses what no object can hold.
func (c *Client) admit(key, value []byte) error {
	if len(key) > maxKey || unitsFor(len(key), len(value)) > c.classes.largest() {
		return fmt.Errorf("store a key of %d bytes with a value of %d (together at most %d): %w", len(key), len(value), c.MaxPair(), client.ErrTooLarge)
	}
	return c.damage
}

// releaseHeld ends the life of what the last Get returned.
func (c *Client) releaseHeld() {
	if c.held != nil {
		c.held.Release()
		c.held = nil
	}
}

// do posts a batch as a step of the protocol and waits for all of it.
func (c *Client) do(step rdma.Step, b *rdma.Batch) error {
	return rdma.Do(c.ep, b.As(step), c.opt.Timeout)
}

// read reads n bytes as a step of the protocol.
func (c *Client) read(step rdma.Step, a rdma.Addr, n int) ([]byte, error) {
	return rdma.ReadBytes(c.ep, step, a, n, c.opt.Timeout)
}

// The deadline of what is not an operation: a Close, a master's work. Each of its waits has a limit
// of its own.
const (
	unset time.Duration = 0
	never time.Duration = math.MaxInt64
)

// start begins an operation. It has no deadline yet, and has not waited for frees.
func (c *Client) start() { c.deadline, c.reclaim.waited = unset, 0 }

// until returns the current operation's deadline. The operation has cleared it; the first that
// needs it reads the clock, so that a SEARCH that waits for nothing does not. An operation that
// begins again in another view keeps its deadline.
func (c *Client) until() time.Duration {
	if c.deadline == unset {
		c.deadline = c.ep.Now() + c.opt.Timeout
	}
	return c.deadline
}

// aLittleBit is how long an operation sleeps that waits for another client (Algorithm 1, line 18):
// at first about a round trip, of which a winner needs two or three.
var aLittleBit = kit.Doubling(2*time.Microsecond, 200*time.Microsecond)

// overdue reports whether the current operation has used up its time.
func (c *Client) overdue() bool { return c.ep.Now() > c.until() }

// waitLimit returns when a wait that begins now has to end: at the operation's deadline, and after
// one timeout at most.
func (c *Client) waitLimit() time.Duration { return min(c.until(), c.ep.Now()+c.opt.Timeout) }

// retryUntil paces what ends at a limit of its own.
func (c *Client) retryUntil(p kit.Pause, limit time.Duration) kit.Retry {
	return kit.Retry{Env: c.ep, Pause: p, Over: func() bool { return c.ep.Now() > limit }}
}

// errDeadline is wrapped when an operation ran out of time without having changed anything, and
// with nothing in flight.
var errDeadline = fmt.Errorf("the operation %w", rdma.ErrTimeout)

func errTimeout(what string) error { return fmt.Errorf("%s: %w", what, errDeadline) }

// uncertain wraps the failure of a write that may have taken effect.
func uncertain(what string, err error) error {
	if errors.Is(err, client.ErrUncertain) {
		return err
	}
	return fmt.Errorf("%s: %w: %w", what, client.ErrUncertain, err)
}
