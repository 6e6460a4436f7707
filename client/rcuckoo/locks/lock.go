// Package locks takes and releases the locks of RCuckoo's rows (section 3.4), in turn with other
// clients that wait for them, and detects clients that hold locks and have failed (section 4.1). It
// repairs nothing: see package recovery.
package locks

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// Locks are the locks of the operation at work, and the rows that are read under them.
type Locks struct {
	detector *Detector
	// heartbeat sends a heartbeat of the operation's intent.
	heartbeat func(*session.Op) error
	pacing    pacing
	// Shard is where the locks and the rows are.
	Shard int
	// wants are in ascending order of their words, and of their bits where split has made several
	// of a word. All clients take locks in this order, so no cycle of clients waits for each other.
	wants []table.Want
	// turns are the client's turns at the locks of the wants.
	turns [table.MostLocked]turn
	// held is how many of the wants, from the first on, are held.
	held int
	// bands are the rows to read, in ascending order. They neither overlap nor touch.
	bands []band
	// read is the batch that has the memory of the bands. The operation owns it until EndReads.
	// nil: nothing is read.
	read *rdma.Batch
	// Blocked is the word that has to be repaired, if Acquire has returned ErrBlocked.
	Blocked uint32
	// Sent: rows were written, or may have been. Until then the operation has changed nothing.
	Sent bool
}

// New returns the locks of a worker, which holds none.
func New(d *Detector) *Locks {
	l := &Locks{detector: d, pacing: pacing{hold: session.FirstPause}}
	l.heartbeat = func(o *session.Op) error { return o.SendHeartbeat(l.Shard) }
	return l
}

// band is a range of rows that one READ returns: from, and up to but without, to.
type band struct {
	from, to uint32
	buf      []byte // of the batch that read it; nil: not read
}

// Start begins a new list of locks and rows, in a shard. The operation must hold none.
func (l *Locks) Start(shard int) {
	l.Shard, l.held, l.Sent = shard, 0, false
	l.wants, l.bands = l.wants[:0], l.bands[:0]
}

// LockRow adds the lock of a row to the wants. Rows that share a lock add it once.
func (l *Locks) LockRow(o *session.Op, n uint32) {
	word, bit := o.Table.LockOf(n)
	at, found := slices.BinarySearchFunc(l.wants, uint32(word),
		func(w table.Want, word uint32) int { return cmp.Compare(w.Word, word) })
	if !found {
		l.wants = slices.Insert(l.wants, at, table.Want{Word: uint32(word)})
	}
	l.wants[at].Bits |= 1 << bit
}

// ReadRange adds rows to what is to be read, and joins bands that overlap or touch: the paper's
// covering reads (section 3.2.1).
func (l *Locks) ReadRange(o *session.Op, from, to uint32) {
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

// ReadPlace adds exactly the two rows of a place to what is to be read.
func (l *Locks) ReadPlace(o *session.Op, p table.Place) {
	l.ReadRange(o, p.First, p.First+1)
	l.ReadRange(o, p.Second, p.Second+1)
}

// AddReads adds the READs of all bands to a batch, which has their memory. With fence they start
// after the CAS ahead of them has completed, so they see no row that another client still writes.
func (l *Locks) AddReads(o *session.Op, b *rdma.Batch, fence bool) {
	for i := range l.bands {
		p := &l.bands[i]
		op := b.Read(o.Table.RowAt(o.Table.Leads[l.Shard], p.from), int(p.to-p.from)*o.Table.RowBytes)
		op.Fence = fence && i == 0 // what is posted behind it waits with it
		p.buf = op.Buf
	}
}

// Row returns a row that was read, in the memory of its band; nil: it was not read.
func (l *Locks) Row(n uint32, bytes int) table.Row {
	for i := range l.bands {
		if p := &l.bands[i]; p.from <= n && n < p.to && p.buf != nil {
			at := int(n-p.from) * bytes
			return table.Row(p.buf[at : at+bytes : at+bytes])
		}
	}
	return nil
}

// EachRow calls f with each row that was read.
func (l *Locks) EachRow(bytes int, f func(n uint32, r table.Row)) {
	for _, p := range l.bands {
		for n := p.from; n < p.to; n++ {
			f(n, l.Row(n, bytes))
		}
	}
}

// Keep takes over the batch that has read the bands.
func (l *Locks) Keep(b *rdma.Batch) { l.read = b }

// EndReads releases the batch of the bands. No row of them may be used afterwards.
func (l *Locks) EndReads() {
	if l.read != nil {
		l.read.Release()
		l.read = nil
	}
	for i := range l.bands {
		l.bands[i].buf = nil
	}
}

var (
	// ErrBlocked: a lock word has to be repaired before the operation can go on: a client that
	// names it makes no progress, or another client repairs it. Nothing is held, and nothing was
	// changed.
	ErrBlocked = errors.New("a lock word has to be repaired")
	// errStolen: a lock that the worker held was free when the worker released it. No living
	// client that is not fenced off loses a lock, so memory is damaged.
	errStolen = fmt.Errorf("another client released a lock that was held: %w", client.ErrDamaged)
)

// Acquire takes all locks that are wanted, a word a trip or later one by one (split), and reads the
// bands with the last of them (section 3.4.1). The error wraps ErrBlocked when a word has to be
// repaired: see blocked; and ErrAgain when the operation has to begin again. The worker holds
// nothing then. It wraps rdma.ErrTimeout when the time is used up.
//
// The first trip writes the intent ahead of the masked CAS (I1); each later try writes a
// heartbeat instead. If the operation has taken an extent, its value is written in the first trip,
// too, and so before anything names the extent.
//
// A crash leaves an intent and some of the locks that it names. No row has changed, so repair
// only frees them.
func (l *Locks) Acquire(o *session.Op, taken table.Ref, key, value []byte) error {
	st := &o.Shards[l.Shard]
	st.Seq++
	st.Dirty, st.Given = true, false // from the first verb on; Finish makes it clean
	if o.Table.Replicas > 1 {
		o.Heartbeat = l.heartbeat
	}
	l.turns = [table.MostLocked]turn{}
	opening := true
	// Each round is one trip: a try for the next word, or a look at its queue.
	for r := o.Pace; l.held < len(l.wants); {
		w, t := l.wants[l.held], &l.turns[l.held]
		// One chain: the intent lands before the masked CAS behind it (I1). Only the last word's
		// try reads rows, as no row may be read before all locks are held.
		trying, last := t.has(), l.held == len(l.wants)-1
		b := o.EP.Batch()
		b.Chain()
		if opening {
			b.Write(o.Table.IntentAt(l.Shard, o.ID),
				table.EncodeIntent(b.Alloc(table.IntentBytes), l.Shard, o.ID, st.Seq, l.wants))
		} else if r.Tries > 0 {
			b.WriteWord(o.Table.IntentAt(l.Shard, o.ID).Add(table.IntentHeartbeat), uint64(r.Tries))
		}
		var content []byte
		if opening && taken.Stamp != 0 {
			content = o.Table.AddValue(b, l.Shard, taken, key, value)
		}
		lock := l.addTry(o, b, w, trying)
		if trying && last {
			l.AddReads(o, b, true)
		}
		take, look := l.addTurn(o, b, t)
		// The batch completes only when the backups have the value, too, so they have it before
		// any redo names it.
		if content != nil && o.Table.Replicas > 1 {
			l.addBackups(o, b, l.Shard, taken, content)
		}
		// After an error the CAS may have landed, or may land later, so the shard is settled from
		// the intent.
		if err := o.Do(steps.Lock, b); err != nil {
			return l.Lost(o, b, fmt.Errorf("lock word %d of shard %d: %w", w.Word, l.Shard, err))
		}
		opening = false
		l.seeTurn(o, t, take, look)
		if trying && lock.Swapped() {
			if l.held++; last {
				l.Keep(b)
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
		l.enqueue(o, t, w, met)
		if trying && t.taken && o.Left() < o.Opt.Timeout/lateShare {
			l.split(o, w, met)
		}
		if err := l.wait(o, w.Word, t, met, &r); err != nil {
			return err
		}
	}
	return nil
}

// lateShare is in which last share of its time an operation takes the locks of a word one by one.
// To hold some while it waits for others keeps them from the rest: if many operations do so,
// convoys of them wait for longer than any does otherwise.
const lateShare = 2

// split has the worker take the locks of a word one after the other: those ahead of the first one
// that it met locked; then that one; then what is behind it. An operation that wants several locks,
// some of them hot, may find them free together too seldom. All clients take locks in ascending
// order, of the words and of the bits in a word, so no cycle of clients waits for each other.
//
// A crash leaves some locks of those that the intent names, as one between two words does.
func (l *Locks) split(o *session.Op, w table.Want, met uint64) {
	way := met & w.Bits
	first := way & -way
	part := w.Bits & (first - 1)
	if part == 0 {
		part = first
	}
	if way == 0 || part == w.Bits {
		return
	}
	l.wants[l.held].Bits &^= part
	l.wants = slices.Insert(l.wants, l.held, table.Want{Word: w.Word, Bits: part})
	// The ticket stays with the lock that it is for. The others have not failed to take theirs.
	turns := l.turns[l.held:]
	copy(turns[1:], turns)
	if part == first && turns[0].queue == o.Table.QueueAt(l.Shard, w.Word, bits.TrailingZeros64(first)) {
		turns[1] = turn{}
	} else {
		turns[0] = turn{}
	}
}

// addTry adds the masked CAS that takes the wanted locks of a word: all of them or none, and none
// while the word is repaired. A client that waits for its turn only reads the word, by which it
// learns of a repair.
func (l *Locks) addTry(o *session.Op, b *rdma.Batch, w table.Want, trying bool) *rdma.Op {
	at := o.Table.LockAt(l.Shard, int(w.Word))
	if !trying {
		return b.Read(at, 8)
	}
	return b.MaskedCompareSwap(at, 0, w.Bits|table.LockRepair, w.Bits, w.Bits)
}

// wait is what a client does after a try in vain. If a client in its way makes no progress, or
// the word is being repaired, it releases its locks and ends its intent: the caller repairs, or
// waits for the repair. Else it pauses, or gives up when its time is used up. met is the lock
// word as the try found it.
func (l *Locks) wait(o *session.Op, word uint32, t *turn, met uint64, r *kit.Retry) error {
	o.Stats.Waits++
	slow, err := l.detector.slow(o, l.Shard, word)
	switch {
	case err != nil:
		return l.Lost(o, nil, err)
	case slow || met&table.LockRepair != 0:
		// A client that waits for a repair has no intent: the repairer waits until no other
		// intent names the word.
		if err := l.Release(o); err != nil {
			return err
		}
		l.Blocked = word
		return ErrBlocked
	case o.CleanupDue(): // others may wait for this worker, in another shard
		if err := l.Release(o); err != nil {
			return err
		}
		return session.ErrAgain
	case o.Over():
		if err := l.Release(o); err != nil {
			return err
		}
		return session.ErrWaited
	}
	l.pause(o, t, r)
	return nil
}

// Release releases what is held, with nothing changed, and ends the intent.
func (l *Locks) Release(o *session.Op) error {
	l.EndReads()
	if l.held > 0 {
		b := o.EP.Batch()
		l.AddReleases(o, b)
		if err := o.Do(steps.LetGo, b); err != nil {
			return l.Lost(o, b, fmt.Errorf("let go of locks of shard %d: %w", l.Shard, err))
		}
		err := l.Released(b)
		b.Release()
		if err != nil {
			return err
		}
	}
	l.Finish(o)
	return nil
}

// AddReleases adds the masked CASes that release what is held, behind what is in the batch. Each
// compares and clears the client's own bits alone.
func (l *Locks) AddReleases(o *session.Op, b *rdma.Batch) {
	for _, w := range l.wants[:l.held] {
		b.MaskedCompareSwap(o.Table.LockAt(l.Shard, int(w.Word)), w.Bits, w.Bits, 0, w.Bits)
	}
}

// Released checks the last ops of a batch, which release what is held. The error wraps
// client.ErrDamaged.
func (l *Locks) Released(b *rdma.Batch) error {
	for i := b.Len() - l.held; i < b.Len(); i++ {
		if !b.Op(i).Swapped() {
			return fmt.Errorf("lock at %s: %w", b.Op(i).Addr, errStolen)
		}
	}
	l.held = 0
	return nil
}

// Finish ends the intent. Nothing may be held any more (I1). The client does not wait for the
// WRITE: the next intent's WRITE is behind it. If the WRITE is lost, Op.Ended notices, and if it
// cannot be posted the shard stays dirty; in both cases the shard is settled before the next
// operation.
//
// A crash before the WRITE lands leaves an intent that names locks which are free, or another
// client's. Repair then fences off only the client that crashed.
func (l *Locks) Finish(o *session.Op) {
	st := &o.Shards[l.Shard]
	b := o.EP.Batch()
	b.WriteWord(o.Table.IntentAt(l.Shard, o.ID), st.Seq<<1|table.IdleBit)
	l.addServed(o, b)
	err := o.EP.Post(b.As(steps.Done))
	o.Ended(true) // the WRITE before this one, which may have gone to another node
	if err != nil {
		b.Release()
		return // and the shard stays dirty
	}
	// The worker owns the batch until Op.Ended has looked at it.
	st.Dirty = false
	o.AwaitEnd(b, l.Shard)
}

// Lost notes that an operation failed, with verbs that may have landed or may land later: the
// shard stays dirty, and is settled before the next operation. It takes over the batch, and
// returns err.
func (l *Locks) Lost(o *session.Op, b *rdma.Batch, err error) error {
	return l.Unread(o, l.Shard, b, err)
}

// Unread takes over a batch that failed, releases the rows that were read before, and returns err.
func (l *Locks) Unread(o *session.Op, shard int, b *rdma.Batch, err error) error {
	l.EndReads()
	return o.Failed(shard, b, err)
}

// addBackups adds the WRITEs of an extent's content to the backups. They complete in the trip
// that takes the first lock, so before any row names the extent.
func (l *Locks) addBackups(o *session.Op, b *rdma.Batch, shard int, r table.Ref, content []byte) {
	for _, at := range o.Table.Backups(shard) {
		b.Chain()
		b.Write(o.Table.ExtentAt(at, r), content)
	}
}

// LockCovered adds the lock of a row to the wants, and all rows of that lock to what is read:
// they may be part of another path, at no more locks.
func (l *Locks) LockCovered(o *session.Op, n uint32) {
	l.LockRow(o, n)
	from, to := o.Table.LockedWith(n)
	l.ReadRange(o, from, to)
}
