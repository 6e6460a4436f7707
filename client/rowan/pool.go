package rowan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
)

// FormatVersion is that of the format of all kinds of pools. Its name in a pool's header is the
// kind's.
const FormatVersion = 3

// Steps are those of operations, and of looks at a pool.
var Steps = []rdma.Step{"ask", "read segment", "read since when", "read CommitVers"}

// Params shape a pool. They are written into its header and never change. The configuration, which
// does, is in rdma.Configs.
type Params struct {
	Kind         kv.Kind       `json:"-"` // is the format's name
	Replicas     int           `json:"replicas"`
	Shards       int           `json:"server_shards"` // of which a server is the primary in the beginning
	Workers      int           `json:"server_workers"`
	Cleaners     int           `json:"server_cleaners"`
	Segments     int           `json:"segments"` // of a node
	SegmentBytes int           `json:"segment_bytes"`
	Ahead        int           `json:"ahead"`   // segments that are pushed at a time
	Reserve      int           `json:"reserve"` // of these, for what makes room
	Credit       int           `json:"credit"`  // bytes of leave to append
	MTU          int           `json:"mtu"`     // of the fabric's rings
	Streams      int           `json:"streams"` // in which entries land there
	KeyBytes     int           `json:"key_bytes"`
	PairBytes    int           `json:"pair_bytes"` // largest sum of a key's and a value's length
	Keys         int           `json:"keys"`       // that a server has indexes for
	Timeout      time.Duration `json:"timeout"`    // of an operation, at most
	Secret       uint64        `json:"secret,string"`
}

// Shape is what a pool is to be, as far as users choose it. Zero values mean defaults.
type Shape struct {
	Kind         kv.Kind
	Nodes        int
	Memory       uint64 // of a node; 0: what the records need
	Records      uint64
	PairBytes    int // largest sum of a key's and a value's length
	KeyBytes     int
	Replicas     int
	Shards       int // a server; DefaultShards by default, as in the paper
	Workers      int // a server
	SegmentBytes int // by default a 512th of the memory, and no more than the paper's 4 MiB
	Timeout      time.Duration
}

// Defaults of a Shape.
const (
	DefaultShards  = 48
	DefaultWorkers = 2
	DefaultKey     = 200
	poolTimeout    = 2 * time.Second
)

// Bounds of a Shape.
const (
	MaxReplicas              = shards.MaxReplicas
	MaxWorkers               = 64
	MaxKey                   = 960      // in the first block of an entry, with an MTU of 1024 or more
	MaxPair                  = 56 << 10 // a message takes 64 KiB with the headers of an entry's blocks
	LeastSegment, MaxSegment = 16 << 10, 1 << 30
)

// ErrParams is wrapped by errors about parameters that make no pool.
var ErrParams = errors.New("bad pool parameters")

const (
	mtu         = 4096    // the longest of any fabric
	mostSegment = 4 << 20 // unless there were more segments than can be
	mostCredit  = 128 << 10
	// creditPart is the part of a node's memory that all sources have leave for. A server grants leave
	// when it looks, in a process with nothing else to do a millisecond apart, since Go's timers are
	// no finer then: with leave for ten entries a PUT took ten times as long as with 128 KiB.
	creditPart   = 16
	wantSegments = 512
	mostAhead    = 512
	// idleEvery is how often the tasks of an idle server look: seldom enough for an operator's
	// machine, and often enough for the first writes behind a pause, which may wait for leave that
	// long. While an operation may take they look idleLooks times at least.
	idleEvery = 20 * time.Millisecond
	idleLooks = 100
	// fullest is how much of the segments for entries may be live, in percent: cleaners keep segments
	// above 75, and what they work on is there twice.
	fullest = 65
	page    = 4096
)

// servers returns the options of the servers of a pool.
func (p *Params) servers(nodes int) kv.Options {
	return kv.Options{
		Kind: p.Kind, Nodes: nodes, Shards: p.Shards * nodes, Base: node.HeaderBytes,
		Workers: p.Workers, Cleaners: p.Cleaners, PairBytes: p.PairBytes, KeyBytes: p.KeyBytes, Keys: p.Keys,
		FullAfter: p.Timeout / 4, IdleEvery: min(p.Timeout/idleLooks, idleEvery),
		Log: rowan.Options{
			Ring: 1, Segments: p.Segments, SegmentBytes: p.SegmentBytes, Ahead: p.Ahead, Reserve: p.Reserve,
			Credit:  p.Credit,
			Streams: p.Streams, Secret: p.Secret,
		},
	}
}

// promises returns what the pool's fabric promises of rings, as far as their layout goes.
func (p *Params) promises() rdma.RingPromises {
	return rdma.RingPromises{MTU: p.MTU, Streams: p.Streams}
}

// Size returns the parameters of a pool for a shape, how many bytes of memory each node needs, and
// how many identities its servers take. They fit any fabric.
func Size(s Shape) (p Params, memory uint64, servers int, err error) {
	s.defaults()
	if err := s.check(); err != nil {
		return p, 0, 0, err
	}
	if memory = s.Memory; memory == 0 {
		memory = max(s.live()*100/fullest, 1<<20) / page * page
	}
	for { // ends: each turn has an eighth more
		var room uint64
		p, room, err = s.divide(memory)
		if err == nil && (s.Memory > 0 || room >= s.live()) {
			o := p.servers(s.Nodes)
			return p, memory, s.Nodes * o.Tasks(), nil
		}
		if err == nil && p.Segments == rowan.MaxSegments && s.SegmentBytes > 0 {
			err = fmt.Errorf("%w: %d segments of %d bytes, as many as a node may have, are too few for %d records of %d bytes", ErrParams,
				p.Segments, p.SegmentBytes, s.Records, s.PairBytes)
		}
		if s.Memory > 0 || memory > rdma.MaxOffset {
			return p, 0, 0, err
		}
		memory += memory / 8 / page * page
	}
}

// Room returns for how many records of the longest pairs there is room in a shape that Size has
// found good.
func (s Shape) Room() uint64 {
	s.defaults()
	_, room, err := s.divide(s.Memory)
	if err != nil {
		return 0
	}
	return room / uint64(kv.EntryBytes(s.PairBytes, mtu)) * uint64(s.Nodes) / uint64(s.Replicas)
}

func (s *Shape) defaults() {
	s.Shards, s.Workers = cmp.Or(s.Shards, DefaultShards), cmp.Or(s.Workers, DefaultWorkers)
	s.KeyBytes, s.Timeout = cmp.Or(s.KeyBytes, DefaultKey), cmp.Or(s.Timeout, poolTimeout)
}

func (s *Shape) check() error {
	switch {
	case s.Nodes < 1 || s.Nodes > shards.MaxMembers:
		return fmt.Errorf("%w: %d nodes: want 1 to %d", ErrParams, s.Nodes, shards.MaxMembers)
	case s.Replicas < 1 || s.Replicas > min(s.Nodes, MaxReplicas):
		return fmt.Errorf("%w: %d replicas on %d nodes: want 1 to %d", ErrParams, s.Replicas, s.Nodes,
			min(s.Nodes, MaxReplicas))
	case s.PairBytes < 1 || s.PairBytes > MaxPair || s.KeyBytes < 1 || s.KeyBytes > MaxKey:
		return fmt.Errorf("%w: keys of %d bytes in pairs of %d: want up to %d, and %d", ErrParams, s.KeyBytes,
			s.PairBytes, MaxKey, MaxPair)
	case s.Workers < 1 || s.Workers > MaxWorkers || 2*s.Nodes*(s.Workers+1) > rowan.MaxSources:
		return fmt.Errorf("%w: %d workers of each of %d servers: want up to %d, and %d of all", ErrParams, s.Workers,
			s.Nodes, MaxWorkers, rowan.MaxSources/2-s.Nodes)
	case s.Records > rdma.MaxOffset/uint64(kv.EntryBytes(s.PairBytes, mtu)):
		return fmt.Errorf("%w: %d records of %d bytes: no node has as many", ErrParams, s.Records, s.PairBytes)
	}
	if _, err := s.first(); err != nil {
		return fmt.Errorf("%w: %w", ErrParams, err)
	}
	return nil
}

// first returns the configuration that a pool begins with.
func (s *Shape) first() (*shards.Config, error) { return first(s.Nodes, s.Shards, s.Replicas) }

func first(nodes, perServer, replicas int) (*shards.Config, error) {
	var members []int
	for n := range nodes {
		members = append(members, n)
	}
	c, err := shards.New(members, perServer, replicas)
	if err != nil {
		return nil, err
	}
	return c.Commit(), nil
}

// live returns how many bytes of a node's segments the entries of the records take.
func (s *Shape) live() uint64 {
	return s.Records * uint64(kv.EntryBytes(s.PairBytes, mtu)) * uint64(s.Replicas) / uint64(s.Nodes)
}

// divide divides a node's memory into segments, and returns how many bytes of live entries there is
// room for.
func (s *Shape) divide(memory uint64) (p Params, room uint64, err error) {
	p = Params{
		Kind: s.Kind, Replicas: s.Replicas, Shards: s.Shards, Workers: s.Workers, Cleaners: 1, MTU: mtu,
		Streams:  rdma.MaxStreams,
		KeyBytes: s.KeyBytes, PairBytes: s.PairBytes, Timeout: s.Timeout,
		Keys: int(max(s.Records+s.Records/4, 1<<10) * uint64(s.Replicas) / uint64(s.Nodes)),
	}
	o := p.servers(s.Nodes)
	message := o.MessageBytes()
	if p.SegmentBytes = s.SegmentBytes; p.SegmentBytes == 0 {
		p.SegmentBytes = LeastSegment
		for p.SegmentBytes < 2*message || p.SegmentBytes < MaxSegment &&
			(uint64(p.SegmentBytes)*wantSegments*2 <= memory && p.SegmentBytes < mostSegment ||
				uint64(p.SegmentBytes)*rowan.MaxSegments < memory) {
			p.SegmentBytes *= 2
		}
	}
	// A server has a source for each worker, and an urgent one, and one urgent source more.
	sources, urgent := s.Nodes*s.Workers, s.Nodes*(s.Workers+1)
	share := memory / creditPart / uint64(sources+urgent)
	p.Credit = (max(int(min(share, mostCredit)), 2*(message+mtu)) + rdma.Stride - 1) / rdma.Stride * rdma.Stride
	usable := p.SegmentBytes - mtu + rdma.Stride
	segments := func(sources int) int { return (sources*p.Credit + usable - 1) / usable }
	// What all sources have leave for, in the midst of which each stream may have begun three
	// segments.
	p.Reserve = segments(urgent)
	o = p.servers(s.Nodes)
	least := max(segments(sources)+p.Reserve+3*rdma.MaxStreams, o.LeastAhead())
	most := max(least, mostAhead)
	o.Log.Ahead, o.Log.Segments = most, rowan.MaxSegments
	all := o.Size()
	o.Log.Segments--
	each := all - o.Size()
	if fixed := node.HeaderBytes + all - rowan.MaxSegments*each; memory > fixed {
		p.Segments = int(min((memory-fixed)/each, rowan.MaxSegments))
	}
	p.Ahead = min(least+max(p.Segments/16, 2), most)
	own := o.Own()
	if n := p.Segments - own - least; n < 4 {
		return p, 0, fmt.Errorf("%w: %d bytes a node make %d segments of %d: want %d at least", ErrParams, memory,
			p.Segments, p.SegmentBytes, own+least+4)
	}
	// What is ahead fills up with entries, but for the last segments.
	room = uint64(p.Segments-own-least) * uint64(usable) * fullest / 100
	o = p.servers(s.Nodes)
	if err := o.Validate(p.promises()); err != nil {
		return p, 0, fmt.Errorf("%w: %w", ErrParams, err)
	}
	return p, room, nil
}

// Make writes an empty store into the zeroed memory of a new pool. The error wraps ErrParams,
// rdma.ErrFull when there is not enough memory, or rdma.ErrNotSupported of a fabric without rings.
func Make(f rdma.Fabric, p Params) error {
	ep, err := f.Open("format")
	if err == nil {
		err = errors.Join(format(f, ep, p), ep.Close())
	}
	if err != nil {
		return fmt.Errorf("make a %s pool: %w", p.Kind, err)
	}
	return nil
}

func format(f rdma.Fabric, ep rdma.Endpoint, p Params) error {
	promises, err := rdma.Rings(ep)
	if err != nil {
		return err
	}
	p.MTU, p.Streams, p.Secret = promises.MTU, max(1, promises.Streams), ep.Rand().Uint64()
	o := p.servers(f.Nodes())
	if err := o.Validate(promises); err != nil {
		return fmt.Errorf("%w: %w", ErrParams, err)
	}
	if need := node.HeaderBytes + o.Size(); need > f.Size() {
		return fmt.Errorf("it needs %d bytes a node, each has %d: %w", need, f.Size(), rdma.ErrFull)
	}
	c, err := first(f.Nodes(), p.Shards, p.Replicas)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrParams, err)
	}
	if err := storeConfig(f, ep, c.Encode()); err != nil {
		return fmt.Errorf("store the configuration: %w", err)
	}
	params, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return node.WriteHeader(f, ep, node.Header{Store: p.Kind.String(), Version: FormatVersion, Params: params})
}

// storeConfig stores the first configuration, which a master alone can. No client sees the pool
// yet.
func storeConfig(f rdma.Fabric, ep rdma.Endpoint, data []byte) error {
	const lease = 10 * time.Second
	role, ok, err := f.TryMaster(ep.Client(), lease)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("the pool has a master: %w", rdma.ErrStale)
	}
	defer f.Resign(role)
	ok, err = f.SwapConfig(role, 0, data)
	if err == nil && !ok {
		err = fmt.Errorf("there is one: %w", rdma.ErrExists)
	}
	return err
}

// layout is where everything of a pool lies.
type layout struct {
	Params
	nodes   int
	servers kv.Options
}

// readLayout reads the header of the pool that ep reaches.
func readLayout(ep rdma.Endpoint) (*layout, rdma.View, error) {
	var v rdma.View
	h, err := node.Header{}, error(rdma.ErrStale)
	for errors.Is(err, rdma.ErrStale) { // once for each view that begins meanwhile
		if v, err = ep.Join(); err == nil {
			h, err = node.ReadHeader(ep, len(v.Members))
		}
	}
	if err != nil {
		return nil, v, err
	}
	kind, err := kv.ParseKind(h.Store)
	if err != nil {
		return nil, v, h.Expect(kv.Rowan.String(), FormatVersion)
	}
	if err := h.Expect(h.Store, FormatVersion); err != nil {
		return nil, v, err
	}
	l := &layout{Params: Params{Kind: kind}, nodes: h.Nodes}
	if err := json.Unmarshal(h.Params, &l.Params); err != nil {
		return nil, v, fmt.Errorf("read the pool's parameters: %w", errors.Join(ErrParams, err))
	}
	return l, v, l.check(h.Size)
}

// check returns what is wrong with parameters: whatever a header holds.
func (l *layout) check(size uint64) error {
	p := &l.Params
	s := Shape{Kind: p.Kind, Nodes: l.nodes, Replicas: p.Replicas, Shards: p.Shards, Workers: p.Workers,
		PairBytes: p.PairBytes, KeyBytes: p.KeyBytes}
	if err := s.check(); err != nil {
		return err
	}
	if p.Cleaners != 1 || p.Segments < 1 || p.Segments > rowan.MaxSegments || p.SegmentBytes < LeastSegment ||
		p.SegmentBytes > MaxSegment || p.MTU < 256 || p.MTU > mtu || p.Streams < 1 || p.Streams > rdma.MaxStreams ||
		p.Keys < 1 || p.Keys > 1<<32 ||
		p.Timeout < time.Millisecond || p.Timeout > time.Hour {
		return fmt.Errorf("%w: %d segments of %d bytes, %d streams, %d keys, a timeout of %v", ErrParams, p.Segments,
			p.SegmentBytes, p.Streams, p.Keys, p.Timeout)
	}
	l.servers = p.servers(l.nodes)
	if err := l.servers.Validate(p.promises()); err != nil {
		return fmt.Errorf("%w: %w", ErrParams, err)
	}
	if need := node.HeaderBytes + l.servers.Size(); need > size {
		return fmt.Errorf("%w: they take %d bytes a node, each has %d", ErrParams, need, size)
	}
	return nil
}

// Open returns a worker's view of the pool that ep reaches, whose configuration is in configs. The
// timeout is the pool's, or a shorter one. The error wraps node.ErrOtherStore when the pool's
// servers are of another kind.
func Open(ep rdma.Endpoint, configs Configs, kind kv.Kind, timeout time.Duration) (*Store, error) {
	l, _, err := readLayout(ep)
	if err != nil {
		return nil, err
	}
	if l.Kind != kind {
		return nil, fmt.Errorf("open %s: %w: it was made for %q, not %q", kind, node.ErrOtherStore, l.Kind, kind)
	}
	if configs == nil {
		return nil, fmt.Errorf("open a %s pool without its configuration: %w", l.Kind, rdma.ErrNotSupported)
	}
	return New(ep, configs, Options{Servers: l.servers, Timeout: min(cmp.Or(timeout, l.Timeout), l.Timeout)})
}

// Serve opens the server beside a node of the pool that ep reaches: see stores.Kind.Serve.
func Serve(ep rdma.Endpoint, configs rdma.Configs, node int) (*kv.Server, error) {
	l, _, err := readLayout(ep)
	if err != nil {
		return nil, err
	}
	return kv.Open(ep, configs, l.servers, node)
}
