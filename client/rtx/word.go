package rtx

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Ref names an object. The lower 48 bits are the number of its metadata, from 1
// on. The upper 16 are its life, which distinguishes it from objects that had the
// same metadata before. 0 names no object. Indexes may store a Ref in their data.
//
// The life may repeat, so it finds most stale references and not all: an index
// that caches a Ref has to check what it finds there.
type Ref uint64

// number returns the number of the object's metadata, without the life.
func (r Ref) number() uint64 { return uint64(r) & (1<<48 - 1) }

func (r Ref) String() string { return fmt.Sprintf("object %d.%d", r.number(), r>>48) }

// Lock is an LLLock (section 4.1), the first word of an object's metadata. It is
// changed by CAS only. From the top:
//
//	1  held
//	1  alone: the holder changes this object only, and keeps no log (OPT1)
//	4  lease code: for how long the word may stay as it is; see lease
//	1  wanted: a late transaction waits, and is the next one to lock the object
//	   owner, as many bits as Shape.Clients needs
//	   sequence of the owner's transaction, the rest
//
// A lock that is not held keeps owner and sequence of its last holder, and the
// wanted bit. No two transactions have the same pair of owner and sequence. So
// the word is the object's version, too: it differs after each time that the
// object was locked, and a CAS that expects an earlier word fails for ever.
type Lock uint64

const (
	lockHeld   Lock = 1 << 63
	lockAlone  Lock = 1 << 62
	leaseShift      = 58
	leaseCodes      = 16
	lockWanted Lock = 1 << 57
	// lockNamed covers owner and sequence.
	lockNamed Lock = lockWanted - 1
)

// Held reports whether a transaction holds the lock.
func (k Lock) Held() bool { return k&lockHeld != 0 }

// Alone reports whether the holder keeps no log (OPT1).
func (k Lock) Alone() bool { return k&lockAlone != 0 }

// Wanted reports whether a late transaction waits for the lock.
func (k Lock) Wanted() bool { return k&lockWanted != 0 }

// released returns the word that a release leaves, by the holder or by a repair.
// Both leave the same word, so that it does not matter which of them was first.
func (k Lock) released() Lock { return k & (lockNamed | lockWanted) }

// became reports whether now is the held lock k with the wanted bit added, and
// nothing else changed. The lock is still that of the same transaction then.
func (k Lock) became(now Lock) bool { return k != now && k|lockWanted == now }

// Pointer says where the data of an object lies. It is the second word of the
// object's metadata, and is changed by CAS only. From the top:
//
//	1  dead: the object was freed; the rest is what it was
//	3  class: the index in Shape.Sizes of the buffer's size
//	4  steals: how often a repair of OPT1 has changed the word since the buffer was installed
//	   tag of this use of the buffer
//	   unit: where the buffer lies, from 1 on; 0: there is no data
//
// As long as tags do not wrap, an object never has the same word twice: see
// README, "Widths".
type Pointer uint64

const (
	pointerDead Pointer = 1 << 63
	classShift          = 60
	classes             = 8
	stealShift          = 56
	// mostSteals is the largest count that fits. At the limit the lock waits
	// until its client is recovered: see Worker.steal.
	mostSteals         = 15
	stealMask  Pointer = mostSteals << stealShift
	// Tag and unit lie below this bit.
	tagTop = stealShift
)

// class returns the index in Shape.Sizes of the buffer's size.
func (p Pointer) class() int { return int(p>>classShift) & (classes - 1) }

// use returns the word as it was installed: the buffer, and which use of it.
// Freeing the object or stealing the pointer changes other bits only.
func (p Pointer) use() Pointer { return p &^ (pointerDead | stealMask) }

// stolen returns the word behind one more repair of OPT1. It returns false when
// the count of steals is at its limit: one more would wrap into a word that has
// been there before.
func (p Pointer) stolen() (Pointer, bool) {
	return p + 1<<stealShift, p&stealMask != stealMask
}

// Meta is an object's metadata as it was READ. A READ of 16 bytes may tear
// between the words, so lock and pointer may be of two moments.
type Meta struct {
	Lock    Lock
	Pointer Pointer
}

// MetaBytes is the size of an object's metadata.
const MetaBytes = 16

// MetaOf decodes the MetaBytes bytes that were READ at Layout.Meta. An index
// compares two results to see whether an object changed between the READs.
func MetaOf(p []byte) Meta { return Meta{Lock(le.Uint64(p)), Pointer(le.Uint64(p[8:]))} }

// state is the word of a log that decides the fate of its client's transactions.
// It is changed by CAS only. From the top:
//
//	2  phase
//	6  takeovers: how often a repair took the commit over; in INIT, how often
//	   the transaction renewed its lease
//	   sequence of the transaction that was decided last
//
// The word needs no phase INIT: each transaction of the client with a larger
// sequence is in it. So the paper's change to INIT costs no atomic, and a client
// that dies in INIT leaves a log that needs no repair.
type state uint64

const (
	// phaseDone: nothing of the transaction is left to do.
	phaseDone state = 0
	// phaseAbort: another client has aborted the transaction.
	phaseAbort state = 1
	// phaseDoing: the transaction is committed. Its pointers are to be swapped,
	// and its locks to be released.
	phaseDoing state = 2

	phaseShift    = 62
	takeoverShift = 56
	takeoverMask  = state(63) << takeoverShift
	// stateSequence covers the sequence.
	stateSequence = 1<<takeoverShift - 1
)

// makeState returns the word for a transaction in a phase, without takeovers.
func makeState(phase state, sequence uint64) state { return phase<<phaseShift | state(sequence) }

func (s state) phase() state     { return s >> phaseShift }
func (s state) sequence() uint64 { return uint64(s & stateSequence) }

// takenOver returns the word after one more repair has taken the commit over, or
// its client has renewed its lease. Only the change of the word matters to an
// observer, so the count may wrap.
func (s state) takenOver() state {
	return s&^takeoverMask | (s+1<<takeoverShift)&takeoverMask
}

// over reports whether the log owner's transaction with that sequence has nothing
// left to do but to release its locks. Locks of such a transaction may be
// released on sight.
func (s state) over(sequence uint64) bool {
	return s.sequence() > sequence || s.sequence() == sequence && s.phase() != phaseDoing
}

// lock returns the word of a lock that a client's transaction holds. code is the
// code of its lease.
func (l *Layout) lock(c rdma.ClientID, sequence uint64, alone bool, code int) Lock {
	k := lockHeld | Lock(code)<<leaseShift | Lock(c)<<l.sequenceBits | Lock(sequence)
	if alone {
		k |= lockAlone
	}
	return k
}

// owner returns the client that holds the lock, or held it last.
func (l *Layout) owner(k Lock) rdma.ClientID { return rdma.ClientID(k & lockNamed >> l.sequenceBits) }

// sequence returns the sequence of the transaction that holds the lock, or held
// it last.
func (l *Layout) sequence(k Lock) uint64 { return uint64(k) & l.maxSequence }

// leaseUnit is the time that each object of a transaction adds to its lease
// (section 6.1).
const leaseUnit = 100 * time.Microsecond

// lease returns for how long the word of a lock may stay as it is before its
// holder is suspected. drift allows for clocks and schedulers. The rest is what
// the holder expects to take (section 4.3): codes 0, 1, 2, 3 ... are 0, 1, 3, 7
// ... units.
func lease(k Lock, drift time.Duration) time.Duration {
	return drift + (1<<(k>>leaseShift&(leaseCodes-1))-1)*leaseUnit
}

// leaseCode returns the code of the shortest lease that covers a duration.
// Durations above the longest lease, 3.3 s, get that one.
func leaseCode(takes time.Duration) int {
	units := uint64((takes + leaseUnit - 1) / leaseUnit)
	return min(bits.Len64(units), leaseCodes-1)
}

// pointer returns the word that names a use of a buffer. A tag that is too large
// wraps.
func (l *Layout) pointer(class int, tag, unit uint64) Pointer {
	return Pointer(class)<<classShift | Pointer(tag&l.maxTag)<<l.unitBits | Pointer(unit)
}

// unit returns the unit at which the buffer begins; 0: there is no data.
func (l *Layout) unit(p Pointer) uint64 { return uint64(p) & (1<<l.unitBits - 1) }

// tag returns which use of the buffer the pointer names.
func (l *Layout) tag(p Pointer) uint64 { return uint64(p) >> l.unitBits & l.maxTag }

// Absent reports whether a pointer says that its object has no data: it never had
// any, or was freed.
func (l *Layout) Absent(p Pointer) bool { return p&pointerDead != 0 || l.unit(p) == 0 }
