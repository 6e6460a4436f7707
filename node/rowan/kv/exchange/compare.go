package exchange

import (
	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// compareGroup bounds how many beginnings of entries are read in one trip.
const compareGroup = 64

// comparison is the exchanger's work in a term in which replicas are compared: it digests each
// shard of which the server is a complete replica. By then all that other servers gave it is in its
// indexes, and nothing is written in the term. Cleaners may go on: an item stays in its chain, and
// a copy has the same record.
//
// A digest covers the term and version of each record; no two records of a shard have the same.
// Tombstones are left out, since each server drops its own at a different time.
type comparison struct {
	// The shard that is digested, and the next chain of its index.
	shard int
	next  int
	// Of the chains before next.
	digest shards.Digest
	// Of the shards before shard.
	all []cm.Digest
	// All shards are digested.
	over bool
}

// compare digests some chains of an index. After the last shard it publishes the digests for
// Report. It does a group at a time, so that gifts and the questions of cleaners do not wait for a
// whole index.
func (x *Exchanger) compare() error {
	c := &x.compared
	if c.shard == len(x.term.Shards) {
		c.over = true
		x.s.Exchange.Tell(x.term.Term, c.all)
		return nil
	}
	// A replica that is not complete has nothing to compare.
	names := x.s.Shards[c.shard].Index()
	if names == nil || !x.term.Complete(c.shard) {
		c.shard++
		return nil
	}
	x.chain = x.chain[:0]
	// A chain is taken as a whole, so the group may be a little longer.
	for ; c.next < names.Chains() && len(x.chain) < compareGroup; c.next++ {
		x.chain = names.Chain(c.next, x.chain)
	}
	b := x.ep.Batch()
	defer b.Release()
	x.s.ReadHeads(b, x.chain, 0)
	if err := rdma.Do(x.ep, b.As("compare"), kv.LocalTimeout); err != nil {
		return err
	}
	for i, at := range x.chain {
		head := b.Op(i).Buf
		// Only the beginning is read: the key may be missing.
		if f, _ := kv.ParseFound(at, head); f.Kind == kv.Put {
			c.digest.Sum += xxhash.Sum64(head[rowan.HeaderBytes:])
			c.digest.Terms += uint64(f.Term)
			c.digest.Versions += f.Version
		}
	}
	if c.next == names.Chains() {
		c.all = append(c.all, cm.Digest{Shard: c.shard, Digest: c.digest})
		c.shard, c.next, c.digest = c.shard+1, 0, shards.Digest{}
	}
	return nil
}
