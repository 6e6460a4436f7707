package table

import (
	"encoding/json"
	"fmt"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// FormatVersion is the version in a pool's header. A pool with classes has the newer one, so that
// clients of older programs, which know no classes, refuse it.
func (l *Layout) FormatVersion() uint32 {
	if l.Classes == 1 {
		return OldestVersion
	}
	return FormatVersion
}

// Read joins the pool's view, reads the header, and places the copies of shards as the view
// says. The error wraps rdma.ErrStale when the view changed meanwhile.
func Read(ep rdma.Endpoint) (*Layout, *kit.Member, error) {
	h, v, err := kit.ReadHeader(ep)
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
	l, err := New(p, h.Nodes)
	if err == nil {
		l.ApplyView(&v.View)
	}
	return l, v, err
}
