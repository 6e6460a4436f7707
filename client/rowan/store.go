package rowan

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/telemetry"
)

// Options parameterize a client. Zero values mean defaults.
type Options struct {
	// Servers are the options of the pool's servers.
	Servers kv.Options
	// Timeout bounds an operation; 1 s by default. Ask is how long a client waits for an answer
	// before it repeats a GET, twice as long each time, or checks whether the server is gone; by
	// default a tenth of Timeout, and at most 100 ms.
	Timeout, Ask time.Duration
}

// Configs is where a client reads the configuration. It is a part of rdma.Configs.
type Configs interface {
	Config() (rdma.Config, error)
}

// Store is one worker's view of a pool. It belongs to its worker and is not safe for concurrent
// use.
type Store struct {
	// Its endpoint, which nothing else uses. The Store joins new views itself.
	ep      rdma.Endpoint
	o       Options
	configs Configs
	// The configuration that requests are sent by. It may be outdated; then servers refuse them.
	// It is replaced as a whole, and never changed.
	config *shards.Config
	// The mailbox to which answers come. At most one call is in flight that is waited for; answers
	// to calls that were given up are dropped.
	peer *rpc.Peer
	// The last GET, which holds the value that Get returned; nil: none.
	last *rpc.Call
	// What an answer says of damage refers to it, and so does the choice to wait for another
	// replica.
	asked lastAsk
	// The number of the last GET: GETs go to a server's workers in turn.
	turn   uint
	counts counts
	// The request that is built.
	// It belongs to the Store, and is used again for each request.
	body []byte
}

// lastAsk is what was asked last: which server, for which shard, in which term.
type lastAsk struct {
	server, shard int
	term          uint64
}

var (
	_ client.Store     = (*Store)(nil)
	_ client.Countable = (*Store)(nil)
)

// counts are the counters for telemetry.
type counts struct{ again, configs, uncertain uint64 }

// Counts implements client.Countable.
func (s *Store) Counts(to []telemetry.Counter) []telemetry.Counter {
	return append(to,
		telemetry.Counter{Name: "requests sent again", Count: s.counts.again},
		telemetry.Counter{Name: "configurations read again", Count: s.counts.configs},
		telemetry.Counter{Name: "outcomes unknown", Count: s.counts.uncertain})
}

// Pauses between two attempts of an operation. They double up to a millisecond, or up to a
// two-hundredth of the timeout if that is longer: many clients wait for servers that take over, and
// each reads the registers in between.
const (
	firstPause = 20 * time.Microsecond
	mostPause  = time.Millisecond
	mostTries  = 200
)

// New returns a client of a pool. It needs the configuration, and opens a mailbox.
func New(ep rdma.Endpoint, configs Configs, o Options) (*Store, error) {
	o.Timeout = cmp.Or(o.Timeout, time.Second)
	o.Ask = cmp.Or(o.Ask, min(o.Timeout/10, 100*time.Millisecond))
	o.Servers = o.Servers.WithDefaults()
	s := &Store{ep: ep, o: o, configs: configs, turn: uint(ep.Client())}
	// Without a configuration the client knows no server.
	if err := s.configure(); err != nil {
		return nil, err
	}
	// One request is in flight at a time; the other slots are for late answers.
	// Answers come by way of the nodes of the servers, so the mailbox is at all of them.
	box := rdma.BoxOptions{Node: rdma.All, Slots: 4, Bytes: o.Servers.MessageBytes()}
	for { // once more for each new view
		// It may be ended by a view that begins, as any verb.
		peer, err := rpc.Open(ep, rpc.Options{Box: box})
		if err == nil {
			s.peer = peer
			return s, nil
		}
		if !errors.Is(err, rdma.ErrStale) {
			return nil, err
		}
		if _, err := ep.Join(); err != nil {
			return nil, err
		}
	}
}

// configure reads the configuration.
func (s *Store) configure() error {
	c, err := readConfig(s.configs)
	if err == nil {
		s.config = c
	}
	return err
}

// readConfig reads the configuration. The error wraps rdma.ErrUnreachable if there is none yet, and
// client.ErrDamaged if it cannot be decoded.
func readConfig(configs Configs) (*shards.Config, error) {
	// It may be uncommitted. Servers refuse requests in it until it is committed, and the client
	// asks again.
	at, err := configs.Config()
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if at.Version == 0 {
		// Make stores it ahead of the header, so this is a pool that is being made.
		return nil, fmt.Errorf("read the configuration: there is none yet: %w", rdma.ErrUnreachable)
	}
	c, err := shards.Decode(at.Data)
	if err != nil {
		return nil, fmt.Errorf("version %d of the configuration: %w: %w", at.Version, client.ErrDamaged, err)
	}
	return c, nil
}

// Get returns the value of key, valid until the next call on this Store, or an error wrapping
// client.ErrNotFound.
func (s *Store) Get(key []byte) ([]byte, error) {
	c, err := s.do("get", kv.ProcGet, key, nil)
	if err != nil {
		return nil, err
	}
	// The value aliases the call's buffer, which lives until drop.
	s.last = c
	return c.Body, nil
}

// Insert adds a key that is not there; otherwise the error wraps client.ErrExists.
func (s *Store) Insert(key, value []byte) error { return s.change("insert", kv.ProcInsert, key, value) }

// Update replaces the value of a key that is there; otherwise the error wraps client.ErrNotFound.
func (s *Store) Update(key, value []byte) error { return s.change("update", kv.ProcUpdate, key, value) }

// Delete removes a key that is there; otherwise the error wraps client.ErrNotFound.
func (s *Store) Delete(key []byte) error { return s.change("delete", kv.ProcDelete, key, nil) }

// change does a write, of which the answer has no body.
func (s *Store) change(name string, proc uint16, key, value []byte) error {
	c, err := s.do(name, proc, key, value)
	if err == nil {
		c.Release()
	}
	return err
}

// Close closes the mailbox. The value of the last GET becomes invalid.
func (s *Store) Close() error {
	// The value of the last GET is not valid any more.
	s.drop()
	return s.peer.Close()
}

// drop releases the last GET's value.
func (s *Store) drop() {
	if s.last != nil {
		s.last.Release()
		s.last = nil
	}
}

// do sends a request to the primary of the key's shard until it is answered or the time is over. If
// the server does not answer, or refuses the client's term, the configuration is read again. A
// write that may have been done is never repeated: its error wraps client.ErrUncertain. A GET is
// repeated. The caller releases the call.
func (s *Store) do(name string, proc uint16, key, value []byte) (*rpc.Call, error) {
	s.drop()
	// A server would refuse it, and it may not fit into a message.
	if err := s.o.Servers.Check(key, value); err != nil {
		o := &s.o.Servers
		return nil, fmt.Errorf("%s %.40q: %w: a key of %d bytes and a value of %d: at most %d, and %d together", name,
			key,
			client.ErrTooLarge, len(key), len(value), o.KeyBytes, o.PairBytes)
	}
	// It bounds all attempts together.
	until := s.ep.Now() + s.o.Timeout
	wait := s.o.Ask        // for the answer to a GET
	fullAt := rdma.Forever // when the pool is full, unless there is room by then
	var damaged error      // met in a term, and not superseded by another replica yet
	for pause := firstPause; ; pause = min(2*pause, max(mostPause, s.o.Timeout/mostTries)) {
		// A request is sent once here; only what was certainly not done, or a GET, is sent again.
		// The call owns the answer's buffer, which is released unless the caller gets it.
		c, err := s.ask(proc, key, value, until, wait)
		if err == nil {
			if err = s.verdict(c); err == nil {
				return c, nil
			}
			c.Release()
		}
		if errors.Is(err, client.ErrFull) {
			fullAt = min(fullAt, s.ep.Now()+s.o.Servers.FullAfter)
		}
		if errors.Is(err, rdma.ErrTimeout) {
			wait = min(2*wait, s.o.Timeout) // the answers may all be later than that
		}
		switch {
		case errors.Is(err, rpc.ErrUncertain) && proc != kv.ProcGet:
			// The server may have written some replicas, or all. The next term decides; the client
			// is never told.
			s.counts.uncertain++
			return nil, fmt.Errorf("%s %.40q: %w: %w", name, key, client.ErrUncertain, errors.Join(err, s.rejoin()))
		// The server cannot serve yet, so nothing was done. It is asked again after a pause.
		case errors.Is(err, errWait), errors.Is(err, client.ErrFull) && s.ep.Now() < fullAt:
		// Nothing can serve the key any more, so waiting is in vain.
		case errors.Is(err, client.ErrDamaged) && s.onlyReplica():
			return nil, fmt.Errorf("%s %.40q: %w", name, key, err)
		case errors.Is(err, client.ErrDamaged): // another replica serves the shard in a later term
			// The server has noted the damage, and its manager begins a term without the replica.
			damaged = err
			if err := s.rejoin(); err != nil {
				return nil, fmt.Errorf("%s %.40q: %w", name, key, err)
			}
		// There may be another configuration, by which another server has the shard.
		case errors.Is(err, errTerm), errors.Is(err, rpc.ErrUncertain), unreachable(err):
			if err := s.rejoin(); err != nil {
				return nil, fmt.Errorf("%s %.40q: %w", name, key, err)
			}
		default:
			return nil, fmt.Errorf("%s %.40q: %w", name, key, err)
		}
		// Nothing is in flight: each attempt has ended.
		if s.ep.Now() >= until { // the last answer may have had no time
			return nil, fmt.Errorf("%s %.40q: given up: %w: %w", name, key, rdma.ErrTimeout, cmp.Or(damaged, err))
		}
		// The pause gives servers time to take over, and registers time to be written.
		s.counts.again++
		s.ep.Sleep(pause)
	}
}

// onlyReplica reports whether the server that was asked has the only complete replica in the
// current configuration. Then no other replica can replace the damaged one.
func (s *Store) onlyReplica() bool {
	// Replicas that copy are not complete, and cannot take over.
	others := func(n int) bool { return n != s.asked.server }
	return s.config.Term == s.asked.term && !slices.ContainsFunc(s.config.Shards[s.asked.shard].Complete(), others)
}

// unreachable reports whether the request was not delivered, so that nothing was done. Another
// server may serve the shard by now.
func unreachable(err error) bool {
	return errors.Is(err, rdma.ErrTimeout) || errors.Is(err, rdma.ErrNoBox) || errors.Is(err, rdma.ErrStale) ||
		errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrUnreachable)
}

// rejoin joins the pool's view and reads the configuration. That they cannot be had now is no
// error: the caller tries again.
func (s *Store) rejoin() error {
	s.counts.configs++
	// A verb of an earlier view may have been ended. The client begins anew in the view there is.
	_, err := s.ep.Join()
	if err == nil {
		err = s.configure()
	}
	if err != nil && unreachable(err) {
		return nil
	}
	return err
}

// ask makes one attempt, of a GET for some time at most. The caller releases the call.
func (s *Store) ask(proc uint16, key, value []byte, until, wait time.Duration) (*rpc.Call, error) {
	// The upper half chooses the shard, and the lower half the worker.
	hash := kv.Hash(key)
	shard := s.config.Find(hash)
	// Only the primary answers: the indexes of backups lack what is not digested.
	primary := s.config.Shards[shard].Primary
	// What the answer says of damage refers to it.
	s.asked = lastAsk{primary, shard, s.config.Term}
	// All replicas of the shard died.
	if primary == shards.None {
		return nil, fmt.Errorf("shard %d is lost: %w", shard, client.ErrDamaged)
	}
	// A write waits for all of it: it cannot be sent again.
	within := until - s.ep.Now()
	if proc == kv.ProcGet {
		// A GET may be repeated at another worker, so it does not wait for all of the time.
		// The answer to an attempt that was given up is dropped, if it comes.
		within = min(within, wait)
		s.turn++
	}
	// The server refuses another term, so the request is done by the configuration that it was sent
	// by, or not at all.
	r := kv.Request{Term: s.config.Term, Key: key, Value: value}
	// Start copies it.
	s.body = r.Append(s.body[:0])
	c, err := s.peer.Start(s.o.Servers.BoxOf(primary, proc, hash, s.turn), proc, within, s.body)
	if err != nil {
		return nil, err
	}
	// The call is given up; a late answer to it is dropped by the peer.
	if err := s.await(c, primary); err != nil {
		c.Release()
		return nil, err
	}
	return c, nil
}

// await waits for an answer. If a later term than the request's is committed the answer does not
// come any more: no member has anything of earlier terms under way then, and the server is no
// member, or was restarted.
func (s *Store) await(c *rpc.Call, server int) error {
	// configure may replace the configuration below.
	term, wait := s.config.Term, s.o.Ask
	for !c.Over() {
		// It returns whenever an answer arrives, to this call or to one that was given up.
		r, err := s.peer.Next(wait)
		switch {
		case r != nil: // clients serve nothing
			r.Drop()
		// A later term was seen, and nothing had come before that.
		case errors.Is(err, rdma.ErrTimeout) && wait == 0:
			return fmt.Errorf("server %d has not answered in term %d: %w", server, term, rpc.ErrUncertain)
		// The server may be gone, or be slow. The registers tell. What comes while they are read
		// still counts.
		case errors.Is(err, rdma.ErrTimeout):
			if err := s.configure(); err == nil && s.config.Committed && s.config.Term > term {
				wait = 0
			}
		// The endpoint is closed, or fenced off: whether the request arrived is not known.
		case err != nil:
			return fmt.Errorf("%w: %w", rpc.ErrUncertain, err)
		}
	}
	return c.Err
}

var (
	// Nothing was done in any of these cases. With errTerm and errWait the request is sent again.
	errTerm = errors.New("the server has another configuration")
	errWait = errors.New("the server waits for another one, or has too much to do")
	errBad  = errors.New("the server does not have the key, or the request is none")
)

// verdict returns the error that an answer stands for; nil: the operation was done.
func (s *Store) verdict(c *rpc.Call) error {
	switch c.Status {
	case kv.StatusOK:
		return nil
	case kv.StatusNotFound:
		return client.ErrNotFound
	case kv.StatusExists:
		return client.ErrExists
	// A log of a replica is full. DELs may have room when INSERTs and UPDATEs have none.
	case kv.StatusFull:
		return client.ErrFull
	case kv.StatusTooLarge:
		return client.ErrTooLarge
	case kv.StatusTerm:
		return errTerm
	case kv.StatusWait:
		return errWait
	// The body is the offset of the entry at the server's node.
	case kv.StatusDamaged:
		if len(c.Body) == 8 {
			return fmt.Errorf("entry of shard %d at %#x of server %d: %w", s.asked.shard,
				binary.LittleEndian.Uint64(c.Body),
				s.asked.server, client.ErrDamaged)
		}
	}
	return fmt.Errorf("status %d: %w", c.Status, errBad)
}

// MaxPair returns the greatest length of a key and its value together.
func (s *Store) MaxPair() int { return s.o.Servers.PairBytes }
