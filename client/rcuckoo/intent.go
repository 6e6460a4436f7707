package rcuckoo

import (
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
)

// An intent says which locks a client is about to take, holds, or is about to let go of: lock bits
// have no owner. Each client has one in each shard, and one operation at a time there:
//
//	state  8 bytes: the operation's sequence, from bit 1 on, and idle in bit 0
//	beat   8 bytes: how often the client has tried to take a lock since. Not in the sum, since it changes alone.
//	sum    8 bytes: of what is behind it, and of the sequence, the shard and the client
//	count  8 bytes: of words
//	words  16 bytes each: its number, and the bits that are wanted
//
// Its WRITE lands before the first masked CAS takes a lock, and it is ended, by a WRITE of its
// state alone, when the last one that lets go has completed. So
//
//	I1  a client that holds a lock has an intent, not idle, that names it;
//	I2  of an intent that is torn for good, as its client was fenced off in the midst of it, no lock
//	    was taken.
//
// A client that waits for locks beats, so that it is not taken for one that died. A client that
// does not know the outcome of its operation, and has nothing in flight any more, gives the
// operation up by a beat of its own: the client that has the leases may bring the operation to its
// end, and the client that gave it up is not fenced off for it. It does nothing else there until
// its intent is idle. So two clients that have to settle what they left do not wait for each other.
const (
	intentBeat  = 8
	intentSum   = 16
	intentCount = 24
	intentWords = 32

	idleBit = 1

	givenUp = ^uint64(0) // a beat
)

// idle reports whether the client of an intent with this state has no operation.
func idle(state uint64) bool { return state == 0 || state&idleBit != 0 }

// want is what is to be locked in one lock word.
type want struct {
	word uint32
	bits uint64
	turn
}

// encodeIntent returns an intent's bytes, in p.
func encodeIntent(p []byte, shard int, c rdma.ClientID, seq uint64, wants []want) []byte {
	p = p[:intentWords+16*len(wants)]
	le.PutUint64(p, seq<<1)
	le.PutUint64(p[intentBeat:], 0)
	le.PutUint64(p[intentCount:], uint64(len(wants)))
	for i, w := range wants {
		le.PutUint64(p[intentWords+16*i:], uint64(w.word))
		le.PutUint64(p[intentWords+16*i+8:], w.bits)
	}
	le.PutUint64(p[intentSum:], intentSumOf(p, shard, c))
	return p
}

func intentSumOf(p []byte, shard int, c rdma.ClientID) uint64 {
	return xxhash.Sum64(p[intentCount:]) ^ spread(le.Uint64(p)>>1) ^ spread(spread(uint64(shard)<<16|uint64(c)))
}

// intent is a look at one.
type intent struct {
	state, beat uint64
	torn        bool   // it is being written, or was for good
	wants       []byte // shares the bytes that were read
}

// decodeIntent looks at the record of a client, of intentBytes.
func decodeIntent(p []byte, shard int, c rdma.ClientID) intent {
	t := intent{state: le.Uint64(p), beat: le.Uint64(p[intentBeat:])}
	if idle(t.state) {
		return t
	}
	n := le.Uint64(p[intentCount:])
	if n > mostLocked {
		t.torn = true
		return t
	}
	end := intentWords + 16*int(n)
	t.torn = le.Uint64(p[intentSum:]) != intentSumOf(p[:end], shard, c)
	t.wants = p[intentWords:end]
	return t
}

// words is how many lock words an intent names.
func (t *intent) words() int { return len(t.wants) / 16 }

func (t *intent) word(i int) uint32 { return uint32(le.Uint64(t.wants[16*i:])) }

// addWords adds those that an intent names to others that are in order.
func (t *intent) addWords(words []uint32) []uint32 {
	for i := range t.words() {
		if at, found := slices.BinarySearch(words, t.word(i)); !found {
			words = slices.Insert(words, at, t.word(i))
		}
	}
	return words
}

// bits are those that an intent names of a word.
func (t *intent) bits(word uint32) (bits uint64) {
	for i := range t.words() {
		if t.word(i) == word {
			bits |= le.Uint64(t.wants[16*i+8:])
		}
	}
	return bits
}

// within reports whether an intent names no words but these, which are in order.
func (t *intent) within(words []uint32) bool {
	for i := range t.words() {
		if _, ok := slices.BinarySearch(words, t.word(i)); !ok {
			return false
		}
	}
	return true
}

// names reports whether an intent names one of some lock words.
func (t *intent) names(words []uint32) bool {
	for i := range t.words() {
		if slices.Contains(words, t.word(i)) {
			return true
		}
	}
	return false
}

// intentChunk is how many intents one READ takes.
const intentChunk = 64

// readIntents reads all clients' intents of a shard into the vigil's view of them.
func (s *Store) readIntents(shard int) error {
	v := &s.vigil
	b := s.ep.Batch()
	for from := 0; from < s.Clients; from += intentChunk {
		b.Read(s.intentAt(shard, rdma.ClientID(from+1)), intentBytes*min(intentChunk, s.Clients-from))
	}
	if err := s.do(stepReadIntents, b); err != nil {
		b.Release()
		return fmt.Errorf("read the intents of shard %d: %w", shard, err)
	}
	for i := range b.Len() {
		copy(v.records[i*intentChunk*intentBytes:], b.Op(i).Buf)
	}
	b.Release()
	return nil
}

// intentOf returns what readIntents read of a client.
func (v *vigil) intentOf(c rdma.ClientID) intent {
	return decodeIntent(v.records[int(c-1)*intentBytes:][:intentBytes], v.shard, c)
}
