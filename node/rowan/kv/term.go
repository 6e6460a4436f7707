package kv

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/farkv/farkv/node/rowan/shards"
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

// writesTo returns the term in which remote logs of a server have writers; 0: none, since the
// server is no member.
func (t *term) writesTo(node int) uint64 {
	if t.Member(node) == nil {
		return 0
	}
	return t.Term
}

// known is what a server knows of terms and views. Its tasks read it for each request.
type known struct {
	// The last term that was adopted; nil: none.
	term atomic.Pointer[term]
	// The last term in which the server has all that others gave it.
	settled atomic.Uint64
	// Epoch of the last view.
	epoch atomic.Uint64

	// mu guards the fields below. It is held over no wait.
	mu sync.Mutex
	// The highest term that a client has sent.
	told uint64
	// By worker, with the exchanger last: the term before which the task has nothing under way.
	saw []uint64
	// By worker, with RPC: the committed term before which it accepts nothing from other servers;
	// nil: workers accept nothing from others.
	turned []uint64
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
func (k *known) seen(task int, term uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.saw[task] = max(k.saw[task], term)
}

// allSaw reports whether no task has anything under way of terms before the given one.
func (k *known) allSaw(term uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Min(k.saw) >= term
}

// turns notes that a worker accepts nothing any more that other servers sent in terms before the
// given one, which is committed, and has nothing of it under way.
func (k *known) turns(worker int, term uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.turned[worker] = max(k.turned[worker], term)
}

// turnedTo reports whether all workers have reached a term in that sense.
func (k *known) turnedTo(term uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.turned == nil || slices.Min(k.turned) >= term
}

// adopted returns the last term that was adopted, if it is committed and the server is a member;
// otherwise nil.
func (k *known) adopted() *term {
	if t := k.last(); t.takesPart() {
		return t
	}
	return nil
}

// may reports whether tombstones of a shard may be dropped: the server has all that members gave in
// this term, and nothing of the shard is being copied to it, so no older PUT is on its way.
func (s *state) may(shard int) bool {
	t := s.known.adopted()
	return t != nil && s.known.isSettled(t.Term) && !t.incomplete(shard)
}
