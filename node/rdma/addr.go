package rdma

import "fmt"

// Addr names one byte of pool memory: a node in the upper 16 bits and a byte offset into that
// node's registered memory in the lower 48. It exists only in this API: stores pack their own
// pointers and never write an Addr into pool memory.
type Addr uint64

// MaxOffset bounds the registered memory of one node, in bytes.
const MaxOffset = 1 << 48

// MaxNodes bounds the memory nodes of one pool.
const MaxNodes = 1 << 16

// At returns the address of byte off of node.
func At(node int, off uint64) Addr {
	if uint(node) >= MaxNodes || off >= MaxOffset {
		panic(fmt.Sprintf("rdma: no address for node %d, offset %#x", node, off))
	}
	return Addr(uint64(node)<<48 | off)
}

// Node returns the memory node that a lies on.
func (a Addr) Node() int { return int(a >> 48) }

// Offset returns a's byte offset into its node's memory.
func (a Addr) Offset() uint64 { return uint64(a) & (MaxOffset - 1) }

// Add returns the address n bytes behind a, on the same node.
func (a Addr) Add(n uint64) Addr { return At(a.Node(), a.Offset()+n) }

func (a Addr) String() string { return fmt.Sprintf("%d:%#x", a.Node(), a.Offset()) }
