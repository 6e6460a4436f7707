package sherman

import "github.com/farkv/farkv/client/sherman/btree"

// cache has internal nodes as a worker has read them last, within a budget: those that were used
// last stay. What it has may be outdated. Fence keys tell.
type cache struct {
	f     *btree.Format
	most  int // nodes
	nodes map[btree.Ref]*cached
	// ring is where nodes hang in the order of their last use: ring.next was used last.
	ring cached
	// spare is what nodes are read into where the cache holds none.
	spare cached
}

// cached is an internal node.
type cached struct {
	ref        btree.Ref
	node       btree.Internal
	buf        []byte // that node points into
	next, prev *cached
}

// cachedOverhead is about what a node takes beside its own bytes.
const cachedOverhead = 192

func newCache(f *btree.Format, budget int) *cache {
	c := &cache{f: f, most: budget / (f.NodeBytes + cachedOverhead), nodes: map[btree.Ref]*cached{}}
	c.ring.next, c.ring.prev = &c.ring, &c.ring
	return c
}

// get returns a node, and notes that it is used; nil: the cache does not have it.
func (c *cache) get(r btree.Ref) *cached {
	n := c.nodes[r]
	if n != nil && c.ring.next != n {
		n.unlink()
		c.link(n)
	}
	return n
}

// put takes the bytes of a node that was READ; nil: they are no internal node.
func (c *cache) put(r btree.Ref, p []byte) *cached {
	n := c.nodes[r]
	switch {
	case n != nil:
		n.unlink()
	case c.most == 0:
		n = &c.spare
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

func (c *cache) link(n *cached) {
	n.next, n.prev = c.ring.next, &c.ring
	n.next.prev, c.ring.next = n, n
}

func (n *cached) unlink() { n.next.prev, n.prev.next = n.prev, n.next }
