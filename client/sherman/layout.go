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
	// RTX is over repairable transactions: a client that meets what a dead one has left ends it.
	RTX = "sherman-rtx"
	// DTX is over transactions of DrTM+H's protocol, which the pool's master ends when their client
	// dies.
	DTX = "sherman-dtx"
)

// Formats are the stores.
var Formats = []string{RTX, DTX}

// FormatVersion is the version of their formats.
const FormatVersion = 2

// Params shape a pool. They are written into its header and never change.
type Params struct {
	NodeBytes  int           `json:"node_bytes"`  // of a node, with what transactions add
	KeyBytes   int           `json:"key_bytes"`   // longest key
	ValueBytes int           `json:"value_bytes"` // longest value
	Chunk      int           `json:"chunk"`       // bytes of objects that a client takes at a time
	Memory     uint64        `json:"memory"`      // bytes of a memory node
	Clients    int           `json:"clients"`     // identities
	Timeout    time.Duration `json:"timeout"`     // of an operation, at most
	// Of RTX: nodes, and values beside leaves, a memory node at most; chunks of a memory node of which
	// only what replaces others is taken; and for how long a lock stays as it is before its holder is
	// suspected.
	Objects int           `json:"objects,omitempty"`
	Spare   int           `json:"spare,omitempty"`
	Lease   time.Duration `json:"lease,omitempty"`
}

// Shape is what a pool is to be, as far as users choose it. Zero values mean defaults.
type Shape struct {
	Format     string // RTX or DTX
	Nodes      int    // memory nodes
	Memory     uint64
	Records    uint64
	NodeBytes  int // default 1,024
	KeyBytes   int // default 24
	ValueBytes int // longest value
	Clients    int
	Workers    int           // clients that write at the same time; default 16
	Timeout    time.Duration // default 2 s
	Lease      time.Duration // of RTX; default 8 ms
}

// What a Shape that leaves it open has, and what it may have at most.
const (
	DefaultNode  = 1024
	DefaultKey   = 24 // YCSB's keys
	DefaultLease = 8 * time.Millisecond
	MaxNode      = 32 << 10
	MaxKey       = btree.MaxKey
	MaxValue     = 1 << 20

	poolTimeout = 2 * time.Second
)

// ErrParams is wrapped by errors about parameters that make no pool.
var ErrParams = errors.New("bad pool parameters")

const (
	// mostWrites bounds the objects of a transaction: a split of all levels, each with a new node, and
	// a value.
	mostWrites = 2*mostHeight + 2
	// mostHeight is how many levels a tree has at most. Nodes have five children or more where they
	// were split, and so there is memory for no more.
	mostHeight = 24
	// room is how much more memory a pool has than what its records need: for half-full nodes, what is
	// in quarantine, and what clients have for themselves.
	room = 2
)

// Size returns the parameters of a pool of a shape, and the bytes that each of its nodes needs.
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
	leaves := s.Records*3/2/uint64(f.Slots()) + 1 // two thirds full
	trees := leaves + leaves/4 + mostHeight       // with what is above them
	bytes, objects := trees*uint64(p.NodeBytes), trees
	if p.ValueBytes > btree.Inline {
		sizes := p.sizes()
		bytes += s.Records * uint64(sizes[len(sizes)-1]+headerBytes)
		objects += s.Records
	}
	p.Chunk = max(chunkNodes*p.NodeBytes, p.largest())
	workers := uint64(min(cmp.Or(s.Workers, fewWorkers), s.Clients))
	if s.Format == RTX {
		p.Lease = cmp.Or(s.Lease, DefaultLease)
		p.Objects = int(room*objects/nodes + workers*ownChunks*rtx.ChunkObjects)
		p.Spare = int((ownSpare*workers*ownSizes + nodes - 1) / nodes)
	}
	least := room*bytes/nodes + (workers*ownChunks*ownSizes+uint64(p.Spare))*uint64(p.Chunk)
	l := &layout{Params: p, store: s.Format}
	l.Memory = pages(node.HeaderBytes + least + p.tables(s.Format, nodes))
	for range mostSizings {
		if err := l.place(int(nodes)); err != nil {
			return p, 0, err
		}
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

// tables returns about how many bytes of a node are there for logs and tables.
func (p *Params) tables(store string, nodes uint64) uint64 {
	if store == DTX {
		return (uint64(p.Clients)/nodes+2)*uint64(dtxLog(p)+dtxLogWords) + uint64(p.NodeBytes)
	}
	return uint64(p.Objects)*rtx.MetaBytes + uint64(p.Clients)*logBytes
}

func pages(n uint64) uint64 { return (n + page - 1) / page * page }

const (
	// chunkNodes is for how many nodes a client takes memory at a time, at least.
	chunkNodes = 32
	// ownChunks is how many chunks of a size a client that writes has on a memory node, of buffers
	// that are in quarantine or free, and ownSizes of how many sizes: of nodes, and of its values.
	ownChunks = 4
	ownSizes  = 2
	// ownSpare is how many spare chunks of a size there are for each of them: in a full pool it holds
	// one in which little is free, and others have more than they need.
	ownSpare = 2
	// fewWorkers is the default of Shape.Workers.
	fewWorkers = 16
	// logBytes is more than the log of a client takes, of RTX, and dtxLogWords than what one of DTX
	// has beside its record.
	logBytes    = 64 + 32*mostWrites
	dtxLogWords = 128
	// mostSizings bounds the tries to find how much memory has room for so many bytes of buffers:
	// tables grow with it.
	mostSizings = 16
	page        = 4096
)

// headerBytes is what an object has beside its data.
const headerBytes = max(rtx.HeaderBytes, dtx.HeaderBytes)

// format returns the format of nodes. Errors wrap ErrParams.
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

// valueShares are the sizes of values beside leaves, as parts of the longest one.
var valueShares = []int{8, 4, 2, 1}

// sizes are those of objects: of a node, and of values.
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

// besideBytes returns the size of an object for a value of so many bytes beside its leaf.
func (p *Params) besideBytes(value int) int {
	n := btree.ValueBytes(p.KeyBytes, max(value, btree.Inline+1))
	return (n+headerBytes+63)/64*64 - headerBytes
}

func (p *Params) largest() int {
	list := p.sizes()
	return list[len(list)-1] + headerBytes
}

// layout is a pool as all of its clients see it.
type layout struct {
	Params
	store   string
	nodes   int
	format  *btree.Format
	library library
}

// place computes what follows from the parameters. Errors wrap ErrParams.
func (l *layout) place(nodes int) (err error) {
	l.nodes = nodes
	if l.format, err = l.Params.format(); err != nil {
		return err
	}
	if l.store == DTX {
		l.library, err = newDTXPool(&l.Params, nodes)
	} else {
		l.library, err = newRTXPool(&l.Params, nodes)
	}
	return err
}

// Make writes an empty tree into the zeroed memory of a new pool: a root without data is an empty
// leaf. The error wraps ErrParams, or rdma.ErrFull when there is not enough memory.
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

// readLayout reads a pool's header, and the view that it joins.
func readLayout(ep rdma.Endpoint) (*layout, *kit.Member, error) {
	v, err := kit.Join(ep)
	if err != nil {
		return nil, nil, err
	}
	h, err := node.ReadHeader(ep, len(v.Members))
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
