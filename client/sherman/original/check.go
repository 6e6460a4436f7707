package original

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Check walks the whole pool, on which no client works, and reports. Each node is
// whole. It has the level that its parent says, begins where the parent says, and
// ends where its sibling begins; its entries lie between its fences. Each value
// that a leaf names is that key's. The word of an object says linked for what the
// wholeTree has, and for nothing else. What has the name of a client waits for the
// recovery of that client. Check changes nothing but an identity of its own.
func Check(f rdma.Fabric) (r client.Report, err error) {
	ep, err := f.Open("check")
	if err != nil {
		return r, fmt.Errorf("check: %w", err)
	}
	if err := checkPool(ep, f, &r); err != nil {
		return r, errors.Join(fmt.Errorf("check: %w", err), ep.Close())
	}
	return r, ep.Close()
}

// checker is the state of a Check.
// No client works meanwhile. So a header or an entry that is not whole is
// damage, unless a dead client has locked its node.
type checker struct {
	*tree
	r     *client.Report
	alive map[rdma.ClientID]bool
	// locked has nodes and their locks.
	locked map[ref]lockWord
	// trees are the nodes that the tree has, and named the blocks.
	// objects deletes what has a word. What is left has none.
	trees map[ref]bool
	named map[ref]pointer
	// due are blocks that a client has replaced, and is to free.
	due map[ref]bool

	// These are counts for the report; lagging are nodes that their parents do
	// not name.
	keys, leaves, empty, inner, lagging uint64
}

// checkPool opens a worker that only reads, and looks at locks, tree and words,
// in this order.
func checkPool(ep rdma.Endpoint, f rdma.Fabric, r *client.Report) error {
	l, v, err := readLayout(ep)
	if err != nil {
		return err
	}
	s, err := l.open(ep, v, Options{})
	if err != nil {
		return err
	}
	clients, err := rdma.ListClients(f)
	if err != nil {
		return err
	}
	c := &checker{tree: s.tree, r: r, alive: map[rdma.ClientID]bool{}, locked: map[ref]lockWord{},
		trees: map[ref]bool{}, named: map[ref]pointer{}, due: map[ref]bool{}}
	for _, o := range clients {
		c.alive[o.ID] = c.alive[o.ID] || o.Alive
	}
	// Locks come first: what lies under one may be half written, and is no
	// damage.
	if err := c.locks(); err != nil {
		return err
	}
	if err := c.wholeTree(); err != nil {
		return err
	}
	// objects removes from named what it has found.
	beside := uint64(len(c.named))
	if err := c.replaced(); err != nil {
		return err
	}
	for _, a := range []*arena{&l.trees, &l.blocks} {
		if err := c.objects(a); err != nil {
			return err
		}
	}
	r.Fact("keys", c.keys, c.keys*uint64(l.slot))
	r.Fact("leaves", c.leaves, c.leaves*uint64(l.nodeBytes))
	r.Fact("leaves without a pair", c.empty, c.empty*uint64(l.nodeBytes))
	r.Fact("internal nodes", c.inner, c.inner*uint64(l.nodeBytes))
	r.Fact("levels", uint64(s.root.level()+1), 0)
	r.Fact("values beside leaves", beside, beside*uint64(l.blockBytes))
	r.Fact("nodes that their parents do not name", c.lagging, 0)
	return nil
}

// locks looks at the locks. A lock that is held is that of a dead client.
func (c *checker) locks() error {
	for n := range c.nodes {
		err := c.words(n, locks0, c.Locks, func(i int, w uint64) error {
			lock := lockWord(w)
			// A lock word names the node. The lock of that node has to be the
			// one that has the word.
			r := makeRef(n, lock.index())
			if lock.client() == 0 || lock.index() >= c.tree.trees.count ||
				c.lockAt(r) != rdma.At(n, locks0+uint64(i)*8) {
				c.r.Damaged("lock %d/%d is %#x, of no node that it is for", n, i, w)
				return nil
			}
			c.locked[r] = lock
			c.r.Waits("client %d has locked node %v, and its lock", lock.client(), r)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// wholeTree walks the tree, level by level, from the first node of each along its
// siblings.
func (c *checker) wholeTree() error {
	if err := c.readRoot(); err != nil {
		return err
	}
	first := c.root.ref()
	// parents are the nodes of a level that the level above names.
	var parents map[ref]bool
	for level := c.root.level(); level >= 0; level-- {
		next, names, err := c.level(first, level, parents)
		if err != nil || next == 0 && level > 0 {
			return err
		}
		first, parents = next, names
	}
	return nil
}

// level walks a level. It returns the first node of the next level, and the nodes
// there that this level names.
func (c *checker) level(r ref, level int, parents map[ref]bool) (below ref, names map[ref]bool, err error) {
	names = map[ref]bool{}
	met := 0
	// The nodes of a level touch: where one ends, at its upper fence, its
	// sibling begins. The first one begins at the least key.
	var lower []byte
	for first := true; r != 0; first = false {
		// A node that is met twice would make the walk endless.
		if c.trees[r] || r.node() >= c.nodes || r.index() >= c.tree.trees.count {
			c.r.Damaged("node %v of level %d is named twice, or is none", r, level)
			return below, names, nil
		}
		c.trees[r] = true
		b, p, err := c.read(stepSurvey, c.tree.trees.at(r), c.nodeBytes)
		if err != nil {
			return 0, nil, err
		}
		// leaf READs blocks while it looks at p, and p is the buffer of the
		// batch.
		p = bytes.Clone(p)
		b.Release()
		c.span()
		h, ok := c.readHeader(p, r)
		if !ok || h.level != level || !bytes.Equal(h.lower, lower) || !h.last && bytes.Compare(h.upper, h.lower) <= 0 {
			c.r.Damaged("node %v is no node of level %d from %.40q on: %+v", r, level, lower, h)
			return below, names, nil
		}
		switch {
		case parents[r]:
			met++
		// The parent lacks a separator: readers follow the sibling.
		case parents != nil && !first:
			c.lagging++
		}
		if level == 0 {
			err = c.leaf(p, r, h)
		} else {
			c.inner++
			c.internal(p, r, h, names)
		}
		if first {
			below = h.leftmost
		}
		if err != nil {
			return 0, nil, err
		}
		lower, r = h.upper, h.sibling
	}
	// Siblings lead to all nodes of a level, so a parent cannot name another one.
	if met != len(parents) {
		c.r.Damaged("the nodes above level %d name %d nodes, of which its siblings have %d", level, len(parents), met)
	}
	return below, names, nil
}

// internal looks at the entries of an internal node, and adds its children to
// names.
func (c *checker) internal(p []byte, r ref, h header, names map[ref]bool) {
	if !c.bodyWhole(p, r, &h) {
		if c.locked[r] == 0 {
			c.r.Damaged("the entries of node %v are not whole", r)
		}
		// Readers use the older header as long as the entries are those of it.
		if n, ok := c.readInternal(p, r); ok {
			h = n.header
		} else {
			return
		}
	}
	n := internal{h, &c.format, p}
	before := h.lower
	// The leftmost child has no entry: its lower fence is that of the node.
	names[h.leftmost] = true
	for i := range n.count {
		e := n.entry(i)
		if bytes.Compare(e.key, before) <= 0 || !h.has(e.key) || names[e.child] {
			c.r.Damaged("entry %d of node %v, %.40q, is not in order, not between its fences, or names a node twice",
				i, r, e.key)
		}
		before = e.key
		names[e.child] = true
	}
}

// leaf looks at the pairs of a leaf, and at their values.
func (c *checker) leaf(p []byte, r ref, h header) error {
	l := leaf{h, &c.format, p, r}
	c.leaves++
	for i := range c.slots {
		if !l.steady(i) && c.locked[r] == 0 {
			c.r.Damaged("slot %d of leaf %v is not whole, or newer than its header", i, r)
		}
	}
	// Pairs are in the order of keys, so two of one key are neighbors.
	order := l.pairs(nil)
	if len(order) == 0 {
		c.empty++
	}
	for n, i := range order {
		// Its key is not known. Under a lock that is no damage.
		if !l.whole(i) {
			continue
		}
		c.keys++
		if !l.has(l.key(i)) || n > 0 && bytes.Equal(l.key(i), l.key(order[n-1])) {
			c.r.Damaged("leaf %v has the key %.40q, which is twice there, or is not between %.40q and %.40q", r,
				l.key(i), l.lower, l.upper)
		}
		if l.kind(i) != slotBeside {
			continue
		}
		q := pointer(l.value(i))
		if c.sound(q) != nil || c.named[q.ref()] != 0 {
			c.r.Damaged("leaf %v names block %v as the value of %.40q, which is none, or that of another pair", r,
				q.ref(), l.key(i))
			continue
		}
		c.named[q.ref()] = q
		ok, err := c.readValue(q, l.key(i))
		if err != nil {
			return err
		}
		if !ok {
			c.r.Damaged("block %v is not the value of %.40q, as leaf %v says", q.ref(), l.key(i), r)
		}
	}
	return nil
}

// replaced lists the blocks that those in a client's name took the place of, or
// were to.
func (c *checker) replaced() error {
	for n := range c.nodes {
		err := c.words(n, c.blocks.words, c.blocks.count, func(i int, w uint64) error {
			p := makePointer(makeRef(n, i), owner(w).generation())
			if owner(w).client() == 0 || owner(w).client() == linked {
				return nil
			}
			b, buf, err := c.read(stepSurvey, c.blocks.at(p.ref()), c.blockBytes)
			if err != nil {
				return err
			}
			defer b.Release()
			// The block is the only record of the one that it took the place
			// of. That one stays linked until this one is marked.
			if k, ok := c.readBlock(buf); ok && k.self == p && k.replaces != 0 {
				c.due[k.replaces.ref()] = true
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// objects compares the words of an arena with what the tree has.
func (c *checker) objects(a *arena) error {
	what := "node"
	if a == &c.blocks {
		what = "block"
	}
	// left counts the objects of dead clients. order has these clients as they
	// are met, since the order of a map differs between runs.
	left := map[rdma.ClientID]int{}
	var order []rdma.ClientID
	for n := range c.nodes {
		err := c.words(n, a.words, a.count, func(i int, w uint64) error {
			r, o := makeRef(n, i), owner(w)
			has := c.trees[r]
			if a == &c.blocks {
				q, ok := c.named[r]
				// The leaf names another use of the block than its word.
				if has = ok; ok && q.generation() != o.generation() {
					c.r.Damaged("block %v is named as of use %d, and its word is %#x", r, q.generation(), w)
				}
				delete(c.named, r)
			} else {
				delete(c.trees, r)
			}
			switch {
			// The client that has replaced it died before it took the block.
			case o.client() == linked && !has && a == &c.blocks && c.due[r]:
				c.r.Waits("block %v was replaced, and is not free", r)
			case o.client() == linked && !has:
				c.r.Damaged("%s %v is linked, its word says, and the tree does not have it", what, r)
			case o.client() == 0 && has:
				c.r.Damaged("%s %v is free, its word says, and the tree has it", what, r)
			case o.client() != 0 && o.client() != linked && !c.alive[o.client()]:
				if left[o.client()] == 0 {
					order = append(order, o.client())
				}
				left[o.client()]++
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if n := len(c.named); a == &c.blocks && n > 0 {
		c.r.Damaged("the words of %d blocks that leaves name say that they were never used", n)
	}
	if n := len(c.trees); a != &c.blocks && n > 0 {
		c.r.Damaged("the words of %d nodes of the tree say that they were never used", n)
	}
	for _, id := range order {
		c.r.Waits("%d %ss have the name of client %d, which is gone", left[id], what, id)
	}
	return nil
}
