// Package rcuckoo is RCuckoo (Grant and Snoeren, "Cuckoo for Clients: Disaggregated Cuckoo
// Hashing", ATC 2025): a cuckoo hash table on passive memory nodes. The two rows of a key lie
// near each other. So one masked CAS takes the locks of a whole cuckoo path, and one trip reads
// both rows.
//
// Beyond the paper a table may grow (grow.go), and its shards may have copies on several nodes
// (replicas.go); both cost nothing where they are not asked for.
//
// The package has the operations, growth, and what looks at whole pools. The other parts are
// packages:
//
//   - table: where everything of a pool lies, and how it is encoded;
//   - search: the search for cuckoo paths, and the cache of rows that it reads;
//   - session: the operation at work with its limits, and what a worker knows of shards and view;
//   - locks: taking and releasing locks, tickets, and the detection of failed clients;
//   - extents: how a client claims the extents of long values, and gives them back;
//   - recovery: repair, the settling of operations that failed, and new leaders;
//   - steps: the names of the protocol's steps.
package rcuckoo

import (
	"encoding/binary"

	"github.com/farkv/farkv/client/rcuckoo/search"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
)

var le = binary.LittleEndian

// The format's name and versions in a pool's header: see table.
const (
	Format        = table.Format
	FormatVersion = table.FormatVersion
	OldestVersion = table.OldestVersion
)

// The bounds and defaults of Params and of a Shape.
const (
	MaxReplicas    = table.MaxReplicas
	MaxLevels      = table.MaxLevels
	DefaultKey     = table.DefaultKey
	DefaultInline  = table.DefaultInline
	DefaultEntries = table.DefaultEntries
	DefaultF       = table.DefaultF
)

// Params shape a pool, and Shape is what a user chooses of them.
type (
	Params = table.Params
	Shape  = table.Shape
)

// Options of a Store, and the Pool in them.
type (
	Options = session.Options
	Pool    = session.Pool
)

// Stats count what leaves the common case.
type Stats = session.Stats

// DefaultCache is the default of Options.CacheBytes.
const DefaultCache = session.DefaultCache

// ErrParams is wrapped by errors about parameters that make no pool.
var ErrParams = table.ErrParams

// Most, Size and Device compute parameters of pools.
var (
	Most   = table.Most
	Size   = table.Size
	Device = table.Device
)

// Table is a table of one shard in local memory, to measure the hashing and the search alone.
type Table = search.Table

// NewTable makes one.
var NewTable = search.NewTable

// Steps are the steps of the protocol, as traces show them and faults can be set to them.
var Steps = steps.All
