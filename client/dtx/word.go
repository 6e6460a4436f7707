package dtx

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Ref names an object: its place and size class in the lower 48 bits, and its life in the upper 16,
// which tells it from objects that had the same place before. 0 names none. Indexes may store a Ref
// in their data.
type Ref uint64

const (
	classShift = 45
	classes    = 8
	lifeShift  = 48
)

func (r Ref) number() uint64 { return uint64(r) & (1<<classShift - 1) }
func (r Ref) class() int     { return int(r>>classShift) & (classes - 1) }
func (r Ref) life() uint64   { return uint64(r) >> lifeShift }
func (r Ref) place() Ref     { return r & (1<<lifeShift - 1) }

func (r Ref) String() string { return fmt.Sprintf("object %d.%d", r.number(), r.life()) }

// Version is the first word of an object, its lock. From the top:
//
//	1   held
//	16  owner
//	47  sequence: of the owner's transaction
//
// While the lock is held, owner and sequence are those of the holder. Otherwise they are those of
// the transaction that wrote the object's data, and the same word stands in its head: so the word
// is the object's version, too. 0: the object was never written.
type Version uint64

const (
	held          Version = 1 << 63
	ownerShift            = 47
	mostSequences         = 1<<ownerShift - 1
)

// lockOf returns the word of a lock that a client's transaction holds.
func lockOf(c rdma.ClientID, sequence uint64) Version {
	return held | Version(c)<<ownerShift | Version(sequence)
}

// Held reports whether a transaction holds the lock.
func (v Version) Held() bool { return v&held != 0 }

func (v Version) owner() rdma.ClientID { return rdma.ClientID(v >> ownerShift) }
func (v Version) sequence() uint64     { return uint64(v & mostSequences) }

// written is the version of the data that the holder of a lock writes.
func (v Version) written() Version { return v &^ held }
