package kv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// term is one configuration as a server sees it. It is immutable: when the configuration is
// committed, that is another term value.
//
// The life of a term at a server, and what each step relies on:
//
//   - adopt: the term is noted durably. No worker begins anything in an earlier one, or serves.
//   - end: workers refuse writes without a version, and repeat those with one until they are on all
//     replicas that are members. A node that is no member is expelled: its log counts for nothing.
//   - quiet: workers and the exchanger have nothing of earlier terms under way. Then CommitVers are
//     published.
//   - commit: all members are quiet, and others are gone. Members serve the shards that they had.
//   - settle: what was appended in earlier terms is digested. Nothing of it is in flight any more.
//   - give: the exchanger sends what may not be on all replicas.
//   - lead: all members have given. The server serves the shards of which it is the primary.
//   - copy: exchangers copy shards to new replicas.
//   - lose: the indexes of shards that the server has lost are emptied.
//
// A server that crashes in any step counts as dead: the next term is without it, and begins with
// these steps again. A write of which no answer was sent may be on some replicas; after give it is
// on all of them or on none that lives.
type term struct {
	*shards.Config
	node int
	// By shard of which the server is the primary: the other servers to which a write goes; nil for
	// other shards.
	others [][]int
}

func newTerm(c *shards.Config, node int) *term {
	t := &term{Config: c, node: node, others: make([][]int, len(c.Shards))}
	for i := range c.Shards {
		if c.Shards[i].Primary == node {
			t.others[i] = t.otherReplicas(i)
		}
	}
	return t
}

// otherReplicas returns the other servers that have a replica of a shard, in any state.
func (t *term) otherReplicas(shard int) []int {
	others := []int{}
	for _, n := range t.Shards[shard].Replicas() {
		if n != t.node {
			others = append(others, n)
		}
	}
	return others
}

// leads reports whether the server is the primary of a shard in this term.
func (t *term) leads(shard int) bool { return t.Shards[shard].Primary == t.node }

// copiesTo returns the servers to which this one copies a shard. In a migration the source copies,
// which is complete; otherwise the primary does.
func (t *term) copiesTo(shard int) []int {
	switch s := &t.Shards[shard]; {
	case s.Source == t.node:
		return append(slices.Clone(s.Copying), s.Primary)
	case s.Source == shards.None && s.Primary == t.node:
		return s.Copying
	}
	return nil
}

// arriving reports whether a shard is migrating to the server.
func (t *term) arriving(shard int) bool {
	return t.leads(shard) && t.Shards[shard].Source != shards.None
}

// incomplete reports whether the server is a replica of a shard without having all of it yet.
func (t *term) incomplete(shard int) bool {
	return t.arriving(shard) || slices.Contains(t.Shards[shard].Copying, t.node)
}

// complete reports whether the server is a replica that has all of a shard.
func (t *term) complete(shard int) bool {
	return t != nil && t.Shards[shard].Has(t.node) && !t.incomplete(shard)
}

// differed reports whether the server has to begin a shard anew, because its replica was found to
// be damaged: it copies the shard now, and in the term before it was complete, or the target of a
// migration of which the source lives.
func (t *term) differed(before *term, shard int) bool {
	if before == nil || !t.incomplete(shard) {
		return false
	}
	// A replica that was incomplete before, and still is, goes on copying instead.
	return before.complete(shard) ||
		before.arriving(shard) && !t.arriving(shard) && t.Member(before.Shards[shard].Source) != nil
}

// takesPart reports whether the server is a member of this term, and the term is committed.
func (t *term) takesPart() bool { return t != nil && t.Committed && t.Member(t.node) != nil }

// stamps returns the highest stamp that an entry of an earlier term may have. All of these entries
// are at rest once the term is committed.
func (t *term) stamps() uint64 { return t.Term<<32 - 1 }

// gifts returns the highest stamp that an entry may have which an exchanger gives in this term.
// What it copies has higher ones.
func (t *term) gifts() uint64 { return t.Term<<32 | (1<<31 - 1) }

// known is what a server knows of terms and views. Its tasks read it for each request.
type known struct {
	// The last term that was adopted; nil: none.
	term atomic.Pointer[term]
	// The last term in which the server has all that others gave it.
	settled atomic.Uint64
	// Epoch of the last view.
	epoch atomic.Uint64

	mu sync.Mutex
	// The highest term that a client has sent.
	told uint64
}

func (k *known) last() *term { return k.term.Load() }

func (k *known) adopt(t *term) { k.term.Store(t) }

func (k *known) settle(term uint64) { k.settled.Store(term) }

func (k *known) isSettled(term uint64) bool { return k.settled.Load() == term }

// tell notes the term of a client. It may be newer than the server's; then control reads the
// registers.
func (k *known) tell(term uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = max(k.told, term)
}

func (k *known) highest() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.told
}

func (k *known) join(epoch uint64) { k.epoch.Store(epoch) }

func (k *known) view() uint64 { return k.epoch.Load() }

// seen notes that a task has nothing under way of terms before the given one.
func (s *Server) seen(task int, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saw[task] = max(s.saw[task], term)
}

// turns notes that a worker accepts nothing any more that other servers sent in terms before the
// given one, which is committed, and has nothing of it under way.
func (s *Server) turns(worker int, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turned[worker] = max(s.turned[worker], term)
}

// turnedTo reports whether all workers have reached a term in that sense. Only with RPC do workers
// accept anything from others.
func (s *Server) turnedTo(term uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.o.Kind != RPC || slices.Min(s.turned) >= term
}

// Adopt implements cm.Store. After it no worker begins anything in an earlier term, and none begins
// anything in this term before it is committed.
//
// The order matters. Marks of shards are durable before the term's word, and both are durable
// before the server says that it knows the term: an entry of the term can exist only behind them. A
// crash between the two leaves marks of a term in which nothing was done.
func (c *control) Adopt(config *shards.Config) error {
	s := c.s
	if len(config.Shards) != s.o.Shards {
		return fmt.Errorf("adopt a configuration of %d shards in a pool of %d: %w", len(config.Shards), s.o.Shards,
			rowan.ErrDamaged)
	}
	// The marks, and then the term, are durable before workers see the term.
	t, before := newTerm(config, s.node), s.known.last()
	if err := c.mark(t, before); err != nil {
		return fmt.Errorf("note which shards there are in term %d: %w", t.Term, err)
	}
	if t.Member(s.node) != nil {
		if err := c.write("note the term", s.o.termAt(s.node), seal(t.Term)); err != nil {
			return fmt.Errorf("note term %d: %w", t.Term, err)
		}
	}
	for i, sh := range s.shards {
		if !t.leads(i) {
			sh.follow()
		}
		if t.differed(before, i) {
			sh.lose(t.Term)
		}
		if t.Shards[i].Has(s.node) {
			sh.gain(t.Term, s.o.Keys/s.o.Shards)
		} else {
			sh.lose(t.Term)
		}
	}
	c.adoptedAt = c.ep.Now()
	c.hear()
	s.known.adopt(t)
	return nil
}

// mark notes durably since which term the server has the shards that it gains, and clears the mark
// of those that it loses.
func (c *control) mark(t, before *term) error {
	b := c.ep.Batch()
	defer b.Release()
	for i, sh := range c.s.shards {
		switch has, had := t.Shards[i].Has(t.node), sh.has() != nil; {
		case has && (!had || t.differed(before, i)):
			b.WriteWord(c.s.o.sinceAt(t.node, i), seal(t.Term))
		case had && !has:
			b.WriteWord(c.s.o.sinceAt(t.node, i), 0)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	b.Read(c.s.o.sinceAt(t.node, 0), 8)
	return rdma.Do(c.ep, b.As("mark shards"), patience)
}

// adopted returns the last term that was adopted, if it is committed and the server is a member;
// otherwise nil.
func (s *Server) adopted() *term {
	if t := s.known.last(); t.takesPart() {
		return t
	}
	return nil
}

// write writes one word of the server's own, durably.
func (c *control) write(step rdma.Step, at rdma.Addr, word uint64) error {
	b := c.ep.Batch()
	defer b.Release()
	b.WriteWord(at, word)
	b.Read(at, 8)
	return rdma.Do(c.ep, b.As(step), patience)
}

// Quiet implements cm.Store. It reports whether no task has anything of earlier terms under way. It
// then publishes the CommitVers: these cover all that the server has written, so that a shard that
// stays with its primary needs no gift.
func (c *control) Quiet() bool {
	c.s.mu.Lock()
	for _, saw := range c.s.saw {
		if saw < c.s.known.last().Term {
			c.s.mu.Unlock()
			return false
		}
	}
	c.s.mu.Unlock()
	if err := c.tell(); err != nil {
		c.err = errors.Join(c.err, err)
		return false
	}
	return true
}

// Report implements cm.Store. It reports which shards the server has copied, as their primaries
// told it, and which have migrated to it, the loads of the shards that it serves, damage, and
// whether it is full. In a term in which replicas are compared it reports their digests and nothing
// else.
func (c *control) Report() (r cm.Report) {
	t := c.s.known.last()
	if t.Compare {
		r.Digests = c.s.digestsOf(t)
		return r
	}
	r.Full, r.Damaged = c.s.isFull(), c.s.damages(t.Term)
	words, err := rdma.ReadBytes(c.ep, "read copies", c.s.o.copiedAt(t.node, 0), 8*len(t.Shards), patience)
	if err != nil {
		c.err = errors.Join(c.err, err)
		return r
	}
	for i := range t.Shards {
		stamp := binary.LittleEndian.Uint64(words[8*i:])
		switch told := stamp>>32 == t.Term; {
		// Its primary has written the term there behind the last entry of the copy.
		case told && slices.Contains(t.Shards[i].Copying, t.node):
			r.Copied = append(r.Copied, i)
		// The source has written the stamp of the copy's last entry, which must be digested first.
		case told && t.arriving(i) && c.arrived(t, t.Shards[i].Source, stamp):
			r.Migrated = append(r.Migrated, i)
		}
		if c.s.shards[i].serving() {
			r.Loads = append(r.Loads, cm.Load{Shard: i, Load: c.s.shards[i].load()})
		}
	}
	return r
}

// arrived digests what a source has copied, up to a stamp, and reports whether the indexes name all
// of it now.
func (c *control) arrived(t *term, source int, stamp uint64) bool {
	if c.promoted != t.Term {
		return false
	}
	err := c.settle(func(s uint16) uint64 {
		if s == c.s.o.exchange(source) {
			return stamp
		}
		return t.stamps()
	})
	c.err = errors.Join(c.err, err)
	return err == nil
}
