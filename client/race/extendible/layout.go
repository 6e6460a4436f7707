package extendible

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/client/dtx"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Params are what a pool is made with. They stand in its header.
type Params struct {
	// Groups is the number of bucket groups of a subtable.
	Groups int `json:"groups"`
	// PairBytes bounds the bytes of a key and its value together.
	PairBytes int `json:"pair_bytes"`
	// Depth bounds the local depth of subtables: the directory has 2^Depth
	// entries.
	Depth int `json:"depth"`
	// Clients bounds the identities: they are 1 to Clients.
	Clients int `json:"clients"`
	// Timeout bounds the time that a worker may allow an operation.
	Timeout time.Duration `json:"timeout"`
	// Lease is for how long a lock may stay as it is before its holder is
	// suspected, beside the time that its transaction takes: rtx.Options.Drift.
	// 0: DefaultLease.
	Lease time.Duration `json:"lease,omitempty"`
	// These are for tests, which see subtables and memory filled, and tags wrap.
	// They bound how many slots of a bucket are used, how many chunks of pairs a
	// node has, and how wide tags are; 0: as much as there is room for.
	Slots   int `json:"slots,omitempty"`
	Chunks  int `json:"chunks,omitempty"`
	TagBits int `json:"tag_bits,omitempty"`
}

const (
	// DefaultLease is rTX's (section 6.1).
	DefaultLease = 8 * time.Millisecond
	// DefaultTimeout is the timeout of an operation.
	DefaultTimeout = 2 * time.Second
	// MaxPair bounds the bytes of a key and its value: the length in a slot
	// counts no more.
	MaxPair = race.MaxUnits*unitBytes - pairHeader

	// MaxGroups bounds the groups of a subtable.
	MaxGroups = 1 << 16
	// MaxDepth bounds the depth of the directory.
	MaxDepth = 20

	// A key's two combined buckets lie in different groups.
	minGroups = 2
	// leastTag is the least width of tags in bits. With narrower ones words would
	// come back within an operation.
	leastTag = 16
	// A chunk of pairs has this many bytes at least, and chunkBlocks blocks.
	chunkBytes  = 4096
	chunkBlocks = 8
	// entryChunk is the bytes of descriptors that a client takes at a time.
	entryChunk = 1024
)

// ErrParams is wrapped by errors about pools that cannot be made.
var ErrParams = errors.New("no such pool")

// layout is where everything lies, the same on each node:
//
//	header
//	directory  an entry a suffix, and what transactions need. RTX: the entry is
//	           the metadata of the root of that number, and there is a
//	           descriptor of 64 bytes each. DTX: it is the root. Locked: a word
//	records    a block each, for what DELETEs leave, of the clients for which
//	           identity modulo nodes is the node's number
//	tables     a word a subtable's memory, then a word a chunk of pairs: node.Entry
//	subtables
//	chunks of blocks, one pair a block
//
// Slots, headers of buckets and tables are changed by atomics only, as soon as
// other clients know of them. Blocks are changed by WRITEs only. All is zero in a
// new pool. A layout does not change after newLayout.
type layout struct {
	Params
	// format is RTX, DTX or Locked.
	format string
	nodes  int
	// objects is the directory of RTX, and places that of DTX.
	objects *rtx.Layout
	places  *dtx.Layout
	// index places a key in a subtable. It has one subtable only: the bits that
	// pick one among several are those of the suffix here.
	index race.Index

	// records is the offset of the first delete record.
	records uint64
	// These are the memory of subtables, one a chunk, and chunks of pairs.
	subtables, pairs chunks.Arena
	// blockBytes is the size of a block: room for the longest pair.
	blockBytes uint64
	// blocks is the number of blocks of a node, without delete records.
	blocks uint64
	// blockBits is how many bits of a word name the block. The rest below the
	// kind is its tag, maxTag at most.
	blockBits int
	maxTag    uint64
}

// check returns an error for a field that is out of its range.
func (p *Params) check() error {
	switch {
	case p.Groups < minGroups || p.Groups > MaxGroups:
		return fmt.Errorf("subtables of %d groups: want %d to %d: %w", p.Groups, minGroups, MaxGroups, ErrParams)
	case p.PairBytes < 1 || p.PairBytes > MaxPair:
		return fmt.Errorf("pairs of %d bytes: want 1 to %d: %w", p.PairBytes, MaxPair, ErrParams)
	case p.Depth < 1 || p.Depth > MaxDepth:
		return fmt.Errorf("a local depth of up to %d: want 1 to %d: %w", p.Depth, MaxDepth, ErrParams)
	case p.Clients < 1 || p.Clients >= int(node.OfNode):
		return fmt.Errorf("%d clients: want 1 to %d: %w", p.Clients, node.OfNode-1, ErrParams)
	case p.Slots < 0 || p.Slots > race.BucketSlots || p.TagBits < 0 || p.Chunks < 0:
		return fmt.Errorf("%d slots of a bucket, tags of %d bits, %d chunks: %w", p.Slots, p.TagBits, p.Chunks,
			ErrParams)
	case p.Timeout <= 0 || p.Lease < 0:
		return fmt.Errorf("a timeout of %v and a lease of %v: want more than 0: %w", p.Timeout, p.Lease, ErrParams)
	}
	return nil
}

// blockBytes returns the size of a block, in whole units.
func (p *Params) blockBytes() uint64 {
	return uint64(unitsOf(pairHeader+p.PairBytes)) * unitBytes
}

// subtableBytes returns the size of a subtable.
func (p *Params) subtableBytes() uint64 { return race.SubtableBytes(uint64(p.Groups)) }

// chunkBytes returns the bytes of a chunk of pairs: a whole number of blocks.
func (p *Params) chunkBytes() uint64 {
	block := p.blockBytes()
	return max(block*chunkBlocks, chunkBytes/block*block)
}

// directoryBytes returns what the directory takes on each node, in whole pages of
// 4 KiB. With RTX these are metadata, logs, and descriptors; as many descriptors
// again for those that rehashes replace; and what each client has taken.
func (p *Params) directoryBytes(format string, nodes int) uint64 {
	roots, n := uint64(1)<<p.Depth, uint64(nodes)
	switch format {
	case Locked:
		return (roots/n*8 + 8 + 4095) &^ 4095
	case DTX:
		return ((uint64(p.Clients)/n+2)*512 + (roots/n+1)*unitBytes + 4*entryChunk + 4095) &^ 4095
	}
	descriptors := 2*roots/n*unitBytes + (uint64(p.Clients)*4+64)*entryChunk
	fixed := (uint64(p.Clients)/n+2)*(entriesOfLog*24+128) + (roots/n+1)*rtx.MetaBytes + 4096
	return (fixed + descriptors + descriptors/entryChunk*8 + 4095) &^ 4095
}

// entriesOfLog is how many objects a transaction changes: the descriptor of the
// subtable that is split, and that of the new one.
const entriesOfLog = 2

// indexShare is the bytes of the index that a pair needs when it needs most:
// subtables are between a third and nine tenths full.
const indexShare = 24

// newLayout divides memory bytes of each node. The error wraps ErrParams, or
// rdma.ErrFull if there is no room for a subtable and a chunk of pairs.
func newLayout(format string, p Params, nodes int, memory uint64) (*layout, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	p.Lease = cmp.Or(p.Lease, DefaultLease)
	l := &layout{Params: p, format: format, nodes: nodes, blockBytes: p.blockBytes()}
	l.index = race.Index{Groups: uint64(p.Groups), Place: make([][]node.Replica, 1)}
	// The directory lies behind the header, and the delete records, a unit each, behind
	// the directory.
	directory := node.HeaderBytes + p.directoryBytes(format, nodes)
	fixed := directory + (uint64(p.Clients)/uint64(nodes)+1)*unitBytes
	var err error
	switch format {
	case RTX:
		l.objects, err = rtx.NewLayout(rtx.Shape{
			Nodes: nodes, Memory: directory, Clients: p.Clients, Roots: 1 << p.Depth, Sizes: []int{descriptorBytes},
			Writes: entriesOfLog, Chunk: entryChunk,
		})
	case DTX:
		l.places, err = dtx.NewLayout(dtx.Shape{
			Nodes: nodes, Memory: directory, Clients: p.Clients, Roots: 1 << p.Depth, Sizes: []int{descriptorBytes},
			Writes: entriesOfLog, Chunk: entryChunk,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("the directory: %w: %w", ErrParams, err)
	}
	l.records = directory
	l.subtables = chunks.Arena{Table: fixed, Bytes: p.subtableBytes()}
	l.pairs = chunks.Arena{Bytes: p.chunkBytes()}
	if memory > fixed+2*unitBytes {
		left := memory - fixed - 2*unitBytes
		perBlock := l.pairs.Bytes / l.blockBytes
		// Subtables get the share of the rest that the index of a pair needs
		// most, and chunks of pairs what is left then.
		share := left / (l.blockBytes + indexShare) * indexShare
		l.subtables.Count = max(share/(l.subtables.Bytes+8), 1)
		if taken := l.subtables.Count * (l.subtables.Bytes + 8); taken < left {
			l.pairs.Count = (left - taken) / (l.pairs.Bytes + 8)
		}
		if l.Chunks > 0 {
			l.pairs.Count = min(l.pairs.Count, uint64(l.Chunks))
		}
		l.blocks = l.pairs.Count * perBlock
	}
	if l.pairs.Count == 0 {
		return nil, fmt.Errorf("%d bytes a node have no room for a subtable of %d and pairs of %d: %w", memory,
			l.subtables.Bytes, l.blockBytes, rdma.ErrFull)
	}
	l.pairs.Table = l.subtables.Table + 8*l.subtables.Count
	// Blocks and subtables begin at units, as addresses of blocks are counted in
	// them.
	l.subtables.First = (l.pairs.Table + 8*l.pairs.Count + unitBytes - 1) &^ (unitBytes - 1)
	l.pairs.First = l.subtables.End()
	return l, l.widths()
}

// widths divides the bits of a word between block and tag.
func (l *layout) widths() error {
	l.blockBits = bits.Len64(l.recordOf(rdma.ClientID(l.Clients)))
	tag := kindShift - l.blockBits
	if tag < leastTag {
		return fmt.Errorf("%d pairs leave %d bits of a slot for tags: want %d: %w", l.blocks*uint64(l.nodes), tag,
			leastTag, ErrParams)
	}
	if l.TagBits > 0 {
		tag = min(tag, l.TagBits)
	}
	l.maxTag = 1<<tag - 1
	return nil
}

// place names a subtable's memory by node and number, from 1 on. 0 names none.
func (l *layout) place(n, chunk int) uint64 { return uint64(n)*l.subtables.Count + uint64(chunk) + 1 }

// subtableAt returns the address of a subtable's memory.
func (l *layout) subtableAt(place uint64) rdma.Addr {
	place--
	return l.subtables.At(int(place/l.subtables.Count), int(place%l.subtables.Count))
}

// validPlace reports whether a place is in the pool. Whether a subtable lies
// there only the directory says.
func (l *layout) validPlace(place uint64) bool {
	return place > 0 && place <= l.subtables.Count*uint64(l.nodes)
}

// recordOf returns the number of the block that a client's DELETEs use. Delete records are
// numbered behind the blocks of pairs.
func (l *layout) recordOf(c rdma.ClientID) uint64 { return l.blocks*uint64(l.nodes) + uint64(c) }

// blockAt returns the address of a block, or of a delete record.
func (l *layout) blockAt(block uint64) rdma.Addr {
	if pairs := l.blocks * uint64(l.nodes); block > pairs {
		c := block - pairs
		return rdma.At(int(c)%l.nodes, l.records+c/uint64(l.nodes)*unitBytes)
	}
	n, chunk, i := l.chunkOf(block)
	return l.pairs.At(n, chunk).Add(uint64(i) * l.blockBytes)
}

// chunkOf returns the node and the chunk that a block lies in, and its place
// there.
func (l *layout) chunkOf(block uint64) (n, chunk, i int) {
	block--
	n, block = int(block/l.blocks), block%l.blocks
	per := l.pairs.Bytes / l.blockBytes
	return n, int(block / per), int(block % per)
}

// blockOf returns the number of the i-th block of a chunk. It is the inverse of
// chunkOf.
func (l *layout) blockOf(n, chunk, i int) uint64 {
	return uint64(n)*l.blocks + uint64(chunk)*(l.pairs.Bytes/l.blockBytes) + uint64(i) + 1
}

// valid reports whether a word names a block of the pool, and a length that the
// block has room for.
func (l *layout) valid(w word) bool {
	b := l.block(w)
	return !w.empty() && b > 0 && b <= l.recordOf(rdma.ClientID(l.Clients)) &&
		uint64(w.units())*unitBytes <= l.blockBytes
}

// slots returns how many slots a subtable has.
func (l *layout) slots() int { return l.Groups * race.GroupSlots }
