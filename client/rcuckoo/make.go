package rcuckoo

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Make writes an empty store into the zeroed memory of a new pool. The error wraps ErrParams, or
// rdma.ErrFull when there is not enough memory. Zero is the empty state of all parts, so only the
// header is written, and with replicas the roles of the first leaders.
func Make(f rdma.Fabric, p Params) error {
	l, err := newLayout(p, f.Nodes())
	if err != nil {
		return err
	}
	if l.bytes > f.Size() {
		return fmt.Errorf("make an %s pool: it needs %d bytes a node, each has %d: %w",
			Format, l.bytes, f.Size(), rdma.ErrFull)
	}
	params, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("make an %s pool: %w", Format, err)
	}
	// Memory comes before the header, by which clients find the store.
	for n := range l.nodes {
		if err := l.commit(f, n); err != nil {
			return fmt.Errorf("make an %s pool: %w", Format, err)
		}
	}
	ep, err := f.Open("format")
	if err != nil {
		return fmt.Errorf("make an %s pool: %w", Format, err)
	}
	err = node.WriteHeader(f, ep, node.Header{Store: Format, Version: l.formatVersion(), Params: params})
	for shard := 0; err == nil && l.Replicas > 1 && shard < l.Shards; shard++ {
		err = l.makeLeader(ep, shard)
	}
	return errors.Join(err, ep.Close())
}

// formatVersion is the version in a pool's header. A pool with classes has the newer one, so that
// clients of older programs, which know no classes, refuse it.
func (l *layout) formatVersion() uint32 {
	if l.Classes == 1 {
		return OldestVersion
	}
	return FormatVersion
}

// readLayout joins the pool's view, reads the header, and places the copies of shards as the view
// says. The error wraps rdma.ErrStale when the view changed meanwhile.
func readLayout(ep rdma.Endpoint) (*layout, *kit.Member, error) {
	v, err := kit.Join(ep)
	if err != nil {
		return nil, nil, err
	}
	h, err := node.ReadHeader(ep, len(v.Members))
	if err != nil {
		return nil, nil, err
	}
	if err := h.ExpectSince(Format, OldestVersion, FormatVersion); err != nil {
		return nil, nil, err
	}
	var p Params
	if err := json.Unmarshal(h.Params, &p); err != nil {
		return nil, nil, fmt.Errorf("read pool header: %w", err)
	}
	l, err := newLayout(p, h.Nodes)
	if err == nil {
		l.applyView(&v.View)
	}
	return l, v, err
}
