package shards

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// New returns the first configuration, of term 1, with perServer shards for each node (48 in the
// paper), and replication replicas of each shard.
//
// Shard s has its primary at place s modulo the number of nodes, so each server is the primary of
// perServer shards. Backups follow at distances that rotate. So the backups of one primary are
// spread over all other servers, and each server has as many as any other.
func New(nodes []int, perServer, replication int) (*Config, error) {
	n := len(nodes)
	c := &Config{Term: 1, Replication: replication}
	for _, node := range nodes {
		c.Members = append(c.Members, Member{Node: node, Since: 1})
	}
	slices.SortFunc(c.Members, func(a, b Member) int { return a.Node - b.Node })
	fail := func(err error) (*Config, error) {
		return nil, fmt.Errorf("make a configuration of %d servers with %d shards each: %w", n, perServer, err)
	}
	switch {
	case n == 0 || perServer < 1 || perServer > MaxShards/n:
		return fail(fmt.Errorf("want at least one of both, and at most %d shards: %w", MaxShards, ErrRefused))
	case replication > n:
		return fail(fmt.Errorf("%d replicas need as many servers: %w", replication, ErrRefused))
	case Bound(MaxMembers, n*perServer, replication) > rdma.MaxConfig:
		return fail(fmt.Errorf("with %d replicas they may take %d bytes, and at most %d are stored: %w", replication,
			Bound(MaxMembers, n*perServer, replication), rdma.MaxConfig, ErrRefused))
	}
	for shard := range n * perServer {
		s := Shard{Primary: c.Members[shard%n].Node, Source: None}
		for r := range replication - 1 {
			distance := 1 + (shard/n*(replication-1)+r)%(n-1)
			s.Backups = append(s.Backups, c.Members[(shard+distance)%n].Node)
		}
		c.Shards = append(c.Shards, s)
	}
	if err := c.Check(); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrRefused, err))
	}
	return c, nil
}

// Commit returns the same configuration as a committed one. The caller has made sure of what
// Config.Committed says. It shares the members and shards of the first one, which is immutable by
// then.
func (c *Config) Commit() *Config {
	next := *c
	next.Committed = true
	return &next
}

// next returns a deep copy with the next term, not committed, for a rule to change. Compare stays
// as it is: only Compared ends it, and no server serves before.
func (c *Config) next() (*Config, error) {
	if c.Term >= MaxTerm {
		return nil, fmt.Errorf("follow term %d: %w", c.Term, ErrTerms)
	}
	next := &Config{
		Term: c.Term + 1, Compare: c.Compare, Replication: c.Replication,
		Members: slices.Clone(c.Members), Shards: slices.Clone(c.Shards),
	}
	for i := range next.Shards {
		s := &next.Shards[i]
		s.Backups, s.Copying = slices.Clone(s.Backups), slices.Clone(s.Copying)
	}
	return next, nil
}

// Fail returns the configuration without servers that died. They must have stopped serving before
// it is committed.
//
// A shard that lost its primary, or the source of its migration, gets a complete replica as its
// primary. What was acknowledged is on each complete replica, however far the migration was. The
// source of a target that died is one of them; a target of which the source died goes on to copy
// from the new primary. Among complete replicas the rule takes the server that is the primary of
// the fewest shards. A shard without a complete replica is lost.
//
// Then servers with few replicas begin to copy the shards with too few. A target, and a server that
// is leaving, count as replicas there.
func (c *Config) Fail(dead ...int) (*Config, error) {
	next, err := c.next()
	if err != nil {
		return nil, err
	}
	isDead := func(node int) bool { return slices.Contains(dead, node) }
	next.Members = slices.DeleteFunc(next.Members, func(m Member) bool { return isDead(m.Node) })
	if len(next.Members) == 0 {
		return nil, fmt.Errorf("do without servers %v: no member is left: %w", dead, ErrRefused)
	}
	// First all shards lose the dead, then primaries are chosen, since each choice counts the
	// others.
	for i := range next.Shards {
		next.Shards[i].strip(isDead)
	}
	next.promote()
	next.replicate()
	return next, nil
}

// strip removes dead servers from the shard. If the primary is dead, or is a target without its
// source, the shard has no primary afterwards: promote finds one.
func (s *Shard) strip(isDead func(int) bool) {
	target, source := s.Primary, s.Source
	s.Backups = slices.DeleteFunc(s.Backups, isDead)
	s.Copying = slices.DeleteFunc(s.Copying, isDead)
	switch {
	case s.Lost():
	case source == None:
		if isDead(target) {
			s.Primary = None
		}
	case isDead(source):
		s.Primary, s.Source = None, None
		if !isDead(target) {
			s.Copying = append(s.Copying, target)
		}
	case isDead(target):
		s.Primary, s.Source = None, None
		s.Backups = append(s.Backups, source)
	}
}

// promote makes a complete replica the primary of each shard that has none. What was acknowledged
// is on each backup, so any of them may be chosen; the loads of servers do not matter for safety.
func (c *Config) promote() {
	primaries := c.count(func(s *Shard) []int { return []int{s.Primary} })
	for i := range c.Shards {
		if s := &c.Shards[i]; s.Primary == None && len(s.Backups) > 0 {
			s.Primary = c.fewest(primaries, s.Backups)
			s.Backups = without(s.Backups, s.Primary)
			// The next choice takes this one into account.
			primaries.add(c, s.Primary)
		}
		if s := &c.Shards[i]; s.Lost() {
			s.Copying = nil // there is nothing left to copy from
		}
	}
}

// replicate makes servers copy the shards that have too few replicas, those with the fewest
// replicas first. Those that copy count as replicas, so one server copies for each replica that is
// missing.
func (c *Config) replicate() {
	replicas := c.count((*Shard).Replicas)
	for i := range c.Shards {
		s := &c.Shards[i]
		for all := s.Replicas(); !s.Lost() && len(all) < min(c.Replication, len(c.Members)); all = s.Replicas() {
			node := c.fewest(replicas, c.others(all))
			s.Copying = append(s.Copying, node)
			replicas.add(c, node)
		}
	}
}

// Complete returns the configuration in which a server that copied a shard is one of its backups.
// The caller knows that in this very term the server has all that the primary had when the copy
// began, and all writes since; when the primary changes, the copy begins again. If there is a
// backup too many, the last one leaves: the new one, which is as complete, replaces it.
func (c *Config) Complete(shard, node int) (*Config, error) {
	s, err := c.shard(shard)
	if err != nil || !slices.Contains(s.Copying, node) {
		return nil, fmt.Errorf("make server %d a backup of shard %d, which it does not copy: %w", node, shard,
			ErrRefused)
	}
	next, err := c.next()
	if err != nil {
		return nil, err
	}
	s = &next.Shards[shard]
	// From here on the server is as good as any backup, and may be promoted.
	s.Copying = without(s.Copying, node)
	if 1+len(s.Backups) == c.Replication {
		s.Backups = s.Backups[:len(s.Backups)-1]
	}
	s.Backups = append(s.Backups, node)
	return next, nil
}

// Migrated returns the configuration in which a shard's migration has ended. The caller knows that
// in this very term the target has all that the source had. So the target is complete. The source
// leaves, or becomes a backup if backups are missing.
func (c *Config) Migrated(shard int) (*Config, error) {
	s, err := c.shard(shard)
	if err != nil || s.Source == None {
		return nil, fmt.Errorf("end the migration of shard %d, which there is not: %w", shard, ErrRefused)
	}
	next, err := c.next()
	if err != nil {
		return nil, err
	}
	s = &next.Shards[shard]
	if len(s.Replicas()) <= c.Replication {
		s.Backups = append(s.Backups, s.Source)
	}
	// The target is complete from here on, as a primary without a source is.
	s.Source = None
	return next, nil
}

// Move names a replica of a shard that moves from one server to another.
type Move struct{ Shard, From, To int }

// Move returns the configuration in which a replica begins to move. The shard must be settled.
//
// A primary that moves to a backup changes roles with it: both are complete. To another server it
// migrates: that server becomes the primary at once, and the old one the source. The target does
// not serve before the source has stopped, which is certain when the term is committed. A backup
// that moves stays until its successor is complete.
func (c *Config) Move(m Move) (*Config, error) {
	if !c.movable(m) {
		return nil, fmt.Errorf("move shard %d from server %d to %d: %w", m.Shard, m.From, m.To, ErrRefused)
	}
	next, err := c.next()
	if err != nil {
		return nil, err
	}
	next.move(m)
	return next, nil
}

// movable reports whether the rules allow a move.
func (c *Config) movable(m Move) bool {
	s, err := c.shard(m.Shard)
	if err != nil || !s.settled() || m.From == m.To || !s.Has(m.From) || c.Member(m.To) == nil {
		return false
	}
	return m.From == s.Primary || !s.Has(m.To)
}

// move changes the configuration by a move that is allowed.
func (c *Config) move(m Move) {
	s := &c.Shards[m.Shard]
	switch i := slices.Index(s.Backups, m.To); {
	case m.From != s.Primary:
		// The last of the backups leaves when the successor is complete: see Complete.
		s.Backups = append(without(s.Backups, m.From), m.From)
		s.Copying = append(s.Copying, m.To)
	case i >= 0:
		s.Primary, s.Backups[i] = m.To, m.From
	default:
		s.Primary, s.Source = m.To, m.From
	}
}

// Join returns the configuration with a new member, which has nothing. It begins to copy shards
// with too few replicas, and backups of servers that have at least two more replicas than it would
// have. Primaries move only by load: see Planner.
//
// Missing replicas come before moves: a shard with too few of them is in danger, one on a busy
// server is not.
func (c *Config) Join(node int) (*Config, error) {
	if node < 0 || node >= rdma.MaxNodes || c.Member(node) != nil || len(c.Members) == MaxMembers {
		return nil, fmt.Errorf("have server %d join %d members: %w", node, len(c.Members), ErrRefused)
	}
	next, err := c.next()
	if err != nil {
		return nil, err
	}
	i, _ := next.index(node)
	next.Members = slices.Insert(next.Members, i, Member{Node: node, Since: next.Term})
	next.replicate()
	replicas := next.count((*Shard).Replicas)
	for i := range next.Shards {
		m := Move{Shard: i, From: next.most(replicas, next.Shards[i].Backups), To: node}
		// Moving to the new member must not make it have as many replicas as the server that gives
		// one: the move would not help.
		if m.From == None || !next.movable(m) || replicas.of(next, m.From) <= replicas.of(next, node)+1 {
			continue
		}
		next.move(m)
		replicas.add(next, node)
		replicas[next.place(m.From)]--
	}
	return next, nil
}

// shard returns a shard by its number, or an error that wraps ErrRefused.
func (c *Config) shard(shard int) (*Shard, error) {
	if shard < 0 || shard >= len(c.Shards) {
		return nil, fmt.Errorf("shard %d of %d: %w", shard, len(c.Shards), ErrRefused)
	}
	return &c.Shards[shard], nil
}

// counts counts something for each member, by its place.
//
// Choices by them are deterministic: equal counts are resolved by the lower node. So a manager that
// repeats a rule after a crash gets the same configuration.
type counts []int

// count counts, for each member, how often each returns it over all shards.
func (c *Config) count(each func(*Shard) []int) counts {
	n := make(counts, len(c.Members))
	for i := range c.Shards {
		for _, node := range each(&c.Shards[i]) {
			if node != None {
				n[c.place(node)]++
			}
		}
	}
	return n
}

func (n counts) add(c *Config, node int)    { n[c.place(node)]++ }
func (n counts) of(c *Config, node int) int { return n[c.place(node)] }

// place returns the place of a member, which must be one.
func (c *Config) place(node int) int {
	i, ok := c.index(node)
	if !ok {
		panic(fmt.Sprintf("shards: server %d is no member in term %d", node, c.Term))
	}
	return i
}

// fewest returns the node with the lowest count among nodes, the lowest node among equal ones; None
// if there are no nodes.
func (c *Config) fewest(n counts, nodes []int) int {
	best := None
	for _, node := range nodes {
		if best == None || less(n.of(c, node), node, n.of(c, best), best) {
			best = node
		}
	}
	return best
}

// most returns the node with the highest count among nodes, the lowest node among equal ones; None
// if there are no nodes.
func (c *Config) most(n counts, nodes []int) int {
	best := None
	for _, node := range nodes {
		if best == None || less(-n.of(c, node), node, -n.of(c, best), best) {
			best = node
		}
	}
	return best
}

func less(n, node, n2, node2 int) bool { return n < n2 || n == n2 && node < node2 }

// others returns the members that are not among nodes.
func (c *Config) others(nodes []int) (others []int) {
	for _, m := range c.Members {
		if !slices.Contains(nodes, m.Node) {
			others = append(others, m.Node)
		}
	}
	return others
}

// without returns nodes without one. It may change nodes itself. So it is only for lists of a
// configuration that a rule has just copied.
func without(nodes []int, node int) []int {
	return slices.DeleteFunc(nodes, func(n int) bool { return n == node })
}
