package original

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Each object, a node of the tree or a block, has a word that names its owner:
// none, a client, or linked, which is what the tree names. The word is changed by
// CAS only. Its generation changes with each use.
//
//	free -> client    grab: some at a time, as the paper's clients take 32 MB
//	client -> linked  behind the write-back that named it, in the background
//	linked -> client  by the client that wrote what takes the object's place,
//	                  behind that, in the background
//	client -> free    when the client leaves, or has too many
//
// So a recovery finds by its word what a dead client has: its node or block that
// the tree may name, and the one that this takes the place of: see recover.go.

const (
	// ownObjects is about how many objects of an arena of a memory node a client
	// has for itself.
	ownObjects = 64
	// grabTrees and grabBlocks are how many objects a client takes at a time.
	grabTrees  = 8
	grabBlocks = 16
	// grabRun is how many words it reads at a time to find them.
	grabRun = 256
	// mostOwn bounds the free objects that a client keeps.
	mostOwn = 64
	// mostJobs bounds the jobs that wait before the client waits for them.
	mostJobs = 32
	// quarantine is for how long a block is not used again, so that readers that
	// have its pointer seldom meet another pair. It also bounds how soon a
	// generation comes back: after 65,536 uses, which take 13 s. A client that
	// updates 500,000 times a second has a hundred blocks in quarantine, fewer
	// than it may have without giving some back.
	quarantine = 200 * time.Microsecond
	// mostRetired bounds the blocks that a client frees for others to free one:
	// each of them was replaced before the client that wrote it had marked it as
	// linked.
	mostRetired = 16
	// markTries is how often it waits for that client to mark it.
	markTries = 3
	// mostChanges is more than the changes of a word of one generation while a
	// client looks at it: from the client that wrote the block to linked, and
	// once to a client that deletes the pair.
	mostChanges = 4
)

// own is an object that the client has and may use.
type own struct {
	p pointer
	// since is when it was freed; 0: nothing ever named this use of it.
	since time.Duration
}

// pile is what a client has of an arena of a memory node.
type pile struct {
	// free has the object first that was freed first.
	free []own
	// cursor is the index from which it looks for more.
	cursor int
}

// job is what is to be done to words in the background: take, then mark.
type job struct {
	a *arena
	// take is to become the client's, and to be used again; 0: nothing is.
	take pointer
	// claimed: the client has take already.
	claimed bool
	// mark is to be marked as linked; 0: nothing is.
	mark pointer
	// tries counts attempts to take it in vain: see patience.
	tries int
}

// memory is what a client has of the pool's memory.
type memory struct {
	// trees and blocks have a pile for each memory node.
	trees, blocks []pile
	// home is the memory node of the next tree node, before it is counted up.
	home int
	// todo are jobs that wait, and flying those in batch.
	todo, inFlight []job
	// batch is the one that is in flight; nil: none is.
	batch *rdma.Batch
	// unsure: the pool may have words with the client's name that it does not
	// know of.
	unsure bool
}

// open begins with nothing. The cursors are random, so that clients seldom want
// the same objects.
func (m *memory) open(s *Store) {
	m.trees, m.blocks = make([]pile, s.nodes), make([]pile, s.nodes)
	m.home = int(s.id) % s.nodes
	for n := range s.nodes {
		m.trees[n].cursor = s.ep.Rand().IntN(s.trees.count)
		m.blocks[n].cursor = s.ep.Rand().IntN(max(s.blocks.count, 1))
	}
}

// pile returns the pile of an arena on a memory node.
func (m *memory) pile(s *Store, a *arena, n int) *pile {
	if a == &s.trees {
		return &m.trees[n]
	}
	return &m.blocks[n]
}

// take returns an object of an arena, on memory node n if there is one, or else
// on another. It may wait for a quarantine to end. The error wraps
// client.ErrFull.
func (s *Store) take(a *arena, n int) (pointer, error) {
	// The object should be on the memory node of what will name it, so that one
	// doorbell writes both.
	for i := range s.nodes {
		p := s.memory.pile(s, a, (n+i)%s.nodes)
		// There is nothing that may be used now.
		if len(p.free) == 0 || s.quarantineLeft(p) > 0 {
			if err := s.grab(a, (n+i)%s.nodes); err != nil {
				return 0, err
			}
		}
		if len(p.free) == 0 {
			continue
		}
		// The memory node has no other free objects: the quarantine is waited
		// for.
		if d := s.quarantineLeft(p); d > 0 {
			s.ep.Sleep(d)
		}
		o := p.free[0]
		p.free = append(p.free[:0], p.free[1:]...)
		return o.p, nil
	}
	return 0, fmt.Errorf("no memory for objects of %d bytes: %w", a.bytes, client.ErrFull)
}

// quarantineLeft returns for how long the first object of a pile is still in quarantine;
// 0 or less: it may be used.
func (s *Store) quarantineLeft(p *pile) time.Duration {
	o := &p.free[0]
	if o.since == 0 {
		return 0
	}
	return o.since + quarantine - s.ep.Now()
}

// keepOwn adds an object to what the client has. since is when it was freed; 0:
// nothing names it, or ever did.
func (s *Store) keepOwn(a *arena, p pointer, since time.Duration) {
	l := s.memory.pile(s, a, p.ref().node())
	if since == 0 {
		// It goes to the front, since it needs no quarantine.
		l.free = append([]own{{p, 0}}, l.free...)
		return
	}
	l.free = append(l.free, own{p, since})
}

// grab takes free objects of a memory node, if there are some. It looks at all
// words once at most. A crash behind the CASes leaves words in the client's name,
// of objects that the tree does not name.
func (s *Store) grab(a *arena, n int) error {
	p, want := s.memory.pile(s, a, n), grabBlocks
	if a == &s.trees {
		want = grabTrees
	}
	for looked := 0; looked < a.count && want > 0; {
		// The words are read in runs from the cursor on, and around the table
		// once.
		run := min(grabRun, a.count-p.cursor)
		b, words, err := s.read(stepGrab, rdma.At(n, a.words+uint64(p.cursor)*8), run*8)
		if err != nil {
			return err
		}
		cas, i := s.ep.Batch(), 0
		for ; i < run && cas.Len() < want; i++ {
			w := owner(le.Uint64(words[8*i:]))
			// The object is free. The CAS keeps its generation, which was counted
			// up when it became free.
			if w.client() == 0 {
				q := makePointer(makeRef(n, p.cursor+i), w.generation())
				cas.CompareSwap(a.word(q.ref()), uint64(w), q.owned(s.id))
			}
		}
		b.Release()
		p.cursor = (p.cursor + i) % a.count
		looked += i
		// Other clients may have been faster.
		got, err := s.grabbed(a, p, n, cas)
		if err != nil {
			return err
		}
		want -= got
	}
	return nil
}

// grabbed posts the CASes of grab, and returns how many objects the client has
// got. It takes the batch.
func (s *Store) grabbed(a *arena, p *pile, n int, b *rdma.Batch) (got int, err error) {
	defer b.Release()
	if b.Len() == 0 {
		return 0, nil
	}
	if err := s.do(stepGrab, b); err != nil {
		// Some of the CASes may have taken an object, or may yet.
		s.memory.unsure = s.memory.unsure || s.sent
		return 0, err
	}
	for i := range b.Len() {
		if op := b.Op(i); op.Swapped() {
			index := int((op.Addr.Offset() - a.words) / 8)
			p.free = append([]own{{makePointer(makeRef(n, index), owner(op.Value).generation()), 0}}, p.free...)
			got++
		}
	}
	return got, nil
}

// later adds a job.
func (s *Store) later(j job) { s.memory.todo = append(s.memory.todo, j) }

// marked waits until a block has no job left. A block that the client wrote, and
// is about to delete, is still the record of the block that it took the place of.
func (s *Store) marked(p pointer) error {
	marks := func(j job) bool { return j.mark == p }
	for slices.ContainsFunc(s.memory.inFlight, marks) && s.memory.batch != nil ||
		slices.ContainsFunc(s.memory.todo, marks) {
		if err := s.work(true); err != nil {
			return err
		}
	}
	return nil
}

// work goes on with jobs, in the background. It waits for them when there are too
// many. all: until there is none left.
func (s *Store) work(all bool) error {
	m := &s.memory
	for {
		// One batch of jobs is in flight at a time.
		if m.batch != nil {
			wait := all || len(m.todo) >= mostJobs
			if !m.batch.Finished() && wait {
				if err := s.ep.Wait(m.batch, rdma.All, max(s.until-s.ep.Now(), 1)); err != nil && !m.batch.Finished() {
					return err
				}
			}
			if !m.batch.Finished() {
				return nil
			}
			if err := s.harvest(); err != nil {
				return err
			}
		}
		if len(m.todo) == 0 {
			return s.shed(false)
		}
		if all && s.ep.Now() >= s.until {
			return errTime
		}
		if err := s.start(); err != nil {
			return err
		}
		if !all {
			return nil
		}
	}
}

// start posts the jobs that wait. The CAS of a take fails as long as the mark of
// that block is still to come, which harvest finds out.
func (s *Store) start() error {
	m := &s.memory
	b := s.ep.Batch()
	for i := range m.todo {
		j := &m.todo[i]
		switch {
		// The block is the client's already: only its generation changes.
		case j.take != 0 && j.claimed:
			b.CompareSwap(j.a.word(j.take.ref()), j.take.owned(s.id), j.take.next().owned(s.id))
		// The block that was replaced is linked, unless the client that wrote it
		// has not marked it yet.
		case j.take != 0:
			b.CompareSwap(j.a.word(j.take.ref()), j.take.owned(linked), j.take.next().owned(s.id))
		default:
			b.CompareSwap(j.a.word(j.mark.ref()), j.mark.owned(s.id), j.mark.owned(linked))
		}
	}
	if err := s.ep.Post(b.As(stepMark)); err != nil {
		b.Release()
		return err
	}
	m.batch, m.inFlight, m.todo = b, m.todo, m.inFlight[:0]
	return nil
}

// harvest looks at what became of the jobs that were posted. One that failed is
// done again: the word that its CAS expects never comes back.
func (s *Store) harvest() error {
	m := &s.memory
	b := m.batch
	m.batch = nil
	defer b.Release()
	var failed error
	for i := range m.inFlight {
		j, op := m.inFlight[i], b.Op(i)
		word := owner(op.Result)
		switch {
		case op.Err != nil:
			failed = op.Err
			s.later(j)
		// It is marked, or was, or another client has replaced it by now.
		case j.take == 0:
		// It is the client's now, or was since an attempt without an answer.
		case op.Swapped() || word == owner(j.take.next().owned(s.id)):
			s.keepOwn(j.a, j.take.next(), s.ep.Now())
			s.then(j)
		// Another client has freed it.
		case word.generation() != j.take.generation():
			s.then(j)
		// The client that wrote the block has not marked it yet, and most likely
		// is about to.
		case j.tries < markTries:
			j.tries++
			s.later(j)
		default:
			// That client is slow, or dead: this one does it.
			mine, err := s.retire(j.take, s.id, mostRetired)
			if err != nil {
				failed = err
				s.later(j)
				continue
			}
			if mine {
				s.keepOwn(j.a, j.take.next(), s.ep.Now())
			}
			s.then(j)
		}
	}
	return failed
}

// then goes on with a job behind its take.
func (s *Store) then(j job) {
	if j.mark != 0 {
		s.later(job{a: j.a, mark: j.mark})
	}
}

// retire makes a block that nothing names any more a client's, or free, whichever
// client has its word: the client that wrote the block has not marked it as
// linked, and maybe never will. Before that retire does what that client had to
// do first: it frees the block that this one took the place of. It returns false
// if another client has done it.
func (s *Store) retire(p pointer, to rdma.ClientID, most int) (bool, error) {
	for range mostChanges {
		// Word and content are read in one batch, and may be of two moments: the
		// CAS below expects the word.
		w, k, err := s.wordOf(p)
		if err != nil {
			return false, err
		}
		// The block is free or used again.
		if w.generation() != p.generation() {
			// An attempt of this client may have done it, with an answer that was
			// lost.
			return w == owner(p.next().owned(s.id)), nil
		}
		// The block is the only record of the one that it replaced, so that one
		// is freed first.
		if w.client() != linked && k != 0 && most > 0 {
			if _, err := s.retire(k, 0, most-1); err != nil {
				return false, err
			}
		}
		b := s.ep.Batch()
		op := b.CompareSwap(s.blocks.word(p.ref()), uint64(w), p.next().owned(to))
		err = s.do(stepMark, b)
		swapped := op.Swapped()
		b.Release()
		if err != nil || swapped {
			return swapped, err
		}
	}
	return false, fmt.Errorf("the word of block %v changes all the time: %w", p.ref(), rdma.ErrTimeout)
}

// wordOf reads the word of a block, and which block it took the place of, if its
// content is that of the pointer's use.
func (s *Store) wordOf(p pointer) (w owner, replaces pointer, err error) {
	b := s.ep.Batch()
	defer b.Release()
	word := b.Read(s.blocks.word(p.ref()), 8)
	content := b.Read(s.blocks.at(p.ref()), s.blockBytes)
	if err := s.do(stepMark, b); err != nil {
		return 0, 0, err
	}
	if k, ok := s.readBlock(content.Buf); ok && k.self == p {
		replaces = k.replaces
	}
	return owner(word.Word(0)), replaces, nil
}

// shed gives free objects back: those that are too many, or all.
func (s *Store) shed(all bool) error {
	m := &s.memory
	for n := range s.nodes {
		for _, a := range []*arena{&s.trees, &s.blocks} {
			p, keep := m.pile(s, a, n), mostOwn
			if all {
				keep = 0
			}
			for len(p.free) > keep {
				// Objects are given back only when there are twice as many as are
				// kept, so not after each operation.
				if !all && len(p.free) < 2*mostOwn {
					break
				}
				if err := s.giveBack(a, p, min(mostJobs, len(p.free)-keep)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// giveBack makes the last n objects of a pile free. If the outcome is unknown,
// unsure says so.
func (s *Store) giveBack(a *arena, p *pile, n int) error {
	b := s.ep.Batch()
	defer b.Release()
	// The last ones are those that were freed last.
	list := p.free[len(p.free)-n:]
	for _, o := range list {
		b.CompareSwap(a.word(o.p.ref()), o.p.owned(s.id), o.p.owned(0))
	}
	p.free = p.free[:len(p.free)-n]
	if err := s.do(stepMark, b); err != nil {
		s.memory.unsure = true
		return err
	}
	return nil
}
