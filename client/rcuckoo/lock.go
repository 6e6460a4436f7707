package rcuckoo

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// locks are those of the operation at work, and what is read under them.
type locks struct {
	shard int
	wants []want // in the order of their words, which is that of taking them: so clients do not wait in a circle
	held  int    // how many of them are held
	bands []band // rows to read, in order and apart
	read  *rdma.Batch
	sent  bool // rows were written, or may have been
}

// band are rows that one READ takes.
type band struct {
	from, to uint32
	buf      []byte
}

// lockRepair is the bit of a lock word that keeps others from taking locks in it while it is
// repaired.
const lockRepair = 1 << lockBits

// want forgets what was to be locked.
func (s *Store) want(shard int) {
	l := &s.locks
	l.shard, l.held, l.sent = shard, 0, false
	l.wants, l.bands = l.wants[:0], l.bands[:0]
}

// wantRow adds a row to what is to be locked.
func (s *Store) wantRow(n uint32) {
	word, bit := s.lockOf(n)
	l := &s.locks
	at, found := slices.BinarySearchFunc(l.wants, uint32(word), func(w want, word uint32) int { return cmp.Compare(w.word, word) })
	if !found {
		l.wants = slices.Insert(l.wants, at, want{word: uint32(word)})
	}
	l.wants[at].bits |= 1 << bit
}

// wantBand adds rows to what is to be read, and joins neighbours: the paper's covering reads
// (section 3.2.1).
func (s *Store) wantBand(from, to uint32) {
	l := &s.locks
	at := 0
	for at < len(l.bands) && l.bands[at].to < from {
		at++
	}
	end := at
	for end < len(l.bands) && l.bands[end].from <= to {
		from, to = min(from, l.bands[end].from), max(to, l.bands[end].to)
		end++
	}
	if at == end {
		l.bands = append(l.bands, band{})
		copy(l.bands[at+1:], l.bands[at:])
	} else {
		l.bands = append(l.bands[:at+1], l.bands[end:]...)
	}
	l.bands[at] = band{from: from, to: to}
}

// wantRows reads exactly the rows of a place.
func (s *Store) wantRows(p place) {
	s.wantBand(p.first, p.first+1)
	s.wantBand(p.second, p.second+1)
}

// addReads adds the READs of all bands to a batch.
func (s *Store) addReads(b *rdma.Batch, fence bool) {
	l := &s.locks
	for i := range l.bands {
		p := &l.bands[i]
		op := b.Read(s.rowAt(s.leads[l.shard], p.from), int(p.to-p.from)*s.rowBytes)
		op.Fence = fence && i == 0 // what is posted behind it waits with it
		p.buf = op.Buf
	}
}

// row returns a row that was read; nil: it was not.
func (l *locks) row(n uint32, bytes int) row {
	for i := range l.bands {
		if p := &l.bands[i]; p.from <= n && n < p.to && p.buf != nil {
			at := int(n-p.from) * bytes
			return row(p.buf[at : at+bytes : at+bytes])
		}
	}
	return nil
}

// endReads gives the rows back.
func (s *Store) endReads() {
	l := &s.locks
	if l.read != nil {
		l.read.Release()
		l.read = nil
	}
	for i := range l.bands {
		l.bands[i].buf = nil
	}
}

var (
	// errAgain sends an operation back to its beginning: nothing is held, and nothing was changed.
	errAgain = errors.New("begin again")
	// errStolen is what a lock was that is not there any more when it is let go of.
	errStolen = fmt.Errorf("somebody let go of a lock that was held: %w", client.ErrDamaged)
	errWaited = fmt.Errorf("others hold its locks: %w", rdma.ErrTimeout)
)

// A client that does not get a lock pauses, for longer each time and at random; for far less than a
// failure timer, since it is by its tries that it is known to be alive.
const (
	firstPause  = time.Microsecond
	lastPause   = time.Millisecond
	pauseShares = 16 // of the failure timer
)

// forLocks is the formula of that: drawn from half the first pause on.
func forLocks(failure time.Duration) kit.Pause {
	return kit.Spread(firstPause/2, kit.Doubling(firstPause, min(lastPause, failure/pauseShares)))
}

// acquire takes all locks that are wanted, a word a trip, and reads the bands with the last of them
// (section 3.4.1). The error wraps errAgain when there was something to repair, or another client
// repairs.
//
// A value that an extent was taken for is written in the first of these trips, and so before
// anything names it.
func (s *Store) acquire(key, value []byte) error {
	l := &s.locks
	st := &s.shards[l.shard]
	st.seq++
	st.dirty, st.given = true, false // from the first verb on: see settle
	if s.Replicas > 1 {
		s.pulse = (*Store).beatOwn
	}
	opening := true
	for r := s.pace; l.held < len(l.wants); {
		w := &l.wants[l.held]
		trying, last := w.has(), l.held == len(l.wants)-1
		b := s.ep.Batch()
		b.Chain()
		if opening {
			b.Write(s.intentAt(l.shard, s.id), encodeIntent(b.Alloc(intentBytes), l.shard, s.id, st.seq, l.wants))
		} else if r.Tries > 0 {
			b.WriteWord(s.intentAt(l.shard, s.id).Add(intentBeat), uint64(r.Tries))
		}
		var content []byte
		if opening && s.taken.stamp != 0 {
			content = s.addValue(b, l.shard, s.taken, key, value)
		}
		lock := s.addTry(b, w)
		if trying && last {
			s.addReads(b, true)
		}
		take, look := s.addTurn(b, w)
		if content != nil && s.Replicas > 1 {
			s.addBackups(b, l.shard, s.taken, content)
		}
		posted := s.ep.Now()
		if err := s.do(stepLock, b); err != nil {
			return s.lost(b, fmt.Errorf("lock word %d of shard %d: %w", w.word, l.shard, err))
		}
		opening = false
		s.seeTurn(w, take, look, s.ep.Now()-posted)
		if trying && lock.Swapped() {
			if l.held++; last {
				l.read = b
				return nil
			}
			b.Release()
			r.Tries++
			continue
		}
		met := lock.Result
		if !trying {
			met = lock.Word(0)
		}
		b.Release()
		s.enqueue(w, met)
		if err := s.wait(w, met, &r); err != nil {
			return err
		}
	}
	return nil
}

// addTry adds the masked CAS that takes locks of a word. A client that waits for its turn only
// reads the word, by which it learns of a repair.
func (s *Store) addTry(b *rdma.Batch, w *want) *rdma.Op {
	at := s.lockAt(s.locks.shard, int(w.word))
	if !w.has() {
		return b.Read(at, 8)
	}
	return b.MaskedCompareSwap(at, 0, w.bits|lockRepair, w.bits, w.bits)
}

// wait is what a client does that did not get a lock: it waits, looks for one that died, or gives
// up.
func (s *Store) wait(w *want, met uint64, r *kit.Retry) error {
	s.stats.Waits++
	l := &s.locks
	slow, err := s.slow(l.shard, w.word)
	switch {
	case err != nil:
		return s.lost(nil, err)
	case slow || met&lockRepair != 0:
		// A client that waits for a repair has no intent, since the repairer waits for those that have
		// one.
		if err := s.retreat(); err != nil {
			return err
		}
		if err := s.repaired(l.shard, w.word); err != nil {
			return err
		}
		return errAgain
	case s.cleanupDue(): // others may wait for the worker, in another shard
		if err := s.retreat(); err != nil {
			return err
		}
		return errAgain
	case s.over():
		if err := s.retreat(); err != nil {
			return err
		}
		return errWaited
	}
	s.pause(w, r)
	return nil
}

// repaired waits until a lock word is repaired, or does it. It holds nothing meanwhile.
func (s *Store) repaired(shard int, word uint32) error {
	for r := s.pace; ; {
		if s.cleanupDue() || s.shards[shard].dirty { // its own intent may be what others wait for
			return errAgain
		}
		stuck, err := s.stuck(shard, word)
		switch {
		case err != nil:
			return err
		case stuck:
			return s.repair(shard, []uint32{word})
		}
		b := s.ep.Batch()
		op := b.Read(s.lockAt(shard, int(word)), 8)
		if err := s.do(stepLock, b); err != nil {
			return s.unread(shard, b, fmt.Errorf("read lock word %d of shard %d: %w", word, shard, err))
		}
		bits := le.Uint64(op.Buf)
		b.Release()
		switch {
		case bits&lockRepair == 0:
			return nil
		case !r.Again():
			return errWaited
		}
	}
}

// retreat lets go of what is held, with nothing changed.
func (s *Store) retreat() error {
	s.endReads()
	l := &s.locks
	if l.held > 0 {
		b := s.ep.Batch()
		s.addReleases(b)
		if err := s.do(stepLetGo, b); err != nil {
			return s.lost(b, fmt.Errorf("let go of locks of shard %d: %w", l.shard, err))
		}
		err := s.released(b)
		b.Release()
		if err != nil {
			return err
		}
	}
	s.finish()
	return nil
}

// addReleases lets go of what is held, behind what is in the batch.
func (s *Store) addReleases(b *rdma.Batch) {
	l := &s.locks
	for _, w := range l.wants[:l.held] {
		b.MaskedCompareSwap(s.lockAt(l.shard, int(w.word)), w.bits, w.bits, 0, w.bits)
	}
}

// released looks at the last ops of a batch, which let go of what is held.
func (s *Store) released(b *rdma.Batch) error {
	l := &s.locks
	for i := b.Len() - l.held; i < b.Len(); i++ {
		if !b.Op(i).Swapped() {
			return fmt.Errorf("lock at %s: %w", b.Op(i).Addr, errStolen)
		}
	}
	l.held = 0
	return nil
}

// finish ends the intent, when nothing is held any more: behind this no other takes the client for
// one that holds a lock. The client does not wait for the WRITE: the next operation's is behind it.
// When it cannot be posted the shard is settled before that.
func (s *Store) finish() {
	l := &s.locks
	st := &s.shards[l.shard]
	b := s.ep.Batch()
	b.WriteWord(s.intentAt(l.shard, s.id), st.seq<<1|idleBit)
	s.addServed(b)
	err := s.ep.Post(b.As(stepDone))
	s.ended(true) // the one before; it may have gone to a node that does not answer, which this one does not wait for
	if err != nil {
		b.Release()
		return // and the shard stays dirty
	}
	st.dirty = false
	s.ending, s.endingIn, s.endingSeq = b, l.shard, st.seq
}

// lost notes that an operation failed with verbs that may have landed, or may still: the shard is
// settled before the next one.
func (s *Store) lost(b *rdma.Batch, err error) error { return s.unread(s.locks.shard, b, err) }

// carry posts a batch as a step and waits for it. A failure says what was to be done.
func (s *Store) carry(step rdma.Step, shard int, b *rdma.Batch, what string, args ...any) error {
	if err := s.do(step, b); err != nil {
		return s.unread(shard, b, fmt.Errorf(what+": %w", append(args, err)...))
	}
	b.Release()
	return nil
}

// keepFlying keeps a batch until nothing of it is in flight.
func (s *Store) keepFlying(shard int, b *rdma.Batch) {
	switch {
	case b == nil:
	case b.Finished():
		b.Release()
	default:
		s.shards[shard].flying = b // there is at most one: the shard is dirty until it has landed
	}
}
