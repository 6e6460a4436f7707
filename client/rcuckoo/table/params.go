package table

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// The format's name and version in a pool's header.
const (
	Format        = "rcuckoo"
	FormatVersion = 2
	// OldestVersion is the version of pools in which all extents have one size. They differ in
	// nothing else, and this version reads and writes them.
	OldestVersion = 1
)

// MaxReplicas bounds Params.Replicas.
const MaxReplicas = 8

// Params shape a pool. They are written into its header and never change.
type Params struct {
	// Shards is the number of tables. Each lies on one node, or has its copies on as many nodes
	// as there are replicas.
	Shards int `json:"shards"`
	// Rows of a shard before it grows.
	Rows int `json:"rows"`
	// Entries of a row.
	Entries int `json:"entries"`
	// KeyBytes is the length of the longest key.
	KeyBytes int `json:"key_bytes"`
	// InlineBytes is the length of the longest value that lies in its entry.
	InlineBytes int `json:"inline_bytes"`
	// ExtentBytes is the length of the longest value of all. Values that are not inline lie in
	// extents.
	ExtentBytes int `json:"extent_bytes"`
	// F is the paper's f: it sets how near a key's second row lies to its first. See Place.
	F float64 `json:"f"`
	// RowsPerLock is how many neighbouring rows share a lock.
	RowsPerLock int `json:"rows_per_lock"`
	// LockWords of a shard. When there are fewer than its locks need, locks share bits.
	LockWords int `json:"lock_words"`
	// LockBits is how many bits of a word are locks, which one masked CAS takes. 0: all but one.
	LockBits int `json:"lock_bits,omitempty"`
	// Slabs of extents, of a shard.
	Slabs int `json:"slabs"`
	// SlabExtents is how many units a slab has: extents of the largest class.
	SlabExtents int `json:"slab_extents"`
	// Classes of sizes of extents: see class.go. 0 is 1.
	Classes int `json:"classes,omitempty"`
	// Levels is how many times a shard's table may double: see levels.go.
	Levels int `json:"levels,omitempty"`
	// Tickets is how many queues for locks a shard has: see ticket.go of package locks. 0: none.
	Tickets int `json:"tickets,omitempty"`
	// Clients is how many identities there are. Each has its records in each shard.
	Clients int `json:"clients"`
	// Timeout bounds the timeout of an operation.
	Timeout time.Duration `json:"timeout"`
	// Replicas of each shard, on as many nodes: see replicas.go of package rcuckoo. 0 is 1.
	Replicas int `json:"replicas,omitempty"`
	// Spares is how many nodes, the last ones, hold nothing until one takes a dead node's place.
	Spares int `json:"spares,omitempty"`
}

// Shape is what a pool is to be, as far as users choose it. Zero values mean defaults.
type Shape struct {
	// Nodes of the pool, with the spares.
	Nodes int
	// Records is how many pairs the pool must have room for, before it grows.
	Records uint64
	// KeyBytes is the length of the longest key; default 24.
	KeyBytes int
	// ValueBytes is the length of the longest value.
	ValueBytes int
	// InlineBytes is the length of the longest value that lies in its entry. 0: none does.
	// Default 8.
	InlineBytes *int
	// Shards defaults to one for each node that is no spare.
	Shards int
	// Entries of a row; default 8.
	Entries int
	// F defaults to 2.3.
	F float64
	// RowsPerLock defaults to 16, counted when the table has grown as far as it may, and to fewer
	// in a table of so few rows that its locks would not need all bits of a lock word.
	RowsPerLock int
	// LockWords of a shard. By default each lock has a bit of its own, as far as the words fit a
	// NIC's memory.
	LockWords int
	// LockBits is how many bits of a lock word are locks; default, and at most, 63.
	LockBits int
	// Rows of a shard. By default Records fill 80 % of their entries.
	Rows int
	// Levels is how many times a full table may double; default: never.
	Levels int
	// Clients is how many identities the pool has.
	Clients int
	// Timeout bounds the timeout of an operation; default 2 s.
	Timeout time.Duration
	// Replicas of each shard; default 1.
	Replicas int
	// Spares is how many of the nodes are spares.
	Spares int
}

// Most returns the largest value that each field of a Shape may have by itself, of those that a
// user chooses for a table. A lock may not cover more rows than a shard has, either.
func Most() Shape {
	return Shape{Entries: maxEntries, KeyBytes: maxKeyBytes, InlineBytes: new(maxInline), F: maxF,
		RowsPerLock: maxRows, LockWords: maxLockWords,
		LockBits: lockBits, Rows: maxRows, Shards: maxShards, Levels: MaxLevels}
}

// ErrParams is wrapped by errors about parameters that make no pool.
var ErrParams = errors.New("bad pool parameters")

// The defaults of a Shape.
const (
	DefaultKey     = 24 // YCSB's keys
	DefaultInline  = 8
	DefaultEntries = 8
	DefaultF       = 2.3 // section 3.3
	DefaultLocked  = 16  // rows a lock, section 3.4.1, of a table that does not grow
)

// The bounds of parameters. Those of lengths and numbers follow from the bits that metas, refs
// and rows have for them.
const (
	maxKeyBytes    = 1<<keyBits - 1
	maxInline      = 1<<inlineBits - 1
	maxExtentValue = 1<<lengthBits - 1
	maxRows        = 1<<32 - 1
	maxShards      = 1 << 16
	maxLockWords   = 1 << 32
	maxExtents     = 1 << extentBits

	// poolTimeout is the default of Shape.Timeout.
	poolTimeout = 2 * time.Second

	// SearchDepth is how many entries an INSERT moves at most (section 3.2.3). Its path has one
	// row more.
	SearchDepth = 5
	MaxSteps    = SearchDepth + 1

	// lockBits of a lock word are locks. The last bit is the repair bit: see LockRepair.
	lockBits = 63
	// MostLocked is how many lock words an operation needs at most: one for each row of a path,
	// and one for the key's other row.
	MostLocked = MaxSteps + 1

	// The sizes of records: see intent.go and redo.go. An intent has 16 bytes for each lock word,
	// and a redo has RedoStepBytes bytes and an entry for each row.
	IntentBytes   = (intentHeader + MostLocked*16 + 63) &^ 63
	intentHeader  = 32
	RedoHeader    = 128
	RedoStepBytes = 40

	ExtentHeader = 24 // see extent.go

	// deviceBytes is the memory of a NIC that a node's locks should fit (section 3.4.2).
	deviceBytes = 256 << 10

	page = 4096
)

// validate bounds each parameter so that no sum of New overflows. A header may hold any
// numbers, so Read depends on these bounds. The error wraps ErrParams.
func (p *Params) validate(nodes int) error {
	switch {
	case nodes < 1 || nodes >= rdma.MaxNodes || p.Shards < 1 || p.Shards > maxShards:
		return fmt.Errorf("%w: %d shards on %d nodes", ErrParams, p.Shards, nodes)
	case p.Replicas < 0 || p.Replicas > MaxReplicas || p.Spares < 0 ||
		max(p.Replicas, 1) > nodes-p.Spares || p.Spares > 0 && p.Replicas < 2:
		return fmt.Errorf("%w: %d replicas on %d nodes, %d of them spares", ErrParams, p.Replicas, nodes, p.Spares)
	case p.Rows < 1 || p.Rows > maxRows:
		return fmt.Errorf("%w: %d rows", ErrParams, p.Rows)
	case p.Levels < 0 || p.Levels > MaxLevels || p.Rows<<p.Levels > maxRows:
		return fmt.Errorf("%w: %d rows that double %d times (at most %d times, up to %d rows)",
			ErrParams, p.Rows, p.Levels, MaxLevels, maxRows)
	case p.Entries < 1 || p.Entries > maxEntries:
		return fmt.Errorf("%w: %d entries a row (1 to %d)", ErrParams, p.Entries, maxEntries)
	case p.KeyBytes < 1 || p.KeyBytes > maxKeyBytes:
		return fmt.Errorf("%w: keys of %d bytes (1 to %d)", ErrParams, p.KeyBytes, maxKeyBytes)
	case p.InlineBytes < 0 || p.InlineBytes > maxInline:
		return fmt.Errorf("%w: inline values of %d bytes (0 to %d)", ErrParams, p.InlineBytes, maxInline)
	case p.ExtentBytes < 0 || p.ExtentBytes > maxExtentValue:
		return fmt.Errorf("%w: values of %d bytes (0 to %d)", ErrParams, p.ExtentBytes, maxExtentValue)
	case !(p.F >= 1 && p.F <= maxF): // NaN is neither
		return fmt.Errorf("%w: f is %v (1 to %d)", ErrParams, p.F, maxF)
	case p.RowsPerLock < 1 || p.RowsPerLock > maxRows || p.LockWords < 1 || p.LockWords > maxLockWords:
		return fmt.Errorf("%w: %d lock words, %d rows a lock", ErrParams, p.LockWords, p.RowsPerLock)
	case p.LockBits < 0 || p.LockBits > lockBits:
		return fmt.Errorf("%w: %d locks a word (1 to %d)", ErrParams, p.LockBits, lockBits)
	case p.Slabs < 0 || p.SlabExtents < 0 || p.Slabs > maxExtents || p.SlabExtents > maxExtents ||
		p.Slabs*p.SlabExtents > maxExtents:
		return fmt.Errorf("%w: %d slabs of %d extents (%d extents at most)",
			ErrParams, p.Slabs, p.SlabExtents, maxExtents)
	case p.HasExtents() && p.Slabs*p.SlabExtents == 0:
		return fmt.Errorf("%w: values of %d bytes, of which %d lie in the row, and no slabs",
			ErrParams, p.ExtentBytes, p.InlineBytes)
	case p.Classes < 0 || p.Classes > 1 && p.Classes > classesFor(extentBytes(*p)) ||
		p.Slabs*p.SlabExtents > maxExtents>>max(p.Classes-1, 0):
		return fmt.Errorf("%w: %d classes of %d extents", ErrParams, p.Classes, p.Slabs*p.SlabExtents)
	case p.Tickets < 0 || p.Tickets > maxLockWords:
		return fmt.Errorf("%w: %d queues for locks", ErrParams, p.Tickets)
	case p.Clients < 1 || p.Clients >= int(node.OfNode):
		return fmt.Errorf("%w: %d clients", ErrParams, p.Clients)
	case p.Timeout < time.Millisecond || p.Timeout > time.Hour:
		return fmt.Errorf("%w: a timeout of %v", ErrParams, p.Timeout)
	}
	return nil
}

// MaxValue returns the bytes of the longest value that the pool takes.
func (p *Params) MaxValue() int { return max(p.InlineBytes, p.ExtentBytes) }

// HasExtents reports whether values may be too long for their entries.
func (p *Params) HasExtents() bool { return p.ExtentBytes > p.InlineBytes }

// A pool is made for more than its records: in fuller tables cuckoo paths get long, and clients
// hold extents in their claim lists.
const (
	// usualFill is how full the table of a new pool becomes, in percent of its entries.
	usualFill = 80
	// moreExtents: there is one extent more for so many records.
	moreExtents = 4
	// spreadOut: a shard has room for one record more in so many, as shards get unequal shares.
	spreadOut = 32
	// leastSlab and mostSlab bound how many units a slab has.
	leastSlab = 8
	mostSlab  = 256
	// slabsEach is how many slabs more there are for each client: one that it holds, and one that
	// it asks for when it knows of no free extent. Its claim lists of the smaller classes come on
	// top.
	slabsEach = 2
)

// Size returns the parameters of a pool for a shape, and how many bytes of memory it takes on each
// node. The error wraps ErrParams.
func Size(s Shape) (Params, uint64, error) {
	p := Params{Shards: cmp.Or(s.Shards, s.Nodes-s.Spares), Replicas: s.Replicas, Spares: s.Spares,
		Entries: cmp.Or(s.Entries, DefaultEntries), KeyBytes: cmp.Or(s.KeyBytes, DefaultKey),
		InlineBytes: *cmp.Or(s.InlineBytes, new(DefaultInline)), ExtentBytes: s.ValueBytes, F: cmp.Or(s.F, DefaultF),
		RowsPerLock: s.RowsPerLock, LockBits: s.LockBits, Levels: s.Levels, Clients: s.Clients,
		Timeout: cmp.Or(s.Timeout, poolTimeout)}
	if p.RowsPerLock == 0 {
		p.RowsPerLock = max(DefaultLocked>>min(max(p.Levels, 0), MaxLevels), 1)
	}
	if p.Replicas == 1 {
		p.Replicas = 0 // as in the headers of pools that know of no replicas
	}
	if s.Nodes <= s.Spares || s.Spares < 0 || p.Replicas < 0 || p.Shards < 1 || s.Clients < 1 || p.Entries < 1 ||
		s.Records > 1<<40 || p.RowsPerLock < 1 || s.LockWords < 0 || s.LockBits < 0 || s.Rows < 0 {
		return p, 0, fmt.Errorf(
			"%w: %d records in %d shards on %d nodes, %d entries a row, %d rows a lock, %d lock words, for %d clients",
			ErrParams, s.Records, p.Shards, s.Nodes, p.Entries, p.RowsPerLock, s.LockWords, s.Clients)
	}
	p.InlineBytes = min(p.InlineBytes, max(p.ExtentBytes, 0))
	records := max(s.Records, 1)
	// The hash spreads records over shards unevenly, so each has room for a little more than its
	// part.
	if p.Shards > 1 {
		records = records/uint64(p.Shards) + records/uint64(p.Shards)/spreadOut + 16
	}
	filled := int(records*100/usualFill) / p.Entries
	if most := max(cmp.Or(s.Rows, filled), DefaultLocked); s.RowsPerLock > most {
		// Most of the table would be spare rows.
		return p, 0, fmt.Errorf("%w: rows-per-lock=%d: want 1 to %d in a shard of %d rows",
			ErrParams, s.RowsPerLock, most, cmp.Or(s.Rows, filled))
	}
	spare := 2 * p.RowsPerLock
	if p.Levels > 0 { // a table that grows needs no room for records beyond those expected
		spare = 1
	}
	p.Rows = cmp.Or(s.Rows, filled+spare)
	// The lock words of all of a node's shards are to fit the memory of its NIC together.
	each := cmp.Or(p.LockBits, lockBits)
	if s.RowsPerLock == 0 { // the locks of a small table are all bits of one word
		p.RowsPerLock = max(1, min(p.RowsPerLock, (p.Rows+each-1)/each))
	}
	words := ((p.Rows+p.RowsPerLock-1)/p.RowsPerLock + each - 1) / each
	p.LockWords = cmp.Or(s.LockWords, max(1, min(words, deviceBytes/8/p.placesEach(s.Nodes))))
	p.Tickets = min(mostTickets, p.LockWords*each)
	if p.HasExtents() {
		p.Classes = classesFor(extentBytes(p))
		p.SlabExtents = int(min(max(records/uint64(4*s.Clients), leastSlab), mostSlab, mostMarks>>(p.Classes-1)))
		hands := (p.Classes - 1) * min(ClaimAtOnce, p.SlabExtents) * s.Clients
		p.Slabs = (int(records+records/moreExtents)<<min(max(p.Levels, 0), MaxLevels)+hands)/p.SlabExtents +
			1 + slabsEach*s.Clients
	}
	l, err := New(p, s.Nodes)
	if err != nil {
		return p, 0, err
	}
	return p, l.Bytes, nil
}

// Device returns which part of a node's memory should lie in the memory of its NIC, if the NIC
// has some: the lock words (section 3.4.2). The error wraps ErrParams.
func Device(p Params, nodes int) (offset, bytes uint64, err error) {
	l, err := New(p, nodes)
	if err != nil {
		return 0, 0, err
	}
	return l.Areas.locks.Base, l.Areas.locks.Each * uint64(l.PerNode), nil
}

// extentBytes is how many bytes a pool's largest extents have: room for the longest key and value.
func extentBytes(p Params) uint64 { return uint64(ExtentHeader + pad(p.KeyBytes+p.ExtentBytes)) }

// pad rounds a length up to whole words.
func pad(n int) int { return (n + 7) &^ 7 }
