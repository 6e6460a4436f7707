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

// Collect calls f for the record of each entry in the logs of a server that has stopped, or was fenced off, in no
// particular order: of a key there may be several, and copies of one. Of those the newest one counts, which may be a
// DEL's.
func Collect(ep rdma.Endpoint, o Options, node int, f func(*Record)) error {
	o = o.withDefaults()
	t, err := rowan.OpenTable(ep, o.log(node))
	if err != nil {
		return fmt.Errorf("collect from server %d: %w", node, err)
	}
	take := func(e *rowan.Entry) error {
		r, ok := parseRecord(e.Data)
		if !ok {
			return fmt.Errorf("entry at %s is no record: %w", e.Blocks[0], rowan.ErrDamaged)
		}
		f(&Record{r.shard, r.term, r.version, e.Kind == kindDel, r.key, r.value})
		return nil
	}
	scratch := make([]byte, t.SegmentBytes())
	for _, seg := range t.Left() {
		if err := t.Scan(ep, seg, scratch, take); err != nil {
			return fmt.Errorf("collect from server %d: %w", node, err)
		}
	}
	r, err := t.Receiver(ep)
	if err == nil {
		_, err = r.Recover(func(_ rowan.Segment, e *rowan.Entry) error { return take(e) })
	}
	if err != nil {
		return fmt.Errorf("collect from server %d: %w", node, err)
	}
	return nil
}
