package buffers

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Free is the state of a node's segment on which no client works.
type Free struct {
	// Buffers that were handed out at least once: 1 to Handed.
	Handed int
	// Those of them that were given back, bundles included. The order is that of the stack, from
	// the top.
	Pointers []uint16
}

// Walk reads which buffers of a node's segment are free. Clients may work on other segments; if
// this one changes meanwhile the result is meaningless. The error wraps client.ErrDamaged if the
// stack is damaged. Under a busy view the count may rise meanwhile, but no client changes the stack
// (R2), so what the stack names was handed out before the count was read.
func (s *Space) Walk(ep rdma.Endpoint, node, segment int, timeout time.Duration) (Free, error) {
	var f Free
	top := stack(0)
	words, err := rdma.ReadBytes(ep, stepWalk, rdma.At(node, s.counter(segment)), segmentWords, timeout)
	if err == nil {
		f.Handed, top = int(min(le.Uint64(words), 1<<32)), stack(le.Uint64(words[8:]))
		if f.Handed > s.Buffers {
			err = fmt.Errorf("%d of %d buffers were handed out: %w", f.Handed, s.Buffers, client.ErrDamaged)
		}
	}
	seen := make([]bool, s.Buffers+1)
	// The walk ends, since walkBundle refuses a buffer that it has seen.
	for next := top.pointer(); next != 0 && err == nil; {
		next, err = s.walkBundle(ep, node, segment, next, timeout, &f, seen)
	}
	if err != nil {
		return f, fmt.Errorf("walk the free buffers of segment %d of node %d: %w", segment, node, err)
	}
	return f, nil
}

// walkBundle adds the buffers of a bundle. A buffer that appears twice is damage, which also bounds
// the walk. The master's sweep relies on that: it frees what no bundle has, so a bundle that cannot
// be read must end the sweep.
func (s *Space) walkBundle(ep rdma.Endpoint, node, segment int, pointer uint16, timeout time.Duration, f *Free,
	seen []bool) (next uint16, err error) {
	bundle, err := rdma.ReadBytes(ep, stepWalk, s.at(node, segment, pointer), bundleBytes(s.listed()), timeout)
	if err != nil {
		return 0, err
	}
	from := len(f.Pointers)
	next, list, ok := decodeBundle(bundle, f.Pointers)
	if !ok {
		return 0, fmt.Errorf("the bundle in buffer %d: %w", pointer, client.ErrDamaged)
	}
	f.Pointers = append(list, pointer)
	for _, p := range f.Pointers[from:] {
		if p == 0 || int(p) > f.Handed || seen[p] {
			return 0, fmt.Errorf("buffer %d in the bundle in buffer %d (%d were handed out): %w", p, pointer, f.Handed,
				client.ErrDamaged)
		}
		seen[p] = true
	}
	return next, nil
}

// Handed returns how many buffers of a node were handed out at least once. It may be used while
// clients work: it is a lower bound then.
func (s *Space) Handed(ep rdma.Endpoint, node int, timeout time.Duration) (n uint64, err error) {
	words, err := rdma.ReadBytes(ep, stepWalk, rdma.At(node, s.Base), s.Segments*segmentWords, timeout)
	if err != nil {
		return 0, fmt.Errorf("count the buffers of node %d: %w", node, err)
	}
	for i := range s.Segments {
		n += min(le.Uint64(words[i*segmentWords:]), uint64(s.Buffers))
	}
	return n, nil
}
