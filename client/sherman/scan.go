package sherman

import (
	"bytes"
	"fmt"

	"github.com/farkv/farkv/client/sherman/btree"
)

// A scan reads leaf by leaf. Each leaf is a state that existed, and its fences
// say for which keys it has all that there is. The next leaf has to begin where
// this one ends. So whatever splits and merges happen meanwhile, no key in
// between is left out, and none comes twice. Leaves that the parent names are
// read ahead, in one trip. A leaf that was split or merged since does not have
// the range that is due; then the scan looks for the leaf that has it.
//
// Values beside a leaf are read in one trip more. A value that is not there any
// more belongs to a pair that was deleted after the READ of its leaf, so the pair
// was not there throughout.

// mostAhead bounds the leaves that are read at a time (Sherman's range queries
// read as many).
const mostAhead = 32

// scan is the state of a Scan.
type scan struct {
	// from is the least key that is due.
	from []byte
	// leaves are those that are read in a trip, and bytes what was read of them,
	// one behind the other; there: the leaf was read.
	leaves []btree.Ref
	bytes  []byte
	there  [mostAhead]bool
	// pairs are those of one leaf.
	pairs []btree.Pair
	// values are the values beside the leaf, and of says to which pairs they
	// belong.
	values []btree.Ref
	of     []int
	// ends says where in data the value of each pair lies.
	ends []span
	data []byte

	takeLeaf, takeValue func(i int, data []byte)
}

// span is a part of data. there: the value was read.
type span struct {
	from, to int
	there    bool
}

// open makes the functions that a scan hands to objects.each. Both copy what
// each hands to them, which is valid until they return.
func (c *scan) open(s *Store) {
	size := s.format.NodeBytes
	c.takeLeaf = func(i int, data []byte) {
		data = s.orBlank(c.leaves[i], data)
		if c.there[i] = len(data) == size; c.there[i] {
			copy(c.bytes[i*size:], data)
		}
	}
	c.takeValue = func(i int, data []byte) {
		key, value, ok := btree.DecodeValue(data)
		if !ok || !bytes.Equal(key, c.pairs[c.of[i]].Key) {
			return
		}
		from := len(c.data)
		c.data = append(c.data, value...)
		c.ends[c.of[i]] = span{from, len(c.data), true}
	}
}

// Scan implements client.Scanner. The operation's timeout bounds the time without
// progress. Each pair that is yielded was there at some moment of the call, and
// each that was there throughout is yielded, up to the n-th. All of them together
// need not be a state of the tree. Keys and values are valid until yield returns.
func (s *Store) Scan(start []byte, n int, yield func(key, value []byte) bool) error {
	c := &s.scan
	c.from = append(c.from[:0], start...)
	s.objects.span()
	for n > 0 {
		more, err := s.scanAhead(&n, yield)
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
// yielded. more: there may be more behind them.
func (s *Store) scanAhead(n *int, yield func(key, value []byte) bool) (more bool, err error) {
	c := &s.scan
	// The way to the least key that is due is that of an operation on it.
	s.key = c.from
	if err := s.descend(); err != nil {
		return false, err
	}
	s.ahead(*n)
	if err := s.objects.each(c.leaves, c.takeLeaf); err != nil && err != errGone {
		return false, err
	}
	for i := range c.leaves {
		// The leaves were read side by side, each by itself: they may be of
		// different moments.
		l, ok := s.format.DecodeLeaf(c.bytes[i*s.format.NodeBytes:][:s.format.NodeBytes])
		if !ok || !c.there[i] || l.Side(c.from) != 0 {
			// The parent is outdated, or the leaf has changed since. What the
			// leaves before it have was yielded. The next call descends with the
			// key that is due now.
			if i > 0 {
				return true, nil
			}
			s.dropWay()
			if s.objects.over() {
				return false, errTime
			}
			return true, nil
		}
		// A leaf is a state that existed, so its pairs are yielded without
		// another look.
		whole, err := s.scanLeaf(l, n, yield)
		switch {
		case err != nil:
			return false, err
		case *n <= 0 || whole && l.Last:
			return false, nil
		case !whole:
			return true, nil
		}
		// The leaf has all keys up to its upper fence, so the next one that is
		// due is the fence.
		c.from = append(c.from[:0], l.Upper...)
		// That is progress, so the time begins again.
		s.objects.span()
	}
	return true, nil
}

// ahead lists the leaf that the operation's key leads to, and those behind it
// that n pairs may take, if the parent names them.
func (s *Store) ahead(n int) {
	c := &s.scan
	c.leaves = append(c.leaves[:0], s.way[0])
	if s.parent != nil {
		p := &s.parent.node
		// Leaves are half full at least, as a rule; so many hold n pairs.
		most := min(mostAhead, 1+n/max(s.format.Slots()/2, 1))
		for i := p.Place(s.key) + 1; i <= p.Count() && len(c.leaves) < most; i++ {
			c.leaves = append(c.leaves, p.Child(i))
		}
	}
	if size := len(c.leaves) * s.format.NodeBytes; cap(c.bytes) < size {
		c.bytes = make([]byte, size)
	}
	c.bytes = c.bytes[:cap(c.bytes)]
	c.there = [mostAhead]bool{}
}

// scanLeaf yields the pairs of a leaf from c.from on, n at most. n becomes 0 when
// yield wants no more. whole: these were all; otherwise c.from is behind the last
// pair that was looked at.
func (s *Store) scanLeaf(l btree.Leaf, n *int, yield func(key, value []byte) bool) (whole bool, err error) {
	c := &s.scan
	c.pairs = l.Pairs(c.pairs[:0])
	first := 0
	for first < len(c.pairs) && bytes.Compare(c.pairs[first].Key, c.from) < 0 {
		first++
	}
	end := min(len(c.pairs), first+*n)
	if err := s.valuesBeside(first, end); err != nil {
		return false, err
	}
	for i := first; i < end; i++ {
		p := &c.pairs[i]
		value := p.Value
		if p.Beside != 0 {
			// The pair was deleted after its leaf was read.
			if !c.ends[i].there {
				continue
			}
			value = c.data[c.ends[i].from:c.ends[i].to]
		}
		if *n--; !yield(p.Key, value) {
			*n = 0
			return false, nil
		}
	}
	if end == len(c.pairs) {
		return true, nil
	}
	// The least key behind the last pair is that key with a zero byte.
	c.from = append(append(c.from[:0], c.pairs[end-1].Key...), 0)
	return false, nil
}

// valuesBeside reads the values of some pairs that lie beside their leaf.
func (s *Store) valuesBeside(first, end int) error {
	c := &s.scan
	c.values, c.of, c.ends, c.data = c.values[:0], c.of[:0], c.ends[:0], c.data[:0]
	for i := range end {
		c.ends = append(c.ends, span{})
		if r := c.pairs[i].Beside; i >= first && r != 0 {
			c.values, c.of = append(c.values, r), append(c.of, i)
		}
	}
	if len(c.values) == 0 {
		return nil
	}
	return s.objects.each(c.values, c.takeValue)
}
