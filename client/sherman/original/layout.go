// Package original is Sherman as it was published (SIGMOD 2022): a B-link tree in
// disaggregated memory. Writers lock a node, by locks in the memory of NICs with
// a local line of waiters in front. Readers take no lock. A client that dies with
// a lock blocks its node until the client is recovered.
//
// README.md has the protocol, what a crash behind each step leaves, and where it
// differs from the paper.
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
	// NodeBytes is the size of a node of the tree.
	NodeBytes int `json:"node_bytes"`
	// KeyBytes is the length of the longest key.
	KeyBytes int `json:"key_bytes"`
	// ValueBytes is the length of the longest value.
	ValueBytes int `json:"value_bytes"`
	// Nodes is how many nodes of the tree a memory node has room for.
	Nodes int `json:"nodes"`
	// Blocks is how many values beside leaves a memory node has room for.
	Blocks int `json:"blocks"`
	// Locks is the number of lock words in the device memory of a memory node.
	Locks int `json:"locks"`
	// Clients bounds the identities: they are 1 to Clients.
	Clients int `json:"clients"`
	// Timeout bounds the time that a worker may allow an operation.
	Timeout time.Duration `json:"timeout"`
}

// Shape is what a pool is to be, as far as users choose it. Zero values mean defaults.
type Shape struct {
	Nodes int // memory nodes
	// Records is the number of pairs that are expected.
	Records   uint64
	NodeBytes int // default 1,024
	KeyBytes  int // default 24
	// ValueBytes is the length of the longest value; default Inline.
	ValueBytes int
	// Locks is 32,768 by default (section 4.3, and the released code).
	Locks   int
	Clients int
	// Workers is the number of clients that write at the same time; default 16.
	Workers int
	Timeout time.Duration // default 2 s
}

// What a Shape that leaves it open has, and what it may have at most.
const (
	DefaultNode = 1024
	// DefaultKey has room for YCSB's keys.
	DefaultKey   = 24
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
	// rootAt is where memory node 0 has the word that names the root.
	rootAt = node.HeaderBytes
	// locks0 is where each memory node has its locks.
	locks0 = rootAt + 64
	// mostObjects bounds an arena of a memory node: a ref has 32 bits for the
	// number.
	mostObjects = 1<<32 - 2
	// mostHeight bounds the levels of a tree. Nodes that were split have three
	// children or more, so there is memory for no more levels.
	mostHeight = 24
	// room is how much more memory a pool has than its records need: for nodes
	// that are half full, and for blocks that are in quarantine.
	room = 2
	// fewWorkers is the default of Shape.Workers.
	fewWorkers = 16
)

// Size returns the parameters of a pool of a shape, and the bytes that each of
// its nodes needs. The error wraps ErrParams.
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
	// Leaves are two thirds full.
	leaves := s.Records*3/2/uint64(f.slots) + 1
	// These are the leaves with what is above them.
	trees := leaves + leaves/4 + mostHeight
	// Each client that writes has nodes of its own, which other clients cannot
	// take.
	p.Nodes = int(room*trees/nodes + workers*ownObjects)
	if p.ValueBytes > Inline {
		// A fifth of the blocks is for values that were replaced and are in
		// quarantine.
		p.Blocks = int(s.Records*5/4/nodes + workers*ownObjects)
	}
	l, err := newLayout(p, int(nodes))
	if err != nil {
		return p, 0, err
	}
	return p, l.bytes, nil
}

// arena is the objects of one size that each memory node has, and a word for each
// that names its owner: see memory.go.
type arena struct {
	// words and data are the offsets of the words and of the objects.
	words, data uint64
	// count is the number of objects of a memory node.
	count int
	// bytes is the size of an object.
	bytes int
}

// at returns the address of an object.
func (a *arena) at(r ref) rdma.Addr {
	return rdma.At(r.node(), a.data+uint64(r.index())*uint64(a.bytes))
}

// word returns the address of an object's word.
func (a *arena) word(r ref) rdma.Addr { return rdma.At(r.node(), a.words+uint64(r.index())*8) }

// layout is a pool as all of its clients see it. It does not change after
// newLayout.
type layout struct {
	Params
	format
	// nodes is the number of memory nodes.
	nodes int
	// trees are nodes of the tree, and blocks values beside leaves.
	trees  arena
	blocks arena
	// bytes is what the pool takes of each memory node.
	bytes uint64
}

// newLayout computes what follows from the parameters. The error wraps ErrParams.
func newLayout(p Params, nodes int) (*layout, error) {
	f, err := newFormat(p.NodeBytes, p.KeyBytes, p.ValueBytes)
	if err != nil {
		return nil, err
	}
	if p.Locks < 1 || p.Locks > MaxLocks || p.Nodes < 1 || p.Nodes > mostObjects || p.Blocks < 0 ||
		p.Blocks > mostObjects || p.Timeout <= 0 {
		return nil, fmt.Errorf("%d locks, %d nodes, %d blocks, a timeout of %v: want 1 to %d locks, up to %d "+
			"objects, and a timeout: %w", p.Locks, p.Nodes, p.Blocks, p.Timeout, MaxLocks, mostObjects, ErrParams)
	}
	l := &layout{Params: p, format: *f, nodes: nodes}
	at := uint64(locks0 + 8*p.Locks)
	// The words of both arenas lie together behind the locks.
	// A client that looks for free objects, and a recovery, read words alone,
	// in runs.
	place := func(a *arena, count, bytes int) {
		a.words, a.count, a.bytes = at, count, bytes
		at += uint64(count) * 8
	}
	place(&l.trees, p.Nodes, f.nodeBytes)
	place(&l.blocks, p.Blocks, f.blockBytes)
	// Objects begin at multiples of 64 bytes.
	for _, a := range []*arena{&l.trees, &l.blocks} {
		at = (at + 63) &^ 63
		a.data = at
		at += uint64(a.count) * uint64(a.bytes)
	}
	l.bytes = (at + page - 1) / page * page
	return l, nil
}

// Device returns which part of each of a pool's nodes belongs into the memory of
// its NIC, if the NIC has some: the locks (section 4.3).
func Device(p Params) (offset, bytes uint64) { return locks0, uint64(p.Locks) * 8 }

// lockAt returns the address of a node's lock. The lock is on the node's memory
// node, so one doorbell writes the node and releases the lock, in order. Nodes
// may share a lock.
func (l *layout) lockAt(r ref) rdma.Addr {
	// The hash spreads nodes with neighboring numbers over the locks.
	h := uint64(r.index()) * 0x9e3779b97f4a7c15
	return rdma.At(r.node(), locks0+(h>>32)%uint64(l.Locks)*8)
}

// rootWord returns the address of the word that names the root.
func (l *layout) rootWord() rdma.Addr { return rdma.At(0, rootAt) }

// Make writes an empty tree into the zeroed memory of a new pool. The error wraps
// ErrParams, or rdma.ErrFull when there is not enough memory. The header comes
// last, so a crash leaves a pool that no client opens.
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
	// All memory is backed when the pool is made: objects are not handed out by
	// nodes.
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
	// No client uses the pool yet, so the order of these verbs does not matter.
	b.Write(l.trees.at(first), root)
	b.CompareSwap(l.trees.word(first), 0, uint64(makeOwner(linked, 0)))
	b.CompareSwap(l.rootWord(), 0, uint64(makeRoot(first, 0)))
	return rdma.Do(ep, b.As(stepMake), l.Timeout)
}

// readLayout reads a pool's header. It returns the layout, and the view that the
// endpoint has joined.
func readLayout(ep rdma.Endpoint) (*layout, *kit.Member, error) {
	h, v, err := kit.ReadHeader(ep)
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
