package swarm

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/directory"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Names of the formats in a pool's header. DM-ABD's objects have no value in place; RAW's have one
// replica, and only what is in place.
const (
	Format        = "swarm"
	FormatABD     = "dm-abd"
	FormatRaw     = "raw"
	FormatVersion = 2
)

// Params shape a pool. They are written into its header and never change.
type Params struct {
	Replicas int `json:"replicas"`
	// Words of an object, at each replica; 0: the pool is RAW's.
	Words int `json:"words"`
	// Locks is how many clients guess timestamps: those with the lowest identities.
	Locks int `json:"locks"`
	// Clients is how many identities there are.
	Clients int `json:"clients"`
	// PairBytes bounds the sum of a key's and a value's length.
	PairBytes int `json:"pair_bytes"`
	// Apart: nothing lies in place.
	Apart bool `json:"apart"`
	// Regions of objects, and the objects of each.
	Regions int `json:"regions"`
	Objects int `json:"objects"`
	// Out-of-place buffers of values, and buffers of the directory.
	Values Buffers `json:"values"`
	Index  Buffers `json:"index"`
	// Buckets of the directory.
	Buckets uint64 `json:"buckets"`
	// Timeout bounds that of a client's step.
	Timeout time.Duration `json:"timeout"`
}

// Buffers are the segments of buffers of each node, and the buffers of each segment: see
// buffers.Space.
type Buffers struct {
	Segments int `json:"segments"`
	Each     int `json:"each"`
}

// PoolShape is what users choose of a pool. See Params.
type PoolShape struct {
	Nodes     int
	Records   uint64
	PairBytes int
	Replicas  int
	Words     int
	Locks     int
	Clients   int
	Timeout   time.Duration
	Apart     bool
}

// ErrParams is wrapped by errors about parameters that make no pool.
var ErrParams = errors.New("bad pool parameters")

// plan is the layout of a pool. It is computed from the Params alone, so that all clients agree.
// From the front of each node:
//
//	header
//	ceilings   8 bytes for each identity, see ceiling.go
//	counters   8 bytes for each region: the objects of it that were handed out
//	retired    a word for each object of each region, see retired.go
//	directory
//	objects    of the regions that have a replica on the node; the first replica has the value in
//	           place
//	buffers of the directory
//	buffers of values
//
// Counters and retirement words are only used on the node of a region's first replica, and ceilings
// on the first nodes, as many as an object has replicas. All before the buffers has memory when the
// pool is made; buffers get it when they are handed out.
type plan struct {
	Params
	layout Layout
	nodes  int
	dir    *directory.Layout
	// regions has the addresses at which each region's objects begin, by replica.
	regions       [][MaxReplicas]rdma.Addr
	index, values buffers.Space
	// counters and retired are offsets on a node.
	counters uint64
	retired  uint64
	// bytes is the size of each node.
	bytes uint64
}

const (
	// keyHeader is the size of a key's length, at the front of a pair.
	keyHeader = 2
	maxKey    = 1<<16 - 1
	// regionsPerNode is so high that nodes hold about the same.
	regionsPerNode = 4
	// leastBuffers of a space are for clients that own one of each segment.
	leastBuffers = 1 << 8
	// buffersInHand is how many buffers a client owns, on average.
	buffersInHand = 32
	poolTimeout   = 2 * time.Second
	// objectsTurnedOut: one in so many objects is for keys that were deleted, until it is reused.
	objectsTurnedOut = 4
	page             = 4096
)

// newPlan lays out a pool of so many nodes. It bounds all that a header may contain, since another
// user may have written it. The error wraps ErrParams.
func newPlan(p Params, nodes int) (*plan, error) {
	switch {
	case p.Regions > mostRegions || p.Index.Segments > mostSegments || p.Values.Segments > mostSegments:
		return nil, fmt.Errorf("%w: %d regions, %d and %d segments of buffers: want up to %d, and %d",
			ErrParams, p.Regions, p.Index.Segments, p.Values.Segments, mostRegions, mostSegments)
	case p.Regions < 1 || p.Objects < 1 || uint64(p.Regions)*uint64(p.Objects) >= 1<<48:
		return nil, fmt.Errorf("%w: %d regions of %d objects", ErrParams, p.Regions, p.Objects)
	case p.Clients < 1 || p.Clients >= int(node.OfNode):
		return nil, fmt.Errorf("%w: %d clients", ErrParams, p.Clients)
	case p.Replicas > nodes:
		return nil, fmt.Errorf("%w: %d replicas on %d nodes: at most one on each", ErrParams, p.Replicas, nodes)
	case p.Timeout < time.Millisecond || p.Timeout > time.Hour:
		return nil, fmt.Errorf("%w: a timeout of %v", ErrParams, p.Timeout)
	}
	l := &plan{Params: p, nodes: nodes}
	var err error
	l.layout, err = NewLayout(Shape{Replicas: p.Replicas, Words: min(p.Words, p.Clients),
		Locks: min(p.Locks, p.Clients), Writers: p.Clients,
		MaxValue: keyHeader + p.PairBytes, Apart: p.Apart})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParams, err)
	}
	l.counters = node.HeaderBytes + 8*uint64(p.Clients)
	l.retired = l.counters + 8*uint64(p.Regions)
	l.dir, err = directory.NewLayout(directory.Shape{Nodes: nodes, Replicas: p.Replicas, Buckets: p.Buckets,
		Base: l.retired + uint64(p.Regions)*l.retiredBytes()})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParams, err)
	}
	end, err := l.placeRegions(l.dir.Base + l.dir.Bytes())
	if err != nil {
		return nil, err
	}
	l.index = buffers.Space{Base: end, Segments: p.Index.Segments, Buffers: p.Index.Each,
		Bytes: directory.BufferBytes}
	l.values = buffers.Space{Base: l.index.Base + l.index.Size(), Segments: p.Values.Segments, Buffers: p.Values.Each,
		Bytes: l.layout.BufferBytes()}
	if err := errors.Join(l.index.Validate(), l.values.Validate()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParams, err)
	}
	l.bytes = (l.values.Base + l.values.Size() + page - 1) / page * page
	return l, nil
}

// Each client has state for each region, and for each segment of a space. These bounds are far
// above what is needed (a billion records take 150,000 segments). They limit the memory that a
// client allocates for a pool with a header that another user wrote.
const mostRegions, mostSegments = 1 << 16, 1 << 20

// placeRegions lays the regions out on the nodes from base on, and returns the highest offset at
// which they end on a node.
func (l *plan) placeRegions(base uint64) (end uint64, err error) {
	ends := make([]uint64, l.nodes)
	for n := range ends {
		ends[n] = base
	}
	end = base
	for _, places := range node.Place(l.Regions, l.Replicas, l.nodes, l.Regions) {
		var at [MaxReplicas]rdma.Addr
		for r, p := range places {
			if ends[p.Node] >= rdma.MaxOffset || uint64(l.Objects) > rdma.MaxOffset/l.stride(r) {
				return 0, fmt.Errorf("%w: %d regions of %d objects: no node has as many bytes",
					ErrParams, l.Regions, l.Objects)
			}
			at[r] = rdma.At(p.Node, ends[p.Node])
			ends[p.Node] += uint64(l.Objects) * l.stride(r)
			end = max(end, ends[p.Node])
		}
		l.regions = append(l.regions, at)
	}
	return end, nil
}

// stride returns the size of an object at a replica: the first has the value in place.
func (l *plan) stride(replica int) uint64 { return uint64(l.layout.Bytes(replica == 0)) }

// Size returns the parameters of a pool for a shape, and how many bytes of memory it takes on each
// node. The error wraps ErrParams.
func Size(s PoolShape) (Params, uint64, error) {
	if s.Nodes < 1 || s.Replicas < 1 || s.Clients < 1 {
		return Params{}, 0, fmt.Errorf("%w: %d replicas on %d nodes, for %d clients",
			ErrParams, s.Replicas, s.Nodes, s.Clients)
	}
	p := Params{Replicas: s.Replicas, Words: s.Words, Locks: s.Locks, Clients: s.Clients,
		PairBytes: s.PairBytes, Apart: s.Apart, Timeout: cmp.Or(s.Timeout, poolTimeout),
		Regions: regionsPerNode * s.Nodes}
	records := max(s.Records, 1)
	objects := records + records/objectsTurnedOut + uint64(s.Clients)*mostObjects
	p.Objects = int(objects/uint64(p.Regions) + 1)
	p.Buckets = directory.Size(records + records/objectsTurnedOut)
	// At each replica each word may have a buffer, and there is one more while a word is changed.
	copies := func(items uint64, each int) uint64 {
		return items*uint64(each)*uint64(s.Replicas)/uint64(s.Nodes) + uint64(s.Clients)*buffersInHand
	}
	p.Values = Buffers{Segments: 1, Each: 1} // for RAW, which needs none
	if s.Words > 0 {
		p.Values = segmentsFor(copies(records, min(s.Words, s.Clients)+1))
	}
	// At each replica a bucket's word names one buffer, and there is one more while it is changed.
	p.Index = segmentsFor(copies(p.Buckets, 2))
	l, err := newPlan(p, s.Nodes)
	if err != nil {
		return p, 0, err
	}
	return p, l.bytes, nil
}

// segmentsFor divides n buffers into segments. It adds a few, since hashes fill segments unevenly.
func segmentsFor(n uint64) Buffers {
	n += n/16 + leastBuffers
	k := (n + buffers.MaxBuffers - 1) / buffers.MaxBuffers
	return Buffers{Segments: int(k), Each: int((n + k - 1) / k)}
}

// formatName returns the name of a format.
func formatName(raw, apart bool) string {
	switch {
	case raw:
		return FormatRaw
	case apart:
		return FormatABD
	}
	return Format
}

// format returns the name of a pool's format.
func (p *Params) format() string { return formatName(p.Words == 0, p.Apart) }

// Make writes an empty store into the zeroed memory of a new pool: only the header, since zero is
// an empty directory. Before that all memory in front of the buffers is committed, so that no
// client runs into a shortage there. The error wraps ErrParams, or rdma.ErrFull when there is not
// enough memory.
//
// What a crash here leaves: the header on some of the nodes, and zeros elsewhere. So Make may be
// repeated, as long as no client has opened the pool.
func Make(f rdma.Fabric, p Params) error {
	l, err := newPlan(p, f.Nodes())
	if err != nil {
		return err
	}
	name := p.format()
	if l.bytes > f.Size() {
		return fmt.Errorf("make a %s pool: it needs %d bytes a node, each has %d: %w",
			name, l.bytes, f.Size(), rdma.ErrFull)
	}
	params, err := json.Marshal(p)
	for n := 0; n < l.nodes && err == nil; n++ {
		if err = node.Commit(f, n, 0, l.index.Base+l.index.Tables()); err == nil {
			err = node.Commit(f, n, l.values.Base, l.values.Tables())
		}
	}
	if err != nil {
		return fmt.Errorf("make a %s pool: %w", name, err)
	}
	ep, err := f.Open("format")
	if err != nil {
		return fmt.Errorf("make a %s pool: %w", name, err)
	}
	return errors.Join(
		node.WriteHeader(f, ep, node.Header{Store: name, Version: FormatVersion, Params: params}), ep.Close())
}

// readAnyPlan is readPlan of any pool that is ours.
func readAnyPlan(ep rdma.Endpoint) (*plan, *kit.Member, error) { return readPlan(ep, "") }

// readPlan reads the header of the pool that ep reaches, and lays the pool out. The pool must
// have the format; "": any format of this package.
func readPlan(ep rdma.Endpoint, format string) (*plan, *kit.Member, error) {
	h, m, err := kit.ReadHeader(ep)
	if err != nil {
		return nil, nil, err
	}
	if format == "" {
		if format = Format; h.Store == FormatABD || h.Store == FormatRaw {
			format = h.Store
		}
	}
	if err := h.Expect(format, FormatVersion); err != nil {
		return nil, nil, err
	}
	var p Params
	if err := json.Unmarshal(h.Params, &p); err != nil {
		return nil, nil, fmt.Errorf("read the pool's parameters: %w", errors.Join(ErrParams, err))
	}
	if p.format() != h.Store {
		return nil, nil, fmt.Errorf("%w: a %s pool with those of %s", ErrParams, h.Store, p.format())
	}
	l, err := newPlan(p, h.Nodes)
	return l, m, err
}

// place returns the object of a location; false: the pool has none there. A location is the
// number of the object among those of all regions, counted from 1 on.
func (l *plan) place(location uint64) (o Object, ok bool) {
	if location == 0 || (location-1)/uint64(l.Objects) >= uint64(l.Regions) {
		return o, false
	}
	region, i := l.numberOf(location)
	for r := range l.Replicas {
		o.At[r] = l.regions[region][r].Add(i * l.stride(r))
	}
	o.Hash = spread(location)
	return o, true
}

// spread makes a hash of a location: the finalizer of SplitMix64, a bijection. So no two objects
// have the same hash.
func spread(n uint64) uint64 {
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}
