package swarm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/directory"
	"github.com/farkv/farkv/node/rdma"
)

// sweep is one sweep. In this order, since each step depends on what those before it have done:
//
//  1. objects that are garbage for two epochs get zero words, and are free
//  2. the directory is walked: what it names, and the buffers of its own; dying entries are buried and dropped
//  3. the words of all objects are read: the buffers that they name
//  4. buffers that nothing names are free
//  5. objects that the directory does not name are garbage
//
// Clients go on meanwhile, by the rules of package kit. What a crash leaves is garbage again, and
// found by the next sweep.
type sweep struct {
	*Mender
	v     rdma.View
	named map[uint64]bool // objects
	index marks
	value marks
	freed int
}

// marks are the buffers of a space that something names.
type marks map[[2]int][]bool // by node and segment

func (m marks) add(s *buffers.Sweeper, node int, number uint64, pointer uint16) {
	at := [2]int{node, s.Segment(number)}
	if m[at] == nil {
		m[at] = make([]bool, buffers.MaxBuffers+1)
	}
	m[at][pointer] = true
}

func (m marks) has(node, segment int, pointer uint16) bool {
	list := m[[2]int{node, segment}]
	return list != nil && list[pointer]
}

func (m *Mender) sweep(v rdma.View) (*sweep, error) {
	w := &sweep{Mender: m, v: v, value: marks{}}
	for _, step := range []func() error{w.hear, w.reuse, w.directory, w.settle, w.words, w.buffers, w.mark} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *sweep) gone(node int) bool { return w.v.Members[node].Gone }

// each calls f for the nodes that are not gone.
func (w *sweep) each(f func(node int) error) error {
	for n := range w.s.nodes {
		if w.gone(n) {
			continue
		}
		if err := f(n); err != nil {
			return err
		}
	}
	return nil
}

// hear begins: a client that asks for a sweep from now on means another one.
func (w *sweep) hear() error {
	return w.each(func(n int) error { return errors.Join(w.Mender.index.Heard(n), w.values.Heard(n)) })
}

// dead is a dying entry.
type dead struct{ hash, location uint64 }

// dropAnyway is how many dying entries a sweep sees to whatever it takes. It goes on for as long as
// its walk has taken, so that a busy view of any pool lasts for a share longer, and not for many
// times as long.
const dropAnyway = 1024

// directory walks the directory. Where it changes that, it walks again, since other buffers are
// named then.
func (w *sweep) directory() error {
	began := w.s.ep.Now()
	dying, err := w.walk()
	if err != nil || len(dying) == 0 {
		return err
	}
	walked := w.s.ep.Now()
	for at := 0; at < len(dying) && (at < dropAnyway || w.s.ep.Now()-walked < walked-began); {
		n := at + 1
		for n < len(dying) && w.s.dir.BucketOf(dying[n].hash) == w.s.dir.BucketOf(dying[at].hash) {
			n++
		}
		if err := w.drop(dying[at:n]); err != nil {
			return fmt.Errorf("drop the entry of an object that was deleted: %w", err)
		}
		at = n
	}
	_, err = w.walk()
	return err
}

func (w *sweep) walk() (all []dead, err error) {
	w.named, w.index = map[uint64]bool{}, marks{}
	err = w.s.dir.Walk(func(f *directory.Found) error {
		for _, n := range f.Silent {
			if !w.gone(n) {
				return fmt.Errorf("node %d does not tell what bucket %d holds there: %w", n, f.Bucket, rdma.ErrNodeDown)
			}
		}
		for _, e := range f.Entries {
			w.named[e.Location&^dying] = true
			if e.Location&dying != 0 {
				all = append(all, dead{e.Hash, e.Location})
			}
		}
		for _, h := range f.Held {
			w.index.add(w.Mender.index, h.Node, h.Segment, h.Pointer)
		}
		return nil
	})
	return all, err
}

// drop buries objects, and takes their entries out of their bucket. Both may have been done by
// others.
func (w *sweep) drop(dying []dead) error {
	for _, d := range dying {
		if err := w.s.finish(d.location, 0); err != nil {
			return err
		}
	}
	id, err := w.s.change()
	if err != nil {
		return err
	}
	return w.s.dir.Change(dying[0].hash, id, func(bucket []directory.Entry) ([]directory.Entry, error) {
		buried := func(e directory.Entry) bool { return slices.Contains(dying, dead{e.Hash, e.Location}) }
		return slices.DeleteFunc(bucket, buried), nil
	})
}

// settle makes sure that nothing of the master's is in flight, or in its hands: what it has is
// free, as clients' is not.
func (w *sweep) settle() error {
	if err := errors.Join(w.s.dir.Land(), w.s.c.land()); err != nil {
		return err
	}
	return errors.Join(w.s.index.Land(), w.s.values.Land())
}

// words reads the words of all objects, and notes the buffers that they name.
func (w *sweep) words() error {
	l := w.s.plan
	if l.layout.raw() {
		return nil // it has none
	}
	for region := range l.Regions {
		n := l.Objects
		if !w.gone(l.regions[region][0].Node()) {
			var err error
			if n, err = w.s.plan.handed(w.s.ep, region); err != nil {
				return err
			}
		}
		for r := range l.Replicas {
			at := l.regions[region][r].Node()
			if w.gone(at) {
				continue
			}
			err := w.s.eachBuffer(stepSweep, region, r, n, func(location uint64, p uint16) { w.value.add(w.values, at, spread(location), p) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// eachBuffer calls f with the buffers that the words of the first n objects of a region name at a
// replica.
func (s *Store) eachBuffer(step rdma.Step, region, r, n int, f func(location uint64, pointer uint16)) error {
	for from := 0; from < n; from += wordBatch {
		b := s.ep.Batch()
		for i := from; i < min(n, from+wordBatch); i++ {
			b.Read(s.regions[region][r].Add(uint64(i)*s.stride(r)+uint64(s.layout.wordsAt())), 8*s.layout.Words)
		}
		err := rdma.Do(s.ep, b.As(step), s.Timeout)
		for i := 0; err == nil && i < b.Len(); i++ {
			for p := range s.layout.Words {
				if pointer := bufferOf(Word(b.Op(i).Word(p))); pointer != 0 {
					f(s.locationOf(region, uint64(from+i)), pointer)
				}
			}
		}
		b.Release()
		if err != nil {
			return fmt.Errorf("read the words of region %d: %w", region, err)
		}
	}
	return nil
}

// buffers frees those that nothing names.
func (w *sweep) buffers() error {
	return w.each(func(n int) error {
		return errors.Join(w.free(w.Mender.index, w.index, n), w.free(w.values, w.value, n))
	})
}

func (w *sweep) free(s *buffers.Sweeper, named marks, node int) error {
	for segment := range s.Segments {
		garbage, err := s.Garbage(node, segment, func(p uint16) bool { return named.has(node, segment, p) })
		if err == nil {
			err = s.Free(node, segment, garbage)
		}
		if err != nil {
			return err
		}
		w.freed += len(garbage)
	}
	return nil
}

// mark notes the objects that no client owns and the directory does not name.
func (w *sweep) mark() error {
	for region, handed := range w.handed {
		if w.gone(w.s.regions[region][0].Node()) {
			continue // its list is lost, and no client could take them
		}
		free, err := w.s.listFreed(region)
		if err != nil {
			return err
		}
		known := make([]bool, w.s.Objects)
		for _, n := range free {
			if n >= uint64(w.s.Objects) || known[n] {
				return fmt.Errorf("object %d of region %d is free twice, or none: %w", n, region, client.ErrDamaged)
			}
			known[n] = true
		}
		for i := range handed {
			location := w.s.locationOf(region, i)
			if !known[i] && !w.named[location] && !w.isMarked[location] {
				w.isMarked[location] = true
				w.marked = append(w.marked, mark{location, w.v.Epoch})
			}
		}
	}
	return nil
}

// grace is for how many epochs an object stays as it is after it was found to be garbage: package
// kit, R4.
const grace = 2

// reuse frees the objects that have been garbage for long enough.
func (w *sweep) reuse() error {
	kept := w.marked[:0]
	freed := make([][]uint64, w.s.Regions)
	for _, m := range w.marked {
		if m.epoch+grace > w.v.Epoch {
			kept = append(kept, m)
			continue
		}
		region := int((m.location - 1) / uint64(w.s.Objects))
		freed[region] = append(freed[region], (m.location-1)%uint64(w.s.Objects))
	}
	w.marked = kept // whatever becomes of the others: where they are not free they are garbage again
	clear(w.isMarked)
	for _, m := range kept {
		w.isMarked[m.location] = true
	}
	for region, numbers := range freed {
		if len(numbers) == 0 || w.gone(w.s.regions[region][0].Node()) {
			continue
		}
		err := w.reset(region, numbers)
		if err == nil {
			err = w.s.addFreed(region, numbers)
		}
		if err != nil {
			return fmt.Errorf("free objects of region %d: %w", region, err)
		}
		w.freed += len(numbers)
	}
	return nil
}

// resetBatch is how many objects are reset in a trip: each may have some words.
const resetBatch = 32

// reset makes the words and locks of objects zero, wherever they have replicas. RAW's have none,
// and are written before the directory names them.
func (w *sweep) reset(region int, numbers []uint64) error {
	if w.s.layout.raw() {
		return nil
	}
	for r := range w.s.Replicas {
		at := w.s.regions[region][r]
		if w.gone(at.Node()) {
			continue
		}
		for from := 0; from < len(numbers); from += resetBatch {
			if err := w.resetAt(at, w.s.stride(r), numbers[from:min(len(numbers), from+resetBatch)]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *sweep) resetAt(at rdma.Addr, stride uint64, numbers []uint64) error {
	b, next := w.s.ep.Batch(), w.s.ep.Batch()
	defer b.Release()
	defer next.Release()
	for _, n := range numbers {
		b.Read(at.Add(n*stride), w.s.layout.dataAt())
	}
	if err := rdma.Do(w.s.ep, b.As(stepSweep), w.s.Timeout); err != nil {
		return err
	}
	for i := range b.Len() {
		op := b.Op(i)
		for off := 0; off < len(op.Buf); off += 8 {
			if word := le.Uint64(op.Buf[off:]); word != 0 {
				next.CompareSwap(op.Addr.Add(uint64(off)), word, 0)
			}
		}
	}
	if err := rdma.Do(w.s.ep, next.As(stepSweep), w.s.Timeout); err != nil {
		return err
	}
	for i := range next.Len() {
		if op := next.Op(i); !op.Swapped() {
			return fmt.Errorf("%s: it held %#x: somebody writes to an object that is garbage: %w", op.Addr, op.Result, client.ErrDamaged)
		}
	}
	return nil
}
