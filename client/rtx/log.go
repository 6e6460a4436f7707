package rtx

import (
	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
)

// A client's log (section 4.2), used again for each of its transactions:
//
//	0   state: which transaction was decided last, and how; changed by atomics only
//	8   ceiling of the client's sequences: see kit.Ceiling
//	16  checksum of all that follows, up to the last entry
//	24  lock word of the transaction that wrote the record
//	32  number of entries
//	40  entries of 24 bytes: number of the object's metadata, its pointer before, its pointer behind the commit
const (
	stateAt   = 0
	ceilingAt = 8
	recordAt  = 16
	entriesAt = 40

	entryBytes = 24
)

// entry is an object that a transaction changes.
type entry struct {
	number   uint64 // of its metadata
	old, new Pointer
}

// record is what a transaction has written to its log.
type record struct {
	lock    Lock
	entries []entry
}

func recordBytes(entries int) int { return entriesAt - recordAt + entries*entryBytes }

// encode writes the record to p, which has recordBytes bytes.
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

// decode reads what encode wrote; false: it is torn, or there never was one. p may be longer.
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

// readRecord adds the READ of the longest record that a client's log may have.
func (l *Layout) readRecord(b *rdma.Batch, c rdma.ClientID) *rdma.Op {
	return b.Read(l.log(c).Add(recordAt), recordBytes(l.Writes))
}
