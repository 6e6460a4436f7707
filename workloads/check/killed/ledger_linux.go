package killed

import (
	"os"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/workloads/check"
)

// A ledger is words in a file that all processes have mapped: what a process has stored there stays
// when it is killed, at the cost of a store. It says how long processors kept their workers
// waiting, what each worker does and has done for long, and what each worker's own keys may be.
type ledger struct {
	words   []atomic.Uint64
	workers int
	keys    int // of each worker
}

const (
	bucket   = 10 * time.Millisecond // of delays
	buckets  = 1 << 13               // of the last 80 s
	delayLow = 32                    // bits of a bucket's word that have the delay, in µs

	slowOps = 256 // of a worker, the last ones that are noted

	mostDoubts = 12 // writes of one key that were in flight when their processes were killed
)

// Words of a worker, behind which come its slow operations and its keys.
const (
	nextAt   = iota // number of its last value
	whatAt          // which operation it does, or did last
	beganAt         // when the operation in flight began, in ns; 0: there is none
	orderAt         // at which verb of its operations, from now, it is to kill its process; 0: at none
	diedAt          // when it killed its process, in ns; 0: it did not
	gaugedAt        // of a process's first worker: up to when its delays are noted
	slowAt          // operations that were noted as slow so far
	opsAt           // operations that ended
	ackedAt         // writes that were acknowledged
	foundAt         // keys that were found in doubt
	slowsAt         // when they began and ended, which they were, and in how many trips
	keysAt   = slowsAt + slowWords*slowOps
)

// what is an operation, as the ledger and the judges name it.
type what uint64

const (
	get what = iota + 1
	insert
	update
	remove
	scan
	shared = 8 // is added for a key that others write, too
)

func (w what) String() string {
	of := ""
	if w&shared != 0 {
		of = " of a shared key"
	}
	return [...]string{"?", "Get", "Insert", "Update", "Delete", "Scan"}[w&^shared] + of
}

// slowWords are those of a slow operation.
const slowWords = 4

// Words of a key.
const (
	lastAt   = iota // the value that was acknowledged last; 0: it is not there
	begunAt         // the value that was begun last: lastAt's, where nothing is in flight
	doubtsAt        // how many values may be there instead, which follow
	doubtAt
	keyWords = doubtAt + mostDoubts
)

func (l *ledger) workerWords() int { return keysAt + l.keys*keyWords }

// mapLedger maps a file as the ledger of some workers. It is unmapped when the process ends.
func mapLedger(file string, workers, keys int) (*ledger, error) {
	l := &ledger{workers: workers, keys: keys}
	size := 8 * (buckets + workers*l.workerWords())
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	p, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	l.words = unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(p))), size/8)
	return l, nil
}

// delayed notes that something that was to go on at a time did later, if it did.
func (l *ledger) delayed(due, late time.Duration) {
	if late > due {
		l.delayedFor(late-due, due, late)
	}
}

// delayedFor notes a delay that was at some time within a span.
func (l *ledger) delayedFor(d, from, to time.Duration) {
	first, last := uint64(from/bucket), uint64(to/bucket)
	for b := max(first, last-min(last, buckets-1)); b <= last; b++ {
		w := &l.words[b%buckets]
		for old := w.Load(); ; old = w.Load() {
			now := b<<delayLow | uint64(d/time.Microsecond)
			if old >= now || w.CompareAndSwap(old, now) {
				break
			}
		}
	}
}

// delay returns the longest delay within a span.
func (l *ledger) delay(from, to time.Duration) (longest time.Duration) {
	for b := uint64(from / bucket); b <= uint64(to/bucket); b++ {
		if w := l.words[b%buckets].Load(); w>>delayLow == b {
			longest = max(longest, time.Duration(w&(1<<delayLow-1))*time.Microsecond)
		}
	}
	return longest
}

// worker returns the words of a worker.
func (l *ledger) worker(i int) []atomic.Uint64 {
	return l.words[buckets+i*l.workerWords():][:l.workerWords()]
}

// key returns the words of a worker's key.
func (l *ledger) key(worker, key int) entry {
	return entry(l.worker(worker)[keysAt+key*keyWords:][:keyWords])
}

// entry is what a key may be. One worker at a time changes it, which alone writes the key; each of
// the changes leaves what may be, and at worst a value more, when the process is killed behind any
// of its stores.
type entry []atomic.Uint64

// begin notes a write before it begins; 0: a DELETE.
func (e entry) begin(v check.Value) { e[begunAt].Store(uint64(v)) }

// acked notes that what was begun last is so.
func (e entry) acked() {
	e[lastAt].Store(e[begunAt].Load())
	e[doubtsAt].Store(0)
}

// refused notes that what was begun last had no effect.
func (e entry) refused() { e[begunAt].Store(e[lastAt].Load()) }

// inherit notes what an earlier process had in flight; false: there is no room for it.
func (e entry) inherit() (found, ok bool) {
	begun := check.Value(e[begunAt].Load())
	if begun == e.last() {
		return false, true
	}
	n := e[doubtsAt].Load()
	if !e.may(begun) {
		if n == mostDoubts {
			return true, false
		}
		e[doubtAt+n].Store(uint64(begun))
		e[doubtsAt].Store(n + 1)
	}
	e.refused()
	return true, true
}

func (e entry) last() check.Value { return check.Value(e[lastAt].Load()) }

// known reports whether the key can only be what was acknowledged last.
func (e entry) known() bool { return e[doubtsAt].Load() == 0 }

// may reports whether the key may be what it is.
func (e entry) may(is check.Value) bool { return slices.Contains(e.all(), is) }

func (e entry) all() []check.Value {
	all := []check.Value{e.last()}
	for i := range e[doubtsAt].Load() {
		all = append(all, check.Value(e[doubtAt+i].Load()))
	}
	return all
}

// settle notes what a key is for good, when all that died were recovered.
func (e entry) settle(is check.Value) {
	e.begin(is)
	e.acked()
}
