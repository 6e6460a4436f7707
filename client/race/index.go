package race

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

const (
	bucketBytes = 64 // a header word, kept for the index's growth, and seven slots
	// BucketSlots is the number of slots of a bucket.
	BucketSlots   = 7
	groupBytes    = 3 * bucketBytes // main, overflow shared by both, main
	combinedBytes = 2 * bucketBytes // a main bucket and the overflow beside it
	wordsPerGroup = groupBytes / bytesPerWord
	bucketWords   = bucketBytes / bytesPerWord

	// GroupSlots is the number of slots of one group.
	GroupSlots = 3 * BucketSlots
	// GroupBytes is the size of a group.
	GroupBytes = groupBytes
	// Candidates is the number of slots in which a key may lie: two combined buckets.
	Candidates = 4 * BucketSlots
)

// Index is where an index lies: subtables of equal size, each on several nodes. It grows by
// linear hashing (Litwin, VLDB 1980): one subtable at a time is added, which takes from one of
// those before it the keys that have the next bit of their hashes set. So the number of subtables
// says where every key is, and there is no directory. RACE's extendible hashing has one.
type Index struct {
	Base   uint64           // where subtables begin on each node
	Groups uint64           // of each subtable, at least 2
	Place  [][]node.Replica // of the subtables that there are; changed by Resize
	// round is how many subtables there were when the current round of splits began: len(Place)
	// is at least that, and less than twice as much. 0: the index never grew.
	round uint64
}

// Resize sets where the subtables lie, of which there were first when the index was made.
func (x *Index) Resize(first int, place [][]node.Replica) {
	x.Place, x.round = place, uint64(first)
	for 2*x.round <= uint64(len(place)) {
		x.round *= 2
	}
}

// SubtableOf returns the subtable of a key's hash.
func (x *Index) SubtableOf(hash uint64) int {
	bits, n := hash>>SuffixShift&(1<<MaxDepth-1), uint64(len(x.Place))
	if x.round == 0 {
		return int(bits % n)
	}
	if sub := bits % (2 * x.round); sub < n {
		return int(sub)
	}
	return int(bits % x.round)
}

// NextSplit returns the subtable from which the next one that is added takes keys.
func (x *Index) NextSplit() int { return len(x.Place) - int(x.round) }

// RoundEnd returns how many subtables there are when all have been split as often.
func (x *Index) RoundEnd() int { return 2 * int(x.round) }

// SizeToSplit returns how many subtables there are as soon as the given one has been split.
func (x *Index) SizeToSplit(sub int) int {
	partner := sub + int(x.round)
	if partner < len(x.Place) || sub >= int(x.round) { // its turn in this round is over, or it came with this round
		partner += int(x.round)
	}
	return partner + 1
}

// Where returns where a slot's pair is by now, of a key with that hash: a split moves a pair to the
// same place in another subtable.
func (x *Index) Where(s Slot, hash uint64) Slot {
	per := x.Groups * wordsPerGroup
	return Slot(uint64(x.SubtableOf(hash))*per + uint64(s)%per)
}

// SubtableBytes returns the size of a subtable of so many groups.
func SubtableBytes(groups uint64) uint64 { return groups * groupBytes }

// Slot names a slot: its position among all words of the index. It is the same on every replica.
type Slot uint64

// Address returns where a replica of the slot lies. Replica 0 is the primary.
func (x *Index) Address(s Slot, replica int) rdma.Addr {
	per := x.Groups * wordsPerGroup
	sub, word := uint64(s)/per, uint64(s)%per
	r := x.Place[sub][replica]
	return rdma.At(r.Node, x.Base+uint64(r.Index)*SubtableBytes(x.Groups)+word*bytesPerWord)
}

// Subtable returns the subtable that a slot lies in.
func (x *Index) Subtable(s Slot) int { return int(uint64(s) / (x.Groups * wordsPerGroup)) }

// PlaceOf returns where a slot's replicas are now.
func (x *Index) PlaceOf(s Slot) []node.Replica { return x.Place[x.Subtable(s)] }

// Copies returns how many replicas a slot has now.
func (x *Index) Copies(s Slot) int { return len(x.PlaceOf(s)) }

// Slots returns the number of slots.
func (x *Index) Slots() uint64 { return uint64(len(x.Place)) * x.Groups * GroupSlots }

// Words returns the number of words, headers included: slots are numbered below it.
func (x *Index) Words() uint64 { return uint64(len(x.Place)) * x.Groups * wordsPerGroup }

// IsSlot reports whether the word of that number is a slot and not a bucket's header.
func IsSlot(s Slot) bool { return s%bucketWords != 0 }

// Hash returns the hash by which a key finds its slots.
func Hash(key []byte) uint64 { return xxhash.Sum64(key) }

// Print returns the fingerprint of a key's hash.
func Print(hash uint64) uint8 { return uint8(hash >> 56) }

// Buckets names the two combined buckets of a key by the number of their first word.
type Buckets [2]Slot

// Locate returns the two combined buckets of a key's hash. They lie in one subtable, in different
// groups.
func (x *Index) Locate(hash uint64) Buckets {
	sub := uint64(x.SubtableOf(hash))
	second := mix(hash)
	g1 := (hash & 0xffffffff) * x.Groups >> 32
	g2 := (second & 0xffffffff) * x.Groups >> 32
	if g2 == g1 {
		if g2++; g2 == x.Groups {
			g2 = 0
		}
	}
	first := sub * x.Groups
	return Buckets{
		Slot((first+g1)*wordsPerGroup + (hash>>32&1)*bucketWords),
		Slot((first+g2)*wordsPerGroup + (second>>32&1)*bucketWords),
	}
}

// mix is a bijection that makes a second hash of the first (the finalizer of SplitMix64).
func mix(h uint64) uint64 {
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// Read adds the READs of both combined buckets of one replica to a batch.
func (x *Index) Read(b *rdma.Batch, at Buckets, replica int) View {
	v := View{at: at}
	for i, s := range at {
		v.ops[i] = b.Read(x.Address(s, replica), combinedBytes)
	}
	return v
}

// View is what a replica's two combined buckets held; it is valid as long as the batch that read
// it.
type View struct {
	at  Buckets
	ops [2]*rdma.Op
}

// main returns where in a half its main bucket begins, and its overflow bucket, in words.
func (at Buckets) main(half int) (main, overflow int) {
	if at[half]/bucketWords%3 == 1 { // overflow and second main bucket
		return bucketWords, 0
	}
	return 0, bucketWords
}

// Slot returns the i-th candidate slot, 0 <= i < Candidates. Main buckets come before overflow
// buckets in each half.
func (at Buckets) Slot(i int) Slot {
	half, i := i/(2*BucketSlots), i%(2*BucketSlots)
	first, overflow := at.main(half)
	if i >= BucketSlots {
		first, i = overflow, i-BucketSlots
	}
	return at[half] + Slot(first+1+i)
}

// Slot returns the i-th candidate slot, 0 <= i < Candidates, and its word.
func (v *View) Slot(i int) (Slot, Word) {
	half, s := i/(2*BucketSlots), v.at.Slot(i)
	return s, Word(binary.LittleEndian.Uint64(v.ops[half].Buf[(s-v.at[half])*bytesPerWord:]))
}

// Words copies the words of all candidates, in the order of Slot. A loop over them takes a third of
// the time that Slot does for each.
func (v *View) Words(to *[Candidates]Word) {
	for half, op := range v.ops {
		first, overflow := v.at.main(half)
		buf, to := op.Buf[:combinedBytes], to[2*BucketSlots*half:][:2*BucketSlots]
		for k := range BucketSlots {
			to[k] = Word(binary.LittleEndian.Uint64(buf[(first+1+k)*bytesPerWord:]))
			to[BucketSlots+k] = Word(binary.LittleEndian.Uint64(buf[(overflow+1+k)*bytesPerWord:]))
		}
	}
}

// Fence makes the READs of v start only after the atomics posted before them.
func (v *View) Fence() { v.ops[0].Fence = true }

// Free picks the slot for a new pair: the emptier half, its main bucket first, beginning at a place
// that depends on the hash so that inserters of one group rarely meet. room is how many candidates
// are empty: none when it is 0.
func (v *View) Free(hash uint64) (s Slot, w Word, room int) {
	var empty [2]int
	for i := range Candidates {
		if _, w := v.Slot(i); w.Empty() {
			empty[i/(2*BucketSlots)]++
		}
	}
	half := 0
	if empty[1] > empty[0] {
		half = 1
	}
	if room = empty[0] + empty[1]; room == 0 {
		return 0, 0, 0
	}
	turn := int(hash>>48) % BucketSlots
	for bucket := range 2 {
		for k := range BucketSlots {
			s, w := v.Slot((2*half+bucket)*BucketSlots + (turn+k)%BucketSlots)
			if w.Empty() {
				return s, w, room
			}
		}
	}
	panic(fmt.Sprintf("race: %d candidates are empty, and none is", room))
}

// Candidate reports whether slot s is one of those in which a key of that hash may lie.
func (x *Index) Candidate(hash uint64, s Slot) bool {
	at := x.Locate(hash)
	return IsSlot(s) && slices.ContainsFunc(at[:], func(first Slot) bool {
		return s >= first && s < first+2*bucketWords
	})
}
