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

// term is a configuration as a server knows it. It does not change: a committed one is another
// term.
type term struct {
	*shards.Config
	node   int
	others [][]int // by shard: where a write of it goes, too; nil of those of which the server is not the primary
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

// otherReplicas returns the other servers that have a shard.
func (t *term) otherReplicas(shard int) []int {
	others := []int{}
	for _, n := range t.Shards[shard].Replicas() {
		if n != t.node {
			others = append(others, n)
		}
	}
	return others
}

// leads reports whether the server is the primary of a shard.
func (t *term) leads(shard int) bool { return t.Shards[shard].Primary == t.node }

// copiesTo returns the servers to which this one copies a shard. The source of a migration does,
// which is complete, or the primary.
func (t *term) copiesTo(shard int) []int {
	switch s := &t.Shards[shard]; {
	case s.Source == t.node:
		return append(slices.Clone(s.Copying), s.Primary)
	case s.Source == shards.None && s.Primary == t.node:
		return s.Copying
	}
	return nil
}

// arriving reports whether a shard migrates to the server.
func (t *term) arriving(shard int) bool {
	return t.leads(shard) && t.Shards[shard].Source != shards.None
}

// incomplete reports whether the server is a replica of a shard that does not have all of it yet.
func (t *term) incomplete(shard int) bool {
	return t.arriving(shard) || slices.Contains(t.Shards[shard].Copying, t.node)
}

// complete reports whether the server has all of a shard.
func (t *term) complete(shard int) bool {
	return t != nil && t.Shards[shard].Has(t.node) && !t.incomplete(shard)
}

// differed reports whether the server copies a shard of which it was a complete replica in the term
// before, or to which it migrated, and its source lives: it was found to be damaged.
func (t *term) differed(before *term, shard int) bool {
	if before == nil || !t.incomplete(shard) {
		return false
	}
	return before.complete(shard) ||
		before.arriving(shard) && !t.arriving(shard) && t.Member(before.Shards[shard].Source) != nil
}

// takesPart reports whether the server is a member, and the term is committed.
func (t *term) takesPart() bool { return t != nil && t.Committed && t.Member(t.node) != nil }

// stamps is what no stamp of an entry exceeds that was appended in an earlier term. All of these
// are at rest once the term is committed.
func (t *term) stamps() uint64 { return t.Term<<32 - 1 }

// gifts is what no stamp of an entry exceeds that an exchanger has given in the term. What it
// copies is behind.
func (t *term) gifts() uint64 { return t.Term<<32 | (1<<31 - 1) }

// known is what a server knows of terms and views. Its tasks look at it for each request.
type known struct {
	term    atomic.Pointer[term] // the last that was adopted; nil: none
	settled atomic.Uint64        // the last term in which the server has what others gave it
	epoch   atomic.Uint64        // of the last view

	mu   sync.Mutex
	told uint64 // the highest term that a client knows
}

func (k *known) last() *term { return k.term.Load() }

func (k *known) adopt(t *term) { k.term.Store(t) }

func (k *known) settle(term uint64) { k.settled.Store(term) }

func (k *known) isSettled(term uint64) bool { return k.settled.Load() == term }

// tell notes the term of a client: there may be a newer one than the server's.
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

// seen notes that a task has nothing under way any more in terms before one.
func (s *Server) seen(task int, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saw[task] = max(s.saw[task], term)
}

// turns notes that a worker takes nothing of terms before one from others any more, which is
// committed, and has nothing of them under way.
func (s *Server) turns(worker int, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turned[worker] = max(s.turned[worker], term)
}

// turnedTo reports whether all workers do so. With kinds but RPC they take nothing from others at
// all.
func (s *Server) turnedTo(term uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.o.Kind != RPC || slices.Min(s.turned) >= term
}

// Adopt implements cm.Store. From here on no worker begins anything in an earlier term, and none in
// this one before it is committed.
func (c *control) Adopt(config *shards.Config) error {
	s := c.s
	if len(config.Shards) != s.o.Shards {
		return fmt.Errorf("adopt a configuration of %d shards in a pool of %d: %w", len(config.Shards), s.o.Shards,
			rowan.ErrDamaged)
	}
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

// mark notes durably since when the server has the shards that it gains or loses. A crash ahead of
// LastTerm's word leaves marks of a term in which nothing was done.
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
// nil: it is not so.
func (s *Server) adopted() *term {
	if t := s.known.last(); t.takesPart() {
		return t
	}
	return nil
}

// write writes a word of the server's own, durably.
func (c *control) write(step rdma.Step, at rdma.Addr, word uint64) error {
	b := c.ep.Batch()
	defer b.Release()
	b.WriteWord(at, word)
	b.Read(at, 8)
	return rdma.Do(c.ep, b.As(step), patience)
}

// Quiet implements cm.Store. Behind the last write others are told what is on all replicas: all
// that the server has written.
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

// Report implements cm.Store: it tells which shards the server has copied, as it was told, and
// which have migrated to it; what was counted of those that it serves; and whether there is room
// for another one. In a term in which replicas are compared it tells what it has of them, and no
// more.
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
		case told && slices.Contains(t.Shards[i].Copying, t.node):
			r.Copied = append(r.Copied, i)
		case told && t.arriving(i) && c.arrived(t, t.Shards[i].Source, stamp):
			r.Migrated = append(r.Migrated, i)
		}
		if c.s.shards[i].serving() {
			r.Loads = append(r.Loads, cm.Load{Shard: i, Load: c.s.shards[i].load()})
		}
	}
	return r
}

// arrived has the indexes name what a source copied, up to a stamp, and reports whether they do.
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
