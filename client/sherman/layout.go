// Package sherman is Sherman (SIGMOD 2022), a B-link tree in disaggregated memory, over
// transactions as the paper of repairable ones has it ("Transactional Indexes on (RDMA or
// CXL-based) Disaggregated Memory with Repairable Transaction", section 5): nodes are objects of
// package rtx, or of package dtx, and operations are transactions.
//
// README.md has the protocol, what a crash leaves behind each step, and why.
package sherman

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client/dtx"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/client/sherman/btree"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// The stores, as headers of pools name them.
const (
	// RTX is over repairable transactions: a client that meets what a dead client
	// has left finishes it.
	RTX = "sherman-rtx"
	// DTX is over transactions of DrTM+H's protocol. When their client dies, the
	// pool's master ends them.
	DTX = "sherman-dtx"
)

// Formats are the names of the stores.
var Formats = []string{RTX, DTX}

// FormatVersion is the version of their formats in memory.
const FormatVersion = 2

// Params shape a pool. They are written into its header and never change.
type Params struct {
	// NodeBytes is the size of a node of the tree, with what transactions add.
	NodeBytes int `json:"node_bytes"`
	// KeyBytes is the length of the longest key.
	KeyBytes int `json:"key_bytes"`
	// ValueBytes is the length of the longest value.
	ValueBytes int `json:"value_bytes"`
	// Chunk is the bytes of objects that a client takes at a time.
	Chunk int `json:"chunk"`
	// Memory is the bytes of a memory node.
	Memory uint64 `json:"memory"`
	// Clients bounds the identities: they are 1 to Clients.
	Clients int `json:"clients"`
	// Timeout bounds the time that a worker may allow an operation.
	Timeout time.Duration `json:"timeout"`
	// These are of RTX. Objects bounds the nodes, and values beside leaves, of a
	// memory node.
	Objects int `json:"objects,omitempty"`
	// Spare is how many chunks of a memory node only objects that are replaced
	// take.
	Spare int `json:"spare,omitempty"`
	// Lease is for how long a lock stays as it is before its holder is suspected.
	Lease time.Duration `json:"lease,omitempty"`
}

// Shape is what a pool is to be, as far as users choose it. Zero values mean defaults.
type Shape struct {
	Format string // RTX or DTX
	Nodes  int    // memory nodes
	// Memory is the bytes of each memory node; 0: as many as the records need.
	Memory uint64
	// Records is the number of pairs that are expected.
	Records    uint64
	NodeBytes  int // default 1,024
	KeyBytes   int // default 24
	ValueBytes int // longest value
	Clients    int
	// Workers is the number of clients that write at the same time; default 16.
	Workers int
	Timeout time.Duration // default 2 s
	// Lease is of RTX; default 8 ms.
	Lease time.Duration
}

// What a Shape that leaves it open has, and what it may have at most.
const (
	DefaultNode = 1024
	// DefaultKey has room for YCSB's keys.
	DefaultKey   = 24
	DefaultLease = 8 * time.Millisecond
	MaxNode      = 32 << 10
	MaxKey       = btree.MaxKey
	MaxValue     = 1 << 20

	poolTimeout = 2 * time.Second
)

// ErrParams is wrapped by errors about parameters that make no pool.
var ErrParams = errors.New("bad pool parameters")

const (
	// mostWrites bounds the objects of a transaction: a split of all levels, each
	// with a new node, and a value.
	mostWrites = 2*mostHeight + 2
	// mostHeight bounds the levels of a tree. Nodes that were split have five
	// children or more, so there is memory for no more levels.
	mostHeight = 24
	// room is how much more memory a pool has than its records need: for nodes
	// that are half full, what is in quarantine, and what clients have for
	// themselves.
	room = 2
)

// Size returns the parameters of a pool of a shape, and the bytes that each of
// its nodes needs. The error wraps ErrParams.
//
// Tables take a part of the memory, and grow with it. So Size adds what is
// missing until there is enough for objects.
func Size(s Shape) (p Params, memory uint64, err error) {
	p = Params{
		NodeBytes: cmp.Or(s.NodeBytes, DefaultNode), KeyBytes: cmp.Or(s.KeyBytes, DefaultKey), ValueBytes: s.ValueBytes,
		Clients: s.Clients, Timeout: cmp.Or(s.Timeout, poolTimeout), Memory: s.Memory,
	}
	f, err := p.format()
	if err != nil {
		return p, 0, err
	}
	nodes := uint64(max(s.Nodes, 1))
	// Leaves are two thirds full.
	leaves := s.Records*3/2/uint64(f.Slots()) + 1
	// These are the leaves with what is above them.
	trees := leaves + leaves/4 + mostHeight
	bytes, objects := trees*uint64(p.NodeBytes), trees
	// Each record has a value beside its leaf then, in the largest buffer.
	if p.ValueBytes > btree.Inline {
		sizes := p.sizes()
		bytes += s.Records * uint64(sizes[len(sizes)-1]+headerBytes)
		objects += s.Records
	}
	p.Chunk = max(chunkNodes*p.NodeBytes, p.largest())
	// Each client that writes has chunks of its own, which other clients cannot
	// take from.
	workers := uint64(min(cmp.Or(s.Workers, fewWorkers), s.Clients))
	if s.Format == RTX {
		p.Lease = cmp.Or(s.Lease, DefaultLease)
		p.Objects = int(room*objects/nodes + workers*ownChunks*rtx.ChunkObjects)
		p.Spare = int((ownSpare*workers*ownSizes + nodes - 1) / nodes)
	}
	// least is what objects need on each node: the records twice, and what
	// clients have for themselves.
	least := room*bytes/nodes + (workers*ownChunks*ownSizes+uint64(p.Spare))*uint64(p.Chunk)
	l := &layout{Params: p, store: s.Format}
	l.Memory = pages(node.HeaderBytes + least + p.tables(s.Format, nodes))
	for range mostSizings {
		if err := l.place(int(nodes)); err != nil {
			return p, 0, err
		}
		// More memory also has larger tables, so what is missing is added step by
		// step.
		missing := int64(least) - int64(l.library.bytes())
		if missing <= 0 {
			break
		}
		l.Memory += pages(uint64(missing))
	}
	memory = l.Memory
	p.Memory = cmp.Or(p.Memory, memory)
	l = &layout{Params: p, store: s.Format}
	return p, memory, l.place(int(nodes))
}

// tables returns about how many bytes of a node logs and tables take.
func (p *Params) tables(store string, nodes uint64) uint64 {
	if store == DTX {
		return (uint64(p.Clients)/nodes+2)*uint64(dtxLog(p)+dtxLogWords) + uint64(p.NodeBytes)
	}
	return uint64(p.Objects)*rtx.MetaBytes + uint64(p.Clients)*logBytes
}

// pages rounds up to whole pages.
func pages(n uint64) uint64 { return (n + page - 1) / page * page }

const (
	// chunkNodes is for how many nodes, at least, a client takes memory at a
	// time.
	chunkNodes = 32
	// ownChunks is how many chunks of a size a client that writes has on a memory
	// node, with buffers that are in quarantine or free.
	ownChunks = 4
	// ownSizes is of how many sizes it has so many: that of nodes, and that of
	// its values.
	ownSizes = 2
	// ownSpare is how many spare chunks there are for each client that writes,
	// and each of its sizes. In a full pool a client holds one in which little is
	// free, and others have more than they need.
	ownSpare = 2
	// fewWorkers is the default of Shape.Workers.
	fewWorkers = 16
	// logBytes is more than the log of a client of RTX takes, and dtxLogWords
	// more than what one of DTX has beside its record.
	logBytes    = 64 + 32*mostWrites
	dtxLogWords = 128
	// mostSizings bounds the tries of Size to find enough memory.
	mostSizings = 16
	page        = 4096
)

// headerBytes is what an object has beside its data, by either library.
const headerBytes = max(rtx.HeaderBytes, dtx.HeaderBytes)

// format returns the format of nodes. The error wraps ErrParams.
func (p *Params) format() (*btree.Format, error) {
	if p.NodeBytes > MaxNode || p.ValueBytes < 0 || p.ValueBytes > MaxValue {
		return nil, fmt.Errorf("nodes of %d bytes, values of %d: want up to %d and %d: %w", p.NodeBytes, p.ValueBytes,
			MaxNode, MaxValue, ErrParams)
	}
	f, err := btree.NewFormat(p.NodeBytes-headerBytes, p.KeyBytes, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParams, err)
	}
	return f, nil
}

// valueShares are the sizes of values beside leaves of RTX, as parts of the
// longest value.
var valueShares = []int{8, 4, 2, 1}

// sizes returns the sizes of objects of RTX, ascending: that of a node, and those
// of values.
func (p *Params) sizes() (list []int) {
	list = []int{p.NodeBytes - headerBytes}
	if p.ValueBytes <= btree.Inline {
		return list
	}
	for _, share := range valueShares {
		n := p.besideBytes(p.ValueBytes / share)
		at := 0
		for at < len(list) && list[at] < n {
			at++
		}
		if at == len(list) || list[at] != n {
			list = append(list[:at], append([]int{n}, list[at:]...)...)
		}
	}
	return list
}

// besideBytes returns the size of an object for a value of so many bytes beside
// its leaf. With the header it is whole units of 64 bytes.
func (p *Params) besideBytes(value int) int {
	n := btree.ValueBytes(p.KeyBytes, max(value, btree.Inline+1))
	return (n+headerBytes+63)/64*64 - headerBytes
}

// largest returns the bytes of the largest object, with its header.
func (p *Params) largest() int {
	list := p.sizes()
	return list[len(list)-1] + headerBytes
}

// layout is a pool as all of its clients see it. It does not change after place.
type layout struct {
	Params
	// store is RTX or DTX.
	store string
	// nodes is the number of memory nodes.
	nodes int
	// format is that of nodes.
	format *btree.Format
	// library divides the pool's memory, as RTX or DTX does.
	library library
}

// place computes what follows from the parameters. The error wraps ErrParams.
func (l *layout) place(nodes int) (err error) {
	l.nodes = nodes
	if l.format, err = l.Params.format(); err != nil {
		return err
	}
	// The library may lengthen a chunk to hold the largest object.
	if l.store == DTX {
		l.library, err = newDTXPool(&l.Params, nodes)
	} else {
		l.library, err = newRTXPool(&l.Params, nodes)
	}
	return err
}

// Make writes an empty tree into the zeroed memory of a new pool: a root without
// data is an empty leaf. The error wraps ErrParams, or rdma.ErrFull when there is
// not enough memory. The header comes last, so a crash leaves a pool that no
// client opens.
func Make(f rdma.Fabric, format string, p Params) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make a %s pool: %w", format, err)
		}
	}()
	p.Memory = f.Size()
	l := &layout{Params: p, store: format}
	if err := l.place(f.Nodes()); err != nil {
		return err
	}
	params, err := json.Marshal(l.Params)
	if err != nil {
		return err
	}
	if err := l.library.prepare(f); err != nil {
		return err
	}
	ep, err := f.Open("format")
	if err != nil {
		return err
	}
	err = node.WriteHeader(f, ep, node.Header{Store: format, Version: FormatVersion, Params: params})
	return errors.Join(err, ep.Close())
}

// readLayout reads a pool's header. It returns the layout, and the view that the
// endpoint has joined.
func readLayout(ep rdma.Endpoint) (*layout, *kit.Member, error) {
	h, v, err := kit.ReadHeader(ep)
	if err != nil {
		return nil, nil, err
	}
	l := &layout{store: RTX}
	if slices.Contains(Formats, h.Store) {
		l.store = h.Store
	}
	if err := h.Expect(l.store, FormatVersion); err != nil {
		return nil, nil, err
	}
	if err := json.Unmarshal(h.Params, &l.Params); err != nil {
		return nil, nil, fmt.Errorf("read pool header: %w", err)
	}
	return l, v, l.place(h.Nodes)
}
