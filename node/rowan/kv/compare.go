package kv

import (
	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// compareGroup is how many entries' beginnings are read in one trip.
const compareGroup = 64

// comparison is what the exchanger finds out in a term in which replicas are compared: what the
// server has of each shard of which it is a complete replica. All that others gave it is in the
// indexes by then, and nothing is written in the term. Cleaners go on: an item stays in its chain,
// and a copy has the same record.
//
// A digest is of what records begin with, their terms and versions: no two records of a shard have
// the same. Tombstones do not count, since each server drops its own when it can.
type comparison struct {
	shard  int // that is looked at
	next   int // chain of its index
	digest shards.Digest
	all    []cm.Digest
	over   bool
}

// compare looks at some chains of an index, or tells what it has found.
func (x *exchanger) compare() error {
	c := &x.compared
	if c.shard == len(x.term.Shards) {
		c.over = true
		x.s.mu.Lock()
		defer x.s.mu.Unlock()
		x.s.digests, x.s.digested = c.all, x.term.Term
		return nil
	}
	names := x.s.shards[c.shard].has()
	if names == nil || !x.term.complete(c.shard) {
		c.shard++
		return nil
	}
	x.chain = x.chain[:0]
	for ; c.next < names.Chains() && len(x.chain) < compareGroup; c.next++ {
		x.chain = names.Chain(c.next, x.chain)
	}
	b := x.ep.Batch()
	defer b.Release()
	x.s.readHeads(b, x.chain, 0)
	if err := rdma.Do(x.ep, b.As("compare"), patience); err != nil {
		return err
	}
	for i, at := range x.chain {
		head := b.Op(i).Buf
		if f, _ := parseFound(at, head); f.kind == kindPut { // the key is not read
			c.digest.Sum += xxhash.Sum64(head[rowan.HeaderBytes:])
			c.digest.Weight += f.version
		}
	}
	if c.next == names.Chains() {
		c.all = append(c.all, cm.Digest{Shard: c.shard, Digest: c.digest})
		c.shard, c.next, c.digest = c.shard+1, 0, shards.Digest{}
	}
	return nil
}

// digestsOf returns what the server has in a term; nil: that is not known yet.
func (s *Server) digestsOf(t *term) []cm.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.digested != t.Term {
		return nil
	}
	return s.digests
}
