package original

import "slices"

// Turns are the local locks of a compute node (section 4.3): a line of waiters in
// front of each lock of the memory nodes. So one worker of a process at a time
// contends for a lock, and a release can hand it over to the next worker in line.
// All workers of a process share one Turns. Its methods do not wait. A
// *LocalLocks is for workers that do not run at the same time, as in virtual
// time; others put a mutex around it.
type Turns interface {
	// Join enters a worker into the line for a lock, at its end.
	Join(w *Waiter, lock uint64)
	// Ahead returns how many are ahead of a worker in its line. If none is, it is
	// the worker's turn, and word is what the lock was handed over with; 0: it
	// was not.
	Ahead(w *Waiter) (n int, word uint64)
	// HandsOver reports whether a worker that has its turn should hand the lock
	// over: another one waits, and the lock was not handed over as often in a row
	// as it may be.
	HandsOver(w *Waiter) bool
	// Leave ends a worker's wait, or its turn. With a word, by which it holds the
	// lock, it hands the lock over. It returns false if no other worker waits any
	// more: then the worker has to release the lock. A word that was handed over to
	// the worker itself stays for the next in line, or the next to join, until
	// Forget.
	Leave(w *Waiter, word uint64) bool
	// Forget says that a lock does not have the word any more by which it was handed
	// over.
	Forget(lock, word uint64)
	// Unclaimed returns a lock that was handed over, with its word, if no worker is
	// in its line; word 0: there is none.
	Unclaimed() (lock, word uint64)
}

// Waiter is a worker's place in a line. The zero Waiter is in no line.
type Waiter struct {
	line *line
	next *Waiter
}

// LocalLocks is a Turns without a mutex. It has a line for each lock that a
// worker waits for or holds. A worker is in one line at most.
type LocalLocks struct {
	// most bounds the hand-overs in a row.
	most int
	// lines has those with a waiter or a word, by the address of the lock.
	lines map[uint64]*line
	// unclaimed has those with a word alone.
	unclaimed []*line
	// spare has lines that are used again.
	spare []*line
}

// line is the line in front of a lock. first has its turn; nil: no worker is in
// line.
type line struct {
	// lock is the address of the lock.
	lock  uint64
	first *Waiter
	last  *Waiter
	// word is what the lock was handed over with, and may still have, to first or to
	// one that has left since; 0: it was not handed over.
	word uint64
	// hands counts the hand-overs in a row.
	hands int
}

// DefaultHands is how often a lock is handed over in a row, unless a compute node
// says otherwise (section 4.3). More of that would keep workers of other
// processes waiting.
const DefaultHands = 4

// NewLocalLocks returns local locks that hand over so many times in a row at
// most; 0: never.
func NewLocalLocks(hands int) *LocalLocks {
	return &LocalLocks{most: hands, lines: map[uint64]*line{}}
}

// Join implements Turns.
func (t *LocalLocks) Join(w *Waiter, lock uint64) {
	l := t.lines[lock]
	if l == nil {
		if n := len(t.spare); n > 0 {
			l, t.spare = t.spare[n-1], t.spare[:n-1]
		} else {
			l = new(line)
		}
		*l = line{lock: lock}
		t.lines[lock] = l
	}
	if l.first == nil {
		t.claimed(l)
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	w.line, w.next = l, nil
}

// Ahead implements Turns.
func (t *LocalLocks) Ahead(w *Waiter) (n int, word uint64) {
	for at := w.line.first; at != w; at = at.next {
		n++
	}
	if n > 0 {
		return n, 0
	}
	return 0, w.line.word
}

// HandsOver implements Turns.
func (t *LocalLocks) HandsOver(w *Waiter) bool { return w.next != nil && w.line.hands < t.most }

// Leave implements Turns.
func (t *LocalLocks) Leave(w *Waiter, word uint64) bool {
	l := w.line
	// The worker gives up before its turn.
	if l.first != w {
		at := l.first
		for at.next != w {
			at = at.next
		}
		if at.next = w.next; l.last == w {
			l.last = at
		}
		*w = Waiter{}
		return false
	}
	// The lock passes to the next in line, with the word by which it is held.
	handed := word != 0 && w.next != nil
	l.first = w.next
	if handed {
		l.word = word
		l.hands++
	} else {
		l.hands = 0
	}
	t.emptied(l)
	*w = Waiter{}
	return handed
}

// emptied looks at a line that may be without waiters by now. Without a word, too,
// it may be used for another lock.
func (t *LocalLocks) emptied(l *line) {
	switch {
	case l.first != nil:
	case l.word != 0:
		t.unclaimed = append(t.unclaimed, l)
	default:
		delete(t.lines, l.lock)
		t.spare = append(t.spare, l)
	}
}

// claimed takes a line from the unclaimed ones, if it is there.
func (t *LocalLocks) claimed(l *line) {
	t.unclaimed = slices.DeleteFunc(t.unclaimed, func(o *line) bool { return o == l })
}

// Forget implements Turns.
func (t *LocalLocks) Forget(lock, word uint64) {
	if l := t.lines[lock]; l != nil && l.word == word {
		l.word = 0
		t.claimed(l)
		t.emptied(l)
	}
}

// Unclaimed implements Turns.
func (t *LocalLocks) Unclaimed() (lock, word uint64) {
	if len(t.unclaimed) == 0 {
		return 0, 0
	}
	return t.unclaimed[0].lock, t.unclaimed[0].word
}
