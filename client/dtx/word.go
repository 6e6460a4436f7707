package dtx

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Ref names an object. The lower 48 bits are its place and size class, the upper
// 16 its life, which distinguishes it from objects that had the same place
// before. 0 names no object. Indexes may store a Ref in their data. The life may
// repeat: an index that caches a Ref has to check what it finds there.
type Ref uint64

const (
	classShift = 45
	classes    = 8
	lifeShift  = 48
)

// number returns the number of the place, from 1 on: roots first, then units of
// chunks.
func (r Ref) number() uint64 { return uint64(r) & (1<<classShift - 1) }

// class returns the index in Shape.Sizes of the object's size.
func (r Ref) class() int { return int(r>>classShift) & (classes - 1) }

// life returns what distinguishes objects of the same place.
func (r Ref) life() uint64 { return uint64(r) >> lifeShift }

// place returns the Ref without its life.
func (r Ref) place() Ref { return r & (1<<lifeShift - 1) }

func (r Ref) String() string { return fmt.Sprintf("object %d.%d", r.number(), r.life()) }

// Version is the first word of an object, its lock. It is changed by CAS only.
// From the top:
//
//	1   held
//	16  owner
//	47  sequence of the owner's transaction
//
// While the lock is held, owner and sequence are those of the holder. Otherwise
// they are those of the transaction that wrote the object's data, and the same
// word stands in the object's head: so the word is the object's version, too. 0:
// the object was never written.
//
// No two transactions have the same owner and sequence. So a version comes back
// only when a transaction that held the lock is aborted, and then with the same
// data.
type Version uint64

const (
	held       Version = 1 << 63
	ownerShift         = 47
	// mostSequences is the largest sequence.
	mostSequences = 1<<ownerShift - 1
)

// lockOf returns the word of a lock that a client's transaction holds.
func lockOf(c rdma.ClientID, sequence uint64) Version {
	return held | Version(c)<<ownerShift | Version(sequence)
}

// Held reports whether a transaction holds the lock.
func (v Version) Held() bool { return v&held != 0 }

// owner returns the client that holds the lock, or that wrote the data.
func (v Version) owner() rdma.ClientID { return rdma.ClientID(v >> ownerShift) }

// sequence returns the sequence of that client's transaction.
func (v Version) sequence() uint64 { return uint64(v & mostSequences) }

// written returns the version of the data that the holder of a lock writes.
func (v Version) written() Version { return v &^ held }
