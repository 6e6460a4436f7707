package shards

import (
	"fmt"
	"slices"
)

// Replica is a server's replica of a shard.
type Replica struct{ Shard, Node int }

// String names it for people.
func (r Replica) String() string { return fmt.Sprintf("shard %d of server %d", r.Shard, r.Node) }

// Digest says in short which pairs a replica has. Two replicas with the same have the same pairs.
type Digest struct {
	Sum    uint64 // of hashes of each pair's key, term and version
	Weight uint64 // of the versions: one that lacks pairs, or has older ones, has less
}

// Compared returns the configuration that follows a cold start, given the digests of all replicas
// that are complete, and the replicas that differ. What lies in memory may be damaged while servers
// are stopped: bits flip. A replica that differs is treated as if its server had died, for this
// shard alone. So the server begins to copy the shard, or another one does.
//
// The digest of most replicas counts. Of as many, the one with the greatest weight does: a replica
// that was damaged lacks pairs, or has older ones. With two replicas that is wrong for a pair that
// was deleted, if the damage is to its tombstone, and the other replica has dropped that.
//
// The error wraps ErrRefused while a digest is missing, and in a term that compares nothing.
func (c *Config) Compared(digests map[Replica]Digest) (next *Config, differ []Replica, err error) {
	for i := range c.Shards {
		for _, n := range c.Shards[i].Complete() {
			if _, ok := digests[Replica{i, n}]; !ok || !c.Compare || !c.Committed {
				return nil, nil, fmt.Errorf("compare replicas in term %d, with %d digests: %w", c.Term, len(digests),
					ErrRefused)
			}
		}
	}
	if next, err = c.next(); err != nil {
		return nil, nil, err
	}
	next.Compare = false
	for i := range next.Shards {
		odd := next.odd(i, digests)
		for _, n := range odd {
			differ = append(differ, Replica{i, n})
		}
		next.Shards[i].strip(func(node int) bool { return slices.Contains(odd, node) })
	}
	next.promote()
	next.replicate()
	return next, differ, nil
}

// Damaged returns the configuration without replicas in which records are damaged, as their servers
// report in this very term, and which ones those are: as if their servers had died, for these
// shards alone. So a replica that is complete serves the shard, and the server begins to copy it,
// or another one does. A replica stays if no other one would be complete: what is damaged there is
// lost, and the rest is not.
func (c *Config) Damaged(damaged []Replica) (next *Config, left []Replica, err error) {
	if next, err = c.next(); err != nil {
		return nil, nil, err
	}
	for _, r := range damaged {
		if r.Shard < 0 || r.Shard >= len(next.Shards) {
			return nil, nil, fmt.Errorf("do without %s, of %d shards: %w", r, len(next.Shards), ErrRefused)
		}
		s := &next.Shards[r.Shard]
		isIt := func(node int) bool { return node == r.Node }
		copies := !slices.ContainsFunc(s.Complete(), isIt) && r.Node != s.Primary // it may not be named yet
		if copies || !s.Has(r.Node) || len(slices.DeleteFunc(s.Complete(), isIt)) == 0 {
			continue
		}
		s.strip(isIt)
		next.promote()
		left = append(left, r)
	}
	next.replicate()
	return next, left, nil
}

// odd returns the complete replicas of a shard that do not have the digest that counts.
func (c *Config) odd(shard int, digests map[Replica]Digest) []int {
	all := c.Shards[shard].Complete()
	votes := map[Digest]int{}
	for _, n := range all {
		votes[digests[Replica{shard, n}]]++
	}
	var best Digest
	for _, n := range all { // the first one, if others have as many and the same weight
		d := digests[Replica{shard, n}]
		if votes[d] > votes[best] || votes[d] == votes[best] && d.Weight > best.Weight {
			best = d
		}
	}
	return slices.DeleteFunc(all, func(n int) bool { return digests[Replica{shard, n}] == best })
}
