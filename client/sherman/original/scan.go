package original

import (
	"bytes"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// A scan reads leaf by leaf. The fences of a leaf say for which keys it has all
// that there is. It is taken when all of its slots are steady, as a GET that
// finds nothing takes it. The next leaf has to begin where it ends. So whatever
// splits meanwhile, no key in between is left out, and none comes twice. (The
// paper's scans look at the versions of entries alone, and leave out leaves of
// parents that are not cached.)
//
// Leaves that their parent names are read ahead, in one trip. A leaf that was
// split since ends before the next one begins; then the scan looks for the
// sibling. Values beside a leaf are read in one trip more. A block that is
// another pair's by now sends the scan back to the leaf.

// mostLeaves bounds the leaves that are read at a time (the released code reads
// as many).
const mostLeaves = 32

// scan is the state of a Scan.
type scan struct {
	*tree
	// from is the least key that is due.
	// It only grows: what lies below was yielded, or was absent at some moment
	// of the call.
	from   []byte
	leaves []ref
	// order has the slots of a leaf, in the order of keys.
	order []int
	// values are the READs of blocks, by place in order; nil: the value lies in
	// its slot.
	values []*rdma.Op
}

// Scan implements client.Scanner. The operation's timeout bounds the time without
// progress. Each pair that is yielded was there at some moment of the call, and
// each that was there throughout is yielded, up to the n-th. All of them together
// need not be a state of the tree. Keys and values are valid until yield returns.
func (s *Store) Scan(start []byte, n int, yield func(key, value []byte) bool) error {
	c := &s.scan
	c.from = append(c.from[:0], start...)
	s.span()
	pace := s.pace
	for n > 0 {
		_ = s.work(false)
		before := n
		more, at, err := c.scanAhead(&n, yield)
		// The leaf was not whole, or not steady.
		if err == nil && more && n == before && at != 0 {
			err = s.again(at, &pace)
		}
		if err != nil {
			return fmt.Errorf("scan: %w", err)
		}
		if !more {
			return nil
		}
	}
	return nil
}

// scanAhead yields what some leaves have, from c.from on, until n pairs were
// yielded. more: there may be more behind them. at: that leaf is to be read
// again.
func (c *scan) scanAhead(n *int, yield func(key, value []byte) bool) (more bool, at ref, err error) {
	if err := c.ahead(*n); err != nil {
		return false, 0, err
	}
	// These READs are of different moments. That does no harm, since each leaf
	// is judged by itself, and by where the one before ends.
	b := c.ep.Batch()
	for _, r := range c.leaves {
		b.Read(c.trees.at(r), c.nodeBytes)
	}
	defer b.Release()
	if err := c.do(stepReadLeaf, b); err != nil {
		if c.rejoin(err) {
			return true, 0, nil
		}
		return false, 0, err
	}
	for i, r := range c.leaves {
		l, ok := c.readLeaf(b.Op(i).Buf, r)
		// The leaf was split since its parent was read: what is due is to the
		// right.
		for ok && l.beyond(c.from) {
			next := c.hop(l.sibling)
			// The sibling was read as well.
			if i+1 < len(c.leaves) && c.leaves[i+1] == next {
				break
			}
			return c.scanSibling(next, n, yield)
		}
		switch {
		case ok && l.beyond(c.from):
			continue
		// The parent did not name the leaf between.
		case ok && !l.has(c.from):
			return true, 0, nil
		case !ok || !l.allSteady():
			return true, r, nil
		}
		// A leaf that is steady is taken as it was at some moment of the READ.
		more, at, err := c.scanLeaf(&l, n, yield)
		if !more || at != 0 || err != nil || *n <= 0 {
			return more, at, err
		}
	}
	return true, 0, nil
}

// scanSibling yields what a leaf has that its parent may not name.
func (c *scan) scanSibling(r ref, n *int, yield func(key, value []byte) bool) (more bool, at ref, err error) {
	for {
		b, p, err := c.read(stepReadLeaf, c.trees.at(r), c.nodeBytes)
		if err != nil {
			return false, 0, err
		}
		l, ok := c.readLeaf(p, r)
		if ok && l.beyond(c.from) {
			b.Release()
			r = c.hop(l.sibling)
			continue
		}
		defer b.Release()
		if !ok || !l.allSteady() {
			return true, r, nil
		}
		return c.scanLeaf(&l, n, yield)
	}
}

// ahead lists the leaf that c.from leads to, and those behind it that n pairs may
// take, if the parent names them.
// The list may be outdated, which the fences of the leaves show when they are
// read.
func (c *scan) ahead(n int) error {
	first, err := c.find(c.from, 0)
	if err != nil {
		return err
	}
	c.leaves = append(c.leaves[:0], first)
	if c.above == 0 {
		return nil
	}
	p := c.cache.get(c.above)
	// Nothing is remembered, so the parent is the node that was read last.
	if p == nil {
		if p = &c.cache.spare; p.r != c.above {
			return nil
		}
	}
	// Leaves are half full at least, as a rule; so many hold n pairs.
	most := min(mostLeaves, 1+n/max(c.slots/2, 1))
	for i := p.place(c.from) + 1; i <= p.count && len(c.leaves) < most; i++ {
		c.leaves = append(c.leaves, p.at(i))
	}
	return nil
}

// scanLeaf yields the pairs of a leaf from c.from on, n at most, and moves c.from
// behind what was yielded.
func (c *scan) scanLeaf(l *leaf, n *int, yield func(key, value []byte) bool) (more bool, at ref, err error) {
	c.order = l.pairs(c.order[:0])
	first := 0
	for first < len(c.order) && bytes.Compare(l.key(c.order[first]), c.from) < 0 {
		first++
	}
	order := c.order[first:min(len(c.order), first+*n)]
	b, err := c.valuesBeside(l, order)
	if err != nil {
		return false, 0, err
	}
	if b != nil {
		defer b.Release()
	}
	for i, slot := range order {
		key := l.key(slot)
		value, ok := c.scanned(l, slot, c.values, i)
		// The pair was changed, deleted or moved.
		if !ok {
			c.from = append(c.from[:0], key...)
			return true, l.r, nil
		}
		if *n--; !yield(key, value) || *n == 0 {
			return false, 0, nil
		}
		c.span()
		// The least key behind this one is the key with a zero byte.
		c.from = append(append(c.from[:0], key...), 0)
	}
	if l.last {
		return false, 0, nil
	}
	// The leaf has all keys up to its fence, so the fence is due next.
	c.from = append(c.from[:0], l.upper...)
	c.span()
	return true, 0, nil
}

// scanned returns the value of a slot. It returns false if the block is another
// pair's by now.
func (c *scan) scanned(l *leaf, slot int, values []*rdma.Op, i int) ([]byte, bool) {
	if l.kind(slot) != slotBeside {
		return l.inline(slot), true
	}
	k, ok := c.readBlock(values[i].Buf)
	return k.value, ok && k.self == pointer(l.value(slot)) && bytes.Equal(k.key, l.key(slot))
}

// valuesBeside reads the values of some slots that lie beside their leaf, into
// c.values. It returns the batch, which the caller releases; nil: no value lies
// beside.
// A block may be used for another pair by the time that it is READ, which
// scanned finds out.
func (c *scan) valuesBeside(l *leaf, order []int) (*rdma.Batch, error) {
	for {
		c.values = c.values[:0]
		var b *rdma.Batch
		for _, slot := range order {
			if l.kind(slot) != slotBeside {
				c.values = append(c.values, nil)
				continue
			}
			p := pointer(l.value(slot))
			// A slot that is steady and names no block is damage.
			if err := c.sound(p); err != nil {
				return nil, err
			}
			if b == nil {
				b = c.ep.Batch()
			}
			c.values = append(c.values, b.Read(c.blocks.at(p.ref()), c.blockBytes))
		}
		if b == nil {
			return nil, nil
		}
		err := c.do(stepReadValue, b)
		if err == nil {
			return b, nil
		}
		b.Release()
		if !c.rejoin(err) {
			return nil, err
		}
	}
}
