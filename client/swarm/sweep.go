package swarm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/directory"
	"github.com/farkv/farkv/node/rdma"
)

// sweep is one sweep of the pool. The order matters: each step relies on those before it.
//
//  1. The words of the directory are read. Its buffers that they do not name become free, so that
//     the walk can allocate some.
//  2. The directory is walked: what it names is noted. The objects of dying entries end, and
//     the entries are dropped, which leaves these objects unnamed.
//  3. The words of retired objects that clients may claim are made zero, and the words of all
//     objects are read. Buffers of values that they do not name become free. The tombstones of
//     step 2 have released some.
//  4. Objects that the directory does not name are retired.
//
// Clients go on meanwhile, by the rules of package kit: what is found unnamed stays unnamed. What a
// crash leaves is garbage again, and found by the next sweep.
type sweep struct {
	*Recoverer
	// v is the busy view of the sweep's epoch.
	v rdma.View
	// named are the locations that the directory names.
	named map[uint64]bool
	// value are the buffers of values that words name.
	value marks
	// freed counts freed buffers and retired objects.
	freed int
	// young counts the retired objects that may not be claimed yet.
	young int
}

// marks are the buffers of a space that some word names, by node and segment.
type marks map[[2]int][]bool

// add marks a buffer on a node. number picks its segment.
func (m marks) add(s *buffers.Sweeper, node int, number uint64, pointer uint16) {
	at := [2]int{node, s.Segment(number)}
	if m[at] == nil {
		m[at] = make([]bool, buffers.MaxBuffers+1)
	}
	m[at][pointer] = true
}

// has reports whether a buffer is marked.
func (m marks) has(node, segment int, pointer uint16) bool {
	list := m[[2]int{node, segment}]
	return list != nil && list[pointer]
}

// sweep runs the steps of a sweep under the view v. settle comes before the words are read: the
// master must own no buffers then, and must have none in flight, since what it owns is not named.
func (m *Recoverer) sweep(v rdma.View) (*sweep, error) {
	w := &sweep{Recoverer: m, v: v, value: marks{}}
	for _, step := range []func() error{
		w.begin, w.settle, w.bucketBuffers, w.directory, w.settle, w.words, w.valueBuffers, w.mark} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// gone reports whether a node has left the pool for good.
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

// begin notes on the nodes that this epoch is swept, before anything is examined. Each client that
// joins a later epoch reads that, and owns nothing from before: see Store.lastSweep.
//
// What a crash in the middle leaves: nodes that differ in their last sweep. Either answer is
// right, since nothing was examined. A client that reads the newer epoch gives up what it owned
// before, and the next sweep frees that.
func (w *sweep) begin() error {
	return w.each(func(n int) error {
		return errors.Join(w.Recoverer.index.Begin(n, w.v.Epoch), w.values.Begin(n, w.v.Epoch))
	})
}

// bucketBuffers frees the buffers of the directory that no word names. The walk that follows may
// need some: it settles what is half done, and drops entries.
func (w *sweep) bucketBuffers() error {
	named := marks{}
	err := w.s.dir.Words(func(h directory.Held) { named.add(w.Recoverer.index, h.Node, h.Segment, h.Pointer) }, w.gone)
	if err != nil {
		return err
	}
	return w.each(func(n int) error { return w.free(w.Recoverer.index, named, n) })
}

// directory walks the directory, notes what it names, ends the objects of dying entries, and
// drops these: each client that crashed or is idle may have left some. It fails if a node that is
// not gone does not answer: a word of that node might name what seems to be garbage.
//
// Entries are dropped behind the walk, since the directory's client works on one bucket at a time.
// Each bucket is changed once. Entries that clients mark meanwhile are left to the next sweep.
func (w *sweep) directory() error {
	w.named = map[uint64]bool{}
	var all [][]directory.Entry // the dying entries of a bucket each
	err := w.s.dir.Walk(func(f *directory.Found) error {
		for _, n := range f.Silent {
			if !w.gone(n) {
				return fmt.Errorf("node %d does not tell what bucket %d holds there: %w", n, f.Bucket, rdma.ErrNodeDown)
			}
		}
		var some []directory.Entry
		for _, e := range f.Entries {
			// The object of a dying entry stays named until drop has taken the entry out.
			w.named[e.Location&^dying] = true
			if e.Location&dying != 0 {
				some = append(some, e)
			}
		}
		if len(some) > 0 {
			all = append(all, some)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, some := range all {
		if err := w.drop(some); err != nil {
			return fmt.Errorf("drop the entry of an object that was deleted: %w", err)
		}
	}
	return nil
}

// drop ends the objects of dying entries of one bucket, and takes the entries out of it. A client
// may have done both.
//
// What a crash between the two leaves: dying entries of which the objects have their tombstones.
// finish finds these, and the next sweep drops the entries.
func (w *sweep) drop(all []directory.Entry) error {
	for _, e := range all {
		if err := w.s.finish(e.Location, 0); err != nil {
			return err
		}
	}
	id, err := w.s.change()
	if err != nil {
		return err
	}
	err = w.s.dir.Change(all[0].Hash, id, func(bucket []directory.Entry) ([]directory.Entry, error) {
		return slices.DeleteFunc(bucket, func(e directory.Entry) bool { return slices.Contains(all, e) }), nil
	})
	// If the change failed, the directory may still name the objects.
	for _, e := range all {
		if err == nil {
			delete(w.named, e.Location&^dying)
		}
	}
	return err
}

// settle waits for the master's verbs in flight, and gives back all its buffers. Afterwards each
// buffer that the master had is in a free list, or named by a word.
func (w *sweep) settle() error {
	if err := errors.Join(w.s.dir.Land(), w.s.c.land()); err != nil {
		return err
	}
	return errors.Join(w.s.index.Land(), w.s.values.Land())
}

// words reads the words of all objects that were handed out, and notes the buffers that they
// name. If the node with a region's count is gone, it reads all objects: the words of the others
// are zero. It fails if a node that is not gone does not answer. RAW's objects have no words.
func (w *sweep) words() error {
	l := w.s.plan
	if l.layout.raw() {
		return nil
	}
	for region := range l.Regions {
		n, old := l.Objects, []uint64(nil)
		if !w.gone(l.regions[region][0].Node()) {
			var err error
			if n, err = w.s.plan.handed(w.s.ep, region); err != nil {
				return err
			}
			if old, err = w.old(region, n); err != nil {
				return err
			}
		}
		for r := range l.Replicas {
			at := l.regions[region][r].Node()
			if w.gone(at) {
				continue
			}
			if err := w.empty(region, r, old); err != nil {
				return err
			}
			// Also the words of other objects that nothing names count: their buffers stay with
			// them until they are old enough.
			err := w.s.eachBuffer(stepSweep, region, r, n, func(location uint64, p uint16) {
				w.value.add(w.values, at, spread(location), p)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// old returns those of the first n objects of a region that clients may claim from this epoch on.
func (w *sweep) old(region, n int) (all []uint64, err error) {
	err = w.s.eachRetired(w.s.ep, stepReadRetired, region, 0, n, w.s.Timeout, func(i, epoch uint64) {
		if epoch <= w.v.Epoch {
			all = append(all, i)
		}
	})
	return all, err
}

// empty makes the words of old objects zero at the replica r, so that their buffers become free
// though no client may claim the objects for long. A tombstone is in one word only, and the others
// name buffers still. No verb of the former life lands any more: see retired.go. No client claims
// under a busy view, and claims of earlier epochs are fenced off.
//
// What a crash leaves: some words that are zero, of which the next sweep frees the buffers.
func (w *sweep) empty(region, r int, old []uint64) error {
	at := w.s.regions[region][r].Add(uint64(w.s.layout.wordsAt()))
	for some := range slices.Chunk(old, wordBatch) {
		if err := w.emptyBatch(at, w.s.stride(r), some); err != nil {
			return fmt.Errorf("make the words of retired objects of region %d zero: %w", region, err)
		}
	}
	return nil
}

// emptyBatch is empty for a batch of objects. The words of the region's first object lie at an
// address, and those of the next one a stride behind.
func (w *sweep) emptyBatch(at rdma.Addr, stride uint64, some []uint64) error {
	words := w.s.ep.Batch()
	defer words.Release()
	for _, i := range some {
		words.Read(at.Add(i*stride), 8*w.s.layout.Words)
	}
	if err := rdma.Do(w.s.ep, words.As(stepSweep), w.s.Timeout); err != nil {
		return err
	}
	all, nothing := func(int) bool { return true }, func(int, *rdma.Op) {}
	return w.s.zero(stepSweep, w.s.Timeout, words, all, nothing)
}

// eachBuffer calls f with the buffers that the words of the first n objects of a region name at the
// replica r. It takes a trip for each wordBatch of them.
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

// valueBuffers frees the buffers of values that no word names.
func (w *sweep) valueBuffers() error {
	return w.each(func(n int) error { return w.free(w.values, w.value, n) })
}

// free frees the buffers of a space on a node that were handed out before the epoch began, that are
// in no free list, and that named does not have. By R1 and R2 of package kit no client owns them.
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

// mark retires the objects that were handed out before the epoch began, that are not retired, and
// that the directory does not name: no client owns them.
func (w *sweep) mark() error {
	for region, handed := range w.handed {
		if w.gone(w.s.regions[region][0].Node()) {
			continue // its retirement words are lost, and no client could claim an object
		}
		known := make([]bool, handed)
		err := w.s.eachRetired(w.s.ep, stepReadRetired, region, 0, int(handed), w.s.Timeout, func(i, epoch uint64) {
			known[i] = true
			if epoch > w.v.Epoch {
				w.young++
			}
		})
		if err != nil {
			return err
		}
		if err := w.retire(region, known); err != nil {
			return err
		}
	}
	return nil
}

// retire retires the objects of a region that are neither known to be retired nor named. The CAS
// fails if a client has dropped the entry of one meanwhile, and has retired the object itself.
func (w *sweep) retire(region int, known []bool) error {
	b := w.s.ep.Batch()
	defer func() { b.Release() }()
	for i := range known {
		if !known[i] && !w.named[w.s.locationOf(region, uint64(i))] {
			b.CompareSwap(w.s.retiredAt(region, uint64(i)), 0, w.v.Epoch+sweptFor)
			w.freed++
		}
		if b.Len() < wordBatch && i < len(known)-1 || b.Len() == 0 {
			continue
		}
		if err := rdma.Do(w.s.ep, b.As(stepRetire), w.s.Timeout); err != nil {
			return fmt.Errorf("retire objects of region %d: %w", region, err)
		}
		// The results do not matter: a CAS that failed met an object that a client has retired.
		b.Release()
		b = w.s.ep.Batch()
	}
	return nil
}
