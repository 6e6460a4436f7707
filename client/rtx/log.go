package rtx

import (
	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
)

// A client's log (section 4.2). Each of its transactions uses the same one:
//
//	0   state: which transaction was decided last, and how; changed by atomics only
//	8   ceiling of the client's sequences: see kit.Ceiling
//	16  checksum of all that follows, up to the last entry
//	24  lock word of the transaction that wrote the record
//	32  number of entries
//	40  entries of 24 bytes: number of the object's metadata, its pointer before,
//	    its pointer behind the commit
//
// The record from 16 on may be overwritten as soon as the state is DONE, or the
// next transaction is in INIT: no other client reads it then. A READ of the
// record may be torn, which the checksum shows.
const (
	stateAt   = 0
	ceilingAt = 8
	recordAt  = 16
	entriesAt = 40

	entryBytes = 24
)

// entry is an object that a transaction changes. A transaction has one for each
// such object, and one object in one entry only.
type entry struct {
	// number is that of the object's metadata: a Ref without life.
	number uint64
	// old is the pointer that the swap expects, and new the one that it installs.
	old, new Pointer
}

// record is what a transaction has written to its log. lock has the transaction's
// owner and sequence, so a reader sees which transaction the record is of.
type record struct {
	lock    Lock
	entries []entry
}

// recordBytes returns the size of a record, from its checksum on.
func recordBytes(entries int) int { return entriesAt - recordAt + entries*entryBytes }

// encode writes the record to p, which has recordBytes bytes and stays the
// caller's.
func (r *record) encode(p []byte) {
	le.PutUint64(p[8:], uint64(r.lock))
	le.PutUint64(p[16:], uint64(len(r.entries)))
	at := p[entriesAt-recordAt:]
	for _, e := range r.entries {
		le.PutUint64(at, e.number)
		le.PutUint64(at[8:], uint64(e.old))
		le.PutUint64(at[16:], uint64(e.new))
		at = at[entryBytes:]
	}
	le.PutUint64(p, xxhash.Sum64(p[8:]))
}

// decode reads what encode wrote to the beginning of p. It returns false when p
// is torn, or has no record. The entries are copied, so p may be released.
func (r *record) decode(p []byte) bool {
	n := le.Uint64(p[16:])
	if n > uint64(len(p))/entryBytes || recordBytes(int(n)) > len(p) {
		return false
	}
	p = p[:recordBytes(int(n))]
	if n == 0 || le.Uint64(p) != xxhash.Sum64(p[8:]) {
		return false
	}
	r.lock, r.entries = Lock(le.Uint64(p[8:])), r.entries[:0]
	for at := p[entriesAt-recordAt:]; len(at) > 0; at = at[entryBytes:] {
		r.entries = append(r.entries, entry{le.Uint64(at), Pointer(le.Uint64(at[8:])), Pointer(le.Uint64(at[16:]))})
	}
	return true
}

// readRecord adds the READ of a client's record. It READs the length of the
// longest record, since the number of entries is not known before.
func (l *Layout) readRecord(b *rdma.Batch, c rdma.ClientID) *rdma.Op {
	return b.Read(l.log(c).Add(recordAt), recordBytes(l.Writes))
}
