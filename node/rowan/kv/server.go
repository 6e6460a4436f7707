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

// Server is the Rowan-KV server beside one memory node. Its tasks share it: the receiver (control),
// workers, cleaners, and the exchanger.
type Server struct {
	o       Options
	node    int
	configs rdma.Configs
	// Terms and views, read for each request.
	known known
	table *rowan.Table
	// By number, also those that the server does not have.
	shards []*shard
	// What is live in the node's segments.
	space *space
	// By node, with Share: the remote logs that this server's workers share.
	shared []*rowan.Remote
	// When cleaned segments may be freed.
	quiet quiet

	// Tasks end: Stop was called, or a task has failed.
	stopped atomic.Bool
	// Stop was called.
	quits atomic.Bool

	// mu guards the fields below. It is held over no wait.
	mu sync.Mutex
	// Why tasks have failed.
	err error
	// Tasks that have not ended, beside the receiver.
	tasks int
	// By worker, with the exchanger last: the term before which the task has nothing under way.
	saw []uint64
	// By worker, with RPC: the committed term before which it accepts nothing from other servers.
	turned []uint64
	// What control has for the exchanger; nil: the exchanger has taken it.
	gift *gift
	// Digests of the server's replicas in the term digested, once they are known.
	digests  []cm.Digest
	digested uint64

	// One entry for each shard in which a task met damage in the term damagedIn.
	damaged   []cm.Damage
	damagedIn uint64

	// Where own logs go on that an earlier server left. It is set before tasks start.
	resumed map[rowan.Owner]place
	// With RPC, the last term of the earlier server; nil: there was none.
	resumedTerm *term
}

// Readers of entries are numbered, for quiet: the workers, the receiver, the exchanger, the
// cleaners.
func (o Options) receiver() int { return o.Workers }

func (o Options) exchanger() int { return o.Workers + 1 }

func (o Options) cleaner(number int) int { return o.Workers + 2 + number }

// Open returns the server beside a node. It does nothing before Run. It serves by the
// configurations in the registers, from when it is a member. If an earlier server has left
// something in its memory it goes on from that: see recover. The worker runs beside the node.
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

// Run serves until Stop, or until a task fails. In that case it tells the manager why before it
// returns: see control.part. The caller's task is the receiver; Run starts the others beside it,
// and returns when all have ended.
func (s *Server) Run(ep rdma.Endpoint) error {
	ep = s.member(ep)
	s.end("receiver", s.receive(ep))
	// The other tasks find out that the server stops.
	for !s.ended() {
		ep.Sleep(s.o.StepEvery)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// startOthers starts all tasks but the receiver.
func (s *Server) startOthers(ep rdma.Endpoint) {
	for w := range s.o.Workers {
		s.start(ep, fmt.Sprintf("worker %d", w), func(ep rdma.Endpoint) error { return s.work(ep, w) })
	}
	for c := range s.o.Cleaners {
		s.start(ep, fmt.Sprintf("cleaner %d", c), func(ep rdma.Endpoint) error { return s.clean(ep, c) })
	}
	s.start(ep, "exchanger", s.exchange)
}

// start starts a task. If it fails, the whole server ends.
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

// end notes the end of a task, and with which error; the other tasks end, too.
func (s *Server) end(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped.Store(true)
	if err != nil {
		s.err = errors.Join(s.err, fmt.Errorf("%s of server %d: %w", name, s.node, err))
	}
}

// ended reports whether all tasks but the receiver have ended.
func (s *Server) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tasks == 0
}

// Stop ends the server. Requests in progress get no answer, so their outcome is unknown to the
// clients. Any goroutine may call it.
func (s *Server) Stop() {
	s.quits.Store(true)
	s.end("", nil)
}

// failed returns why the server has ended by itself; nil: it has not failed.
func (s *Server) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// stopping reports whether tasks should end.
func (s *Server) stopping() bool { return s.stopped.Load() }

// at returns the address of an entry at an offset in the node's memory.
func (s *Server) at(offset uint64) rdma.Addr { return rdma.At(s.node, offset) }

// segment returns the index of the segment that contains an offset.
func (s *Server) segment(offset uint64) int { return s.table.At(s.at(offset)) }

// readHeads adds READs of the beginnings of entries to a batch: headers, and keys up to a length.
func (s *Server) readHeads(b *rdma.Batch, offsets []uint64, key int) {
	for _, at := range offsets {
		b.Read(s.at(at), int(min(uint64(headBytes+key), s.table.End(s.at(at)).Offset()-at)))
	}
}

// isFull reports whether the server has no room for another shard, beside the segments that are
// kept free. It reckons with a shard of twice the average size.
func (s *Server) isFull() bool {
	stats := s.Stats()
	shard := 2 * stats.Live / int64(max(1, stats.Primaries+stats.Backups))
	return int64(stats.Free-s.o.Log.Own)*int64(s.table.SegmentBytes()) <= shard
}

// Ready reports whether the server serves all shards of which it is the primary, in a committed
// term. Any goroutine may call it.
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

// Stats are counts of a server. Those of work done count from its start.
type Stats struct {
	Free    int    // free segments
	Taken   uint64 // uses of segments so far, over all servers of the node
	Cleaned uint64 // segments of which cleaners moved the live entries
	Moved   uint64 // entries that they moved
	Dropped uint64 // tombstones that were dropped
	Tombs   int    // tombstones that indexes name
	Items   int    // items of indexes: keys and tombstones
	Live    int64  // bytes of segments that entries take which indexes name
	// Primaries is the number of shards that the server serves, and Backups the number of others of
	// which it is a replica. Lag is how many versions it has given as a primary that are not
	// committed.
	Primaries, Backups int
	Lag                uint64
}

// Stats returns the server's counts. Those of different shards are not of one instant.
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
