package memory

import (
	"encoding/binary"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Handlers of calls see a Memory as this. Their atomics count as atomics, and what they write is
// durable at once.
var _ rdma.Memory = (*Memory)(nil)

// Node returns the number of the memory's node.
func (m *Memory) Node() int { return m.node }

// Size returns how many bytes there are.
func (m *Memory) Size() uint64 { return m.size }

// word checks that off names a word; a handler that strays is a bug in the handler.
func (m *Memory) word(off uint64) uint64 {
	if off%8 != 0 || off > m.size-8 {
		panic(fmt.Sprintf("sim: handler touches %#x of node %d, which has %#x bytes", off, m.node, m.size))
	}
	return off
}

// Load returns the aligned word at off.
func (m *Memory) Load(off uint64) uint64 {
	p, at := m.seen(m.word(off)), off%pageBytes
	if p == nil {
		return 0
	}
	m.observed(p, at, 8)
	return binary.LittleEndian.Uint64(p.data[at:])
}

// CompareSwap returns the aligned word at off, and replaces it with value if it is expect.
func (m *Memory) CompareSwap(off, expect, value uint64) uint64 {
	return m.Atomic(m.word(off), &rdma.Op{Verb: rdma.CompareSwap, Expect: expect, Value: value})
}

// FetchAdd returns the aligned word at off, and adds n to it.
func (m *Memory) FetchAdd(off, n uint64) uint64 {
	return m.Atomic(m.word(off), &rdma.Op{Verb: rdma.FetchAdd, Value: n})
}

// Commit reports whether there are n bytes at off. Pages are allocated by the first write.
func (m *Memory) Commit(off, n uint64) error {
	if off > m.size || n > m.size-off {
		return fmt.Errorf("commit %d bytes at %#x of node %d: %w", n, off, m.node, rdma.ErrAccess)
	}
	return nil
}
