package rtx

import (
	"fmt"

	"github.com/farkv/farkv/node"
)

// A chunk in which nothing is may get buffers of another size, when there are none of that size. Its client does that:
//
//	1  CAS the chunk's word: left -> mine, of the size before
//	2  READ the headers, and the objects that they name: all buffers are free; t is the latest of their tags
//	3  WRITE headers of the new size, with tag t and no object
//	4  CAS the chunk's word: -> mine, of the new size
//
// A crash before 4 leaves a chunk of the size before: headers of that size are as they were, or name nothing. Behind 4
// the headers of the new size say what is free, and what lies between them is never looked at. Step 3 comes first since
// there may be data of users where a header is to be.
//
// Tags go on from t, so that no pointer comes back that a unit had not long ago. For that they must not wrap: a chunk
// whose latest tag is in the second half of all keeps its size. A chunk that an error leaves behind stays with the
// client until it closes.

// reshapeOne gives a chunk of a node the size of a class; false: there is none.
func (m *memory) reshapeOne(class, n int) (reshaped bool, err error) {
	if m.w.fixed(class) {
		return false, nil
	}
	tried := 0
	err = m.left(&m.w.data, n, func(i int, e node.Entry) (bool, error) {
		if e.Class() == class || m.w.fixed(e.Class()) {
			return false, nil
		}
		var err error
		reshaped, err = m.reshape(class, n, i, e)
		tried++
		return reshaped || tried == mostTried, err
	})
	return reshaped, err
}

// fixed reports whether chunks of a class keep their size: indexes have verbs of their own in flight there.
func (l *Layout) fixed(class int) bool { return l.Shared>>class&1 != 0 }

// reshape gives a chunk the size of a class, if nothing is in it, and no other client is faster.
func (m *memory) reshape(class, n, i int, e node.Entry) (bool, error) {
	w, a := m.w, &m.w.data
	mine := e.Next(w.id, e.Class())
	_, ok, err := w.swap(stepClaimChunk, a.entryAt(n, i), uint64(e), uint64(mine))
	if err != nil || !ok {
		return false, err
	}
	c := &chunk{a: a, node: n, index: i, entry: mine, items: make([]itemState, m.count(a, e.Class()))}
	tag, empty, err := m.latest(c)
	if err != nil {
		return false, err
	}
	if !empty || tag > w.maxTag/2 {
		return false, w.freeChunk(a, n, i, mine)
	}
	if err := m.stamp(c, class, tag); err != nil {
		return false, err
	}
	of := mine.Next(w.id, class)
	if _, ok, err = w.swap(stepClaimChunk, a.entryAt(n, i), uint64(mine), uint64(of)); err != nil || !ok {
		return false, err
	}
	h := m.heap(n, class)
	_, err = m.scan(m.add(h, a, n, i, of))
	return true, err
}

// latest returns the latest tag of a chunk's buffers, and whether all of them are free.
func (m *memory) latest(c *chunk) (tag uint64, empty bool, err error) {
	for from := 0; from < len(c.items); from += scanAtOnce {
		free, err := m.freeBuffers(c, from, min(from+scanAtOnce, len(c.items)), func(it item) {
			tag = max(tag, m.w.tag(it.use))
		})
		if err != nil || free < min(scanAtOnce, len(c.items)-from) {
			return 0, false, err
		}
	}
	return tag, true, nil
}

// stamp writes headers of buffers of a class, which are of no object.
func (m *memory) stamp(c *chunk, class int, tag uint64) error {
	w := m.w
	for from := 0; from < w.buffers(class); from += scanAtOnce {
		b := w.ep.Batch()
		for i := from; i < min(from+scanAtOnce, w.buffers(class)); i++ {
			use := w.pointer(class, tag, w.unitOf(c.node, c.index, class, i))
			p := b.Alloc(HeaderBytes)
			w.encodeBuffer(p, use, 0, nil)
			b.Write(w.buffer(use), p)
		}
		err := w.do(stepReshapeChunk, b)
		w.drop(b)
		if err != nil {
			return fmt.Errorf("reshape chunk %d of node %d: %w", c.index, c.node, err)
		}
	}
	return nil
}
