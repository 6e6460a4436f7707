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
	// vainFor is for how long a client that has looked at all words of an arena of a
	// memory node in vain does not look again.
	vainFor = 10 * time.Millisecond
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
	// vain is when it has looked at all words and got nothing; 0: never, or it has
	// got something since.
	vain time.Duration
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
	*session
	// treePiles and blockPiles have a pile for each memory node.
	treePiles, blockPiles []pile
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

// newMemory returns that of a client that has none yet: it takes some when it needs it. The cursors
// are random, so that clients seldom want the same objects.
func newMemory(s *session) *memory {
	m := &memory{session: s, treePiles: make([]pile, s.nodes), blockPiles: make([]pile, s.nodes)}
	m.home = int(s.id) % s.nodes
	for n := range s.nodes {
		m.treePiles[n].cursor = s.ep.Rand().IntN(s.trees.count)
		m.blockPiles[n].cursor = s.ep.Rand().IntN(max(s.blocks.count, 1))
	}
	return m
}

// pile returns the pile of an arena on a memory node.
func (m *memory) pile(a *arena, n int) *pile {
	if a == &m.trees {
		return &m.treePiles[n]
	}
	return &m.blockPiles[n]
}

// take returns an object of an arena, on memory node n if there is one, or else
// on another. It may wait for a quarantine to end. The error wraps
// client.ErrFull.
func (m *memory) take(a *arena, n int) (pointer, error) {
	// The object should be on the memory node of what will name it, so that one
	// doorbell writes both.
	for i := range m.nodes {
		p := m.pile(a, (n+i)%m.nodes)
		// There is nothing that may be used now.
		if (len(p.free) == 0 || m.quarantineLeft(p) > 0) && !m.lately(p.vain) {
			if err := m.grab(a, (n+i)%m.nodes); err != nil {
				return 0, err
			}
		}
		if len(p.free) > 0 {
			return m.oldest(p), nil
		}
	}
	// What the client itself has replaced or deleted may be all that there is. What
	// fails is done again.
	if m.awaits(a) {
		_ = m.work(true)
	}
	for i := range m.nodes {
		if p := m.pile(a, (n+i)%m.nodes); len(p.free) > 0 {
			return m.oldest(p), nil
		}
	}
	return 0, fmt.Errorf("no memory for objects of %d bytes: %w", a.bytes, client.ErrFull)
}

// oldest takes the first object of a pile that has some, when its quarantine is over.
func (m *memory) oldest(p *pile) pointer {
	// The memory node has no other free objects: the quarantine is waited for.
	if d := m.quarantineLeft(p); d > 0 {
		m.ep.Sleep(d)
	}
	o := p.free[0]
	p.free = append(p.free[:0], p.free[1:]...)
	return o.p
}

// awaits reports whether a job that is not done is to take an object of an arena.
func (m *memory) awaits(a *arena) bool {
	takes := func(j job) bool { return j.a == a && j.take != 0 }
	return slices.ContainsFunc(m.todo, takes) || m.batch != nil && slices.ContainsFunc(m.inFlight, takes)
}

// lately reports whether a look at all words was in vain not long ago.
func (m *memory) lately(vain time.Duration) bool {
	now := m.ep.Now()
	return vain != 0 && now >= vain && now-vain < vainFor
}

// quarantineLeft returns for how long the first object of a pile is still in quarantine;
// 0 or less: it may be used.
func (m *memory) quarantineLeft(p *pile) time.Duration {
	o := &p.free[0]
	if o.since == 0 {
		return 0
	}
	return o.since + quarantine - m.ep.Now()
}

// keepOwn adds an object to what the client has. since is when it was freed; 0:
// nothing names it, or ever did.
func (m *memory) keepOwn(a *arena, p pointer, since time.Duration) {
	l := m.pile(a, p.ref().node())
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
func (m *memory) grab(a *arena, n int) error {
	p, most := m.pile(a, n), grabBlocks
	if a == &m.trees {
		most = grabTrees
	}
	want := most
	for looked := 0; looked < a.count && want > 0; {
		// The words are read in runs from the cursor on, and around the table
		// once.
		run := min(grabRun, a.count-p.cursor)
		// The words may change at once. What is read here only says which CASes
		// are worth a try.
		b, words, err := m.read(stepGrab, rdma.At(n, a.words+uint64(p.cursor)*8), run*8)
		if err != nil {
			return err
		}
		cas, i := m.ep.Batch(), 0
		for ; i < run && cas.Len() < want; i++ {
			w := owner(le.Uint64(words[8*i:]))
			q := makePointer(makeRef(n, p.cursor+i), w.generation())
			// The object is free. The CAS keeps its generation, which was counted
			// up when it became free.
			if w.client() == 0 && !m.takes(a, q) {
				cas.CompareSwap(a.word(q.ref()), uint64(w), q.owned(m.id))
			}
		}
		b.Release()
		p.cursor = (p.cursor + i) % a.count
		looked += i
		// Other clients may have been faster.
		got, err := m.grabbed(a, p, n, cas)
		if err != nil {
			return err
		}
		want -= got
	}
	if p.vain = 0; want == most {
		p.vain = max(m.ep.Now(), 1)
	}
	return nil
}

// takes reports whether a job that is not done is to take what q is the next use of.
// Another client may have freed it meanwhile. The job must not meet that use in the
// client's name by a grab, and take it for its own doing.
func (m *memory) takes(a *arena, q pointer) bool {
	due := func(j job) bool { return j.a == a && j.take != 0 && j.take.next() == q }
	return slices.ContainsFunc(m.todo, due) || m.batch != nil && slices.ContainsFunc(m.inFlight, due)
}

// grabbed posts the CASes of grab, and returns how many objects the client has
// got. It takes the batch.
func (m *memory) grabbed(a *arena, p *pile, n int, b *rdma.Batch) (got int, err error) {
	defer b.Release()
	if b.Len() == 0 {
		return 0, nil
	}
	if err := m.do(stepGrab, b); err != nil {
		// Some of the CASes may have taken an object, or may yet.
		m.unsure = m.unsure || m.sent
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
func (m *memory) later(j job) { m.todo = append(m.todo, j) }

// marked waits until a block has no job left. A block that the client wrote, and
// is about to delete, is still the record of the block that it took the place of.
func (m *memory) marked(p pointer) error {
	marks := func(j job) bool { return j.mark == p }
	for slices.ContainsFunc(m.inFlight, marks) && m.batch != nil ||
		slices.ContainsFunc(m.todo, marks) {
		if err := m.work(true); err != nil {
			return err
		}
	}
	return nil
}

// work goes on with jobs, in the background. It waits for them when there are too
// many. all: until there is none left.
func (m *memory) work(all bool) error {
	for {
		// One batch of jobs is in flight at a time.
		if m.batch != nil {
			wait := all || len(m.todo) >= mostJobs
			if !m.batch.Finished() && wait {
				if err := m.ep.Wait(m.batch, rdma.All, max(m.until-m.ep.Now(), 1)); err != nil && !m.batch.Finished() {
					return err
				}
			}
			if !m.batch.Finished() {
				return nil
			}
			if err := m.harvest(); err != nil {
				return err
			}
		}
		if len(m.todo) == 0 {
			return m.shed(false)
		}
		if all && m.ep.Now() >= m.until {
			return errTime
		}
		if err := m.start(); err != nil {
			return err
		}
		if !all {
			return nil
		}
	}
}

// start posts the jobs that wait. The CAS of a take fails as long as the mark of
// that block is still to come, which harvest finds out.
func (m *memory) start() error {
	b := m.ep.Batch()
	for i := range m.todo {
		j := &m.todo[i]
		switch {
		// The block is the client's already: only its generation changes.
		case j.take != 0 && j.claimed:
			b.CompareSwap(j.a.word(j.take.ref()), j.take.owned(m.id), j.take.next().owned(m.id))
		// The block that was replaced is linked, unless the client that wrote it
		// has not marked it yet.
		case j.take != 0:
			b.CompareSwap(j.a.word(j.take.ref()), j.take.owned(linked), j.take.next().owned(m.id))
		default:
			b.CompareSwap(j.a.word(j.mark.ref()), j.mark.owned(m.id), j.mark.owned(linked))
		}
	}
	if err := m.ep.Post(b.As(stepMark)); err != nil {
		b.Release()
		return err
	}
	m.batch, m.inFlight, m.todo = b, m.todo, m.inFlight[:0]
	return nil
}

// harvest looks at what became of the jobs that were posted. One that failed is
// done again: the word that its CAS expects never comes back.
func (m *memory) harvest() error {
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
			m.later(j)
		// It is marked, or was, or another client has replaced it by now.
		case j.take == 0:
		// It is the client's now, or was since an attempt without an answer.
		case op.Swapped() || word == owner(j.take.next().owned(m.id)):
			m.keepOwn(j.a, j.take.next(), m.ep.Now())
			m.then(j)
		// Another client has freed it.
		case word.generation() != j.take.generation():
			m.then(j)
		// The client that wrote the block has not marked it yet, and most likely
		// is about to.
		case j.tries < markTries:
			j.tries++
			m.later(j)
		default:
			// That client is slow, or dead: this one does it.
			mine, err := m.retire(j.take, m.id, mostRetired)
			if err != nil {
				failed = err
				m.later(j)
				continue
			}
			if mine {
				m.keepOwn(j.a, j.take.next(), m.ep.Now())
			}
			m.then(j)
		}
	}
	return failed
}

// then goes on with a job behind its take.
func (m *memory) then(j job) {
	if j.mark != 0 {
		m.later(job{a: j.a, mark: j.mark})
	}
}

// retire makes a block that nothing names any more a client's, or free, whichever
// client has its word: the client that wrote the block has not marked it as
// linked, and maybe never will. Before that retire does what that client had to
// do first: it frees the block that this one took the place of. It returns false
// if another client has done it.
func (m *memory) retire(p pointer, to rdma.ClientID, most int) (bool, error) {
	for range mostChanges {
		// Word and content are read in one batch, and may be of two moments: the
		// CAS below expects the word.
		w, k, err := m.wordOf(p)
		if err != nil {
			return false, err
		}
		// The block is free or used again.
		if w.generation() != p.generation() {
			// An attempt of this client may have done it, with an answer that was
			// lost.
			return w == owner(p.next().owned(m.id)), nil
		}
		// The block is the only record of the one that it replaced, so that one
		// is freed first.
		if w.client() != linked && k != 0 && most > 0 {
			if _, err := m.retire(k, 0, most-1); err != nil {
				return false, err
			}
		}
		b := m.ep.Batch()
		op := b.CompareSwap(m.blocks.word(p.ref()), uint64(w), p.next().owned(to))
		err = m.do(stepMark, b)
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
func (m *memory) wordOf(p pointer) (w owner, replaces pointer, err error) {
	b := m.ep.Batch()
	defer b.Release()
	word := b.Read(m.blocks.word(p.ref()), 8)
	content := b.Read(m.blocks.at(p.ref()), m.blockBytes)
	if err := m.do(stepMark, b); err != nil {
		return 0, 0, err
	}
	if k, ok := m.readBlock(content.Buf); ok && k.self == p {
		replaces = k.replaces
	}
	return owner(word.Word(0)), replaces, nil
}

// shed gives free objects back: those that are too many, or all.
func (m *memory) shed(all bool) error {
	for n := range m.nodes {
		for _, a := range []*arena{&m.trees, &m.blocks} {
			p, keep := m.pile(a, n), mostOwn
			if all {
				keep = 0
			}
			for len(p.free) > keep {
				// Objects are given back only when there are twice as many as are
				// kept, so not after each operation.
				if !all && len(p.free) < 2*mostOwn {
					break
				}
				if err := m.giveBack(a, p, min(mostJobs, len(p.free)-keep)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// giveBack makes the last n objects of a pile free. If the outcome is unknown,
// unsure says so.
func (m *memory) giveBack(a *arena, p *pile, n int) error {
	b := m.ep.Batch()
	defer b.Release()
	// The last ones are those that were freed last.
	list := p.free[len(p.free)-n:]
	for _, o := range list {
		b.CompareSwap(a.word(o.p.ref()), o.p.owned(m.id), o.p.owned(0))
	}
	p.free = p.free[:len(p.free)-n]
	if err := m.do(stepMark, b); err != nil {
		m.unsure = true
		return err
	}
	return nil
}
