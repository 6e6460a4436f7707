package kv

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// commitVers tells other servers the CommitVers of the shards that this one serves, and learns those
// of others. It belongs to the task that receives.
type commitVers struct {
	s  *state
	ep rdma.Endpoint
	// By shard: the CommitVer that the server has published.
	published []uint64
	// When other servers' words are read next.
	next time.Duration
	// READs of other servers' words; nil: none is in flight.
	asked *rdma.Batch
	// The nodes of those words, in the order of the ops.
	sources []int
	// The term in which they were posted.
	askedIn *term
	// The last committed term in which all of these words were read.
	heard uint64
}

// newCommitVers returns the commitVers of a server that has published nothing.
func newCommitVers(s *state, ep rdma.Endpoint) *commitVers {
	return &commitVers{s: s, ep: ep, published: make([]uint64, len(s.shards))}
}

// soon has the words of other servers read in CommitEvery at the latest.
func (v *commitVers) soon() { v.next = min(v.next, v.ep.Now()+v.s.o.CommitEvery) }

// step publishes the CommitVers of the server's shards, and reads those of the other members, from
// time to time: seldom unless segments wait for them. Reads that fail in part are repeated at once,
// so that heard reaches the term.
func (v *commitVers) step(wait bool) error {
	t := v.s.known.adopted()
	if b := v.asked; b != nil && b.Finished() {
		if v.learn(b) {
			v.heard = v.askedIn.Term
		}
		v.hear()
		if v.heard == v.askedIn.Term {
			v.next = v.ep.Now() + v.every(wait)
		}
	}
	if t == nil || v.asked != nil || v.ep.Now() < v.next {
		return nil
	}
	if err := v.publish(); err != nil {
		return err
	}
	b := v.ep.Batch()
	v.sources = v.sources[:0]
	for _, m := range t.Members {
		if m.Node != t.node {
			b.Read(v.s.o.commitAt(m.Node, 0), 8*len(t.Shards))
			v.sources = append(v.sources, m.Node)
		}
	}
	if b.Len() == 0 {
		b.Release()
		v.heard, v.next = t.Term, v.ep.Now()+v.s.o.CommitEvery
		return nil
	}
	if err := v.ep.Post(b.As("read CommitVers")); err != nil {
		b.Release()
		return fmt.Errorf("read CommitVers: %w", err)
	}
	v.asked, v.askedIn = b, t
	return nil
}

// every returns how often other servers' words are read.
func (v *commitVers) every(wait bool) time.Duration {
	if wait {
		return v.s.o.CommitEvery
	}
	return max(v.s.o.CommitEvery, 5*v.s.o.IdleEvery)
}

// hear makes the next step read the words at once: what was asked in an earlier term does not count.
func (v *commitVers) hear() {
	if v.asked != nil {
		v.asked.Release()
		v.asked = nil
	}
	v.next = 0
}

// publish publishes the CommitVers that have changed. A word may lag behind, and is never ahead of
// what is so. The source of a migration also publishes: its word covers all that was written there,
// which the target relies on.
func (v *commitVers) publish() error {
	t := v.s.known.last()
	b := v.ep.Batch()
	defer b.Release()
	for i, sh := range v.s.shards {
		if !sh.serving() && t.Shards[i].Source != t.node {
			continue
		}
		if commit := sh.committed(); commit != v.published[i] {
			b.WriteWord(v.s.o.commitAt(v.s.node, i), seal(commit))
			v.published[i] = commit
		}
	}
	if err := rdma.Do(v.ep, b.As("write CommitVers"), patience); err != nil {
		return fmt.Errorf("write CommitVers of server %d: %w", v.s.node, err)
	}
	return nil
}

// learn takes the words of other servers, and reports whether all of them could be read. A damaged
// word counts as 0.
func (v *commitVers) learn(b *rdma.Batch) (all bool) {
	all = true
	for k, node := range v.sources {
		op := b.Op(k)
		if op.Err != nil {
			all = false
			continue
		}
		for i, sh := range v.s.shards {
			// Only the primary's word counts, and the source's in a migration: others may be of
			// earlier terms.
			if s := &v.askedIn.Shards[i]; s.Primary == node || s.Source == node {
				commit, _ := unseal(op.Word(i))
				sh.learn(commit)
			}
		}
	}
	return all
}
