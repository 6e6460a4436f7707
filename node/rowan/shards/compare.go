package shards

import (
	"cmp"
	"fmt"
	"slices"
)

// Replica names a server's replica of a shard.
type Replica struct{ Shard, Node int }

// String returns a name for messages.
func (r Replica) String() string { return fmt.Sprintf("shard %d of server %d", r.Shard, r.Node) }

// Digest summarizes the pairs of a replica. Two replicas with equal digests have the same pairs,
// but for a collision of hashes.
type Digest struct {
	// Sum of the hashes of each pair's key, term and version. It does not depend on their order.
	Sum uint64
	// Sums of the terms and of the versions. A replica that lacks pairs, or has older ones, has a
	// lower weight: a lower sum of terms, or the same and a lower sum of versions. Versions alone
	// do not say it, since a primary may give lower ones than that of an earlier term.
	Terms, Versions uint64
}

// weighs compares the weights of digests.
func (d Digest) weighs(other Digest) int {
	return cmp.Or(cmp.Compare(d.Terms, other.Terms), cmp.Compare(d.Versions, other.Versions))
}

// Compared returns the configuration that follows a cold start, given the digests of all complete
// replicas, and the replicas that differ. Memory may have been damaged while servers were stopped.
// A replica that differs is treated as if its server had died, for this shard alone: the server, or
// another one, begins to copy the shard.
//
// The digest of the majority counts. Among equal numbers the one with the greatest weight does: a
// damaged replica lacks pairs, or has older ones. With two replicas that is wrong in one case: a
// pair was deleted, its tombstone was damaged at one of them, and the other has dropped the
// tombstone.
//
// The error wraps ErrRefused if a digest is missing, or the term does not compare replicas.
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
		// As if the servers had died, but they stay members, and may copy the shard.
		next.Shards[i].strip(func(node int) bool { return slices.Contains(odd, node) })
	}
	next.promote()
	next.replicate()
	return next, differ, nil
}

// Damaged returns the configuration without replicas with damaged records, as their servers report
// them in this very term, and returns which replicas it leaves out. They are treated as if their
// servers had died, for these shards alone: a complete replica serves the shard, and the server, or
// another one, begins to copy it. A replica stays if no other one would be complete: its damaged
// records are lost, its other records are not.
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
		// A replica that copies is named again once it is complete.
		copies := !slices.ContainsFunc(s.Complete(), isIt) && r.Node != s.Primary
		if copies || !s.Has(r.Node) || len(slices.DeleteFunc(s.Complete(), isIt)) == 0 {
			continue
		}
		// Promoted at once, so that the next replica in the list is judged by what is left.
		s.strip(isIt)
		next.promote()
		left = append(left, r)
	}
	next.replicate()
	return next, left, nil
}

// odd returns the complete replicas of a shard that do not have the digest that counts: see
// Compared. The zero Digest, that of an empty replica, is the first candidate, though it may have
// no vote.
func (c *Config) odd(shard int, digests map[Replica]Digest) []int {
	all := c.Shards[shard].Complete()
	votes := map[Digest]int{}
	for _, n := range all {
		votes[digests[Replica{shard, n}]]++
	}
	var best Digest
	for _, n := range all { // the first one, among those with equal votes and weight
		d := digests[Replica{shard, n}]
		if votes[d] > votes[best] || votes[d] == votes[best] && d.weighs(best) > 0 {
			best = d
		}
	}
	return slices.DeleteFunc(all, func(n int) bool { return digests[Replica{shard, n}] == best })
}
