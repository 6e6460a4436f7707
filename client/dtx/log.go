package dtx

import (
	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
)

// A client's log. Each of its transactions uses the same one:
//
//	0   ended: all transactions of the client up to this sequence are over;
//	    changed by atomics only
//	8   claim: the lock of the client that recovers this one; changed by
//	    atomics only
//	16  ceiling of the client's sequences: see kit.Ceiling
//	32  checksum of all that follows, up to the last entry
//	40  lock word of the transaction that wrote the record
//	48  bytes of entries
//	56  entries: object, bytes of its body, body, up to a whole word
//
// A record that is whole decides: its transaction is committed. So the next
// transaction of the client writes over it only when the one before is complete.
// A torn record leaves the transaction before, which is complete, or none.
const (
	// These are the offsets of the words.
	endedAt   = 0
	claimAt   = 8
	ceilingAt = 16
	recordAt  = 32

	// recordHead is the size of a record without its entries, and entryHead that
	// of an entry without its body.
	recordHead = 24
	entryHead  = 16
)

// entryBytes returns the bytes of an entry of an object with so many bytes of
// data, up to a whole word.
func entryBytes(data int) int { return entryHead + up(bodyBytes(data), 8)*8 }

// LogBytes returns the bytes of log that a transaction takes which changes
// objects of so many bytes of data: see Shape.Log.
func LogBytes(data ...int) int {
	n := recordHead
	for _, d := range data {
		n += entryBytes(d)
	}
	return n
}

// record writes a record to p, entry by entry. p is the caller's, and large
// enough.
type record struct {
	p []byte
	// at is where the next entry begins; 0: there is none yet.
	at int
}

// add adds an object, and returns its encoded body, which is a part of p.
func (r *record) add(ref Ref, o *body) []byte {
	if r.at == 0 {
		r.at = recordHead
	}
	n := bodyBytes(len(o.data))
	le.PutUint64(r.p[r.at:], uint64(ref))
	le.PutUint64(r.p[r.at+8:], uint64(n))
	at := r.at + entryHead
	end := r.at + entryBytes(len(o.data))
	clear(r.p[at+n : end])
	o.encode(r.p[at : at+n])
	r.at = end
	return r.p[at : at+n]
}

// seal writes the head of the record, behind the last add. The checksum covers
// the lock word, so a record cannot be taken for that of another transaction.
func (r *record) seal(lock Version) {
	le.PutUint64(r.p[8:], uint64(lock))
	le.PutUint64(r.p[16:], uint64(r.at-recordHead))
	le.PutUint64(r.p, xxhash.Sum64(r.p[8:r.at]))
}

// openRecord returns the lock and the entries of a record that was READ to the
// beginning of p. It returns false if the record is torn, or there never was one.
// entries is a part of p.
func openRecord(p []byte) (lock Version, entries []byte, ok bool) {
	n := le.Uint64(p[16:])
	if n == 0 || n > uint64(len(p)-recordHead) || le.Uint64(p) != xxhash.Sum64(p[8:recordHead+n]) {
		return 0, nil, false
	}
	return Version(le.Uint64(p[8:])), p[recordHead : recordHead+n], true
}

// nextEntry returns the first entry of a record that is whole, and the rest.
func nextEntry(entries []byte) (r Ref, body, rest []byte) {
	n := int(le.Uint64(entries[8:]))
	return Ref(le.Uint64(entries)), entries[entryHead : entryHead+n], entries[entryHead+up(n, 8)*8:]
}

// readRecord adds the READ of a client's record. It READs the longest that there
// may be, since its length is not known before.
func (l *Layout) readRecord(b *rdma.Batch, c rdma.ClientID) *rdma.Op {
	return b.Read(l.log(c).Add(recordAt), l.Log)
}
