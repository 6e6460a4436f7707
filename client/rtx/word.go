package rtx

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Ref names an object: the number of its metadata in the lower 48 bits, from 1 on, and its life in
// the upper 16, which tells it from objects that had the same metadata before. 0 names none.
// Indexes may store a Ref in their data.
type Ref uint64

func (r Ref) number() uint64 { return uint64(r) & (1<<48 - 1) }

func (r Ref) String() string { return fmt.Sprintf("object %d.%d", r.number(), r>>48) }

// Lock is an LLLock (section 4.1), the first word of an object's metadata. From the top:
//
//	1  held
//	1  alone: the holder changes this object only, and keeps no log (OPT1)
//	4  lease code: for how long the word may stay as it is; see Layout.lease
//	1  wanted: a transaction waits that is late, and is the next one to lock the object
//	   owner, as many bits as Shape.Clients needs
//	   sequence, the rest: of the owner's transaction
//
// A lock that is not held keeps owner and sequence of its last holder, and whether it is wanted. No
// transaction has the same pair, so the word is the object's version too: it differs after each
// time that the object was locked.
type Lock uint64

const (
	lockHeld   Lock = 1 << 63
	lockAlone  Lock = 1 << 62
	leaseShift      = 58
	leaseCodes      = 16
	lockWanted Lock = 1 << 57
	lockNamed  Lock = lockWanted - 1 // owner and sequence
)

// Held reports whether a transaction holds the lock.
func (k Lock) Held() bool { return k&lockHeld != 0 }

// Alone reports whether the holder keeps no log.
func (k Lock) Alone() bool { return k&lockAlone != 0 }

// Wanted reports whether a transaction waits for the lock that is late.
func (k Lock) Wanted() bool { return k&lockWanted != 0 }

// released is what the word becomes when its holder lets go, or a repair does.
func (k Lock) released() Lock { return k & (lockNamed | lockWanted) }

// became reports whether a lock that is held is now as it was, but for being wanted.
func (k Lock) became(now Lock) bool { return k != now && k|lockWanted == now }

// Pointer says where the data of an object lies: the second word of its metadata. From the top:
//
//	1  dead: the object was freed; the rest is what it was
//	3  class: which of Shape.Sizes the buffer has
//	4  steals: how often a repair of OPT1 has changed the word, since the buffer was put here
//	   tag: of this use of the buffer
//	   unit: where the buffer lies, from 1 on; 0: there is no data
//
// For as long as tags do not wrap no word comes back to an object: see README, "Widths".
type Pointer uint64

const (
	pointerDead Pointer = 1 << 63
	classShift          = 60
	classes             = 8
	stealShift          = 56
	mostSteals          = 15
	stealMask   Pointer = mostSteals << stealShift
	tagTop              = stealShift // tag and unit lie below
)

func (p Pointer) class() int { return int(p>>classShift) & (classes - 1) }

// use is the word that was installed: the buffer, and which use of it.
func (p Pointer) use() Pointer { return p &^ (pointerDead | stealMask) }

// stolen is the word behind one more repair of OPT1; false: the count is at its end.
func (p Pointer) stolen() (Pointer, bool) {
	return p + 1<<stealShift, p&stealMask != stealMask
}

// Meta is an object's metadata, as it was read: 16 bytes that may be of two moments.
type Meta struct {
	Lock    Lock
	Pointer Pointer
}

// MetaBytes is the size of an object's metadata.
const MetaBytes = 16

// MetaOf decodes what was READ at Layout.Meta: MetaBytes bytes. An index compares two of them to
// see whether an object changed between.
func MetaOf(p []byte) Meta { return Meta{Lock(le.Uint64(p)), Pointer(le.Uint64(p[8:]))} }

// state is the word of a log that decides. From the top:
//
//	2  phase
//	6  takeovers: how often the commit was taken over by a repair; in INIT, how often the transaction said that it goes on
//	   sequence of the transaction
//
// The paper's INIT is what a log is in for each transaction above the word's sequence: it takes no
// atomic.
type state uint64

const (
	phaseDone  state = 0 // nothing is left to do
	phaseAbort state = 1 // another client decided so
	phaseDoing state = 2 // it is committed: pointers are to be swapped and locks released

	phaseShift    = 62
	takeoverShift = 56
	takeoverMask  = state(63) << takeoverShift
	stateSequence = 1<<takeoverShift - 1
)

func makeState(phase state, sequence uint64) state { return phase<<phaseShift | state(sequence) }

func (s state) phase() state     { return s >> phaseShift }
func (s state) sequence() uint64 { return uint64(s & stateSequence) }

// takenOver is the word when one more repair works on the commit, or its client says once more that
// it does. The count may wrap: it is there to be seen to change.
func (s state) takenOver() state {
	return s&^takeoverMask | (s+1<<takeoverShift)&takeoverMask
}

// over reports whether the transaction with that sequence, of the log's owner, has nothing left to
// do but to release locks.
func (s state) over(sequence uint64) bool {
	return s.sequence() > sequence || s.sequence() == sequence && s.phase() != phaseDoing
}

// lock returns the word of a lock that a client's transaction holds.
func (l *Layout) lock(c rdma.ClientID, sequence uint64, alone bool, code int) Lock {
	k := lockHeld | Lock(code)<<leaseShift | Lock(c)<<l.sequenceBits | Lock(sequence)
	if alone {
		k |= lockAlone
	}
	return k
}

func (l *Layout) owner(k Lock) rdma.ClientID { return rdma.ClientID(k & lockNamed >> l.sequenceBits) }
func (l *Layout) sequence(k Lock) uint64     { return uint64(k) & l.maxSequence }

// leaseUnit is what the lease grows by for each object of a transaction (section 6.1).
const leaseUnit = 100 * time.Microsecond

// lease returns for how long the word of a lock may stay as it is before its holder is suspected: a
// part that is there for clocks and schedulers, and what the holder expects to take (section 4.3),
// code by code 0, 1, 3, 7 ... units.
func lease(k Lock, drift time.Duration) time.Duration {
	return drift + (1<<(k>>leaseShift&(leaseCodes-1))-1)*leaseUnit
}

// leaseCode returns the code of the shortest lease for what takes so long, or the longest lease:
// 3.3 s.
func leaseCode(takes time.Duration) int {
	units := uint64((takes + leaseUnit - 1) / leaseUnit)
	return min(bits.Len64(units), leaseCodes-1)
}

// pointer makes the word of a use of a buffer.
func (l *Layout) pointer(class int, tag, unit uint64) Pointer {
	return Pointer(class)<<classShift | Pointer(tag&l.maxTag)<<l.unitBits | Pointer(unit)
}

func (l *Layout) unit(p Pointer) uint64 { return uint64(p) & (1<<l.unitBits - 1) }
func (l *Layout) tag(p Pointer) uint64  { return uint64(p) >> l.unitBits & l.maxTag }

// Absent reports whether a pointer says that an object has no data: it was never there, or was
// freed.
func (l *Layout) Absent(p Pointer) bool { return p&pointerDead != 0 || l.unit(p) == 0 }
