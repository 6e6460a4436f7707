package kv

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// state is what the tasks of a server share: its replicas, the segments where their entries lie, and
// the term by which it has them.
type state struct {
	o    Options
	node int
	// The server's tasks.
	tasks tasks
	// Terms and views, read for each request.
	known known
	table *rowan.Table
	// By number, also those that the server does not have.
	shards []*shard
	// What is live in the node's segments.
	space *space
	// When cleaned segments may be freed.
	quiet quiet
	// Damaged entries that tasks have met.
	damage damage
	// What the receiver and the exchanger tell each other.
	exchange handover
	// By node, with Share: the remote logs that this server's workers share.
	shared []*rowan.Remote

	// Where own logs go on that an earlier server left. It is set before tasks start.
	resumed map[rowan.Owner]place
	// With RPC, the last term of the earlier server; nil: there was none. It is set before tasks
	// start.
	resumedTerm *term
}

// newState returns the state of a server that begins. The error wraps rdma.ErrAccess if the options
// are wrong.
func newState(ep rdma.Endpoint, o Options, node int) (*state, error) {
	o = o.WithDefaults()
	p, err := rdma.Rings(ep)
	if err == nil {
		err = o.Validate(p)
	}
	if err != nil {
		return nil, err
	}
	s := &state{
		o: o, node: node, tasks: tasks{node: node}, shards: make([]*shard, o.Shards), space: newSpace(o.Log.Segments),
		quiet: quiet{passed: make([]atomic.Uint64, o.cleaner(o.Cleaners))}, resumed: map[rowan.Owner]place{},
	}
	s.known.saw = make([]uint64, o.Workers+1)
	if o.Kind == RPC {
		s.known.turned = make([]uint64, o.Workers)
	}
	for i := range s.shards {
		s.shards[i] = &shard{number: i}
	}
	if s.table, err = rowan.OpenTable(s.member(ep), o.log(node)); err != nil {
		return nil, fmt.Errorf("open server %d: %w", node, err)
	}
	for other := range o.Nodes {
		if o.Kind == Share {
			s.shared = append(s.shared, s.newRemote(other, node))
		}
	}
	return s, nil
}

// at returns the address of an entry at an offset in the node's memory.
func (s *state) at(offset uint64) rdma.Addr { return rdma.At(s.node, offset) }

// segment returns the index of the segment that contains an offset.
func (s *state) segment(offset uint64) int { return s.table.At(s.at(offset)) }

// readHeads adds READs of the beginnings of entries to a batch: headers, and keys up to a length.
func (s *state) readHeads(b *rdma.Batch, offsets []uint64, key int) {
	for _, at := range offsets {
		b.Read(s.at(at), int(min(uint64(headBytes+key), s.table.End(s.at(at)).Offset()-at)))
	}
}

// firstReach is how much of an entry is READ before the length of entries is known: the unit in
// which persistent memory is read.
const firstReach = 256

// readEntries adds a READ of n bytes of each entry to a batch, or of what is left of its segment.
func (s *state) readEntries(b *rdma.Batch, offsets []uint64, n int) {
	for _, at := range offsets {
		b.Read(s.at(at), int(min(uint64(n), s.table.End(s.at(at)).Offset()-at)))
	}
}

// reachOf returns how much of an entry is READ at first, after one that had n bytes: it rises at
// once and falls slowly.
func reachOf(reach, n int) int { return reach + max(n-reach, (n-reach)/8) }

// readWhole reads the data of an entry that an index names, or named. The caller owns the result.
// The error wraps rowan.ErrDamaged when the entry is damaged, which is noted.
func (s *state) readWhole(ep rdma.Endpoint, term uint64, shard int, at uint64) (kind uint8, data []byte, err error) {
	if blocks := s.space.blocks(at); blocks != nil {
		var whole rowan.Entry
		err = s.table.Assemble(ep, blocks, &whole)
		kind, data = whole.Kind, whole.Data
	} else if p, e := s.readBlock(ep, at); e == nil {
		kind, _ = rowan.Head(p)
		data = p[rowan.HeaderBytes:]
	} else {
		err = e
	}
	if errors.Is(err, rowan.ErrDamaged) {
		s.damage.note(term, shard, at)
	}
	return kind, data, err
}

// readBlock reads the first block of an entry and verifies it. The caller owns it. The error wraps
// rowan.ErrDamaged when the block is damaged.
func (s *state) readBlock(ep rdma.Endpoint, at uint64) (block []byte, err error) {
	p, err := rdma.ReadBytes(ep, "read head", s.at(at), rowan.HeaderBytes, patience)
	if err != nil {
		return nil, err
	}
	n, ok := s.table.Verify(s.at(at), p)
	if !ok && n > 0 && n <= s.o.message() {
		if p, err = rdma.ReadBytes(ep, "read entry", s.at(at), n, patience); err != nil {
			return nil, err
		}
		n, ok = s.table.Verify(s.at(at), p)
	}
	if !ok {
		return nil, rowan.ErrDamaged
	}
	return p[:n], nil
}

// place is where a log of the server goes on after a restart.
type place struct {
	rowan.Segment
	// The address behind its last entry.
	behind rdma.Addr
}

// log returns the log of an owner. It goes on where the log of an earlier server ended.
func (s *state) log(ep rdma.Endpoint, owner rowan.Owner) *rowan.Log {
	if p, ok := s.resumed[owner]; ok {
		return s.table.Resume(ep, p.Segment, p.behind)
	}
	return s.table.Log(ep, owner)
}

// named returns the addresses of the blocks of the entries that the server's index names for a key,
// if it serves the key's shard. Tests use it to damage them.
func (s *state) named(key []byte) (all []rdma.Addr) {
	t, hash := s.known.adopted(), Hash(key)
	if t == nil || !t.leads(t.Find(hash)) {
		return nil
	}
	sh := s.shards[t.Find(hash)]
	x := sh.has()
	if x == nil || !sh.serving() {
		return nil
	}
	for _, at := range x.Lookup(hash, nil) {
		if blocks := s.space.blocks(at); blocks != nil {
			all = append(all, blocks...)
		} else {
			all = append(all, s.at(at))
		}
	}
	return all
}
