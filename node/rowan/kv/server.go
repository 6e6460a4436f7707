package kv

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// Server is the one beside a node. Its tasks share it.
type Server struct {
	o       Options
	node    int
	configs rdma.Configs
	known   known
	table   *rowan.Table
	shards  []*shard // by number
	space   *space
	shared  []*rowan.Remote // by node, with Share
	quiet   quiet

	stopped atomic.Bool // tasks end
	quits   atomic.Bool // Stop was called

	mu       sync.Mutex
	err      error
	tasks    int         // that have not ended
	saw      []uint64    // by worker, the exchanger last: the term before which nothing is under way
	turned   []uint64    // by worker: the committed term before which it takes nothing from others any more
	gift     *gift       // for the exchanger; nil: it has taken the last one
	digests  []cm.Digest // of the server's replicas in the term digested, once replicas are compared
	digested uint64

	damaged   []cm.Damage // one for each shard in which a task met damage, in a term
	damagedIn uint64

	resumed     map[rowan.Owner]place // where own logs go on that an earlier server left
	resumedTerm *term                 // with RPC, the last one of the earlier server; nil: there was none
}

// Readers are numbered: the workers, the task that receives, the exchanger, the cleaners.
func (o Options) receiver() int { return o.Workers }

func (o Options) exchanger() int { return o.Workers + 1 }

func (o Options) cleaner(number int) int { return o.Workers + 2 + number }

// Open returns the server beside a node. It serves by the configurations that the registers come to
// have, from when it is a member. In memory that an earlier server left it goes on from that: see
// recover. The worker runs beside the node.
func Open(ep rdma.Endpoint, configs rdma.Configs, o Options, node int) (*Server, error) {
	o = o.WithDefaults()
	p, err := rdma.Rings(ep)
	if err == nil {
		err = o.check(p)
	}
	if err != nil {
		return nil, err
	}
	s := &Server{
		o: o, node: node, configs: configs, shards: make([]*shard, o.Shards), space: newSpace(o.Log.Segments),
		quiet: quiet{passed: make([]atomic.Uint64, o.cleaner(o.Cleaners))}, saw: make([]uint64, o.Workers+1),
		turned:  make([]uint64, o.Workers),
		resumed: map[rowan.Owner]place{},
	}
	for i := range s.shards {
		s.shards[i] = &shard{number: i}
	}
	s.table, err = rowan.OpenTable(s.member(ep), o.log(node))
	if err != nil {
		return nil, fmt.Errorf("open server %d: %w", node, err)
	}
	for other := range s.o.Nodes {
		if o.Kind == Share {
			s.shared = append(s.shared, s.newRemote(other, node))
		}
	}
	return s, nil
}

// Run serves until Stop, or until a task fails. Then it tells the manager why before it returns:
// see control.part. The worker is the task that receives; others are started beside it.
func (s *Server) Run(ep rdma.Endpoint) error {
	ep = s.member(ep)
	s.end("receiver", s.receive(ep))
	for !s.ended() {
		ep.Sleep(s.o.StepEvery)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// startOthers starts all tasks but the one that receives.
func (s *Server) startOthers(ep rdma.Endpoint) {
	for w := range s.o.Workers {
		s.start(ep, fmt.Sprintf("worker %d", w), func(ep rdma.Endpoint) error { return s.work(ep, w) })
	}
	for c := range s.o.Cleaners {
		s.start(ep, fmt.Sprintf("cleaner %d", c), func(ep rdma.Endpoint) error { return s.clean(ep, c) })
	}
	s.start(ep, "exchanger", s.exchange)
}

// start starts a task.
func (s *Server) start(ep rdma.Endpoint, name string, f func(rdma.Endpoint) error) {
	s.mu.Lock()
	s.tasks++
	s.mu.Unlock()
	err := ep.Go(fmt.Sprintf("server %d: %s", s.node, name), func(ep rdma.Endpoint) {
		err := f(ep)
		s.end(name, err)
		s.mu.Lock()
		s.tasks--
		s.mu.Unlock()
	})
	if err != nil {
		s.end(name, err)
		s.mu.Lock()
		s.tasks--
		s.mu.Unlock()
	}
}

// end notes the end of a task: the others end, too.
func (s *Server) end(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped.Store(true)
	if err != nil {
		s.err = errors.Join(s.err, fmt.Errorf("%s of server %d: %w", name, s.node, err))
	}
}

func (s *Server) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tasks == 0
}

// Stop ends the server. Requests in progress get no answer. Run returns soon.
func (s *Server) Stop() {
	s.quits.Store(true)
	s.end("", nil)
}

// failed returns why the server has ended by itself; nil: it has not.
func (s *Server) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *Server) stopping() bool { return s.stopped.Load() }

// at returns the address of an entry at an offset in the node's memory.
func (s *Server) at(offset uint64) rdma.Addr { return rdma.At(s.node, offset) }

// segment returns in which segment an offset is.
func (s *Server) segment(offset uint64) int { return s.table.At(s.at(offset)) }

// readHeads adds READs of the beginnings of entries to a batch, up to the end of keys of a length.
func (s *Server) readHeads(b *rdma.Batch, offsets []uint64, key int) {
	for _, at := range offsets {
		b.Read(s.at(at), int(min(uint64(headBytes+key), s.table.End(s.at(at)).Offset()-at)))
	}
}

// isFull reports whether there is no room for another shard: for one of twice as many bytes as
// those that there are, beside what is kept free.
func (s *Server) isFull() bool {
	stats := s.Stats()
	shard := 2 * stats.Live / int64(max(1, stats.Primaries+stats.Backups))
	return int64(stats.Free-s.o.Log.Own)*int64(s.table.SegmentBytes()) <= shard
}

// Ready reports whether the server serves the shards of which it is the primary, in a term that is
// committed. It may be called by another goroutine.
func (s *Server) Ready() bool {
	t := s.known.last()
	if t == nil || !t.Committed {
		return false
	}
	for i, sh := range s.shards {
		if t.leads(i) && (!sh.serving() || t.Compare) {
			return false
		}
	}
	return true
}

// Stats are what a server has done, and has.
type Stats struct {
	Free    int    // segments that are
	Taken   uint64 // uses of segments so far
	Cleaned uint64 // segments from which cleaners moved what was live
	Moved   uint64 // entries that they moved
	Dropped uint64 // tombstones, so far
	Tombs   int    // tombstones that there are
	Items   int    // that indexes have: keys, and tombstones
	Live    int64  // bytes of entries that indexes name, as they lie in segments
	// Primaries are the shards that the server serves, Backups the others of which it is a replica.
	// Lag is how many versions it has given as a primary that are not committed.
	Primaries, Backups int
	Lag                uint64
}

// Stats returns what the server has done, and has.
func (s *Server) Stats() Stats {
	stats := Stats{Free: s.table.Free(), Taken: s.table.Pushes()}
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	stats.Cleaned, stats.Moved, stats.Dropped = s.space.cleaned, s.space.moved, s.space.dropped
	for i, n := range s.space.live {
		stats.Live += n
		stats.Tombs += s.space.tombs[i]
	}
	for _, sh := range s.shards {
		sh.mu.Lock()
		if sh.index != nil {
			stats.Items += sh.index.Len()
			if sh.serves {
				stats.Primaries++
				stats.Lag += sh.version - sh.commit
			} else {
				stats.Backups++
			}
		}
		sh.mu.Unlock()
	}
	return stats
}
