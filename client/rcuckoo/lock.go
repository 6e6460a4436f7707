package rcuckoo

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// locks are the locks of the operation at work, and the rows that are read under them.
type locks struct {
	shard int
	// wants are in ascending order of their words. All clients take locks in this order, so no
	// cycle of clients waits for each other.
	wants []table.Want
	// turns are the client's turns at the locks of the wants, by word.
	turns [table.MostLocked]turn
	// held is how many of the wants, from the first on, are held.
	held int
	// bands are the rows to read, in ascending order. They neither overlap nor touch.
	bands []band
	// read is the batch that has the memory of the bands. The operation owns it until endReads.
	// nil: nothing is read.
	read *rdma.Batch
	// sent: rows were written, or may have been. Until then the operation has changed nothing.
	sent bool
}

// band is a range of rows that one READ returns: from, and up to but without, to.
type band struct {
	from, to uint32
	buf      []byte // of the batch that read it; nil: not read
}

// want begins a new list of locks and rows, in a shard. The operation must hold none.
func (s *Store) want(shard int) {
	l := &s.locks
	l.shard, l.held, l.sent = shard, 0, false
	l.wants, l.bands = l.wants[:0], l.bands[:0]
}

// wantRow adds the lock of a row to the wants. Rows that share a lock add it once.
func (s *Store) wantRow(n uint32) {
	word, bit := s.table.LockOf(n)
	l := &s.locks
	at, found := slices.BinarySearchFunc(l.wants, uint32(word),
		func(w table.Want, word uint32) int { return cmp.Compare(w.Word, word) })
	if !found {
		l.wants = slices.Insert(l.wants, at, table.Want{Word: uint32(word)})
	}
	l.wants[at].Bits |= 1 << bit
}

// wantBand adds rows to what is to be read, and joins bands that overlap or touch: the paper's
// covering reads (section 3.2.1).
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

// wantRows adds exactly the two rows of a place to what is to be read.
func (s *Store) wantRows(p table.Place) {
	s.wantBand(p.First, p.First+1)
	s.wantBand(p.Second, p.Second+1)
}

// addReads adds the READs of all bands to a batch, which has their memory. With fence they start
// after the CAS ahead of them has completed, so they see no row that another client still writes.
func (s *Store) addReads(b *rdma.Batch, fence bool) {
	l := &s.locks
	for i := range l.bands {
		p := &l.bands[i]
		op := b.Read(s.table.RowAt(s.table.Leads[l.shard], p.from), int(p.to-p.from)*s.table.RowBytes)
		op.Fence = fence && i == 0 // what is posted behind it waits with it
		p.buf = op.Buf
	}
}

// row returns a row that was read, in the memory of its band; nil: it was not read.
func (l *locks) row(n uint32, bytes int) table.Row {
	for i := range l.bands {
		if p := &l.bands[i]; p.from <= n && n < p.to && p.buf != nil {
			at := int(n-p.from) * bytes
			return table.Row(p.buf[at : at+bytes : at+bytes])
		}
	}
	return nil
}

// endReads releases the batch of the bands. No row of them may be used afterwards.
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
	// errStolen: a lock that the worker held was free when the worker released it. No living
	// client that is not fenced off loses a lock, so memory is damaged.
	errStolen = fmt.Errorf("another client released a lock that was held: %w", client.ErrDamaged)
	// errWaited: the time of the operation is used up by waiting for locks. Nothing was changed.
	errWaited = fmt.Errorf("others hold its locks: %w", rdma.ErrTimeout)
)

// A client that does not get a lock pauses, for longer each time and at random. The longest pause
// is far shorter than a failure timer, since each try is a heartbeat.
const (
	firstPause  = time.Microsecond
	lastPause   = time.Millisecond
	pauseShares = 16 // of the failure timer
)

// forLocks returns these pauses: each is drawn between half the first pause and a bound that
// doubles.
func forLocks(failure time.Duration) kit.Pause {
	return kit.Spread(firstPause/2, kit.Doubling(firstPause, min(lastPause, failure/pauseShares)))
}

// acquire takes all locks that are wanted, a word a trip, and reads the bands with the last of
// them (section 3.4.1). The error wraps errAgain when there was something to repair, or another
// client repairs; then the worker holds nothing. It wraps rdma.ErrTimeout when the time is used
// up.
//
// The first trip writes the intent ahead of the masked CAS (I1); each later try writes a
// heartbeat instead. The value of an extent is written in the first trip, too, and so before
// anything names the extent.
//
// A crash leaves an intent and some of the locks that it names. No row has changed, so repair
// only frees them.
func (s *Store) acquire(key, value []byte) error {
	l := &s.locks
	st := &s.shards[l.shard]
	st.seq++
	st.dirty, st.given = true, false // from the first verb on; finish makes it clean
	if s.table.Replicas > 1 {
		s.pulse = (*Store).beatOwn
	}
	l.turns = [table.MostLocked]turn{}
	opening := true
	// Each round is one trip: a try for the next word, or a look at its queue.
	for r := s.pace; l.held < len(l.wants); {
		w, t := l.wants[l.held], &l.turns[l.held]
		// One chain: the intent lands before the masked CAS behind it (I1). Only the last word's
		// try reads rows, as no row may be read before all locks are held.
		trying, last := t.has(), l.held == len(l.wants)-1
		b := s.ep.Batch()
		b.Chain()
		if opening {
			b.Write(s.table.IntentAt(l.shard, s.id), table.EncodeIntent(b.Alloc(table.IntentBytes), l.shard, s.id,
				st.seq, l.wants))
		} else if r.Tries > 0 {
			b.WriteWord(s.table.IntentAt(l.shard, s.id).Add(table.IntentHeartbeat), uint64(r.Tries))
		}
		var content []byte
		if opening && s.taken.Stamp != 0 {
			content = s.table.AddValue(b, l.shard, s.taken, key, value)
		}
		lock := s.addTry(b, w, trying)
		if trying && last {
			s.addReads(b, true)
		}
		take, look := s.addTurn(b, t)
		// The batch completes only when the backups have the value, too, so they have it before
		// any redo names it.
		if content != nil && s.table.Replicas > 1 {
			s.addBackups(b, l.shard, s.taken, content)
		}
		posted := s.ep.Now()
		// After an error the CAS may have landed, or may land later, so the shard is settled from
		// the intent.
		if err := s.do(steps.Lock, b); err != nil {
			return s.lost(b, fmt.Errorf("lock word %d of shard %d: %w", w.Word, l.shard, err))
		}
		opening = false
		s.seeTurn(t, take, look, s.ep.Now()-posted)
		if trying && lock.Swapped() {
			if l.held++; last {
				l.read = b // the bands have the batch's memory
				return nil
			}
			b.Release()
			r.Tries++
			continue
		}
		met := lock.Result // what the CAS found
		if !trying {
			met = lock.Word(0)
		}
		b.Release()
		s.enqueue(t, w, met)
		if err := s.wait(w.Word, t, met, &r); err != nil {
			return err
		}
	}
	return nil
}

// addTry adds the masked CAS that takes the wanted locks of a word: all of them or none, and none
// while the word is repaired. A client that waits for its turn only reads the word, by which it
// learns of a repair.
func (s *Store) addTry(b *rdma.Batch, w table.Want, trying bool) *rdma.Op {
	at := s.table.LockAt(s.locks.shard, int(w.Word))
	if !trying {
		return b.Read(at, 8)
	}
	return b.MaskedCompareSwap(at, 0, w.Bits|table.LockRepair, w.Bits, w.Bits)
}

// wait is what a client does after a try in vain. If a client in its way makes no progress, or
// the word is being repaired, it releases its locks and ends its intent before it repairs or
// waits for the repair. Else it pauses, or gives up when its time is used up. met is the lock
// word as the try found it.
func (s *Store) wait(word uint32, t *turn, met uint64, r *kit.Retry) error {
	s.stats.Waits++
	l := &s.locks
	slow, err := s.slow(l.shard, word)
	switch {
	case err != nil:
		return s.lost(nil, err)
	case slow || met&table.LockRepair != 0:
		// A client that waits for a repair has no intent: the repairer waits until no other
		// intent names the word.
		if err := s.retreat(); err != nil {
			return err
		}
		if err := s.repaired(l.shard, word); err != nil {
			return err
		}
		return errAgain
	case s.cleanupDue(): // others may wait for this worker, in another shard
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
	s.pause(t, r)
	return nil
}

// repaired waits until a lock word is repaired, or repairs it. The worker holds nothing and has
// no intent meanwhile.
func (s *Store) repaired(shard int, word uint32) error {
	for r := s.pace; ; {
		if s.cleanupDue() || s.shards[shard].dirty { // others may wait for the worker's own intent
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
		op := b.Read(s.table.LockAt(shard, int(word)), 8)
		if err := s.do(steps.Lock, b); err != nil {
			return s.unread(shard, b, fmt.Errorf("read lock word %d of shard %d: %w", word, shard, err))
		}
		bits := le.Uint64(op.Buf)
		b.Release()
		// Without the repair bit the operation may begin again: its next try meets whatever else
		// is there.
		switch {
		case bits&table.LockRepair == 0:
			return nil
		case !r.Again():
			return errWaited
		}
	}
}

// retreat releases what is held, with nothing changed, and ends the intent.
func (s *Store) retreat() error {
	s.endReads()
	l := &s.locks
	if l.held > 0 {
		b := s.ep.Batch()
		s.addReleases(b)
		if err := s.do(steps.LetGo, b); err != nil {
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

// addReleases adds the masked CASes that release what is held, behind what is in the batch. Each
// compares and clears the client's own bits alone.
func (s *Store) addReleases(b *rdma.Batch) {
	l := &s.locks
	for _, w := range l.wants[:l.held] {
		b.MaskedCompareSwap(s.table.LockAt(l.shard, int(w.Word)), w.Bits, w.Bits, 0, w.Bits)
	}
}

// released checks the last ops of a batch, which release what is held. The error wraps
// client.ErrDamaged.
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

// finish ends the intent. Nothing may be held any more (I1). The client does not wait for the
// WRITE: the next intent's WRITE is behind it. If the WRITE is lost, ended notices, and if it
// cannot be posted the shard stays dirty; in both cases the shard is settled before the next
// operation.
//
// A crash before the WRITE lands leaves an intent that names locks which are free, or another
// client's. Repair then fences off only the client that crashed.
func (s *Store) finish() {
	l := &s.locks
	st := &s.shards[l.shard]
	b := s.ep.Batch()
	b.WriteWord(s.table.IntentAt(l.shard, s.id), st.seq<<1|table.IdleBit)
	s.addServed(b)
	err := s.ep.Post(b.As(steps.Done))
	s.ended(true) // the WRITE before this one, which may have gone to another node
	if err != nil {
		b.Release()
		return // and the shard stays dirty
	}
	// The worker owns the batch until ended has looked at it.
	st.dirty = false
	s.ending, s.endingIn, s.endingSeq = b, l.shard, st.seq
}

// lost notes that an operation failed, with verbs that may have landed or may land later: the
// shard stays dirty, and is settled before the next operation. It takes over the batch, and
// returns err.
func (s *Store) lost(b *rdma.Batch, err error) error { return s.unread(s.locks.shard, b, err) }

// carry posts a batch as a step, waits for it and releases it. An error says what was to be done.
// It takes over the batch in each case.
func (s *Store) carry(step rdma.Step, shard int, b *rdma.Batch, what string, args ...any) error {
	if err := s.do(step, b); err != nil {
		return s.unread(shard, b, fmt.Errorf(what+": %w", append(args, err)...))
	}
	b.Release()
	return nil
}

// keepFlying takes over a batch that failed: it releases the batch, or keeps it while verbs of it
// are in flight. abandon waits for those.
func (s *Store) keepFlying(shard int, b *rdma.Batch) {
	switch {
	case b == nil:
	case b.Finished():
		b.Release()
	default:
		s.shards[shard].flying = b // there is at most one: the shard is dirty until it has landed
	}
}
