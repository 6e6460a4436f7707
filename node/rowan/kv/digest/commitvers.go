package digest

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
)

// CommitVers tells other servers the CommitVers of the shards that this one serves, and learns
// those of others. It belongs to the task that receives.
type CommitVers struct {
	s  *state.Server
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
	askedIn *state.Term
	// The last committed term in which all of these words were read.
	heard uint64
}

// NewCommitVers returns the commitVers of a server that has published nothing.
func NewCommitVers(s *state.Server, ep rdma.Endpoint) *CommitVers {
	return &CommitVers{s: s, ep: ep, published: make([]uint64, len(s.Shards))}
}

// Restore notes what an earlier server has published, by shard.
func (v *CommitVers) Restore(published []uint64) { v.published = published }

// HeardIn reports whether the words of all other members were read in a term.
func (v *CommitVers) HeardIn(term uint64) bool { return v.heard == term }

// soon has the words of other servers read in CommitEvery at the latest.
func (v *CommitVers) soon() { v.next = min(v.next, v.ep.Now()+v.s.Opt.CommitEvery) }

// Step publishes the CommitVers of the server's shards, and reads those of the other members, from
// time to time: seldom unless segments wait for them. Reads that fail in part are repeated at once,
// so that heard reaches the term.
func (v *CommitVers) Step(wait bool) error {
	t := v.s.Known.Adopted()
	if b := v.asked; b != nil && b.Finished() {
		// A part of them is learned in any case.
		if v.learn(b) {
			// All members have published in this term before it was committed, so these words cover
			// earlier terms.
			v.heard = v.askedIn.Term
		}
		// It releases the batch.
		v.Hear()
		if v.heard == v.askedIn.Term {
			v.next = v.ep.Now() + v.every(wait)
		}
	}
	// One batch of READs is in flight at a time.
	if t == nil || v.asked != nil || v.ep.Now() < v.next {
		return nil
	}
	// Others read as often as this server does, so it publishes as often.
	if err := v.Publish(); err != nil {
		return err
	}
	b := v.ep.Batch()
	// No READ is in flight that it describes.
	v.sources = v.sources[:0]
	for _, m := range t.Members {
		if m.Node != t.Node {
			b.Read(v.s.Opt.CommitAt(m.Node, 0), 8*len(t.Shards))
			v.sources = append(v.sources, m.Node)
		}
	}
	// The server is the only member: nothing is to be heard.
	if b.Len() == 0 {
		b.Release()
		v.heard, v.next = t.Term, v.ep.Now()+v.s.Opt.CommitEvery
		return nil
	}
	if err := v.ep.Post(b.As("read CommitVers")); err != nil {
		b.Release()
		return fmt.Errorf("read CommitVers: %w", err)
	}
	// A change of the term gives them up: see Hear.
	v.asked, v.askedIn = b, t
	return nil
}

// every returns how often other servers' words are read.
func (v *CommitVers) every(wait bool) time.Duration {
	if wait {
		return v.s.Opt.CommitEvery
	}
	return max(v.s.Opt.CommitEvery, 5*v.s.Opt.IdleEvery)
}

// Hear makes the next step read the words at once: what was asked in an earlier term does not
// count.
func (v *CommitVers) Hear() {
	if v.asked != nil {
		v.asked.Release()
		v.asked = nil
	}
	v.next = 0
}

// Publish publishes the CommitVers that have changed. A word may lag behind, and is never ahead of
// what is so. The source of a migration also publishes: its word covers all that was written there,
// which the target relies on.
func (v *CommitVers) Publish() error {
	t := v.s.Known.Last()
	b := v.ep.Batch()
	defer b.Release()
	for i, sh := range v.s.Shards {
		if !sh.Serving() && t.Shards[i].Source != t.Node {
			continue
		}
		// It only rises: a primary goes on above what it has published.
		if commit := sh.CommitVer(); commit > v.published[i] {
			// A server that begins anew reads it, and a flip of a bit must not raise it.
			b.WriteWord(v.s.Opt.CommitAt(v.s.Node, i), kv.Seal(commit))
			v.published[i] = commit
		}
	}
	if err := rdma.Do(v.ep, b.As("write CommitVers"), kv.LocalTimeout); err != nil {
		return fmt.Errorf("write CommitVers of server %d: %w", v.s.Node, err)
	}
	return nil
}

// learn takes the words of other servers, and reports whether all of them could be read. A damaged
// word counts as 0.
func (v *CommitVers) learn(b *rdma.Batch) (all bool) {
	all = true
	for k, node := range v.sources {
		op := b.Op(k)
		if op.Err != nil {
			all = false
			continue
		}
		for i, sh := range v.s.Shards {
			// Only the primary's word counts, and the source's in a migration: others may be of
			// earlier terms.
			if s := &v.askedIn.Shards[i]; s.Primary == node || s.Source == node {
				// 0 raises nothing.
				commit, _ := kv.Unseal(op.Word(i))
				sh.Learn(node, commit)
			}
		}
	}
	return all
}
