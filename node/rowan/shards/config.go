package shards

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// Bounds of configurations. A record has 32 bits for the term, where the paper has 64, and 16 bits
// for the shard. MaxMembers is the number of nodes of a fabric.
const (
	MaxTerm     = math.MaxUint32
	MaxShards   = 1 << 16
	MaxMembers  = 1 << 8
	MaxReplicas = 8
)

// None is no server.
const None = -1

// Errors that callers branch on.
var (
	// ErrRefused is wrapped when the configuration does not allow a change: it is not the one that
	// the caller assumes.
	ErrRefused = errors.New("the configuration does not allow it")
	// ErrTerms is wrapped when there is no higher term.
	ErrTerms = errors.New("no term is left")
)

// Config says which servers have which shards. It is immutable once it is shared; the rules return
// new ones. A rule that returns an error has changed nothing.
type Config struct {
	// Term is higher than that of each earlier configuration. It begins with 1.
	Term uint64
	// Committed means that each member knows the term and serves in no earlier one, and that
	// servers that are no members any more do not serve. In a term that is not committed nothing is
	// served.
	Committed bool
	// Compare means that nothing is served in this term either, though it is committed: servers
	// were restarted, and report digests of their replicas. See Compared.
	Compare bool
	// Replication is how many replicas each shard should have.
	Replication int
	// Members are ordered by node.
	Members []Member
	// Shards are indexed by number.
	Shards []Shard
}

// Member is a server that is alive. Servers are named by the nodes beside which they run.
type Member struct {
	Node int
	// Since is the term in which the server became a member. It has nothing that counts from
	// before.
	Since uint64
}

// Shard says which servers have a shard. No server has two roles in it.
type Shard struct {
	// Primary serves the shard. It is complete, unless there is a Source. None: the shard is lost.
	Primary int
	// Source was the primary before, and is complete: the shard migrates from it to Primary. None:
	// the shard does not migrate.
	Source int
	// Backups are complete. The last one leaves when a server that copied the shard becomes one too
	// many.
	Backups []int
	// Copying servers receive each write, and everything else from the primary, or from the source
	// of a migration. They are not complete.
	Copying []int
}

// Lost reports whether no replica of the shard is left.
func (s *Shard) Lost() bool { return s.Primary == None }

// Replicas returns the servers that have the shard, complete or not, the primary first. Each write
// goes to all of them. The order is that of the binary form. The list is the caller's.
func (s *Shard) Replicas() []int {
	if s.Lost() {
		return nil
	}
	all := []int{s.Primary}
	if s.Source != None {
		all = append(all, s.Source)
	}
	return slices.Concat(all, s.Backups, s.Copying)
}

// Complete returns the servers that have all of the shard, the primary first if it is one of them.
func (s *Shard) Complete() []int {
	return slices.DeleteFunc(s.Replicas(), func(n int) bool {
		return slices.Contains(s.Copying, n) || n == s.Primary && s.Source != None
	})
}

// Has reports whether a server is a replica, complete or not.
func (s *Shard) Has(node int) bool { return slices.Contains(s.Replicas(), node) }

// settled reports whether no replica of the shard is coming or leaving.
func (s *Shard) settled() bool { return !s.Lost() && s.Source == None && len(s.Copying) == 0 }

// Summary describes the configuration in a line: its term, and how many shards are migrating, being
// copied, or lost.
func (c *Config) Summary() string {
	migrate, copied := 0, 0
	for i := range c.Shards {
		if c.Shards[i].Source != None {
			migrate++
		}
		if len(c.Shards[i].Copying) > 0 {
			copied++
		}
	}
	s := fmt.Sprintf("term %d", c.Term)
	if !c.Committed {
		s += ", not committed yet"
	}
	if c.Compare {
		s += ", in which replicas are compared"
	}
	s += fmt.Sprintf(": %d servers, %d shards", len(c.Members), len(c.Shards))
	for _, n := range []struct {
		shards int
		what   string
	}{{migrate, "migrating"}, {copied, "being copied"}, {len(c.Lost()), "lost"}} {
		if n.shards > 0 {
			s += fmt.Sprintf(", %d %s", n.shards, n.what)
		}
	}
	return s
}

// Find returns the shard of a key's hash. Each shard has a contiguous range of hashes; all ranges
// are equally long, but for rounding. The number of shards never changes, so a key stays in its
// shard.
func (c *Config) Find(hash uint64) int {
	shard, _ := bits.Mul64(hash, uint64(len(c.Shards)))
	return int(shard)
}

// Range returns the lowest and the highest hash of a shard. Find returns the shard for these
// hashes, and for no others.
func (c *Config) Range(shard int) (first, last uint64) {
	n := uint64(len(c.Shards))
	first = lowest(uint64(shard), n)
	if uint64(shard) == n-1 {
		return first, math.MaxUint64
	}
	return first, lowest(uint64(shard)+1, n) - 1
}

// lowest returns the lowest hash h with h*n >> 64 = shard: shard * 2^64 / n, rounded up.
func lowest(shard, n uint64) uint64 {
	q, r := bits.Div64(shard, 0, n)
	if r > 0 {
		q++
	}
	return q
}

// Member returns the member that runs beside a node; nil: that node's server is none.
func (c *Config) Member(node int) *Member {
	if i, ok := c.index(node); ok {
		return &c.Members[i]
	}
	return nil
}

// index returns the place of a node's server among the members, or where it would be. The order by
// node is an invariant: see Members.
func (c *Config) index(node int) (int, bool) {
	return slices.BinarySearchFunc(c.Members, node, func(m Member, node int) int { return m.Node - node })
}

// Lost returns the shards without a replica.
func (c *Config) Lost() (lost []int) {
	for i := range c.Shards {
		if c.Shards[i].Lost() {
			lost = append(lost, i)
		}
	}
	return lost
}

// Check returns an error if a configuration breaks an invariant. It returns nil for each
// configuration that the rules return.
func (c *Config) Check() error {
	switch {
	case c.Term < 1 || c.Term > MaxTerm:
		return fmt.Errorf("term %d: want 1 to %d", c.Term, uint64(MaxTerm))
	case c.Replication < 1 || c.Replication > MaxReplicas:
		return fmt.Errorf("%d replicas: want 1 to %d", c.Replication, MaxReplicas)
	case len(c.Members) < 1 || len(c.Members) > MaxMembers:
		return fmt.Errorf("%d members: want 1 to %d", len(c.Members), MaxMembers)
	case len(c.Shards) < 1 || len(c.Shards) > MaxShards:
		return fmt.Errorf("%d shards: want 1 to %d", len(c.Shards), MaxShards)
	}
	before := -1
	for _, m := range c.Members {
		if m.Node <= before || m.Node >= rdma.MaxNodes {
			return fmt.Errorf("member %d behind %d: want numbers of nodes that rise", m.Node, before)
		}
		if m.Since < 1 || m.Since > c.Term {
			return fmt.Errorf("member %d since term %d: want 1 to %d", m.Node, m.Since, c.Term)
		}
		before = m.Node
	}
	for i := range c.Shards {
		if err := c.checkShard(&c.Shards[i]); err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
	}
	return nil
}

// checkShard checks that the shard's replicas are members and distinct, and that there are as many
// as there should be: one more is allowed while a replica is coming.
func (c *Config) checkShard(s *Shard) error {
	if s.Lost() {
		if s.Source != None || len(s.Backups) > 0 || len(s.Copying) > 0 {
			return errors.New("no primary, and other replicas")
		}
		return nil
	}
	all := s.Replicas()
	for i, n := range all {
		if _, ok := c.index(n); !ok {
			return fmt.Errorf("replica at %d, which is no member", n)
		}
		if slices.Contains(all[:i], n) {
			return fmt.Errorf("two replicas at %d", n)
		}
	}
	// While a replica is coming there is one more than there should be.
	least, most := min(c.Replication, len(c.Members)), c.Replication
	if s.Source != None || len(s.Copying) > 0 {
		most++
	}
	if len(all) < least || len(all) > most {
		return fmt.Errorf("%d replicas: want %d to %d", len(all), least, most)
	}
	if n := 1 + max(len(s.Backups), len(s.Copying)); n > c.Replication {
		return fmt.Errorf("%d backups and %d that copy: want %d replicas", len(s.Backups), len(s.Copying),
			c.Replication)
	}
	return nil
}
