package state

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/farkv/farkv/node/rowan/shards"
)

// Term is one configuration as a server sees it. It is immutable: when the configuration is
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
type Term struct {
	*shards.Config
	Node int
	// By shard of which the server is the primary: the other servers to which a write goes; nil for
	// other shards.
	Others [][]int
}

// NewTerm returns a configuration as the server of a node sees it.
func NewTerm(c *shards.Config, node int) *Term {
	t := &Term{Config: c, Node: node, Others: make([][]int, len(c.Shards))}
	for i := range c.Shards {
		if c.Shards[i].Primary == node {
			t.Others[i] = t.otherReplicas(i)
		}
	}
	return t
}

// otherReplicas returns the other servers that have a replica of a shard, in any state.
func (t *Term) otherReplicas(shard int) []int {
	others := []int{}
	for _, n := range t.Shards[shard].Replicas() {
		if n != t.Node {
			others = append(others, n)
		}
	}
	return others
}

// Leads reports whether the server is the primary of a shard in this term.
func (t *Term) Leads(shard int) bool { return t.Shards[shard].Primary == t.Node }

// CopiesTo returns the servers to which this one copies a shard. In a migration the source copies,
// which is complete; otherwise the primary does.
func (t *Term) CopiesTo(shard int) []int {
	switch s := &t.Shards[shard]; {
	case s.Source == t.Node:
		return append(slices.Clone(s.Copying), s.Primary)
	case s.Source == shards.None && s.Primary == t.Node:
		return s.Copying
	}
	return nil
}

// Arriving reports whether a shard is migrating to the server.
func (t *Term) Arriving(shard int) bool {
	return t.Leads(shard) && t.Shards[shard].Source != shards.None
}

// incomplete reports whether the server is a replica of a shard without having all of it yet.
func (t *Term) incomplete(shard int) bool {
	return t.Arriving(shard) || slices.Contains(t.Shards[shard].Copying, t.Node)
}

// Complete reports whether the server is a replica that has all of a shard.
func (t *Term) Complete(shard int) bool {
	return t != nil && t.Shards[shard].Has(t.Node) && !t.incomplete(shard)
}

// Differed reports whether the server has to begin a shard anew, because its replica was found to
// be damaged: it copies the shard now, and in the term before it was complete, or the target of a
// migration of which the source lives.
func (t *Term) Differed(before *Term, shard int) bool {
	if before == nil || !t.incomplete(shard) {
		return false
	}
	// A replica that was incomplete before, and still is, goes on copying instead.
	return before.Complete(shard) ||
		before.Arriving(shard) && !t.Arriving(shard) && t.Member(before.Shards[shard].Source) != nil
}

// TakesPart reports whether the server is a member of this term, and the term is committed.
func (t *Term) TakesPart() bool { return t != nil && t.Committed && t.Member(t.Node) != nil }

// Stamps returns the highest stamp that an entry of an earlier term may have. All of these entries
// are at rest once the term is committed.
func (t *Term) Stamps() uint64 { return t.Term<<32 - 1 }

// Gifts returns the highest stamp that an entry may have which an exchanger gives in this term.
// What it copies has higher ones.
func (t *Term) Gifts() uint64 { return t.Term<<32 | (1<<31 - 1) }

// WritesTo returns the term in which remote logs of a server have writers; 0: none, since the
// server is no member.
func (t *Term) WritesTo(node int) uint64 {
	if t.Member(node) == nil {
		return 0
	}
	return t.Term
}

// Known is what a server knows of terms and views. Its tasks read it for each request.
type Known struct {
	// The last term that was adopted; nil: none.
	term atomic.Pointer[Term]
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

// Last returns the last term that was adopted, committed or not; nil: none was.
func (k *Known) Last() *Term { return k.term.Load() }

// Adopt has tasks see a term from now on. The caller has noted it durably.
func (k *Known) Adopt(t *Term) { k.term.Store(t) }

// Settle notes that the indexes have all that members gave in a term: copies may begin, and
// tombstones may be dropped.
func (k *Known) Settle(term uint64) { k.settled.Store(term) }

// IsSettled reports whether that is so of a term.
func (k *Known) IsSettled(term uint64) bool { return k.settled.Load() == term }

// Tell notes the term of a client. It may be newer than the server's; then the control task reads
// the registers.
func (k *Known) Tell(term uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = max(k.told, term)
}

// Highest returns the highest term that a client has sent.
func (k *Known) Highest() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.told
}

// Join notes the epoch of a view, so that tasks join it before they post anything.
func (k *Known) Join(epoch uint64) { k.epoch.Store(epoch) }

func (k *Known) view() uint64 { return k.epoch.Load() }

// Seen notes that a task has nothing under way of terms before the given one.
func (k *Known) Seen(task int, term uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.saw[task] = max(k.saw[task], term)
}

// AllSaw reports whether no task has anything under way of terms before the given one.
func (k *Known) AllSaw(term uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Min(k.saw) >= term
}

// Turns notes that a worker accepts nothing any more that other servers sent in terms before the
// given one, which is committed, and has nothing of it under way.
func (k *Known) Turns(worker int, term uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.turned[worker] = max(k.turned[worker], term)
}

// TurnedTo reports whether all workers have reached a term in that sense.
func (k *Known) TurnedTo(term uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.turned == nil || slices.Min(k.turned) >= term
}

// Adopted returns the last term that was adopted, if it is committed and the server is a member;
// otherwise nil.
func (k *Known) Adopted() *Term {
	if t := k.Last(); t.TakesPart() {
		return t
	}
	return nil
}

// MayDrop reports whether tombstones of a shard may be dropped: the server has all that members
// gave in this term, and nothing of the shard is being copied to it, so no older PUT is on its way.
func (s *Server) MayDrop(shard int) bool {
	t := s.Known.Adopted()
	return t != nil && s.Known.IsSettled(t.Term) && !t.incomplete(shard)
}
