// Package layout says where everything of a FUSEE pool lies and how it is encoded. It posts no
// verbs.
//
// A node's memory has, in this order:
//
//	header     the store's name and its Params; read once, when a pool is opened
//	journals   one of each client, with the client's ceiling behind it
//	size       of the index, and the size that clients want
//	subtables  of the index: slots of 8 bytes, which verbs CAS (package race)
//	regions    each with its block allocation table, and blocks with a bitmap and objects
//
// Everything but what a view has moved follows from the Params (New). The formats are those of
// an object with its log entry and its mark (object.go), of a block's entry (entry.go), and of a
// journal word and the size of the index (where.go). No format relies on the order in which the
// words of a READ or a WRITE land: what is larger than a word has a checksum, or is a hint.
package layout

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Names of this store's formats in a pool's header. The formats lay memory out in the same way.
// They differ in how clients change slots: SNAPSHOT and FUSEE-CR must not write to the same pool.
// FUSEE-NC has no format of its own, since only its clients differ: they have no index cache.
const (
	Format        = "fusee"
	FormatCR      = "fusee-cr"
	FormatVersion = 3
)

// FormatName returns the name of the format in which all clients write with the given protocol.
func FormatName(sequential bool) string {
	if sequential {
		return FormatCR
	}
	return Format
}

// Params shape a pool. They are written into its header when it is made and never change. All
// clients compute the same layout from them. Except for Sequential they are stored as JSON.
type Params struct {
	// Copies of each subtable of the index and of each region of pairs; all on different nodes.
	IndexReplicas int `json:"index_replicas"`
	DataReplicas  int `json:"data_replicas"`
	// Subtables is with how many subtables the index begins; 1 or more.
	Subtables int `json:"subtables"`
	// MaxSubtables is how many the index may have: memory is set aside for them. 0: it does not
	// grow.
	MaxSubtables int `json:"max_subtables,omitempty"`
	// Groups of each subtable. A group is a pair of buckets and the overflow bucket that they
	// share.
	Groups uint64 `json:"index_groups"`
	// Regions is the number of regions of pairs. RegionBytes is the size of each, with its block
	// allocation table; BlockBytes the size of a block, with its free bitmap.
	Regions     int    `json:"regions"`
	RegionBytes uint64 `json:"region_bytes"`
	BlockBytes  uint64 `json:"block_bytes"`
	// Timeout bounds every client's operations. An emptied block rests for as long, and a freed
	// object's tag repeats only after twice as long (see Quarantine). So no client may have a
	// longer timeout than this.
	Timeout time.Duration `json:"timeout"`
	// Clients is the number of identities that have a place for their journals. A client with a
	// higher number cannot open the pool.
	Clients int `json:"clients"`
	// TagBits is how many bits of an object's incarnation a slot keeps. Fewer than
	// race.MaxTagBits are for tests that make tags wrap.
	TagBits int `json:"tag_bits"`
	// Spares is how many nodes, the last ones, hold nothing until one takes a dead node's place.
	Spares int `json:"spares,omitempty"`
	// NodeCentric makes nodes hand out memory object by object (FUSEE 6.3).
	NodeCentric bool `json:"node_centric,omitempty"`
	// Sequential selects FUSEE-CR instead of SNAPSHOT. It is not stored: the name of the format
	// in the header says it.
	Sequential bool `json:"-"`
}

// Layout is where everything of a pool lies. The parts that lay there when the pool was made
// follow from its Params alone. ApplyView and resize place what a view or a split has moved
// since. A node's memory has, in this order: the header, the journals with the ceilings, the
// index's size, the subtables, the regions.
type Layout struct {
	Params
	// The nodes of the pool, spares included.
	Nodes int
	// Where everything lay at first, without any view. It never changes.
	Original struct{ Index, Space [][]node.Replica }
	// Numbers of the subtables and regions of which a replica is left in the view.
	LiveSubtables, LiveRegions []int
	// Nodes that have journals, ceilings and the index's size: all that serve in the view. Never
	// empty.
	Holders []int
	// Offset of the journals; the same on each node.
	Journals uint64
	// Replicas of slots, and of the units of objects, as the view places them.
	Index   race.Index
	Space   node.Space
	Classes classes
	// Bytes that the pool uses of each node, as of the fullest one.
	Bytes uint64
}

const (
	subtableLoad = 0.55 // pairs a slot that a new index is sized for
	// Groups of a subtable, at least. In fewer, chance fills some buckets long before others.
	minGroups = 64
	// Blocks for clients that have one of a class each, and use little of it.
	spareBlocks = 64
	// Bytes for such blocks, at least: a pool for few records may have as many clients as a large
	// one, and memory that is never used is never backed.
	spareBytes = 32 << 20
	// Blocks of a worker: one of each of a few classes, and others of which some objects are
	// still in use.
	workerBlocks = 8
	// Workers, where the shape does not say how many there are.
	usualWorkers = 64
	// Blocks of each size class, so that one that few pairs have leaves enough to the others.
	classBlocks = 20
	// Pairs may be this much larger than the typical one.
	largest = 4
	// The index may grow to what a pool has of pairs that are this much smaller than the typical
	// one.
	smallest = 4
	// Blocks are not smaller than this, unless all of the data are less than 64 of them.
	leastBlock = 32 << 10
	minBlock   = 4 << 10 // enough for a bitmap and one object of a useful size
	maxBlock   = 16 << 20
	maxRegion  = 2 << 30
	maxRegions = 1 << 12
	// MaxGroups bounds the groups of a subtable.
	MaxGroups = 1 << 30
	// Subtables that an index grows to, at most: each client places all of them.
	mostGrown = 1 << 12
)

// New places the index and the regions of a pool of so many nodes of size bytes, as they
// lay when the pool was made. The error wraps ErrParams when the parameters make no pool, and
// rdma.ErrFull when a node is too small for its part. Subtables are placed for the largest size
// of the index, so that a split moves no region. The cache has 32 bits for a slot and a slot has
// race.MaxSpace units for a pointer, so both are checked here, once.
func New(p Params, nodes int, size uint64) (*Layout, error) {
	if err := p.validate(nodes); err != nil {
		return nil, err
	}
	l := &Layout{Params: p, Nodes: nodes, Journals: node.HeaderBytes}
	l.Index = race.Index{Base: align(l.Journals+uint64(p.Clients)*JournalBytes+SizeBytes, 4096), Groups: p.Groups}
	serving, most := nodes-p.Spares, p.MostSubtables()
	l.Original.Index = node.Place(most, p.IndexReplicas, serving, most)
	l.Index.Place = l.Original.Index[:p.Subtables]
	perNode := uint64(copies(l.Original.Index, nodes))
	l.Space = node.Space{
		Base:        align(l.Index.Base+perNode*race.SubtableBytes(p.Groups), 4096),
		RegionBytes: p.RegionBytes, BlockBytes: p.BlockBytes, Replicas: p.DataReplicas,
	}
	l.Space.Place = node.Place(p.Regions, p.DataReplicas, serving, p.Regions)
	l.Original.Space = l.Space.Place
	l.ApplyView(&rdma.View{})
	l.Bytes = l.Space.Base + uint64(copies(l.Space.Place, nodes))*p.RegionBytes
	if l.Bytes > size {
		return nil, fmt.Errorf("lay out the pool: it needs %d bytes a node, each has %d: %w",
			l.Bytes, size, rdma.ErrFull)
	}
	if words := uint64(most) * race.SubtableBytes(p.Groups) / 8; words > maxSlot {
		return nil, bad("the index has %d words, clients count to %d", words, uint64(maxSlot))
	}
	if l.Space.Units() > race.MaxSpace {
		return nil, bad("pairs take %d bytes, pointers reach %d",
			l.Space.Units()*node.Unit, uint64(race.MaxSpace)*node.Unit)
	}
	l.Classes = makeClasses(&l.Space)
	return l, nil
}

// ErrParams is wrapped by errors about parameters that make no pool.
var ErrParams = errors.New("bad pool parameters")

// bad returns an error that wraps ErrParams.
func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrParams, fmt.Sprintf(format, args...))
}

// validateShape checks what users choose: the numbers of nodes, replicas and clients. A replica
// needs a serving node of its own; MaxReplicas bounds the lists of replicas on the stack.
// Identities stop below node.OfNode, since the owners in block allocation tables above it are no
// clients.
func (p Params) validateShape(nodes int) error {
	switch {
	case nodes < 1 || nodes >= rdma.MaxNodes:
		return bad("%d nodes", nodes)
	case p.Spares < 0 || p.Spares >= nodes:
		return bad("%d spares of %d nodes", p.Spares, nodes)
	case p.IndexReplicas < 1 || p.IndexReplicas > nodes-p.Spares || p.IndexReplicas > MaxReplicas:
		return bad("%d index replicas on %d nodes (at most one a node, and %d)",
			p.IndexReplicas, nodes-p.Spares, MaxReplicas)
	case p.DataReplicas < 1 || p.DataReplicas > nodes-p.Spares || p.DataReplicas > MaxReplicas:
		return bad("%d data replicas on %d nodes (at most one a node, and %d)",
			p.DataReplicas, nodes-p.Spares, MaxReplicas)
	case p.Clients < 1 || p.Clients >= int(node.OfNode):
		return bad("%d clients", p.Clients)
	}
	return nil
}

// validate checks all parameters, also those that a damaged header may have. Everything that
// layouts multiply is bounded, so that no product overflows.
func (p Params) validate(nodes int) error {
	if err := p.validateShape(nodes); err != nil {
		return err
	}
	switch {
	case p.Subtables < 1 || p.Subtables > 1<<16 || p.Groups < 2 || p.Groups > MaxGroups:
		return bad("%d subtables of %d groups", p.Subtables, p.Groups)
	case p.MaxSubtables != 0 && (p.MaxSubtables < p.Subtables || p.MaxSubtables > max(p.Subtables, mostGrown)):
		return bad("%d subtables that become %d (%d at most)", p.Subtables, p.MaxSubtables, mostGrown)
	case p.Regions < 1 || p.Regions > maxRegions:
		return bad("%d regions", p.Regions)
	case p.BlockBytes < minBlock || p.BlockBytes > maxBlock || p.BlockBytes%4096 != 0:
		return bad("blocks of %d bytes", p.BlockBytes)
	case p.RegionBytes < 2*p.BlockBytes || p.RegionBytes > maxRegion || p.RegionBytes%4096 != 0:
		return bad("regions of %d bytes with blocks of %d", p.RegionBytes, p.BlockBytes)
	case p.Timeout < time.Millisecond || p.Timeout > time.Hour:
		return bad("a timeout of %v", p.Timeout)
	case p.TagBits < 1 || p.TagBits > race.MaxTagBits:
		return bad("%d tag bits", p.TagBits)
	}
	return nil
}

// MostSubtables returns how many subtables the index may have. One that does not grow has its
// first ones only.
func (p Params) MostSubtables() int { return max(p.Subtables, p.MaxSubtables) }

// copies returns how many items the fullest node holds. Each node sets aside as much memory, so
// that an item's offset follows from its index on the node alone.
func copies(place [][]node.Replica, nodes int) int {
	most, held := 0, make([]int, nodes)
	for _, rs := range place {
		for _, r := range rs {
			held[r.Node]++
			most = max(most, held[r.Node])
		}
	}
	return most
}

// align rounds n up to a multiple of to.
func align(n, to uint64) uint64 { return (n + to - 1) / to * to }

// Shape says what a pool is to hold, for Size. Size computes everything else.
type Shape struct {
	Nodes  int
	Spares int // of the nodes, that hold nothing at first
	// Memory is the bytes that each node has. 0: as many as the records need.
	Memory  uint64
	Records uint64
	// Groups is with how many groups the index begins, in one subtable. 0: as many as the records
	// need.
	Groups uint64
	// PairBytes is the length of a typical key and value together.
	PairBytes     int
	IndexReplicas int
	DataReplicas  int
	Clients       int
	// Workers is how many clients write at the same time: each finds blocks of its own. 0: few.
	Workers int
	Timeout time.Duration // of an operation, at most; default 2 s
}

// Size returns the parameters of a pool of that shape and the bytes that each node needs. Without
// Shape.Memory the pool gets room for twice the records and a few blocks for clients. The error
// wraps ErrParams when the shape makes no pool, and rdma.ErrFull when Shape.Memory is too small.
//
// Blocks take about a 512th of the data each, within bounds, so that a client's partly used
// blocks waste little, and less where many workers write, or pairs have many sizes.
func Size(s Shape) (Params, uint64, error) {
	p := Params{Spares: s.Spares, IndexReplicas: s.IndexReplicas, DataReplicas: s.DataReplicas, Clients: s.Clients,
		TagBits: race.MaxTagBits, Timeout: cmp.Or(s.Timeout, DefaultTimeout)}
	if err := p.validateShape(s.Nodes); err != nil {
		return p, 0, err
	}
	serving := s.Nodes - s.Spares
	groups := groupsFor(s.Records)
	p.Subtables = max(1, min(8*serving, int(groups/minGroups)))
	p.Groups = groups/uint64(p.Subtables) + 1
	if s.Groups > 0 {
		p.Subtables, p.Groups = 1, s.Groups
	}
	object := uint64(ObjectBytes(s.PairBytes, 0)+node.Unit-1) / node.Unit * node.Unit
	data := 2 * s.Records * object
	block := s.fitBlock(data)
	data = max(data+max(spareBytes, spareBlocks*block), s.Records*object+workerBlocks*uint64(s.Workers)*block)
	if s.Memory > 0 {
		data = s.Memory / uint64(s.DataReplicas) * uint64(serving)
	}
	most := groupsFor(data / max(node.Unit, object/smallest))
	if s.Groups == 0 {
		p.Groups = max(p.Groups, most/mostGrown+1)
	}
	p.MaxSubtables = max(p.Subtables, min(mostGrown, int(most/p.Groups)+1))
	if s.Memory > 0 {
		fixed := align(node.HeaderBytes+uint64(p.Clients)*JournalBytes+SizeBytes, 4096) + 4096 +
			uint64((p.MostSubtables()*p.IndexReplicas+serving-1)/serving+1)*race.SubtableBytes(p.Groups)
		if fixed >= s.Memory {
			return p, 0, fmt.Errorf("size the pool: the index of %d records needs %d bytes a node of %d: %w",
				s.Records, fixed, s.Memory, rdma.ErrFull)
		}
		data = (s.Memory - fixed) / uint64(s.DataReplicas) * uint64(serving)
	}
	p.BlockBytes = s.fitBlock(data)
	if data < 64*p.BlockBytes {
		p.BlockBytes = powerOf2(data/64, minBlock, maxBlock)
	}
	// Four regions a node or more, so that load spreads, of whole pages.
	p.RegionBytes = align(data/uint64(4*serving), 4096) + p.BlockBytes
	p.RegionBytes = min(maxRegion, max(2*p.BlockBytes+4096, p.RegionBytes))
	p.Regions = int((data+p.RegionBytes-1)/p.RegionBytes) + 1
	return fitRegions(p, s)
}

// groupsFor returns how many groups an index of subtableLoad has for so many pairs.
func groupsFor(pairs uint64) uint64 {
	return max(minGroups, uint64(float64(pairs)/subtableLoad)/race.GroupSlots+1)
}

// fitBlock returns the size of a pool's blocks: some 512th of the data, or less where that makes
// too few of them for the workers, which take half of them at most, or for the sizes of pairs.
func (s *Shape) fitBlock(data uint64) uint64 {
	object := (ObjectBytes(s.PairBytes, 0) + node.Unit - 1) / node.Unit
	sizes := len(classUnits(min(race.MaxUnits, largest*object)))
	blocks := max(2*workerBlocks*cmp.Or(s.Workers, usualWorkers), classBlocks*sizes)
	block := powerOf2(data/512, leastBlock, maxBlock)
	for block > leastBlock && uint64(blocks)*block > data {
		block /= 2
	}
	return block
}

// fitRegions lowers the number of regions until the pool fits the memory it was given. A step
// removes half of the regions that seem too many: they are spread over the nodes unevenly, so
// removing them all could remove more than necessary.
func fitRegions(p Params, s Shape) (Params, uint64, error) {
	for {
		l, err := New(p, s.Nodes, rdma.MaxOffset)
		if err != nil {
			return p, 0, err
		}
		if s.Memory == 0 || l.Bytes <= s.Memory {
			return p, max(l.Bytes, s.Memory), nil
		}
		over := int((l.Bytes - s.Memory) / uint64(s.DataReplicas) * uint64(s.Nodes-s.Spares) / p.RegionBytes)
		if p.Regions -= 1 + over/2; p.Regions < 1 {
			return p, 0, fmt.Errorf("size the pool: %d bytes a node are too few, one region needs %d: %w",
				s.Memory, l.Bytes, rdma.ErrFull)
		}
	}
}

// powerOf2 returns the least power of two times low that is at least n, but at most high.
func powerOf2(n, low, high uint64) uint64 {
	p := low
	for p < n && p < high {
		p *= 2
	}
	return p
}

// ParseParams computes the layout of a header's parameters. The error wraps client.ErrDamaged
// when they cannot be decoded.
func ParseParams(params []byte, nodes int, size uint64) (*Layout, error) {
	var p Params
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, fmt.Errorf("read the pool's parameters: %w: %w", client.ErrDamaged, err)
	}
	return New(p, nodes, size)
}

// DefaultTimeout is that of operations where a pool's shape does not say.
const DefaultTimeout = 2 * time.Second

// MaxReplicas bounds the replicas of a slot or a pair, so that lists of them are arrays and need
// no allocation.
const MaxReplicas = 8
