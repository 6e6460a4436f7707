// Package rcuckoo is RCuckoo (Grant and Snoeren, "Cuckoo for Clients: Disaggregated Cuckoo
// Hashing", ATC 2025): a cuckoo hash table on passive memory nodes, whose keys' two rows lie near
// each other, so that one masked CAS takes the locks of a whole cuckoo path and one trip reads both
// rows.
//
// Beyond the paper a table may grow (levels.go), and its shards may have copies on several nodes
// (replicas.go); both cost nothing where they are not asked for.
package rcuckoo

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
	// OldestVersion is that of pools whose extents are all of one size. They differ in nothing else, and
	// are read as ever.
	OldestVersion = 1
)

// MaxReplicas bounds Params.Replicas.
const MaxReplicas = 8

// Params shape a pool. They are written into its header and never change.
type Params struct {
	Shards      int           `json:"shards"`              // tables; each lies on one node
	Rows        int           `json:"rows"`                // of a shard
	Entries     int           `json:"entries"`             // of a row
	KeyBytes    int           `json:"key_bytes"`           // longest key
	InlineBytes int           `json:"inline_bytes"`        // longest value that lies in its entry
	ExtentBytes int           `json:"extent_bytes"`        // longest value of all; those that are not inline lie in extents
	F           float64       `json:"f"`                   // of the dependent hashing: see locality
	RowsPerLock int           `json:"rows_per_lock"`       // neighbours that share a lock
	LockWords   int           `json:"lock_words"`          // of a shard; when there are fewer than its locks need, locks share bits
	LockBits    int           `json:"lock_bits,omitempty"` // of a word that are locks, which one masked CAS takes; 0: all but one
	Slabs       int           `json:"slabs"`               // of extents, of a shard
	SlabExtents int           `json:"slab_extents"`        // of the largest class
	Classes     int           `json:"classes,omitempty"`   // of sizes of extents: see class.go; 0 is 1
	Levels      int           `json:"levels,omitempty"`    // how many times a shard's table may double: see levels.go
	Tickets     int           `json:"tickets,omitempty"`   // queues for locks, of a shard: see ticket.go; 0: none
	Clients     int           `json:"clients"`             // identities
	Timeout     time.Duration `json:"timeout"`             // of an operation, at most
	Replicas    int           `json:"replicas,omitempty"`  // of each shard, on as many nodes: see replicas.go; 0 is 1
	Spares      int           `json:"spares,omitempty"`    // nodes, the last ones, that hold nothing until one takes a dead node's place
}

// Shape is what a pool is to be, as far as users choose it. Zero values mean defaults.
type Shape struct {
	Nodes       int
	Records     uint64
	KeyBytes    int     // longest key; default 24
	ValueBytes  int     // longest value
	InlineBytes *int    // longest value that lies in its entry, 0: none does; default 8
	Shards      int     // default: one a node
	Entries     int     // of a row; default 8
	F           float64 // default 2.3
	RowsPerLock int     // default 16, of a table that has grown
	LockWords   int     // of a shard; default: a bit for each lock, as far as they fit a NIC's memory
	LockBits    int     // of a lock word that are locks; default, and at most, 63
	Rows        int     // of a shard; default: as many as Records fill to 80 %
	Levels      int     // how many times a full table may double; default: never
	Clients     int
	Timeout     time.Duration // default 2 s
	Replicas    int           // default 1
	Spares      int           // of the nodes
}

// Most returns the largest value that each field of a Shape may have by itself, of those that a
// user chooses for a table. A lock may not cover more rows than a shard has, either.
func Most() Shape {
	return Shape{Entries: maxEntries, KeyBytes: maxKeyBytes, InlineBytes: new(maxInline), F: maxF, RowsPerLock: maxRows, LockWords: maxLockWords,
		LockBits: lockBits, Rows: maxRows, Shards: maxShards, Levels: MaxLevels}
}

// ErrParams is wrapped by errors about parameters that make no pool.
var ErrParams = errors.New("bad pool parameters")

// What a Shape that leaves it open has.
const (
	DefaultKey     = 24 // YCSB's keys
	DefaultInline  = 8
	DefaultEntries = 8
	DefaultF       = 2.3 // section 3.3
	DefaultLocked  = 16  // rows a lock, section 3.4.1, of a table that does not grow
)

const (
	maxKeyBytes    = 1<<keyBits - 1
	maxInline      = 1<<inlineBits - 1
	maxExtentValue = 1<<lengthBits - 1
	maxRows        = 1<<32 - 1
	maxShards      = 1 << 16
	maxLockWords   = 1 << 32
	maxExtents     = 1 << extentBits

	poolTimeout = 2 * time.Second

	// searchDepth is how many entries an INSERT moves at most (section 3.2.3); so its path has one row
	// more.
	searchDepth = 5
	maxSteps    = searchDepth + 1

	// lockBits of a lock word are locks. The last bit is the repair's.
	lockBits = 63
	// mostLocked is how many lock words an operation needs at most: those of a path, and of the key's
	// other row.
	mostLocked = maxSteps + 1

	intentBytes  = (intentHeader + mostLocked*16 + 63) &^ 63 // with a word's number and bits each
	intentHeader = 32
	redoHeader   = 128
	redoStep     = 40 // and an entry

	extentHeader = 24 // see extent.go

	// deviceBytes is the memory of a NIC that a node's locks should fit (section 3.4.2).
	deviceBytes = 256 << 10

	page = 4096
)

// Where a part of each of a node's shards lies, one shard's behind the other's.
type area struct{ base, each uint64 }

func (a area) of(index int) uint64 { return a.base + uint64(index)*a.each }

func (a area) at(c node.Replica, off uint64) rdma.Addr { return rdma.At(c.Node, a.of(c.Index)+off) }

// layout is where everything of a pool lies, computed from its Params alone. From the front of each
// node:
//
//	header
//	locks     of each of its shards, 8 bytes a word: together, for the NIC's memory
//	leases    8 bytes for each lock word
//	counts    8 bytes: how many slabs were handed out
//	intents   a record for each identity, all of a shard's together
//	redos     a record for each identity
//	hands     a record for each identity: see hand.go
//	growths   of tables that may grow: see levels.go
//	rows      all segments of a shard together; those behind the first get memory when the table grows
//	slabs     which get memory when they are handed out
//	queues    of clients that wait for locks: the last, so that clients of a version that knows of
//	          none find all else where it was
//
// With replicas each copy of a shard that lies on a node has all of this there, and roles, 8 bytes,
// behind the growths.
//
// Locks, leases, counts, growths and the marks of slabs are changed by atomics only, all else by
// WRITEs only. All is zero when the pool is made.
type layout struct {
	Params
	*form
	nodes    int
	reach    reach
	perNode  int // copies of shards on a node, at most
	locks    area
	leases   area
	counts   area
	intents  area
	redos    area
	hands    area
	growths  area
	roles    area
	rows     area
	slabs    area
	tickets  area
	bytes    uint64 // of each node
	extent   uint64 // bytes of one of the largest, and of a unit
	slab     uint64
	redo     uint64
	lockBits int // of a word that are locks
	lockings int // locks of a shard, before they share bits
	placement
}

func newLayout(p Params, nodes int) (*layout, error) {
	if err := p.validate(nodes); err != nil {
		return nil, err
	}
	p.Replicas, p.Classes = max(p.Replicas, 1), max(p.Classes, 1)
	l := &layout{Params: p, nodes: nodes, form: newForm(p), reach: newReach(p.F, p.Rows), perNode: p.placesEach(nodes)}
	l.lockBits = cmp.Or(p.LockBits, lockBits)
	l.lockings = (p.Rows + p.RowsPerLock - 1) / p.RowsPerLock
	l.extent = extentBytes(p)
	l.slab = uint64(l.slabMarks())*markBytes + uint64(p.SlabExtents)*l.extent
	l.redo = uint64((redoHeader + maxSteps*(redoStep+l.entryBytes) + 63) &^ 63)
	end := uint64(node.HeaderBytes)
	put := func(items, each uint64) area {
		a := area{end, items * each}
		end += (a.each*uint64(l.perNode) + 63) &^ 63
		return a
	}
	l.locks = put(uint64(p.LockWords), 8)
	l.leases = put(uint64(p.LockWords), 8)
	l.counts = put(1, 8)
	l.intents = put(uint64(p.Clients), intentBytes)
	l.redos = put(uint64(p.Clients), l.redo)
	l.hands = put(uint64(p.Clients), l.handsBytes())
	l.growths = put(uint64(min(p.Levels, 1)), growthBytes)
	if p.Replicas > 1 {
		l.roles = put(1, 8)
	}
	l.rows = put(uint64(p.Rows)<<p.Levels, uint64(l.rowBytes))
	l.slabs = put(uint64(p.Slabs), l.slab)
	l.tickets = put(uint64(p.Tickets), queueBytes)
	l.bytes = (end + page - 1) / page * page
	if l.bytes >= rdma.MaxOffset {
		return nil, fmt.Errorf("%w: %d bytes a node", ErrParams, l.bytes)
	}
	l.placeOriginals()
	return l, nil
}

// validate bounds each parameter so that no sum of newLayout's overflows.
func (p *Params) validate(nodes int) error {
	switch {
	case nodes < 1 || nodes >= rdma.MaxNodes || p.Shards < 1 || p.Shards > maxShards:
		return fmt.Errorf("%w: %d shards on %d nodes", ErrParams, p.Shards, nodes)
	case p.Replicas < 0 || p.Replicas > MaxReplicas || p.Spares < 0 || max(p.Replicas, 1) > nodes-p.Spares || p.Spares > 0 && p.Replicas < 2:
		return fmt.Errorf("%w: %d replicas on %d nodes, %d of them spares", ErrParams, p.Replicas, nodes, p.Spares)
	case p.Rows < 1 || p.Rows > maxRows:
		return fmt.Errorf("%w: %d rows", ErrParams, p.Rows)
	case p.Levels < 0 || p.Levels > MaxLevels || p.Rows<<p.Levels > maxRows:
		return fmt.Errorf("%w: %d rows that double %d times (at most %d times, up to %d rows)", ErrParams, p.Rows, p.Levels, MaxLevels, maxRows)
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
	case p.Slabs < 0 || p.SlabExtents < 0 || p.Slabs > maxExtents || p.SlabExtents > maxExtents || p.Slabs*p.SlabExtents > maxExtents:
		return fmt.Errorf("%w: %d slabs of %d extents (%d extents at most)", ErrParams, p.Slabs, p.SlabExtents, maxExtents)
	case p.extents() && p.Slabs*p.SlabExtents == 0:
		return fmt.Errorf("%w: values of %d bytes, of which %d lie in the row, and no slabs", ErrParams, p.ExtentBytes, p.InlineBytes)
	case p.Classes < 0 || p.Classes > 1 && p.Classes > classesFor(extentBytes(*p)) || p.Slabs*p.SlabExtents > maxExtents>>max(p.Classes-1, 0):
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

// extents reports whether values may be too long for their entries.
func (p *Params) extents() bool { return p.ExtentBytes > p.InlineBytes }

// A pool is made for more than its records: rows run out of near places when they are fuller, and
// extents are in hands.
const (
	usualFill   = 80 // percent of the entries
	moreExtents = 4  // one in so many
	spreadOut   = 32 // and one in so many, of both, as shards get unequal shares
	leastSlab   = 8  // extents
	mostSlab    = 256
	slabsEach   = 2 // of a client, which has one in hand and asks for one when it knows of nothing else; and hands of each other class
)

// Size returns the parameters of a pool for a shape, and how many bytes of memory it takes on each
// node. The error wraps ErrParams.
func Size(s Shape) (Params, uint64, error) {
	p := Params{Shards: cmp.Or(s.Shards, s.Nodes-s.Spares), Replicas: s.Replicas, Spares: s.Spares, Entries: cmp.Or(s.Entries, DefaultEntries), KeyBytes: cmp.Or(s.KeyBytes, DefaultKey),
		InlineBytes: *cmp.Or(s.InlineBytes, new(DefaultInline)), ExtentBytes: s.ValueBytes, F: cmp.Or(s.F, DefaultF),
		RowsPerLock: s.RowsPerLock, LockBits: s.LockBits, Levels: s.Levels, Clients: s.Clients, Timeout: cmp.Or(s.Timeout, poolTimeout)}
	if p.RowsPerLock == 0 {
		p.RowsPerLock = max(DefaultLocked>>min(max(p.Levels, 0), MaxLevels), 1)
	}
	if p.Replicas == 1 {
		p.Replicas = 0 // as in the headers of pools that know of no replicas
	}
	if s.Nodes <= s.Spares || s.Spares < 0 || p.Replicas < 0 || p.Shards < 1 || s.Clients < 1 || p.Entries < 1 || s.Records > 1<<40 || p.RowsPerLock < 1 || s.LockWords < 0 || s.LockBits < 0 || s.Rows < 0 {
		return p, 0, fmt.Errorf("%w: %d records in %d shards on %d nodes, %d entries a row, %d rows a lock, %d lock words, for %d clients", ErrParams,
			s.Records, p.Shards, s.Nodes, p.Entries, p.RowsPerLock, s.LockWords, s.Clients)
	}
	p.InlineBytes = min(p.InlineBytes, max(p.ExtentBytes, 0))
	records := max(s.Records, 1)
	if p.Shards > 1 {
		records = records/uint64(p.Shards) + records/uint64(p.Shards)/spreadOut + 16
	}
	filled := int(records*100/usualFill) / p.Entries
	if most := max(cmp.Or(s.Rows, filled), DefaultLocked); s.RowsPerLock > most { // the spare rows would be most of the table
		return p, 0, fmt.Errorf("%w: rows-per-lock=%d: want 1 to %d in a shard of %d rows", ErrParams, s.RowsPerLock, most, cmp.Or(s.Rows, filled))
	}
	spare := 2 * p.RowsPerLock
	if p.Levels > 0 { // it need not have room for what is not expected
		spare = 1
	}
	p.Rows = cmp.Or(s.Rows, filled+spare)
	each := cmp.Or(p.LockBits, lockBits)
	words := ((p.Rows+p.RowsPerLock-1)/p.RowsPerLock + each - 1) / each
	p.LockWords = cmp.Or(s.LockWords, max(1, min(words, deviceBytes/8/p.placesEach(s.Nodes))))
	p.Tickets = min(mostTickets, p.LockWords*each)
	if p.extents() {
		p.Classes = classesFor(extentBytes(p))
		p.SlabExtents = int(min(max(records/uint64(4*s.Clients), leastSlab), mostSlab, mostMarks>>(p.Classes-1)))
		hands := (p.Classes - 1) * min(claimAtOnce, p.SlabExtents) * s.Clients
		p.Slabs = (int(records+records/moreExtents)<<min(max(p.Levels, 0), MaxLevels)+hands)/p.SlabExtents + 1 + slabsEach*s.Clients
	}
	l, err := newLayout(p, s.Nodes)
	if err != nil {
		return p, 0, err
	}
	return p, l.bytes, nil
}

// Device returns which part of each of a pool's nodes belongs into the memory of its NIC, if that
// has some: the lock words (section 3.4.2). The error wraps ErrParams.
func Device(p Params, nodes int) (offset, bytes uint64, err error) {
	l, err := newLayout(p, nodes)
	if err != nil {
		return 0, 0, err
	}
	return l.locks.base, l.locks.each * uint64(l.perNode), nil
}

// at is where something of a shard lies: in the copy that leads.
func (l *layout) at(a area, shard int, off uint64) rdma.Addr { return a.at(l.leads[shard], off) }

func (l *layout) lockAt(shard, word int) rdma.Addr  { return l.at(l.locks, shard, 8*uint64(word)) }
func (l *layout) leaseAt(shard, word int) rdma.Addr { return l.at(l.leases, shard, 8*uint64(word)) }

// intentAt, handAt and, on one copy of a shard, redoAt are the records of a client; identities
// count from 1.
func (l *layout) intentAt(shard int, c rdma.ClientID) rdma.Addr {
	return l.at(l.intents, shard, uint64(c-1)*intentBytes)
}

func (l *layout) redoAt(at node.Replica, c rdma.ClientID) rdma.Addr {
	return l.redos.at(at, uint64(c-1)*l.redo)
}

// handAt is a client's hand of a class.
func (l *layout) handAt(shard int, c rdma.ClientID, class int) rdma.Addr {
	return l.at(l.hands, shard, uint64(c-1)*l.handsBytes()+uint64(class)*handBytes)
}

// rowAt is a row on one copy of its shard.
func (l *layout) rowAt(at node.Replica, n uint32) rdma.Addr {
	return l.rows.at(at, uint64(n)*uint64(l.rowBytes))
}

// lockOf returns the word of a row's lock and its bit there, which are those of all rows of its
// number. Locks that have no bit of their own share one with others (section 3.4.2).
func (l *layout) lockOf(n uint32) (word int, bit uint) {
	p := int(l.number(n)) / l.RowsPerLock % (l.lockBits * l.LockWords)
	return p / l.lockBits, uint(p % l.lockBits)
}

// lockedWith returns the rows of a row's segment that have its lock for themselves, but for those
// of others that share its bit: from, and up to but without, to.
func (l *layout) lockedWith(n uint32) (from, to uint32) {
	number := l.number(n)
	from = n - number%uint32(l.RowsPerLock)
	return from, uint32(min(int(from)+l.RowsPerLock, int(n-number)+l.Rows))
}

// extentBytes is how many a pool's largest extents have.
func extentBytes(p Params) uint64 { return uint64(extentHeader + pad(p.KeyBytes+p.ExtentBytes)) }

func pad(n int) int { return (n + 7) &^ 7 }
