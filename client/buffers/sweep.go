package buffers

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Sweeper is the master's part in a sweep: see package kit. It belongs to the master's task.
//
// The order of a sweep, for all nodes that are not gone: Count; then the epoch begins, with a busy
// view, and earlier ones are fenced off; Begin; then Garbage and Free of each segment. Each step
// may fail, and a master may die between any two: the next sweep begins with Count again.
type Sweeper struct {
	*Space
	ep      rdma.Endpoint
	timeout time.Duration
	// By node and segment: how many buffers were handed out when Count counted them. A node that
	// did not answer keeps its last count, or 0: what it handed out since is left to the next
	// sweep.
	handed [][]int
}

// Sweeper returns a master's sweeper. Each request to a node ends within the timeout.
func (s *Space) Sweeper(ep rdma.Endpoint, nodes int, timeout time.Duration) *Sweeper {
	w := &Sweeper{Space: s, ep: ep, timeout: timeout, handed: make([][]int, nodes)}
	for n := range w.handed {
		w.handed[n] = make([]int, s.Segments)
	}
	return w
}

// Count reads how many buffers of a node were handed out. It must come before the sweep's epoch
// begins: a buffer that is handed out later may have an owner when the sweep examines it.
func (s *Sweeper) Count(node int) error {
	words, err := rdma.ReadBytes(s.ep, stepSweep, rdma.At(node, s.Base), s.Segments*segmentWords, s.timeout)
	if err != nil {
		return fmt.Errorf("count the buffers of node %d that were handed out: %w", node, err)
	}
	for i := range s.handed[node] {
		n := le.Uint64(words[i*segmentWords:])
		if n > uint64(s.Buffers) {
			return fmt.Errorf("segment %d of node %d: %d of %d buffers were handed out: %w", i, node, n, s.Buffers,
				client.ErrDamaged)
		}
		s.handed[node][i] = int(n)
	}
	return nil
}

// A node's word of requests has what clients have asked for since the last sweep in its lowest
// bits. Above is the epoch of that sweep.
const (
	// AskSweep is what a client asks for that found no memory.
	AskSweep uint64 = 1
	// AskFence asks for an epoch without a sweep.
	AskFence uint64 = 2

	askBits = 2
)

// changeRequests changes a node's word of requests. A word that needs no change costs the READ
// only. A CAS that fails returns what the next one expects.
func (s *Space) changeRequests(ep rdma.Endpoint, node int, within time.Duration, next func(word uint64) uint64) error {
	word, err := rdma.ReadWord(ep, stepAsk, s.asked(node), within)
	for err == nil && next(word) != word {
		b := ep.Batch()
		cas := b.CompareSwap(s.asked(node), word, next(word))
		if err = rdma.Do(ep, b.As(stepAsk), within); err == nil {
			word = cas.After()
		}
		b.Release()
	}
	if err != nil {
		return fmt.Errorf("change the requests at node %d: %w", node, err)
	}
	return nil
}

// Asked returns what clients have asked for at a node since the last sweep.
func (s *Sweeper) Asked(node int) (uint64, error) {
	word, err := rdma.ReadWord(s.ep, stepSweep, s.asked(node), s.timeout)
	if err != nil {
		return 0, fmt.Errorf("ask node %d whether clients find no buffer: %w", node, err)
	}
	return word & (1<<askBits - 1), nil
}

// Heard forgets that clients asked for an epoch without a sweep. A request for a sweep remains.
func (s *Sweeper) Heard(node int) error {
	return s.changeRequests(s.ep, node, s.timeout, func(word uint64) uint64 { return word &^ AskFence })
}

// Begin writes down that an epoch is swept, and forgets that clients asked: those that ask from now
// on need another sweep. Requests that come after it stay when it is repeated for the same epoch.
// The epoch is written down first and examined later: clients learn from it whether they still own
// what they got (R1 of package kit), so the word must not be late.
func (s *Sweeper) Begin(node int, epoch uint64) error {
	return s.changeRequests(s.ep, node, s.timeout, func(word uint64) uint64 {
		if word>>askBits == epoch {
			return word
		}
		return epoch << askBits
	})
}

// Garbage returns the buffers of a segment of a node that have no owner: those that were handed out
// when they were counted, less those that are free and those that something names. The view is
// busy, and earlier epochs are fenced off. Clients may take new buffers meanwhile: those lie behind
// the count.
func (s *Sweeper) Garbage(node, segment int, named func(pointer uint16) bool) ([]uint16, error) {
	free, err := s.Walk(s.ep, node, segment, s.timeout)
	if err != nil {
		return nil, err
	}
	// Free buffers, bundles included, are not garbage.
	known := make([]bool, s.Buffers+1)
	for _, p := range free.Pointers {
		known[p] = true
	}
	var garbage []uint16
	for p := uint16(1); int(p) <= s.handed[node][segment]; p++ {
		if !known[p] && !named(p) {
			garbage = append(garbage, p)
		}
		// The next p would be 0 again.
		if p == MaxBuffers {
			break
		}
	}
	return garbage, nil
}

// Free gives buffers back in bundles. No client changes the stack, since the view is busy. A crash
// leaves the buffers that are not in the stack yet as garbage, for the next sweep. The list aliases
// pointers, which are the sweeper's from here on.
func (s *Sweeper) Free(node, segment int, pointers []uint16) error {
	w := Worker{Space: s.Space, ep: s.ep, timeout: s.timeout}
	l := &list{node: node, segment: segment, free: pointers}
	if len(pointers) == 0 {
		return nil
	}
	if err := w.look(l, w.Patience()); err != nil {
		return fmt.Errorf("give back swept buffers of segment %d of node %d: %w", segment, node, err)
	}
	for l.len() > 0 {
		err := w.push(l)
		if err == nil {
			err = s.pushed(l)
		}
		if err != nil {
			return fmt.Errorf("give back swept buffers of segment %d of node %d: %w", segment, node, err)
		}
	}
	return nil
}

// pushed waits until a bundle is in the stack.
//
// If the answer is lost the bundle may be in the stack or not. The sweep ends with the error, and
// the next one walks the stack anew. A CAS that lands later than that is impossible: the next sweep
// fences this epoch off.
func (s *Sweeper) pushed(l *list) error {
	b := l.pushing
	defer b.Release()
	l.pushing = nil
	if err := s.ep.Wait(b, rdma.All, s.timeout); err != nil {
		return err
	}
	if err := b.Err(); err != nil {
		return err
	}
	cas := b.Op(1)
	if !cas.Swapped() {
		return fmt.Errorf("another client changed the stack under a busy view: %w", client.ErrDamaged)
	}
	l.top = stack(cas.Value)
	return nil
}
