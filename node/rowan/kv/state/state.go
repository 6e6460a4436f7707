package state

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
)

// Server is what the tasks of a server share: its replicas, the segments where their entries lie,
// and the term by which it has them.
type Server struct {
	Opt  kv.Options
	Node int
	// The server's tasks.
	Tasks Tasks
	// Terms and views, read for each request.
	Known Known
	Table *rowan.Table
	// By number, also those that the server does not have.
	Shards []*Shard
	// What is live in the node's segments.
	Space *Space
	// When cleaned segments may be freed.
	Quiet Quiet
	// Damaged entries that tasks have met.
	Damage Damage
	// What the receiver and the exchanger tell each other.
	Exchange Handover
	// By node, with Share: the remote logs that this server's workers share.
	Shared []*rowan.Remote

	// Where own logs go on that an earlier server left. It is set before tasks start.
	Resumed map[rowan.Owner]LogEnd
	// With RPC, the last term of the earlier server; nil: there was none. It is set before tasks
	// start.
	ResumedTerm *Term
}

// New returns the state of a server that begins. The error wraps rdma.ErrAccess if the options
// are wrong.
func New(ep rdma.Endpoint, o kv.Options, node int) (*Server, error) {
	o = o.WithDefaults()
	p, err := rdma.Rings(ep)
	if err == nil {
		err = o.Validate(p)
	}
	if err != nil {
		return nil, err
	}
	s := &Server{
		Opt: o, Node: node, Tasks: Tasks{node: node}, Shards: make([]*Shard, o.Shards), Space: newSpace(o.Log.Segments),
		Quiet: Quiet{Passed: make([]atomic.Uint64, o.CleanerReader(o.Cleaners))}, Resumed: map[rowan.Owner]LogEnd{},
	}
	// No task has seen a term: Quiet waits for all of them.
	s.Known.saw = make([]uint64, o.Workers+1)
	if o.Kind == kv.RPC {
		s.Known.turned = make([]uint64, o.Workers)
	}
	for i := range s.Shards {
		s.Shards[i] = &Shard{Number: i}
	}
	// It reads the states of segments that an earlier server left.
	if s.Table, err = rowan.OpenTable(s.Member(ep), o.LogOf(node)); err != nil {
		return nil, fmt.Errorf("open server %d: %w", node, err)
	}
	for other := range o.Nodes {
		if o.Kind == kv.Share {
			s.Shared = append(s.Shared, s.NewRemote(other, node))
		}
	}
	return s, nil
}

// At returns the address of an entry at an offset in the node's memory.
func (s *Server) At(offset uint64) rdma.Addr { return rdma.At(s.Node, offset) }

// SegmentOf returns the index of the segment that contains an offset.
func (s *Server) SegmentOf(offset uint64) int { return s.Table.At(s.At(offset)) }

// ReadHeads adds READs of the beginnings of entries to a batch: headers, and keys up to a length.
func (s *Server) ReadHeads(b *rdma.Batch, offsets []uint64, key int) {
	for _, at := range offsets {
		b.Read(s.At(at), int(min(uint64(kv.HeadBytes+key), s.Table.End(s.At(at)).Offset()-at)))
	}
}

// FirstReach is how much of an entry is READ before the length of entries is known: the unit in
// which persistent memory is read.
const FirstReach = 256

// ReadEntries adds a READ of n bytes of each entry to a batch, or of what is left of its segment.
func (s *Server) ReadEntries(b *rdma.Batch, offsets []uint64, n int) {
	for _, at := range offsets {
		b.Read(s.At(at), int(min(uint64(n), s.Table.End(s.At(at)).Offset()-at)))
	}
}

// NextReach returns how much of an entry is READ at first, after one that had n bytes: it rises at
// once and falls slowly.
func NextReach(reach, n int) int { return reach + max(n-reach, (n-reach)/8) }

// ReadWhole reads the data of an entry that an index names, or named. The caller owns the result.
// The error wraps rowan.ErrDamaged when the entry is damaged, which is noted.
func (s *Server) ReadWhole(ep rdma.Endpoint, term uint64, shard int, at uint64) (kind uint8, data []byte, err error) {
	// Blocks are noted before an index names the entry, so they are known.
	if blocks := s.Space.Blocks(at); blocks != nil {
		var whole rowan.Entry
		err = s.Table.Assemble(ep, blocks, &whole)
		kind, data = whole.Kind, whole.Data
	} else if p, e := s.ReadBlock(ep, at); e == nil {
		kind, _ = rowan.Head(p)
		data = p[rowan.HeaderBytes:]
	} else {
		err = e
	}
	if errors.Is(err, rowan.ErrDamaged) {
		s.Damage.Note(term, shard, at)
	}
	return kind, data, err
}

// ReadBlock reads the first block of an entry and verifies it. The caller owns it. The error wraps
// rowan.ErrDamaged when the block is damaged.
func (s *Server) ReadBlock(ep rdma.Endpoint, at uint64) (block []byte, err error) {
	p, err := rdma.ReadBytes(ep, "read head", s.At(at), rowan.HeaderBytes, kv.LocalTimeout)
	if err != nil {
		return nil, err
	}
	// A short entry is whole already.
	n, ok := s.Table.Verify(s.At(at), p)
	if !ok && n > 0 && n <= s.Opt.LongestMessage() {
		if p, err = rdma.ReadBytes(ep, "read entry", s.At(at), n, kv.LocalTimeout); err != nil {
			return nil, err
		}
		n, ok = s.Table.Verify(s.At(at), p)
	}
	if !ok {
		return nil, rowan.ErrDamaged
	}
	return p[:n], nil
}

// LogEnd is where a log of the server goes on after a restart.
type LogEnd struct {
	rowan.Segment
	// The address behind its last entry.
	Behind rdma.Addr
}

// Log returns the log of an owner. It goes on where the log of an earlier server ended.
func (s *Server) Log(ep rdma.Endpoint, owner rowan.Owner) *rowan.Log {
	if p, ok := s.Resumed[owner]; ok {
		return s.Table.Resume(ep, p.Segment, p.Behind)
	}
	return s.Table.Log(ep, owner)
}

// Named returns the addresses of the blocks of the entries that the server's index names for a key,
// if it serves the key's shard. Tests use it to damage them.
func (s *Server) Named(key []byte) (all []rdma.Addr) {
	t, hash := s.Known.Adopted(), kv.Hash(key)
	if t == nil || !t.Leads(t.Find(hash)) {
		return nil
	}
	sh := s.Shards[t.Find(hash)]
	x := sh.Index()
	if x == nil || !sh.Serving() {
		return nil
	}
	for _, at := range x.Lookup(hash, nil) {
		if blocks := s.Space.Blocks(at); blocks != nil {
			all = append(all, blocks...)
		} else {
			all = append(all, s.At(at))
		}
	}
	return all
}
