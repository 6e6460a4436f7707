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
// rdma.ErrFull when there is not enough memory.
func Make(f rdma.Fabric, p Params) error {
	l, err := newLayout(p, f.Nodes())
	if err != nil {
		return err
	}
	if l.bytes > f.Size() {
		return fmt.Errorf("make an %s pool: it needs %d bytes a node, each has %d: %w", Format, l.bytes, f.Size(), rdma.ErrFull)
	}
	params, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("make an %s pool: %w", Format, err)
	}
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

// formatVersion is that of a pool's header: clients that know of no classes refuse a pool with some.
func (l *layout) formatVersion() uint32 {
	if l.Classes == 1 {
		return OldestVersion
	}
	return FormatVersion
}

// readLayout reads a pool's header, and places everything as the view says that it joins.
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
