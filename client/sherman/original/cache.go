package original

// cache has internal nodes as a worker has read them last, within a budget. Those
// that were used last stay. They may be outdated, which fence keys show.
type cache struct {
	// most bounds the nodes; 0: none is remembered.
	most  int
	nodes map[ref]*cached
	// ring links the nodes in the order of their last use: ring.next was used
	// last.
	ring cached
	// spare is what nodes are read into if the cache holds none.
	spare cached
}

// cached is an internal node. It is valid until it is dropped or put again.
type cached struct {
	internal
	r ref
	// buf has the bytes that the node points into.
	buf        []byte
	next, prev *cached
}

// cachedOverhead is about what a node takes beside its own bytes.
const cachedOverhead = 192

// newCache returns a cache for as many nodes as a budget in bytes has room for.
func newCache(f *format, budget int) *cache {
	c := &cache{most: budget / (f.nodeBytes + cachedOverhead), nodes: map[ref]*cached{}}
	c.ring.next, c.ring.prev = &c.ring, &c.ring
	return c
}

// get returns a node, and notes its use. It returns nil if the cache does not
// have the node.
func (c *cache) get(r ref) *cached {
	n := c.nodes[r]
	if n != nil && c.ring.next != n {
		n.unlink()
		c.link(n)
	}
	return n
}

// put takes the bytes of a node that was read, which are copied. It returns nil
// if they are no whole internal node.
func (c *cache) put(f *format, r ref, p []byte) *cached {
	n := c.nodes[r]
	switch {
	case n != nil:
		c.drop(r)
	case c.most == 0:
		n = &c.spare
	// The node that was used longest ago makes room, and its buffer is used
	// again.
	case len(c.nodes) == c.most:
		n = c.ring.prev
		c.drop(n.r)
	default:
		n = &cached{}
	}
	n.r, n.buf = r, append(n.buf[:0], p...)
	ok := false
	if n.internal, ok = f.readInternal(n.buf, r); !ok {
		return nil
	}
	if c.most > 0 {
		c.link(n)
		c.nodes[r] = n
	}
	return n
}

// drop forgets a node.
func (c *cache) drop(r ref) {
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
