// Package original is Sherman as it was published (SIGMOD 2022): a B-link tree in disaggregated
// memory whose writers lock a node, by locks in the memory of NICs with a local line of waiters in
// front, and whose readers take no lock. A client that dies with a lock blocks its node until the
// client is recovered.
//
// README.md has the protocol, what a crash leaves behind each step, and where it differs from the
// paper.
package original

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// The format's name and version in a pool's header.
const (
	Format        = "sherman"
	FormatVersion = 1
)

// Params shape a pool. They are written into its header and never change.
type Params struct {
	NodeBytes  int           `json:"node_bytes"`  // of a node of the tree
	KeyBytes   int           `json:"key_bytes"`   // longest key
	ValueBytes int           `json:"value_bytes"` // longest value
	Nodes      int           `json:"nodes"`       // of the tree, a memory node
	Blocks     int           `json:"blocks"`      // values beside leaves, a memory node
	Locks      int           `json:"locks"`       // words of device memory, a memory node
	Clients    int           `json:"clients"`     // identities
	Timeout    time.Duration `json:"timeout"`     // of an operation, at most
}

// Shape is what a pool is to be, as far as users choose it. Zero values mean defaults.
type Shape struct {
	Nodes      int // memory nodes
	Records    uint64
	NodeBytes  int // default 1,024
	KeyBytes   int // default 24
	ValueBytes int // longest value; default Inline
	Locks      int // default 32,768 (section 4.3, and the released code)
	Clients    int
	Workers    int           // clients that write at the same time; default 16
	Timeout    time.Duration // default 2 s
}

// What a Shape that leaves it open has, and what it may have at most.
const (
	DefaultNode  = 1024
	DefaultKey   = 24 // YCSB's keys
	DefaultLocks = 32768
	MaxNode      = 32 << 10
	MaxKey       = 250
	MaxValue     = 1 << 20
	MaxLocks     = 1 << 20

	poolTimeout = 2 * time.Second
)

// ErrParams is wrapped by errors about parameters that make no pool.
var ErrParams = errors.New("bad pool parameters")

const (
	page = 4096
	// rootAt is where node 0 has the word that names the root.
	rootAt = node.HeaderBytes
	locks0 = rootAt + 64
	// mostObjects bounds an arena of a memory node: a Ref has 32 bits for its number.
	mostObjects = 1<<32 - 2
	// mostHeight is how many levels a tree has at most. Nodes have three children or more where they
	// were split, and so there is memory for no more.
	mostHeight = 24
	// room is how much more memory a pool has than what its records need: for nodes that are half
	// full, and for blocks that are in quarantine.
	room = 2
	// fewWorkers is the default of Shape.Workers.
	fewWorkers = 16
)

// Size returns the parameters of a pool of a shape, and the bytes that each of its nodes needs.
// Errors wrap ErrParams.
func Size(s Shape) (p Params, memory uint64, err error) {
	p = Params{
		NodeBytes: cmp.Or(s.NodeBytes, DefaultNode), KeyBytes: cmp.Or(s.KeyBytes, DefaultKey),
		ValueBytes: cmp.Or(s.ValueBytes, Inline),
		Locks:      cmp.Or(s.Locks, DefaultLocks), Clients: s.Clients, Timeout: cmp.Or(s.Timeout, poolTimeout),
	}
	f, err := newFormat(p.NodeBytes, p.KeyBytes, p.ValueBytes)
	if err != nil {
		return p, 0, err
	}
	nodes := uint64(max(s.Nodes, 1))
	workers := uint64(min(cmp.Or(s.Workers, fewWorkers), max(s.Clients, 1)))
	leaves := s.Records*3/2/uint64(f.slots) + 1 // two thirds full
	trees := leaves + leaves/4 + mostHeight     // with what is above them
	p.Nodes = int(room*trees/nodes + workers*ownObjects)
	if p.ValueBytes > Inline {
		p.Blocks = int(s.Records*5/4/nodes + workers*ownObjects)
	}
	l, err := newLayout(p, int(nodes))
	if err != nil {
		return p, 0, err
	}
	return p, l.bytes, nil
}

// arena is objects of one size of each memory node, with a word each that names its owner: see
// memory.go.
type arena struct {
	words, data uint64 // offsets
	count       int    // objects of a memory node
	bytes       int    // of an object
}

// at returns the address of an object.
func (a *arena) at(r ref) rdma.Addr {
	return rdma.At(r.node(), a.data+uint64(r.index())*uint64(a.bytes))
}

// word returns the address of its word.
func (a *arena) word(r ref) rdma.Addr { return rdma.At(r.node(), a.words+uint64(r.index())*8) }

// layout is a pool as all of its clients see it.
type layout struct {
	Params
	format
	nodes  int   // memory nodes
	trees  arena // nodes of the tree
	blocks arena
	bytes  uint64 // of a memory node
}

// newLayout computes what follows from the parameters. Errors wrap ErrParams.
func newLayout(p Params, nodes int) (*layout, error) {
	f, err := newFormat(p.NodeBytes, p.KeyBytes, p.ValueBytes)
	if err != nil {
		return nil, err
	}
	if p.Locks < 1 || p.Locks > MaxLocks || p.Nodes < 1 || p.Nodes > mostObjects || p.Blocks < 0 ||
		p.Blocks > mostObjects || p.Timeout <= 0 {
		return nil, fmt.Errorf("%d locks, %d nodes, %d blocks, a timeout of %v: want 1 to %d locks, up to %d objects, and a timeout: %w",
			p.Locks, p.Nodes, p.Blocks, p.Timeout, MaxLocks, mostObjects, ErrParams)
	}
	l := &layout{Params: p, format: *f, nodes: nodes}
	at := uint64(locks0 + 8*p.Locks)
	place := func(a *arena, count, bytes int) {
		a.words, a.count, a.bytes = at, count, bytes
		at += uint64(count) * 8
	}
	place(&l.trees, p.Nodes, f.nodeBytes)
	place(&l.blocks, p.Blocks, f.blockBytes)
	for _, a := range []*arena{&l.trees, &l.blocks} {
		at = (at + 63) &^ 63
		a.data = at
		at += uint64(a.count) * uint64(a.bytes)
	}
	l.bytes = (at + page - 1) / page * page
	return l, nil
}

// Device returns which part of each of a pool's nodes belongs into the memory of its NIC, if that
// has some: the locks (section 4.3).
func Device(p Params) (offset, bytes uint64) { return locks0, uint64(p.Locks) * 8 }

// lockAt returns the address of a node's lock, which is on its memory node, so that both take one
// doorbell.
func (l *layout) lockAt(r ref) rdma.Addr {
	h := uint64(r.index()) * 0x9e3779b97f4a7c15
	return rdma.At(r.node(), locks0+(h>>32)%uint64(l.Locks)*8)
}

func (l *layout) rootWord() rdma.Addr { return rdma.At(0, rootAt) }

// Make writes an empty tree into the zeroed memory of a new pool. The error wraps ErrParams, or
// rdma.ErrFull when there is not enough memory.
func Make(f rdma.Fabric, p Params) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make a %s pool: %w", Format, err)
		}
	}()
	l, err := newLayout(p, f.Nodes())
	if err != nil {
		return err
	}
	if l.bytes > f.Size() {
		return fmt.Errorf("it needs %d bytes a node, each has %d: %w", l.bytes, f.Size(), rdma.ErrFull)
	}
	params, err := json.Marshal(p)
	if err != nil {
		return err
	}
	for n := range l.nodes {
		if err := node.Commit(f, n, 0, l.bytes); err != nil {
			return err
		}
	}
	ep, err := f.Open("format")
	if err != nil {
		return err
	}
	err = l.plant(ep)
	if err == nil {
		err = node.WriteHeader(f, ep, node.Header{Store: Format, Version: FormatVersion, Params: params})
	}
	return errors.Join(err, ep.Close())
}

// plant makes the root, an empty leaf.
func (l *layout) plant(ep rdma.Endpoint) error {
	b := ep.Batch()
	defer b.Release()
	first := makeRef(0, 0)
	root := b.Alloc(l.nodeBytes)
	l.writeNode(root, first, &header{version: 1, last: true})
	b.Write(l.trees.at(first), root)
	b.CompareSwap(l.trees.word(first), 0, uint64(makeOwner(linked, 0)))
	b.CompareSwap(l.rootWord(), 0, uint64(makeRoot(first, 0)))
	return rdma.Do(ep, b.As(stepMake), l.Timeout)
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
	if err := h.Expect(Format, FormatVersion); err != nil {
		return nil, nil, err
	}
	var p Params
	if err := json.Unmarshal(h.Params, &p); err != nil {
		return nil, nil, fmt.Errorf("read pool header: %w", err)
	}
	l, err := newLayout(p, h.Nodes)
	return l, v, err
}
