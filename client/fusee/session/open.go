package session

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// ReadLayoutInView joins the pool's view, and places everything as the view and the index's size
// say.
func ReadLayoutInView(ep rdma.Endpoint) (*layout.Layout, *kit.Member, error) {
	h, v, err := kit.ReadHeader(ep)
	if err != nil {
		return nil, nil, err
	}
	sequential := h.Store == layout.FormatCR
	if err := h.Expect(layout.FormatName(sequential), layout.FormatVersion); err != nil {
		return nil, nil, err
	}
	l, err := layout.ParseParams(h.Params, h.Nodes, h.Size)
	if err != nil {
		return nil, nil, err
	}
	l.Sequential = sequential
	l.ApplyView(&v.View)
	return l, v, readSize(ep, l, &v.View)
}

// Open joins the pool's view, reads where everything lies, and begins above the numbers of
// earlier holders of the identity. timeout is that of operations; 0: the pool's. It tries again
// while masters change the view under it, for the default timeout: the pool's own is not known
// before its header is read. Nothing is in flight when an attempt has failed so.
func Open(ep rdma.Endpoint, timeout time.Duration) (*Session, error) {
	start := ep.Now()
	r := kit.Retry{Env: ep, Pause: kit.WhileBusy, Over: func() bool { return ep.Now()-start > layout.DefaultTimeout }}
	for {
		s, err := openOnce(ep, timeout)
		if err == nil || !Interrupted(err) || !r.Again() {
			return s, err
		}
	}
}

// openOnce is Open within one view. Nothing is written: a crash leaves an identity that owns
// nothing.
func openOnce(ep rdma.Endpoint, timeout time.Duration) (*Session, error) {
	l, v, err := ReadLayoutInView(ep)
	if err != nil {
		return nil, fmt.Errorf("open fusee: %w", err)
	}
	if int(ep.Client()) > l.Clients {
		return nil, fmt.Errorf(
			"open fusee: client %d has no place for its journal, the pool was made for %d clients: %w",
			ep.Client(), l.Clients, rdma.ErrFull)
	}
	if timeout = cmp.Or(timeout, l.Timeout); timeout > l.Timeout {
		return nil, fmt.Errorf("open fusee: a timeout of %v: the pool was made for %v at most: %w",
			timeout, l.Timeout, layout.ErrParams)
	}
	s := &Session{Layout: l, Endpoint: ep, ID: ep.Client(), OpTimeout: timeout, View: v, Deadline: Never}
	s.Pace = kit.Retry{Env: ep, Pause: ALittleBit, Over: s.Overdue, Total: &s.Stats.Retries}
	if s.Numbers, err = s.NumbersOf(s.ID); err != nil {
		return nil, fmt.Errorf("open fusee: %w", err)
	}
	return s, nil
}

// readSize reads the index's size on a node that answers, and resizes the index. Clients begin
// with different nodes. Under an idle view all nodes have the same size; under a busy one the
// size may be a step behind, which does no harm: see above. The error wraps rdma.ErrNodeDown when
// no node answers.
func readSize(ep rdma.Endpoint, l *layout.Layout, v *rdma.View) (err error) {
	if l.MostSubtables() == l.Subtables {
		return nil
	}
	for i := range l.Holders {
		n := l.Holders[(int(ep.Client())+i)%len(l.Holders)]
		var w uint64
		if w, err = rdma.ReadWord(ep, StepReadSize, l.SizeAt(n), l.Timeout); errors.Is(err, rdma.ErrNodeDown) {
			continue
		}
		if err != nil {
			break
		}
		size, _, err := l.SizeOf(w)
		if err == nil && size != len(l.Index.Place) {
			l.Resize(v, size)
		}
		return err
	}
	return fmt.Errorf("read the size of the index: %w", err)
}

// ReadSize reads the index's size in the view that was joined. Under an idle view it need not be
// read again.
func (s *Session) ReadSize() error { return readSize(s.Endpoint, s.Layout, &s.View.View) }

// Make writes an empty store into the zeroed memory of a new pool. An empty slot, a free table
// entry, an empty journal and the index's first size are all zero, so only the header is written.
// It is written last, on memory that is committed: a crash before that leaves a pool without a
// header.
func Make(f rdma.Fabric, p layout.Params) error {
	l, err := layout.New(p, f.Nodes(), f.Size())
	if err != nil {
		return err
	}
	params, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("make a fusee pool: %w", err)
	}
	// Subtables of each node. A node has those first with which the index begins.
	used := make([]int, f.Nodes())
	for _, place := range l.Index.Place {
		for _, r := range place {
			used[r.Node] = max(used[r.Node], r.Index+1)
		}
	}
	for n := range f.Nodes() {
		if err := node.Commit(f, n, 0, l.Index.Base+uint64(used[n])*race.SubtableBytes(p.Groups)); err != nil {
			return fmt.Errorf("make a fusee pool: index of node %d: %w", n, err)
		}
	}
	// The tables are committed here. A block is committed with its bitmap when it is handed out.
	for g := range l.Space.Place {
		for r := range p.DataReplicas {
			a := l.Space.Table(g, r)
			if err := node.Commit(f, a.Node(), a.Offset(),
				l.Space.RegionBytes-uint64(l.Space.Blocks())*p.BlockBytes); err != nil {
				return fmt.Errorf("make a fusee pool: table of region %d: %w", g, err)
			}
		}
	}
	ep, err := f.Open("format")
	if err != nil {
		return fmt.Errorf("make a fusee pool: %w", err)
	}
	defer ep.Close()
	return node.WriteHeader(f, ep,
		node.Header{Store: layout.FormatName(p.Sequential), Version: layout.FormatVersion, Params: params})
}
