package kv

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// Record is what an entry of a server's logs says. It is the callback's until that returns.
type Record struct {
	Shard      int
	Term       uint32
	Version    uint64
	Deleted    bool
	Key, Value []byte
}

// Newer reports whether r is newer than another record of its key.
func (r *Record) Newer(other *Record) bool {
	return order{other.Term, other.Version}.before(order{r.Term, r.Version})
}

// Collect calls f for the record of each entry in the logs of a server, of shards that it has, in
// no particular order, and changes nothing: of a key there may be several, and copies of one. Of
// those the newest one counts, which may be a DEL's. While the server serves, what is moved or
// freed may be missed, or come though it does not count any more: see rowan.Table.Look.
//
// The worker needs no rings itself: p is what its fabric promises of them. The error wraps
// rowan.ErrDamaged where memory has what no server writes.
func Collect(ep rdma.Endpoint, o Options, p rdma.RingPromises, node int, f func(*Record)) error {
	o = o.WithDefaults()
	t, err := ReadTable(ep, o, p, node)
	var since []uint64
	if err == nil {
		since, err = o.since(ep, node)
	}
	if err == nil {
		err = t.Look(ep, func(e *rowan.Entry) error {
			r, ok := parseRecord(e.Data)
			if !ok || r.shard >= o.Shards {
				return fmt.Errorf("entry at %s is no record: %w", e.Blocks[0], rowan.ErrDamaged)
			}
			if first := since[r.shard]; first == 0 || termOf(e) < first {
				return nil
			}
			f(&Record{r.shard, r.term, r.version, e.Kind == kindDel, r.key, r.value})
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("collect from server %d: %w", node, err)
	}
	return nil
}

// Torn calls f for what records of entries say whose checksum is wrong, and for where these are:
// see rowan.Table.Torn.
func Torn(ep rdma.Endpoint, o Options, p rdma.RingPromises, node int, f func(r *Record, at rdma.Addr)) error {
	t, err := ReadTable(ep, o, p, node)
	if err != nil {
		return err
	}
	return t.Torn(ep, func(data []byte, at rdma.Addr) {
		if r, ok := parseRecord(data); ok {
			f(&Record{Shard: r.shard, Term: r.term, Version: r.version, Key: r.key, Value: r.value}, at)
		}
	})
}

// ReadTable reads the table of segments of a server's node, to look at it, on a fabric that
// promises p of rings.
func ReadTable(ep rdma.Endpoint, o Options, p rdma.RingPromises, node int) (*rowan.Table, error) {
	return rowan.ReadTable(ep, o.WithDefaults().log(node), p)
}

// CommitVers reads what the server of a node says of the CommitVers of the shards of which it is
// the primary, by shard.
func CommitVers(ep rdma.Endpoint, o Options, node int) ([]uint64, error) {
	return o.readWords(ep, "read CommitVers", o.commitAt(node, 0))
}

// Describe returns what lies at an address of a server's memory; "": it is none of that.
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
	return o.log(a.Node()).Describe(a)
}

// LastTerm returns the last term that a server noted, as a member, before it said that it knew it;
// 0: none. A pool whose servers have all stopped begins again by it: see shards.Config.ColdStart.
// The error wraps rowan.ErrDamaged when the word is none that a server wrote.
func LastTerm(ep rdma.Endpoint, o Options, node int) (term uint64, err error) {
	word, err := rdma.ReadWord(ep, "read the last term", o.WithDefaults().termAt(node), patience)
	if err == nil {
		var ok bool
		if term, ok = unseal(word); !ok {
			err = fmt.Errorf("word %#x: %w", word, rowan.ErrDamaged)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("read the last term of server %d: %w", node, err)
	}
	return term, nil
}
