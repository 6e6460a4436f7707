package rtx

import (
	"fmt"

	"github.com/farkv/farkv/client/chunks"
)

// A chunk in which nothing is used may get buffers of another size, when no
// buffer of that size is left. The client that claims it does that:
//
//	1  CAS the chunk's word: left -> mine, of the size before
//	2  READ the headers, and the objects that they name: all buffers are free;
//	   t is the latest of their tags
//	3  WRITE headers of the new size, with tag t and no object
//	4  CAS the chunk's word: -> mine, of the new size
//
// A crash before 4 leaves a chunk of the size before: its headers are as they
// were, or name nothing. Behind 4 the headers of the new size say what is free,
// and what lies between them is never looked at. Step 3 comes first since a
// header of the new size may lie where data of users was.
//
// Tags go on from t, so a pointer that a unit had not long ago does not come
// back. For that they must not wrap: a chunk with a latest tag in the second half
// of all tags keeps its size. A chunk that an error leaves behind stays with the
// client until it closes.

// reshapeOne gives a chunk of node n the size of a class. It returns false if it
// finds none that is empty.
func (m *memory) reshapeOne(class, n int) (reshaped bool, err error) {
	if m.w.fixed(class) {
		return false, nil
	}
	a, tried := &m.w.data, 0
	skip := func(c chunks.Chunk) bool {
		return c.Entry.Class() == class || m.w.fixed(c.Entry.Class()) || m.grows && m.spared(a, c.Index)
	}
	err = m.table.Left(a, n, 1, skip, func(some []chunks.Chunk) (bool, error) {
		var err error
		reshaped, err = m.reshape(class, some[0])
		tried++
		return reshaped || tried == mostTried, err
	})
	return reshaped, err
}

// mostTried bounds the chunks of other sizes that are looked at for an empty one.
const mostTried = 8

// fixed reports whether chunks of a class keep their size. Indexes have verbs of
// their own in flight there, which must not meet buffers of another size.
func (l *Layout) fixed(class int) bool { return l.Shared>>class&1 != 0 }

// reshape gives a chunk the size of a class, if nothing in it is used, and no
// other client is faster. If the chunk is not empty, it is given back.
func (m *memory) reshape(class int, left chunks.Chunk) (bool, error) {
	w, a := m.w, &m.w.data
	got, err := m.table.Claim(a, []chunks.Chunk{left})
	if err != nil || len(got) == 0 {
		return false, err
	}
	mine := got[0]
	c := &chunks.Held{Chunk: mine, Arena: a, Items: make([]chunks.State, m.count(a, mine.Entry.Class()))}
	tag, empty, err := m.latest(c)
	if err != nil {
		return false, err
	}
	if !empty || tag > w.maxTag/2 {
		return false, m.table.Free(a, got)
	}
	if err := m.stamp(c, class, tag); err != nil {
		return false, err
	}
	word, of := a.Word(mine.Node, mine.Index), mine.Entry.Next(w.id, class)
	_, ok, err := w.trips.Swap(stepClaimChunk, word, uint64(mine.Entry), uint64(of))
	if err != nil || !ok {
		return false, err
	}
	h := m.heap(mine.Node, class)
	mine.Entry = of
	defer m.table.Trim(a)
	_, err = m.scan([]*chunks.Held{m.table.Add(&h.Heap, a, mine)})
	return true, err
}

// latest returns the latest tag of a chunk's buffers, and whether all of them are
// free.
func (m *memory) latest(c *chunks.Held) (tag uint64, empty bool, err error) {
	free := 0
	err = m.freeBuffers([]*chunks.Held{c}, func(it item) {
		tag = max(tag, m.w.tag(it.use))
		free++
	})
	return tag, free == len(c.Items), err
}

// stamp writes headers of buffers of a class that name no object.
func (m *memory) stamp(c *chunks.Held, class int, tag uint64) error {
	w := m.w
	for from := 0; from < w.buffers(class); from += scanAtOnce {
		b := w.ep.Batch()
		for i := from; i < min(from+scanAtOnce, w.buffers(class)); i++ {
			use := w.pointer(class, tag, w.unitOf(c.Node, c.Index, class, i))
			p := b.Alloc(HeaderBytes)
			w.encodeBuffer(p, use, 0, nil)
			b.Write(w.buffer(use), p)
		}
		err := w.trips.Do(stepReshapeChunk, b)
		w.trips.Drop(b)
		if err != nil {
			return fmt.Errorf("reshape chunk %d of node %d: %w", c.Index, c.Node, err)
		}
	}
	return nil
}
