package cm

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/shards"
)

// lookEvery is how often a server that waits for a commit reads the registers by itself. Usually
// the manager tells it earlier.
const lookEvery = 2 * time.Millisecond

// Store is the part of a server that has the shards. Its methods are called by the server's control
// task.
type Store interface {
	// Adopt is called with each configuration that the server learns of, in order of their terms:
	// with one that is not committed, and again with the same when it is committed. Once it is
	// called nothing new begins in an earlier term. When it returns nil the store has noted the
	// term durably. After an error it is called again.
	Adopt(c *shards.Config) error
	// Quiet reports whether nothing is under way any more in terms before the last one that was
	// adopted: each read has ended, and each write was answered or given up.
	Quiet() bool
	// Report returns what there is to report in the last adopted term, which is committed.
	Report() Report
}

// Server is a server's end of the protocol. It belongs to the server's control task.
type Server struct {
	ep    rdma.Endpoint
	f     rdma.Configs
	node  int
	store Store
	// The last configuration that was adopted; nil: none.
	c *shards.Config
	// The last term of an earlier server beside the node; no term up to it is adopted. 0: there was
	// none.
	last uint64
	// The store is recovering, so nothing is adopted.
	busy bool
	// The highest term that clients have told. It may be beyond the registers' until they are read.
	told uint64
	// The epoch of the view that the server has joined.
	epoch uint64
	// When it reads the registers next while it waits for a commit.
	lookAt time.Duration
	// A question that is not answered, because something is under way; nil: none. It keeps a buffer
	// of the mailbox.
	held *rpc.Request
	// The digest to be reported next, if an answer has no room for all of them.
	digest int
	// Why the server has ended by itself; "": it has not.
	ended string
}

// NewServer returns the end of the server beside a node. ep is the endpoint of the peer of which
// Handle gets the requests: the server joins views with it.
func NewServer(ep rdma.Endpoint, f rdma.Configs, node int, store Store) *Server {
	return &Server{ep: ep, f: f, node: node, store: store}
}

// Restart says that an earlier server beside the node was a member, and that term is the last one
// that it noted. What it had in DRAM is lost. So no term up to that one is adopted; the manager is
// told so, and begins another. Nothing at all is adopted before Recovered.
func (s *Server) Restart(term uint64) { s.last, s.busy = term, true }

// Recovered says that the store has all that the earlier server left.
func (s *Server) Recovered() { s.busy = false }

// End says that the server has ended by itself, and why. From then on nothing is adopted, and each
// question is answered with that reason.
func (s *Server) End(why error) { s.ended = why.Error() }

// Config returns the last configuration that was adopted; nil: none.
func (s *Server) Config() *shards.Config { return s.c }

// Epoch returns the epoch of the last of the manager's views that the server has joined.
func (s *Server) Epoch() uint64 { return s.epoch }

// Serves returns the term in which the server may serve a shard; false: it may not. The caller
// calls it again after it has read, and counts the read only if the term is still the same.
func (s *Server) Serves(shard int) (term uint64, ok bool) {
	if s.c == nil || !s.c.Committed || s.c.Compare || s.c.Shards[shard].Primary != s.node {
		return 0, false
	}
	return s.c.Term, true
}

// Told notes a term that a client has read from the registers.
func (s *Server) Told(term uint64) { s.told = max(s.told, term) }

// Handle takes a request of procedure Ask. The request is answered at once, or in a later Step:
// then the server holds it. A newer question replaces one that is held.
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
	// In any case the answer must be sent in the manager's view.
	err := s.join(q.epoch)
	if s.ended != "" {
		return errors.Join(err, s.answer())
	}
	if s.c == nil || q.term > s.c.Term || q.term == s.c.Term && q.committed && !s.c.Committed {
		err = errors.Join(err, s.look())
	}
	return errors.Join(err, s.answer())
}

// join joins the manager's view, unless the server has joined it already. What it sends in an
// earlier view does not arrive.
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

// Step continues: it reads the registers if that is due, and answers a question that is held. It
// must be called at least every few milliseconds.
func (s *Server) Step() error {
	waits := s.c != nil && !s.c.Committed && s.ep.Now() >= s.lookAt
	var err error
	if waits || s.told > s.term() {
		err = s.look()
	}
	return errors.Join(err, s.answer())
}

// term returns the last term that was adopted, or that of the earlier server.
func (s *Server) term() uint64 {
	if s.c == nil {
		return s.last
	}
	return s.c.Term
}

// look reads the registers, and adopts their configuration if it is newer: a higher term, or the
// same one committed. Nothing is adopted while the store recovers. If the store fails to adopt it
// the configuration stays unknown, and the next look tries again.
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
	s.told = min(s.told, c.Term) // no higher term exists
	// The registers may be those of a master that is slow to learn, or the same as before.
	if c.Term < s.term() || c.Term == s.term() && (s.c == nil || s.c.Committed || !c.Committed) {
		return nil
	}
	if err := s.store.Adopt(c); err != nil {
		return fmt.Errorf("server %d adopts term %d: %w", s.node, c.Term, err)
	}
	s.c = c
	return nil
}

// answer answers a question that is held, if it can: the server has ended, or nothing of earlier
// terms is under way. Reports are added only in a committed term in which the server is a member.
func (s *Server) answer() error {
	if s.held != nil && s.ended != "" {
		return s.send(&answer{term: s.term(), ended: s.ended})
	}
	if s.held == nil || s.c == nil && s.last == 0 || s.c != nil && !s.store.Quiet() {
		return nil
	}
	a := answer{term: s.term(), restarted: s.c == nil}
	// Before a term is committed there is nothing to report in it.
	if s.c != nil && s.c.Committed && s.c.Member(s.node) != nil {
		a.Report = s.store.Report()
		a.Digests = s.someOf(a.Digests)
	}
	return s.send(&a)
}

// send ends the held question, also if the answer cannot be sent: the manager asks again in its
// next tick.
func (s *Server) send(a *answer) error {
	r := s.held
	s.held = nil
	if err := r.Answer(0, a.encode()); err != nil {
		return fmt.Errorf("server %d answers the manager: %w", s.node, err)
	}
	return nil
}

// someOf returns as many digests as an answer has room for. Successive answers report them in turn,
// so that the manager has all after as many answers as there are pieces: it compares none before
// it has those of all complete replicas.
func (s *Server) someOf(all []Digest) []Digest {
	if len(all) <= maxDigests {
		return all
	}
	from := s.digest % len(all)
	some := all[from:min(from+maxDigests, len(all))]
	s.digest = from + len(some)
	return some
}
