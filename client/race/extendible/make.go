package extendible

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/farkv/farkv/client/dtx"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// The stores, as headers of pools name them.
const (
	// RTX rehashes in a repairable transaction.
	RTX = "race-rtx"
	// DTX rehashes in a transaction of DrTM+H's protocol. When its client dies,
	// the pool's master ends it.
	DTX = "race-dtx"
	// Locked is the original: a rehash locks the subtable, and moves its pairs
	// one by one. A client that dies in it blocks others until it is recovered.
	Locked = "race"
)

// Formats are the names of the stores.
var Formats = []string{RTX, DTX, Locked}

// FormatVersion is the version of their formats in memory.
const FormatVersion = 2

// Shape is what a pool is wanted for. Zero values mean defaults.
type Shape struct {
	Format string // RTX, DTX or Locked
	Nodes  int
	// Records is the number of pairs that are expected.
	Records uint64
	// PairBytes is that of the longest key and value together.
	PairBytes int
	// Groups is the number of bucket groups of a subtable. By default the records
	// take firstSubtables subtables or more, and there are mostGroups groups at
	// most.
	Groups int
	// Depth bounds the local depth; by default what the memory has room for.
	Depth   int
	Clients int
	// Memory is the bytes of each node; 0: as many as the records need.
	Memory  uint64
	Timeout time.Duration
	// Lease is Params.Lease.
	Lease time.Duration
}

const (
	// DefaultPair has room for YCSB's records.
	DefaultPair = 1152
	// mostGroups is the default of large pools: a rehash of 21,504 slots blocks
	// no operation for 50 ms.
	mostGroups = 1024
	// firstSubtables is how many subtables the records of a small pool take, at
	// least: so it grows by small steps.
	firstSubtables = 8
	// turnover is the room for pairs that were replaced and wait to be found: one
	// part of so many more.
	turnover = 2
)

// Size returns the parameters of a pool, and the memory of each node that it
// needs. The error wraps ErrParams, or rdma.ErrFull.
func Size(s Shape) (Params, uint64, error) {
	p := Params{
		Groups: s.Groups, PairBytes: cmp.Or(s.PairBytes, DefaultPair), Clients: s.Clients,
		Timeout: cmp.Or(s.Timeout, DefaultTimeout), Lease: s.Lease, Depth: 1,
	}
	if p.Groups == 0 {
		each := s.Records / firstSubtables / race.GroupSlots
		p.Groups = min(max(1<<bits.Len64(each), 16), mostGroups)
	}
	if err := p.check(); err != nil {
		return p, 0, err
	}
	nodes := uint64(max(s.Nodes, 1))
	// Blocks of pairs that were replaced are free only when a scan has found
	// them.
	pairs := s.Records + s.Records/turnover
	// Each node holds its share of the pairs, and some chunks that clients have
	// without using all of them.
	perNode := (pairs+nodes-1)/nodes + 64*p.chunkBytes()/p.blockBytes()
	body := (perNode+1)*(p.blockBytes()+indexShare) + 2*p.subtableBytes() + 2*p.chunkBytes()
	// These are the tables.
	body += body / 256
	fixed := func(depth int) uint64 {
		q := p
		q.Depth = depth
		return node.HeaderBytes + q.directoryBytes(s.Format, int(nodes)) + (uint64(p.Clients)/nodes+1)*unitBytes
	}
	p.Depth = cmp.Or(s.Depth, depthOf(&p, nodes, body))
	need := (fixed(p.Depth) + body + 4095) &^ 4095
	// More memory makes room for more subtables. With as much as is needed the depth stays.
	for d := p.Depth + 1; s.Depth == 0 && d <= MaxDepth && s.Memory > max(need, fixed(d)) &&
		depthOf(&p, nodes, s.Memory-fixed(d)) >= d; d++ {
		p.Depth = d
	}
	_, err := newLayout(s.Format, p, int(nodes), max(need, s.Memory))
	return p, need, err
}

// depthOf returns how deep the directory may become. Hashes differ, so some
// subtables are split three times more often than others.
func depthOf(p *Params, nodes, body uint64) int {
	subtables := nodes * (body/(p.blockBytes()+indexShare)*indexShare/p.subtableBytes() + 1)
	return min(bits.Len64(subtables)+3, MaxDepth)
}

// Make writes an empty store into the zeroed memory of a new pool. The error
// wraps ErrParams, or rdma.ErrFull when there is not enough memory. A crash
// leaves a pool without header, which no client opens, or one without its first
// subtable.
func Make(f rdma.Fabric, format string, p Params) error {
	l, err := newLayout(format, p, f.Nodes(), f.Size())
	if err == nil {
		err = l.make(f)
	}
	if err != nil {
		return fmt.Errorf("make a %s pool: %w", format, err)
	}
	return nil
}

// make backs the tables, writes the header, and then makes the first subtable.
func (l *layout) make(f rdma.Fabric) error {
	// What lies in front of from is the library's, which commits it by itself.
	from, err := uint64(l.records), error(nil)
	switch l.format {
	case RTX:
		err = rtx.Prepare(f, l.objects)
	case DTX:
		err = dtx.Prepare(f, l.places)
	default:
		from = node.HeaderBytes
	}
	if err != nil {
		return err
	}
	for n := range l.nodes {
		if err := node.Commit(f, n, from, l.subtables.First-from); err != nil {
			return fmt.Errorf("node %d: %w", n, err)
		}
	}
	params, err := json.Marshal(l.Params)
	if err != nil {
		return err
	}
	ep, err := f.Open("format")
	if err != nil {
		return err
	}
	// Clients open the pool by its header. The first subtable comes behind it,
	// since it takes a client of the pool to make it.
	err = node.WriteHeader(f, ep, node.Header{Store: l.format, Version: FormatVersion, Params: params})
	if err == nil {
		err = l.first(ep)
	}
	return errors.Join(err, ep.Close())
}

// first makes the subtable of all keys. Its memory is zero: empty slots, and
// headers of local depth 0.
func (l *layout) first(ep rdma.Endpoint) error {
	s, err := openOn(ep, l, Options{})
	if err != nil {
		return err
	}
	s.trips.Begin()
	place, err := s.memory.takeSubtable(0)
	if err == nil {
		err = s.directory.shared.create(place)
	}
	return errors.Join(err, s.Close())
}

// readLayout reads a pool's header. The error says so if the pool is another
// store's.
func readLayout(ep rdma.Endpoint) (*layout, *kit.Member, error) {
	h, v, err := kit.ReadHeader(ep)
	if err != nil {
		return nil, nil, err
	}
	// A pool of no store of this package gets the error that names this format.
	format := RTX
	if slices.Contains(Formats, h.Store) {
		format = h.Store
	}
	if err := h.Expect(format, FormatVersion); err != nil {
		return nil, nil, err
	}
	var p Params
	if err := json.Unmarshal(h.Params, &p); err != nil {
		return nil, nil, fmt.Errorf("read pool header: %w", err)
	}
	l, err := newLayout(format, p, h.Nodes, h.Size)
	return l, v, err
}
