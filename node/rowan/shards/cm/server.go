package cm

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/shards"
)

// lookEvery is how often a server that waits for a commit looks for it by itself: the manager tells
// it as a rule.
const lookEvery = 2 * time.Millisecond

// Store is the part of a server that has the shards.
type Store interface {
	// Adopt is told each configuration that the server gets to know, in order: one that is not
	// committed, and the same again when it is. From when it is called nothing is begun in an earlier
	// term. The store has noted the term durably when it returns nil. On an error it is told again.
	Adopt(c *shards.Config) error
	// Quiet reports whether nothing is under way any more in terms before the last one that was
	// adopted: what reads has read, and what writes was answered or given up.
	Quiet() bool
	// Report returns what there is to tell in the term that was adopted, which is committed.
	Report() Report
}

// Server is a server's end, for its control task.
type Server struct {
	ep     rdma.Endpoint
	f      rdma.Configs
	node   int
	store  Store
	c      *shards.Config // nil: it knows none yet
	last   uint64         // the last term of an earlier server beside the node, which adopts none up to it; 0: none
	busy   bool           // it adopts none for now
	told   uint64
	epoch  uint64        // of the view that it has joined
	lookAt time.Duration // when it looks for a commit
	held   *rpc.Request  // that is not answered, as something is under way
	digest int           // that is told next, where an answer has no room for all
	ended  string        // why; "": the server goes on
}

// NewServer returns the end of the server beside a node. It uses the endpoint of the peer whose
// requests it handles, by which it joins views.
func NewServer(ep rdma.Endpoint, f rdma.Configs, node int, store Store) *Server {
	return &Server{ep: ep, f: f, node: node, store: store}
}

// Restart says that an earlier server beside the node was a member, and that term the last one it
// has noted. What that one had in DRAM is gone. So nothing is adopted up to that term: the manager
// is told, which begins another. Until Recovered nothing is adopted at all.
func (s *Server) Restart(term uint64) { s.last, s.busy = term, true }

// Recovered says that the store has what the earlier server left.
func (s *Server) Recovered() { s.busy = false }

// End says that the server has ended by itself, and why. Nothing is adopted from then on, and each
// question is answered by that.
func (s *Server) End(why error) { s.ended = why.Error() }

// Config returns the last configuration that the server knows; nil: none.
func (s *Server) Config() *shards.Config { return s.c }

// Epoch returns that of the last view of the manager that the server has joined.
func (s *Server) Epoch() uint64 { return s.epoch }

// Serves returns the term in which the server may serve a shard; false: it may not. What was read,
// or is to be answered, counts only if the term is the same behind the read.
func (s *Server) Serves(shard int) (term uint64, ok bool) {
	if s.c == nil || !s.c.Committed || s.c.Compare || s.c.Shards[shard].Primary != s.node {
		return 0, false
	}
	return s.c.Term, true
}

// Told says that there is a term: a client has it from the registers.
func (s *Server) Told(term uint64) { s.told = max(s.told, term) }

// Handle takes a request of procedure Ask. It is answered then, or in a Step.
func (s *Server) Handle(r *rpc.Request) error {
	q, ok := decodeQuestion(r.Body)
	if !ok {
		r.Drop()
		return nil
	}
	if s.held != nil { // the manager asks again
		s.held.Drop()
	}
	s.held = r
	err := s.join(q.epoch)
	if s.ended != "" {
		return errors.Join(err, s.answer())
	}
	if s.c == nil || q.term > s.c.Term || q.term == s.c.Term && q.committed && !s.c.Committed {
		err = errors.Join(err, s.look())
	}
	return errors.Join(err, s.answer())
}

// join joins the manager's view, unless the server has: in an earlier one nothing that it sends
// arrives.
func (s *Server) join(epoch uint64) error {
	if epoch <= s.epoch {
		return nil
	}
	v, err := s.ep.Join()
	if err != nil {
		return fmt.Errorf("server %d: %w", s.node, err)
	}
	s.epoch = v.Epoch
	return nil
}

// Step goes on. It is to be called at least every few milliseconds.
func (s *Server) Step() error {
	waits := s.c != nil && !s.c.Committed && s.ep.Now() >= s.lookAt
	var err error
	if waits || s.told > s.term() {
		err = s.look()
	}
	return errors.Join(err, s.answer())
}

func (s *Server) term() uint64 {
	if s.c == nil {
		return s.last
	}
	return s.c.Term
}

// look reads the registers.
func (s *Server) look() error {
	s.lookAt = s.ep.Now() + lookEvery
	at, err := s.f.Config()
	if err != nil {
		return fmt.Errorf("server %d reads the configuration: %w", s.node, err)
	}
	if at.Version == 0 || s.busy {
		return nil
	}
	c, err := shards.Decode(at.Data)
	if err != nil {
		return fmt.Errorf("server %d: version %d: %w", s.node, at.Version, err)
	}
	s.told = min(s.told, c.Term) // there is none beyond
	if c.Term < s.term() || c.Term == s.term() && (s.c == nil || s.c.Committed || !c.Committed) {
		return nil
	}
	if err := s.store.Adopt(c); err != nil {
		return fmt.Errorf("server %d adopts term %d: %w", s.node, c.Term, err)
	}
	s.c = c
	return nil
}

// answer answers the manager once it can.
func (s *Server) answer() error {
	if s.held != nil && s.ended != "" {
		return s.send(&answer{term: s.term(), ended: s.ended})
	}
	if s.held == nil || s.c == nil && s.last == 0 || s.c != nil && !s.store.Quiet() {
		return nil
	}
	a := answer{term: s.term(), restarted: s.c == nil}
	if s.c != nil && s.c.Committed && s.c.Member(s.node) != nil {
		a.Report = s.store.Report()
		a.Digests = s.someOf(a.Digests)
	}
	return s.send(&a)
}

func (s *Server) send(a *answer) error {
	r := s.held
	s.held = nil
	if err := r.Answer(0, a.encode()); err != nil {
		return fmt.Errorf("server %d answers the manager: %w", s.node, err)
	}
	return nil
}

// someOf returns as many digests as an answer has room for, in each answer those behind the ones in
// the last.
func (s *Server) someOf(all []Digest) []Digest {
	if len(all) <= maxLoads {
		return all
	}
	from := s.digest % len(all)
	some := all[from:min(from+maxLoads, len(all))]
	s.digest = from + len(some)
	return some
}
