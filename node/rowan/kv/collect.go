package kv

import (
	"encoding/binary"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// Collected is the content of an entry of a server's logs. It is valid until the callback returns.
type Collected struct {
	Shard      int
	Term       uint32
	Version    uint64
	Deleted    bool
	Key, Value []byte
}

// Newer reports whether r is newer than another record of the same key.
func (r *Collected) Newer(other *Collected) bool {
	return Order{other.Term, other.Version}.Before(Order{r.Term, r.Version})
}

// Collect calls f for each record in the logs of a server, of shards that the server has. It
// changes nothing. The order is arbitrary, and a key may have several records, and copies of one.
// The newest of a key counts; it may be a deletion. While the server runs, Collect may miss entries
// that are moved or freed meanwhile, and may report some that no longer count: see
// rowan.Table.Look.
//
// The worker needs no rings: p is what the pool's fabric promises of them. The error wraps
// rowan.ErrDamaged where memory holds what no server writes.
func Collect(ep rdma.Endpoint, o Options, p rdma.RingPromises, node int, f func(*Collected)) error {
	o = o.WithDefaults()
	// It is the table as of now. Entries are verified, so one of a segment that is freed meanwhile
	// is left out or is still whole.
	t, err := ReadTable(ep, o, p, node)
	var since []uint64
	if err == nil {
		since, err = o.Since(ep, node)
	}
	if err == nil {
		err = t.Look(ep, func(e *rowan.Entry) error {
			r, ok := ParseRecord(e.Data)
			if !ok || r.Shard >= o.Shards {
				return fmt.Errorf("entry at %s is no record: %w", e.Blocks[0], rowan.ErrDamaged)
			}
			// What came to the server before it was a replica of the shard does not count.
			// The upper half of the stamp says when it came.
			if first := since[r.Shard]; first == 0 || TermOf(e) < first {
				return nil
			}
			f(&Collected{r.Shard, r.Term, r.Version, e.Kind == Del, r.Key, r.Value})
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("collect from server %d: %w", node, err)
	}
	return nil
}

// Torn calls f for each entry with a wrong checksum: what its record seems to say, and where it is.
// See rowan.Table.Torn.
func Torn(ep rdma.Endpoint, o Options, p rdma.RingPromises, node int, f func(r *Collected, at rdma.Addr)) error {
	t, err := ReadTable(ep, o, p, node)
	if err != nil {
		return err
	}
	return t.Torn(ep, func(data []byte, at rdma.Addr) {
		if r, ok := ParseRecord(data); ok {
			f(&Collected{Shard: r.Shard, Term: r.Term, Version: r.Version, Key: r.Key, Value: r.Value}, at)
		}
	})
}

// ReadTable reads the table of segments of a server's node for inspection, on a fabric that
// promises p of rings.
func ReadTable(ep rdma.Endpoint, o Options, p rdma.RingPromises, node int) (*rowan.Table, error) {
	return rowan.ReadTable(ep, o.WithDefaults().LogOf(node), p)
}

// CommitVers reads the CommitVers that a node's server has published of the shards of which it is
// the primary, by shard.
func CommitVers(ep rdma.Endpoint, o Options, node int) ([]uint64, error) {
	return o.readWords(ep, "read CommitVers", o.CommitAt(node, 0))
}

// Gave reads the last terms in which servers have given a node's server what they had, by their
// nodes. The words are not sealed: a damaged one is of another term.
func Gave(ep rdma.Endpoint, o Options, node int) ([]uint64, error) {
	words, err := rdma.ReadBytes(ep, "read which gave", o.GaveAt(node, 0), 8*o.Nodes, LocalTimeout)
	if err != nil {
		return nil, fmt.Errorf("read which servers gave server %d what they have: %w", node, err)
	}
	all := make([]uint64, o.Nodes)
	for i := range all {
		all[i] = binary.LittleEndian.Uint64(words[8*i:])
	}
	return all, nil
}

// Describe names what lies at an address of a server's memory. It returns "" for an address outside
// of it.
func (o Options) Describe(a rdma.Addr) string {
	o = o.WithDefaults()
	if n := (a.Offset() - o.Base) / 8; a.Offset() >= o.Base && n < o.wordsBytes()/8 {
		shards, nodes := uint64(o.Shards), uint64(o.Nodes)
		switch {
		case n < 1:
			return "last term"
		case n < 1+shards:
			return fmt.Sprintf("CommitVer of shard %d", n-1)
		case n < 1+2*shards:
			return fmt.Sprintf("last stamp of the copy of shard %d", n-1-shards)
		case n < 1+3*shards:
			return fmt.Sprintf("term since which the server has shard %d", n-1-2*shards)
		case n < 1+3*shards+nodes:
			return fmt.Sprintf("term in which server %d gave", n-1-3*shards)
		}
		return ""
	}
	return o.LogOf(a.Node()).Describe(a)
}

// LastTerm returns the last term that a server noted as a member; 0: none. It noted the term
// durably before it said that it knew it. A pool of which all servers have stopped is started again
// by these terms: see shards.Config.ColdStart. The error wraps rowan.ErrDamaged if the word is
// damaged.
func LastTerm(ep rdma.Endpoint, o Options, node int) (term uint64, err error) {
	word, err := rdma.ReadWord(ep, "read the last term", o.WithDefaults().TermAt(node), LocalTimeout)
	if err == nil {
		var ok bool
		if term, ok = Unseal(word); !ok {
			err = fmt.Errorf("word %#x: %w", word, rowan.ErrDamaged)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("read the last term of server %d: %w", node, err)
	}
	return term, nil
}
