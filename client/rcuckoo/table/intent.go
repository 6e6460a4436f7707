package table

import (
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/node/rdma"
)

// An intent says which locks a client is about to take, holds, or is about to release. Lock bits
// alone do not say which client holds them. Each client has one intent in each shard, and at most
// one operation at a time there:
//
//	state      8 bytes: the operation's sequence, from bit 1 on, and idle in bit 0
//	heartbeat  8 bytes: how often the client has tried to take a lock since. The sum
//	           does not cover it, since it changes alone.
//	sum        8 bytes: of what is behind it, and of the sequence, the shard and the client
//	count      8 bytes: of words
//	words      16 bytes each: its number, and the bits that are wanted
//
// The WRITE of an intent lands before the first masked CAS takes a lock. A WRITE of its state
// alone ends it, after the last CAS that releases a lock has completed. So
//
//	I1  a client that holds a lock has an intent, not idle, that names the lock;
//	I2  if an intent is torn for good, as its client was fenced off during the WRITE, the client
//	    has taken no lock by it.
//
// A client that waits for locks changes the heartbeat, so that it is not taken for a dead one. A
// client that does not know the outcome of its operation, and has no verb in flight any more,
// gives the operation up by a special heartbeat. Then the client that has the leases may complete
// the operation, and does not fence off the client that gave it up. That client does nothing else
// in the shard until its intent is idle. So two clients that have to settle what they left do not
// wait for each other.
//
// A crash at any point leaves an intent that is idle, torn (I2), or whole; if it is whole,
// repair.go of package recovery completes the operation or finds that it did not begin.
const (
	IntentHeartbeat = 8
	intentSum       = 16
	intentCount     = 24
	IntentWords     = 32

	IdleBit = 1

	// GivenUp is the heartbeat of an operation that its client has given up. No other heartbeat
	// gets there: they are small numbers, or below 1<<63 (see Op.AddHeartbeat of package
	// session).
	GivenUp = ^uint64(0)
)

// Idle reports whether the client of an intent with this state has no operation. 0 is the state
// in a new pool.
func Idle(state uint64) bool { return state == 0 || state&IdleBit != 0 }

// Want is what is to be locked in one lock word.
type Want struct {
	Word uint32
	Bits uint64
}

// EncodeIntent encodes an intent into p, which has room for IntentBytes, and returns the bytes to
// write. There are no more wants than MostLocked.
func EncodeIntent(p []byte, shard int, c rdma.ClientID, seq uint64, wants []Want) []byte {
	p = p[:IntentWords+16*len(wants)]
	le.PutUint64(p, seq<<1)
	le.PutUint64(p[IntentHeartbeat:], 0)
	le.PutUint64(p[intentCount:], uint64(len(wants)))
	for i, w := range wants {
		le.PutUint64(p[IntentWords+16*i:], uint64(w.Word))
		le.PutUint64(p[IntentWords+16*i+8:], w.Bits)
	}
	le.PutUint64(p[intentSum:], intentSumOf(p, shard, c))
	return p
}

// intentSumOf is the checksum of an intent. It includes the shard and the client, so that no
// record is taken for another's.
func intentSumOf(p []byte, shard int, c rdma.ClientID) uint64 {
	return xxhash.Sum64(p[intentCount:]) ^ Spread(le.Uint64(p)>>1) ^ Spread(Spread(uint64(shard)<<16|uint64(c)))
}

// Intent is an intent as it was read.
type Intent struct {
	State, Heartbeat uint64
	Torn             bool   // it is being written, or its client was fenced off during the WRITE
	wants            []byte // the encoded words; shares the bytes that were read
}

// DecodeIntent decodes the record of a client, of IntentBytes. An idle intent has no words, and a
// torn one has none that may be used.
func DecodeIntent(p []byte, shard int, c rdma.ClientID) Intent {
	t := Intent{State: le.Uint64(p), Heartbeat: le.Uint64(p[IntentHeartbeat:])}
	if Idle(t.State) {
		return t
	}
	n := le.Uint64(p[intentCount:])
	if n > MostLocked {
		t.Torn = true
		return t
	}
	end := IntentWords + 16*int(n)
	t.Torn = le.Uint64(p[intentSum:]) != intentSumOf(p[:end], shard, c)
	t.wants = p[IntentWords:end]
	return t
}

// words is how many lock words an intent names.
func (t *Intent) words() int { return len(t.wants) / 16 }

// word returns the number of the i-th lock word that an intent names.
func (t *Intent) word(i int) uint32 { return uint32(le.Uint64(t.wants[16*i:])) }

// AddWords adds the words that an intent names to words in ascending order, and keeps the order.
func (t *Intent) AddWords(words []uint32) []uint32 {
	for i := range t.words() {
		if at, found := slices.BinarySearch(words, t.word(i)); !found {
			words = slices.Insert(words, at, t.word(i))
		}
	}
	return words
}

// Bits returns the lock bits of a word that an intent names.
func (t *Intent) Bits(word uint32) (bits uint64) {
	for i := range t.words() {
		if t.word(i) == word {
			bits |= le.Uint64(t.wants[16*i+8:])
		}
	}
	return bits
}

// Within reports whether all words that an intent names are among these, which are in ascending
// order.
func (t *Intent) Within(words []uint32) bool {
	for i := range t.words() {
		if _, ok := slices.BinarySearch(words, t.word(i)); !ok {
			return false
		}
	}
	return true
}

// Names reports whether an intent names one of some lock words.
func (t *Intent) Names(words []uint32) bool {
	for i := range t.words() {
		if slices.Contains(words, t.word(i)) {
			return true
		}
	}
	return false
}
