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
	"github.com/farkv/farkv/node/rowan/kv/server"
	"github.com/farkv/farkv/node/rowan/shards"
)

// FormatVersion is the version of the format of pools of all kinds. The format's name in a pool's
// header is the kind's.
const FormatVersion = 3

// Steps are the steps of a client's operations and of tools that inspect a pool.
var Steps = []rdma.Step{"ask", "read segment", "read since when", "read CommitVers", "read which gave"}

// Params are the parameters of a pool. They are written into its header and never change. The
// configuration, which changes, is in rdma.Configs.
type Params struct {
	// Header and registers have different owners: nothing here may be what a configuration changes.
	Kind     kv.Kind `json:"-"` // the format's name
	Replicas int     `json:"replicas"`
	// Shards of which each server is the primary in the beginning.
	Shards   int `json:"server_shards"`
	Workers  int `json:"server_workers"`
	Cleaners int `json:"server_cleaners"`
	// Segments of a node, and the length of each.
	// A segment is filled by one log, or by one stream of the ring, and freed as a whole.
	Segments     int `json:"segments"`
	SegmentBytes int `json:"segment_bytes"`
	// Segments in the ring at a time, and how many of them are a reserve for appends that make
	// room.
	Ahead   int `json:"ahead"`
	Reserve int `json:"reserve"`
	// Bytes of leave of a source at a time.
	// All sources together never have leave for more than fits into the segments ahead.
	Credit int `json:"credit"`
	// What the fabric promises of rings: see rdma.RingPromises.
	MTU     int `json:"mtu"`
	Streams int `json:"streams"`
	// Bounds of a key's length, and of that of a key and its value together.
	// Clients refuse longer ones, and so do servers.
	KeyBytes  int `json:"key_bytes"`
	PairBytes int `json:"pair_bytes"`
	// Keys for which a server's indexes are sized.
	Keys int `json:"keys"`
	// The longest timeout of an operation.
	// Servers bound by it how long a write waits for room.
	Timeout time.Duration `json:"timeout"`
	// The key of checksums: see rowan.Options.
	// It is drawn when the pool is made, so that what an earlier pool left in memory does not
	// verify.
	Secret uint64 `json:"secret,string"`
}

// Shape describes a pool that is to be made, as far as users choose it. Zero values mean defaults.
type Shape struct {
	Kind  kv.Kind
	Nodes int
	// Bytes of a node; 0: as much as the records need.
	Memory  uint64
	Records uint64
	// Bounds of the length of a key and its value together, and of a key.
	PairBytes int
	KeyBytes  int
	Replicas  int
	// Of each server. The default of Shards is the paper's.
	Shards  int
	Workers int
	// By default a 512th of the memory, and at most the paper's 4 MiB.
	SegmentBytes int
	Timeout      time.Duration
}

// Defaults of a Shape.
const (
	DefaultShards  = 48
	DefaultWorkers = 2
	DefaultKey     = 200
	poolTimeout    = 2 * time.Second
)

// Bounds of a Shape. A key fits into the first block of an entry with an MTU of 1024 or more. A
// message with the headers of an entry's blocks takes up to 64 KiB.
const (
	MaxReplicas              = shards.MaxReplicas
	MaxWorkers               = 64
	MaxKey                   = 960
	MaxPair                  = 56 << 10
	LeastSegment, MaxSegment = 16 << 10, 1 << 30
)

// ErrParams is wrapped when a pool cannot have such parameters.
var ErrParams = errors.New("bad pool parameters")

const (
	// The longest MTU of any fabric.
	mtu = 4096
	// Bound of a segment's default length, as long as there are not too many of them.
	mostSegment = 4 << 20
	mostCredit  = 128 << 10
	// creditPart is the share of a node's memory for which all sources together have leave: a
	// sixteenth. A server grants leave when it looks, which is a millisecond apart in an idle
	// process, since Go's timers are no finer then. With leave for ten entries only, a PUT took ten
	// times as long as with 128 KiB.
	creditPart = 16
	// Segments of a node by default.
	wantSegments = 512
	mostAhead    = 512
	// idleEvery is how often the tasks of an idle server look. It is seldom enough for an
	// operator's machine, and often enough for the first writes after a pause, which may wait for
	// leave that long. They look at least idleLooks times within an operation's timeout.
	idleEvery = 20 * time.Millisecond
	idleLooks = 100
	// fullest is how many percent of the segments for entries may be live: cleaners leave segments
	// above 75 alone, and what they copy is there twice for a while.
	fullest = 65
	page    = 4096
)

// servers returns the options of the pool's servers.
func (p *Params) servers(nodes int) kv.Options {
	return kv.Options{
		Kind: p.Kind, Nodes: nodes, Shards: p.Shards * nodes, Base: node.HeaderBytes,
		Workers: p.Workers, Cleaners: p.Cleaners, PairBytes: p.PairBytes, KeyBytes: p.KeyBytes, Keys: p.Keys,
		// As long cleaners have to make room.
		FullAfter: p.Timeout / 4, IdleEvery: min(p.Timeout/idleLooks, idleEvery),
		Log: rowan.Options{
			Ring: 1, Segments: p.Segments, SegmentBytes: p.SegmentBytes, Ahead: p.Ahead, Reserve: p.Reserve,
			Credit:  p.Credit,
			Streams: p.Streams, Secret: p.Secret,
		},
	}
}

// promises returns what the pool's fabric promises of rings, as far as the layout depends on it.
func (p *Params) promises() rdma.RingPromises {
	return rdma.RingPromises{MTU: p.MTU, Streams: p.Streams}
}

// Size returns the parameters of a pool with a shape, how many bytes of memory each node needs, and
// how many identities its servers take. The result fits any fabric.
func Size(s Shape) (p Params, memory uint64, servers int, err error) {
	s.defaults()
	if err := s.check(); err != nil {
		return p, 0, 0, err
	}
	// The first guess has room for the records alone.
	if memory = s.Memory; memory == 0 {
		memory = max(s.live()*100/fullest, 1<<20) / page * page
	}
	// What is not segments does not grow in proportion, so the size is found by trying.
	for { // it ends: the memory grows by an eighth each time
		var room uint64
		p, room, err = s.divide(memory)
		if err == nil && (s.Memory > 0 || room >= s.live()) {
			// Each task of a server takes an identity in the pool.
			o := p.servers(s.Nodes)
			return p, memory, s.Nodes * o.Tasks(), nil
		}
		if err == nil && p.Segments == rowan.MaxSegments && s.SegmentBytes > 0 {
			err = fmt.Errorf(
				"%w: %d segments of %d bytes, as many as a node may have, are too few for %d records of %d bytes",
				ErrParams, p.Segments, p.SegmentBytes, s.Records, s.PairBytes)
		}
		// A size that the user chose is not changed, and no node is larger than an address can say.
		if s.Memory > 0 || memory > rdma.MaxOffset {
			return p, 0, 0, err
		}
		memory += memory / 8 / page * page
	}
}

// Room returns the number of records of the greatest length for which a shape has room. Size has
// accepted the shape.
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
	// Each node has a server, which is a member.
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

// first returns the configuration that the pool begins with.
func (s *Shape) first() (*shards.Config, error) { return first(s.Nodes, s.Shards, s.Replicas) }

// first returns the committed configuration of a new pool.
func first(nodes, perServer, replicas int) (*shards.Config, error) {
	// All nodes are members of the first term.
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

// divide divides a node's memory into segments, and returns for how many bytes of live entries
// there is room.
func (s *Shape) divide(memory uint64) (p Params, room uint64, err error) {
	p = Params{
		Kind: s.Kind, Replicas: s.Replicas, Shards: s.Shards, Workers: s.Workers, Cleaners: 1, MTU: mtu,
		Streams:  rdma.MaxStreams,
		KeyBytes: s.KeyBytes, PairBytes: s.PairBytes, Timeout: s.Timeout,
		Keys: int(max(s.Records+s.Records/4, 1<<10) * uint64(s.Replicas) / uint64(s.Nodes)),
	}
	o := p.servers(s.Nodes)
	// An entry must fit into a segment, and into half of a credit.
	message := o.MessageBytes()
	// Many segments let cleaners go on in small steps. They are longer only where memory is large.
	if p.SegmentBytes = s.SegmentBytes; p.SegmentBytes == 0 {
		p.SegmentBytes = LeastSegment
		// At least two of the longest entries fit into a segment.
		for p.SegmentBytes < 2*message || p.SegmentBytes < MaxSegment &&
			(uint64(p.SegmentBytes)*wantSegments*2 <= memory && p.SegmentBytes < mostSegment ||
				uint64(p.SegmentBytes)*rowan.MaxSegments < memory) {
			p.SegmentBytes *= 2
		}
	}
	// A server has a normal and an urgent source for each worker of each server, and one more
	// urgent source for each exchanger.
	sources, urgent := s.Nodes*s.Workers, s.Nodes*(s.Workers+1)
	// What sources have leave for takes room ahead that nothing else uses.
	share := memory / creditPart / uint64(sources+urgent)
	p.Credit = (max(int(min(share, mostCredit)), 2*(message+mtu)) + rdma.Stride - 1) / rdma.Stride * rdma.Stride
	// The last bytes of a segment may be too short for a block.
	usable := p.SegmentBytes - mtu + rdma.Stride
	segments := func(sources int) int { return (sources*p.Credit + usable - 1) / usable }
	// All that sources have leave for must fit, while each stream may have begun three segments.
	// DELs find room in it when PUTs have filled the others.
	p.Reserve = segments(urgent)
	o = p.servers(s.Nodes)
	// The layout is for any fabric, with as many streams as any has.
	least := max(segments(sources)+p.Reserve+3*rdma.MaxStreams, o.LeastAhead())
	most := max(least, mostAhead)
	// The size is linear in the number of segments, so two sizes tell how many fit.
	o.Log.Ahead, o.Log.Segments = most, rowan.MaxSegments
	all := o.Size()
	o.Log.Segments--
	each := all - o.Size()
	if fixed := node.HeaderBytes + all - rowan.MaxSegments*each; memory > fixed {
		p.Segments = int(min((memory-fixed)/each, rowan.MaxSegments))
	}
	// Beyond the least, so that senders wait for no push.
	p.Ahead = min(least+max(p.Segments/16, 2), most)
	// Segments for own logs are not filled by others.
	own := o.Own()
	// With fewer there is nothing to choose from for cleaners.
	if n := p.Segments - own - least; n < 4 {
		return p, 0, fmt.Errorf("%w: %d bytes a node make %d segments of %d: want %d at least", ErrParams, memory,
			p.Segments, p.SegmentBytes, own+least+4)
	}
	// Segments ahead are filled with entries, too, except the last ones.
	room = uint64(p.Segments-own-least) * uint64(usable) * fullest / 100
	o = p.servers(s.Nodes)
	if err := o.Validate(p.promises()); err != nil {
		return p, 0, fmt.Errorf("%w: %w", ErrParams, err)
	}
	return p, room, nil
}

// Make writes an empty store into the zeroed memory of a new pool. The error wraps ErrParams,
// rdma.ErrFull if there is not enough memory, or rdma.ErrNotSupported on a fabric without rings.
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

// format stores the configuration first and writes the header last. A crash before that leaves
// memory without a header, which is no pool.
func format(f rdma.Fabric, ep rdma.Endpoint, p Params) error {
	// The layout follows the fabric that the pool is made on.
	// Rings split entries by the MTU, so the layout depends on it.
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
	// Servers and clients that find the header find the configuration.
	if err := storeConfig(f, ep, c.Encode()); err != nil {
		return fmt.Errorf("store the configuration: %w", err)
	}
	// Whatever opens the pool reads them from the header.
	params, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return node.WriteHeader(f, ep, node.Header{Store: p.Kind.String(), Version: FormatVersion, Params: params})
}

// storeConfig stores the first configuration. Only a master can, so it becomes master for a moment:
// no candidate knows of the pool yet.
func storeConfig(f rdma.Fabric, ep rdma.Endpoint, data []byte) error {
	const lease = 10 * time.Second
	// The lease is over long after the configuration is stored.
	role, ok, err := f.TryMaster(ep.Client(), lease)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("the pool has a master: %w", rdma.ErrStale)
	}
	defer f.Resign(role)
	// Version 0: there must be none. So a pool that exists is not made again.
	ok, err = f.SwapConfig(role, 0, data)
	if err == nil && !ok {
		err = fmt.Errorf("there is one: %w", rdma.ErrExists)
	}
	return err
}

// layout is a pool's parameters, and the options of its servers.
type layout struct {
	Params
	nodes   int
	servers kv.Options
}

// readLayout reads the header of the pool that ep reaches, and joins its view.
func readLayout(ep rdma.Endpoint) (*layout, rdma.View, error) {
	var v rdma.View
	h, err := node.Header{}, error(rdma.ErrStale)
	// A view that begins between Join and the READ of the header ends the READ.
	for errors.Is(err, rdma.ErrStale) { // once for each view that begins meanwhile
		// The header is on each member of the view.
		if v, err = ep.Join(); err == nil {
			h, err = node.ReadHeader(ep, len(v.Members))
		}
	}
	if err != nil {
		return nil, v, err
	}
	// Another store's pool: the error names what it was made for.
	kind, err := kv.ParseKind(h.Store)
	if err != nil {
		return nil, v, h.Expect(kv.Rowan.String(), FormatVersion)
	}
	if err := h.Expect(h.Store, FormatVersion); err != nil {
		return nil, v, err
	}
	// The number of nodes is the pool's, whatever nodes are gone.
	l := &layout{Params: Params{Kind: kind}, nodes: h.Nodes}
	if err := json.Unmarshal(h.Params, &l.Params); err != nil {
		return nil, v, fmt.Errorf("read the pool's parameters: %w", errors.Join(ErrParams, err))
	}
	return l, v, l.check(h.Size)
}

// check returns an error if the parameters in a header are not those of a pool: a header may hold
// anything.
func (l *layout) check(size uint64) error {
	p := &l.Params
	// The same bounds as for a pool that is made.
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
	// They are checked as a server checks them, before any of them is used.
	l.servers = p.servers(l.nodes)
	if err := l.servers.Validate(p.promises()); err != nil {
		return fmt.Errorf("%w: %w", ErrParams, err)
	}
	// Otherwise READs and WRITEs would leave the registered memory.
	if need := node.HeaderBytes + l.servers.Size(); need > size {
		return fmt.Errorf("%w: they take %d bytes a node, each has %d", ErrParams, need, size)
	}
	return nil
}

// Open returns a worker's view of the pool that ep reaches. Its configuration is in configs. The
// timeout is the pool's, or a shorter one. The error wraps node.ErrOtherStore if the pool's servers
// are of another kind.
func Open(ep rdma.Endpoint, configs Configs, kind kv.Kind, timeout time.Duration) (*Store, error) {
	l, _, err := readLayout(ep)
	if err != nil {
		return nil, err
	}
	// Clients speak to all kinds alike, but a user means the kind that is named.
	if l.Kind != kind {
		return nil, fmt.Errorf("open %s: %w: it was made for %q, not %q", kind, node.ErrOtherStore, l.Kind, kind)
	}
	if configs == nil {
		return nil, fmt.Errorf("open a %s pool without its configuration: %w", l.Kind, rdma.ErrNotSupported)
	}
	// Servers refuse what waits for room after a quarter of the pool's timeout, so a longer one of
	// a client gains nothing.
	return New(ep, configs, Options{Servers: l.servers, Timeout: min(cmp.Or(timeout, l.Timeout), l.Timeout)})
}

// Serve opens the server beside a node of the pool that ep reaches. See stores.Kind.Serve.
func Serve(ep rdma.Endpoint, configs rdma.Configs, node int) (*server.Server, error) {
	l, _, err := readLayout(ep)
	if err != nil {
		return nil, err
	}
	return server.Open(ep, configs, l.servers, node)
}
