package sherman

import "github.com/farkv/farkv/client/sherman/btree"

// cache has internal nodes as a worker has read them last, within a budget. Those
// that were used last stay. They may be outdated, which fence keys show.
type cache struct {
	f *btree.Format
	// most bounds the nodes; 0: none is remembered.
	most  int
	nodes map[btree.Ref]*cached
	// ring links the nodes in the order of their last use: ring.next was used
	// last.
	ring cached
	// spare is what nodes are read into if the cache holds none.
	spare cached
}

// cached is an internal node.
type cached struct {
	ref  btree.Ref
	node btree.Internal
	// buf has the bytes that node points into.
	buf        []byte
	next, prev *cached
}

// cachedOverhead is about what a node takes beside its own bytes.
const cachedOverhead = 192

// newCache returns a cache for as many nodes as a budget in bytes has room for.
func newCache(f *btree.Format, budget int) *cache {
	c := &cache{f: f, most: budget / (f.NodeBytes + cachedOverhead), nodes: map[btree.Ref]*cached{}}
	c.ring.next, c.ring.prev = &c.ring, &c.ring
	return c
}

// get returns a node, and notes its use. It returns nil if the cache does not
// have the node.
func (c *cache) get(r btree.Ref) *cached {
	n := c.nodes[r]
	if n != nil && c.ring.next != n {
		n.unlink()
		c.link(n)
	}
	return n
}

// put takes the bytes of a node that was READ, which are copied. It returns nil
// if they are no internal node. The result is valid until the node is dropped or
// put again.
func (c *cache) put(r btree.Ref, p []byte) *cached {
	n := c.nodes[r]
	switch {
	case n != nil:
		n.unlink()
	case c.most == 0:
		n = &c.spare
	// The node that was used longest ago makes room, and its buffer is used
	// again.
	case len(c.nodes) == c.most:
		n = c.ring.prev
		n.unlink()
		delete(c.nodes, n.ref)
	default:
		n = &cached{}
	}
	n.ref, n.buf = r, append(n.buf[:0], p...)
	ok := false
	n.node, ok = c.f.DecodeInternal(n.buf)
	switch {
	// The node is valid until the next one is read.
	case c.most == 0 && ok:
		return n
	case !ok:
		delete(c.nodes, r)
		return nil
	}
	c.link(n)
	c.nodes[r] = n
	return n
}

// drop forgets a node.
func (c *cache) drop(r btree.Ref) {
	if n := c.nodes[r]; n != nil {
		n.unlink()
		delete(c.nodes, r)
	}
}

// link makes a node the one that was used last.
func (c *cache) link(n *cached) {
	n.next, n.prev = c.ring.next, &c.ring
	n.next.prev, c.ring.next = n, n
}

// unlink takes a node out of the ring.
func (n *cached) unlink() { n.next.prev, n.prev.next = n.prev, n.next }
