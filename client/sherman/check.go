package sherman

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/sherman/btree"
	"github.com/farkv/farkv/node/rdma"
)

// Check walks the whole pool, on which no client works, and reports. Each object
// has data of its own. Each node has the level and the fences that its parent
// says; its entries lie between them, in internal nodes in order; and its sibling
// is the next node of its level. Each value that a leaf names is that key's, and
// named once. There is no object that the tree does not have. Check changes
// nothing but an identity of its own.
//
// It looks at one object after the other, without a transaction. So with clients
// at work it would take what belongs to two moments for damage.
func Check(f rdma.Fabric) (r client.Report, err error) {
	ep, err := f.Open("check")
	if err != nil {
		return r, fmt.Errorf("check: %w", err)
	}
	c := checker{r: &r, named: map[btree.Ref]bool{}}
	if err := c.check(f, ep); err != nil {
		return r, errors.Join(fmt.Errorf("check: %w", err), ep.Close())
	}
	return r, ep.Close()
}

// checker is the state of a Check.
type checker struct {
	*layout
	o objects
	r *client.Report
	// named are the objects that the tree has.
	named map[btree.Ref]bool
	// last has by level the sibling that the node before has, and begun whether a
	// node of the level was met.
	last  []btree.Ref
	begun []bool

	keys, beside, besideBytes, leaves, empty, internal uint64
}

// check looks at the objects, then at the tree, unless transactions that are not
// finished make the tree a mixture.
func (c *checker) check(f rdma.Fabric, ep rdma.Endpoint) (err error) {
	if c.layout, _, err = readLayout(ep); err != nil {
		return err
	}
	// Nothing is remembered, so that all that is looked at is read.
	if c.o, err = c.library.open(ep, c.Timeout, 0); err != nil {
		return err
	}
	clients, err := rdma.ListClients(f)
	if err != nil {
		return err
	}
	alive := map[rdma.ClientID]bool{}
	for _, client := range clients {
		// The pool may list an identity several times: it is alive if any of its
		// holders is.
		alive[client.ID] = alive[client.ID] || client.Alive
	}
	// Locks and logs come first: they say whether the objects are of one moment.
	a, err := c.o.check(c.r, alive)
	if err != nil {
		return err
	}
	if a.unfinished {
		c.r.Unseen("the tree: some objects are as they were before a transaction, and others as they are behind it")
		return nil
	}
	if err := c.tree(); err != nil {
		return err
	}
	// What the tree does not have was leaked.
	if have := uint64(len(c.named)); a.objects != have {
		c.r.Damaged("the pool has %d objects, and the tree %d", a.objects, have)
	}
	c.r.Fact("keys", c.keys, c.keys*uint64(c.KeyBytes+btree.Inline))
	c.r.Fact("leaves", c.leaves, c.leaves*uint64(c.NodeBytes))
	c.r.Fact("leaves without a pair", c.empty, c.empty*uint64(c.NodeBytes))
	c.r.Fact("internal nodes", c.internal, c.internal*uint64(c.NodeBytes))
	c.r.Fact("levels", uint64(len(c.last)), 0)
	c.r.Fact("values beside leaves", c.beside, c.besideBytes)
	for _, f := range a.facts {
		c.r.Fact(f.name, uint64(f.count), 0)
	}
	return nil
}

// damaged reports the errors that an error joins.
func damaged(r *client.Report, err error) {
	for _, e := range parts(err) {
		r.Damaged("%v", e)
	}
}

// parts returns the errors that an error joins.
func parts(err error) []error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	return []error{err}
}

// tree walks the tree from the root on.
func (c *checker) tree() error {
	root := c.library.root()
	p, err := c.o.look(root)
	switch {
	// The tree never had a pair.
	case err == errGone:
		return nil
	case err != nil && !errors.Is(err, client.ErrDamaged):
		return err
	}
	h, ok := c.format.Decode(p)
	if !ok || h.Level > mostHeight {
		c.r.Damaged("the root is no node")
		return nil
	}
	// The root is the only node of which no parent says the level.
	c.last, c.begun = make([]btree.Ref, h.Level+1), make([]bool, h.Level+1)
	if err := c.node(root, h.Level, nil, nil, true); err != nil {
		return err
	}
	// The walk meets the nodes of each level from left to right, so what is left
	// is what the last one of each level names.
	for level, r := range c.last {
		if r != 0 {
			c.r.Damaged("the last node of level %d has the sibling %#x", level, r)
		}
	}
	return nil
}

// look returns a copy of an object's data. It reports and returns nil if there is
// none, or if the object was named before. It is a copy, as an object is valid
// until the next look, and the walk goes down before it has seen all children.
func (c *checker) look(r btree.Ref) ([]byte, error) {
	if c.named[r] {
		c.r.Damaged("%#x is named twice", r)
		return nil, nil
	}
	c.named[r] = true
	p, err := c.o.look(r)
	switch {
	case err == errGone:
		c.r.Damaged("%#x is named, and not there", r)
		// named is compared with the objects that are there.
		delete(c.named, r)
		return nil, nil
	case errors.Is(err, client.ErrDamaged): // as the walk over all objects has found
		return nil, nil
	}
	return bytes.Clone(p), err
}

// node looks at a node, and at all below it. It is to have the keys from lower on,
// up to upper and without it. What lies below a node that is damaged is not looked
// at, so those objects are missing in the tree, too.
func (c *checker) node(r btree.Ref, level int, lower, upper []byte, last bool) error {
	p, err := c.look(r)
	if err != nil || p == nil {
		return err
	}
	h, ok := c.format.Decode(p)
	switch {
	case !ok || h.Level != level:
		c.r.Damaged("%#x is no node of level %d", r, level)
		return nil
	case !bytes.Equal(h.Lower, lower) || h.Last != last || !last && !bytes.Equal(h.Upper, upper):
		c.r.Damaged("node %#x of level %d has the keys from %.40q to %.40q (last: %v), and its parent says "+
			"%.40q to %.40q (%v)", r, level, h.Lower, h.Upper, h.Last, lower, upper, last)
	case c.begun[level] && c.last[level] != r:
		c.r.Damaged("node %#x of level %d follows one whose sibling is %#x", r, level, c.last[level])
	}
	c.last[level], c.begun[level] = h.Sibling, true
	if level == 0 {
		return c.leaf(r, p)
	}
	c.internal++
	n, ok := c.format.DecodeInternal(p)
	if !ok {
		c.r.Damaged("node %#x of level %d has entries that are not in order, or not between its fences", r, level)
		return nil
	}
	for i := range n.Count() + 1 {
		// A child has exactly the keys between its parent's separators.
		lower, upper, last := n.Bounds(i)
		if err := c.node(n.Child(i), level-1, lower, upper, last); err != nil {
			return err
		}
	}
	return nil
}

// leaf looks at the pairs of a leaf, and at their values.
func (c *checker) leaf(r btree.Ref, p []byte) error {
	l, ok := c.format.DecodeLeaf(p)
	if !ok {
		c.r.Damaged("%#x is no leaf", r)
		return nil
	}
	c.leaves++
	pairs := l.Pairs(nil)
	if len(pairs) == 0 {
		c.empty++
	}
	c.keys += uint64(len(pairs))
	for i, pair := range pairs {
		if l.Side(pair.Key) != 0 {
			c.r.Damaged("leaf %#x has the key %.40q, and those from %.40q to %.40q belong there", r, pair.Key,
				l.Lower, l.Upper)
		}
		// Pairs are in the order of their keys, so equal ones are neighbors.
		if i > 0 && bytes.Equal(pair.Key, pairs[i-1].Key) {
			c.r.Damaged("leaf %#x has the key %.40q twice", r, pair.Key)
		}
		if pair.Beside == 0 {
			continue
		}
		v, err := c.look(pair.Beside)
		if err != nil {
			return err
		}
		if v == nil {
			continue
		}
		key, value, ok := btree.DecodeValue(v)
		if !ok || !bytes.Equal(key, pair.Key) {
			c.r.Damaged("%#x is named as the value of %.40q, and is not", pair.Beside, pair.Key)
		}
		c.beside, c.besideBytes = c.beside+1, c.besideBytes+uint64(len(value))
	}
	return nil
}
