package swarm

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each. The suite of contention must notice, over enough seeds, or the test that is named.
var mutants = []teeth.Mutant{
	// Safe-Guess.
	{Rule: "a guess is not verified before a majority was read", File: "write.go",
		Old: "p := put{tuple: tuple{stamp: c.stamp(i, c.tid), value: value}", New: "p := put{tuple: tuple{stamp: c.stamp(i, c.tid) | verified, value: value}"},
	{Rule: "a stale guess is not fresh", File: "write.go",
		Old: "case top.time() <= p.stamp.time():", New: "case true:"},
	{Rule: "a writer locks readers out before it writes again", File: "write.go",
		Old: "locked, err := c.tryLock(k, guess, writeMode)", New: "locked, err := true, error(nil)"},
	{Rule: "what is above a guess is brought to a majority", File: "write.go",
		Old: "p.top.top() || p.holders() >= c.Majority()", New: "p.stamp != 0", Test: "TestTwoDeadWriters$"},
	{Rule: "a write whose lock fails is not lost", File: "write.go",
		Old: "case !locked:\n\t\treturn nil", New: "case !locked && len(value) > 1<<20:\n\t\treturn nil"},
	{Rule: "what is written again is above what was read", File: "write.go",
		Old: "c.iOf(top)+1, value", New: "k.last+1, value"},
	{Rule: "a guessed tuple is read twice", File: "read.go",
		Old: "\tif old == nil {", New: "\tif old == nil {\n\t\told = &tuple{stamp: t.stamp}\n\t}\n\tif old == nil {", Test: "TestWrongMaximum$"},
	{Rule: "a reader locks the writer out", File: "read.go",
		Old: "locked, err := c.tryLock(k, t.stamp, readMode)", New: "locked, err := true, error(nil)"},
	{Rule: "a tuple whose lock failed is not returned (Algorithm 3's elif)", File: "read.go",
		Old: "case !locked:\n\t\treturn nil, false, nil", New: "case !locked:\n\t\tv, err = c.fetch(k, t, patience)\n\t\treturn v, err == nil, err", Test: "TestLockedOut$"},
	{Rule: "the wait-free path returns the older tuple", File: "read.go",
		Old: "c.fetch(k, old, patience)", New: "c.fetch(k, t, patience)", Seed: 764},
	{Rule: "a value that is out of reach is looked for again", File: "read.go",
		Old: "err != nil && !again(err) {", New: "err != nil && !errors.Is(err, quorum.ErrAttempts) {"},
	{Rule: "guesses of a writer rise", File: "guess.go",
		Old: ", k.last+1, k.seen+1)", New: ", 1)"},
	{Rule: "a number that is used again starts above its floor", File: "guess.go",
		Old: "k.last+1, ", New: "", Test: "TestRefusals$"},
	{Rule: "ABD's writers read first", File: "write.go",
		Old: "if !k.warm || !guesses {", New: "if !k.warm {"},
	// Timestamp locks.
	{Rule: "a lock is its writer's, not its group's", File: "layout.go",
		Old: "Add(uint64(8 * tid))", New: "Add(uint64(8 * (tid % l.Words)))"},
	{Rule: "a lock is its key's", File: "layout.go",
		Old: "func (l *Layout) lockAt(k *Register, r, tid int) rdma.Addr { return k.At[r]",
		New: "func (l *Layout) lockAt(k *Register, r, tid int) rdma.Addr { return rdma.At(k.At[r].Node(), 0)"},
	{Rule: "a lock's mode stays", File: "lock.go",
		Old: "if found[r]>>1 >= want>>1 {", New: "if found[r] >= want {"},
	{Rule: "a lock fails when the other side has tried", File: "lock.go",
		Old: " || found[r] == want^1 {", New: " {"},
	{Rule: "a lock fails when a later stamp was tried", File: "lock.go",
		Old: "found[r]>>1 > want>>1 || ", New: "", Test: "TestLaterLock$"},
	// The max register.
	{Rule: "a majority is more than half", File: "layout.go",
		Old: "return quorum.Majority(l.Replicas)", New: "return max(1, l.Replicas/2)"},
	{Rule: "a READ writes back", File: "max.go",
		Old: "if t.has.Len() >= c.Majority() {", New: "if true {"},
	{Rule: "a READ writes back to a majority", File: "max.go",
		Old: "need: c.Majority() - t.has.Len(), expect", New: "need: 1, expect", Test: "TestWriteBack$"},
	{Rule: "a READ looks at every word", File: "max.go",
		Old: "for p := range l.Words {", New: "for p := range max(1, l.Words-1) {"},
	{Rule: "a known word does not fall", File: "max.go",
		Old: "if held >= p.stamp {", New: "if held >= p.stamp && held.time() == p.stamp.time() {", Test: "TestKnownWordStays$"},
	{Rule: "a word that was met does not fall", File: "max.go",
		Old: "if now >= p.stamp {\n\t\treturn quorum.Done", New: "if now == p.stamp {\n\t\treturn quorum.Done"},
	{Rule: "all are asked when one fails", File: "../quorum/quorum.go",
		Old: "next |= q.idle", New: "next |= 0"},
	{Rule: "nobody is waited for beyond the timer", File: "../quorum/quorum.go",
		Old: "err := q.ep.Wait(f.b, n, q.timer.slow)", New: "err := q.ep.Wait(f.b, n, q.timeout)", Test: "TestNobodyWaits$"},
	{Rule: "a silent node is asked last", File: "../quorum/shun.go",
		Old: "q.avoid[node] = now + shunned*q.timer.slow", New: "q.avoid[node] = now + 1", Test: "TestNobodyWaits$"},
	{Rule: "what nobody waits for is bounded", File: "max.go",
		Old: "if b == nil || b.Finished() {", New: "if true || b.Finished() {", Test: "TestBackgroundIsBounded$"},
	{Rule: "a reader marks what it settled", File: "read.go",
		Old: "		c.confirm(k, t, v)\n", New: "", Test: "TestBackgroundIsBounded$"},
	// In-n-Out.
	{Rule: "a value in place is its word's", File: "buffer.go",
		Old: "return seeded(uint64(w), p)", New: "return seeded(0, p)"},
	{Rule: "a value in place is its pointer's", File: "buffer.go",
		Old: "return seeded(uint64(w), p)", New: "return seeded(uint64(w>>pointerBits), p)", Test: "TestTornBuffers$"},
	{Rule: "a value in place is whole", File: "buffer.go",
		Old: "if le.Uint64(p) != inPlaceSum(w, p[8:end]) {", New: "if le.Uint64(p) == uint64(w) {"},
	{Rule: "a buffer is whole", File: "buffer.go",
		Old: "if le.Uint64(p) != seeded(hash, p[8:end]) {", New: "if false {", Test: "TestTornBuffers$"},
	{Rule: "words last for eight years", File: "layout.go",
		Old: "return 1 << (tickBits + l.groupBits)", New: "return 1 << tickBits", Test: "TestTimestampsLast$"},
	// Recycling.
	{Rule: "a buffer is taken by a CAS that succeeded", File: "recycle.go",
		Old: "cas.Swapped() && old !=", New: "old !="},
	{Rule: "a buffer in flight is not used again", File: "recycle.go",
		Old: "case pointer == 0 || c.quorum.Flying()&m != 0:", New: "case pointer == 0:\n\t\tcase c.quorum.Flying()&m != 0:\n\t\t\tc.alloc.Give(k.At[r].Node(), k.Hash, pointer)"},
	{Rule: "limbo waits for what is in flight", File: "../quorum/strays.go",
		Old: "if f.left.Has(ch.Replica) && completed(f.b, ch) {", New: "if f.left.Has(ch.Replica) {"},
	{Rule: "what a CAS in limbo replaced is taken", File: "recycle.go",
		Old: "\t\tc.swapped(node, hash, cas)\n", New: ""},
	{Rule: "what a CAS in limbo did not use is kept", File: "recycle.go",
		Old: "c.alloc.Give(node, hash, own)", New: "_ = own"},
	{Rule: "what a step did not use is kept", File: "recycle.go",
		Old: "c.alloc.Give(k.At[r].Node(), k.Hash, pointer)", New: "_ = pointer"},
	{Rule: "what a step has used is not the client's", File: "max.go",
		Old: "if bufferOf(p.expect[r]) == p.buffer[r] {", New: "if false {"},
	{Rule: "a tombstone points at nothing", File: "recycle.go",
		Old: "if w == tombstone {", New: "if false {"},
	{Rule: "a buffer that is used again is seen by its stamp", File: "buffer.go",
		Old: " || le.Uint64(p[8:]) != uint64(s.time()) {", New: " {", Seed: 2059},
	{Rule: "a buffer that is used again is no damage", File: "max.go",
		Old: "\treturn errReused\n", New: "\treturn client.ErrDamaged\n"},
	{Rule: "a buffer whose chain failed is nobody's", File: "recycle.go",
		Old: "\t\t\tc.leaked++\n\t\tdefault:", New: "\t\t\tc.alloc.Give(k.At[r].Node(), k.Hash, pointer)\n\t\tdefault:", Test: "TestFailedChain$"},
	{Rule: "a buffer whose chain failed in limbo is nobody's", File: "recycle.go",
		Old: "if b.Op(i).Err != nil {", New: "if false {", Test: "TestFailedChain$"},
	{Rule: "a batch that comes back is encoded anew", File: "max.go",
		Old: "if b.Len() == 0 { // a new", New: "if false { // a new", Test: "TestEncodedAgain$"},
	{Rule: "a stale guess that nothing replaces is uncertain", File: "write.go",
		Old: "if err != nil && !errors.Is(err, client.ErrUncertain) {", New: "if false && errors.Is(err, client.ErrUncertain) {", Test: "TestNoTimestampToWriteAgain$"},
	{Rule: "a DELETE's change marks one object", File: "change.go",
		Old: "case c.marked != 0 && c.marked != c.at:", New: "case false:", Test: "TestOneVictim$"},
	// Sweeps.
	{Rule: "a buffer is its client's for one epoch", File: "epoch.go",
		Old: "c.putting.void(r)", New: "_ = r", Seed: 543},
	{Rule: "what was in flight replaces nothing in the next epoch", File: "epoch.go",
		Old: "\t\tc.limbo.Release()\n", New: ""},
	{Rule: "an object is used again two epochs after it was found to be garbage", File: "sweep.go",
		Old: "const grace = 2", New: "const grace = 0", Test: "TestChurn$", Seed: 6},
	{Rule: "the words of an object that is used again are zero", File: "sweep.go",
		Old: "err := w.reset(region, numbers)", New: "err := error(nil)", Test: "TestChurn$"},
	{Rule: "a location that is older than an epoch is looked up", File: "epoch.go",
		Old: "now > k.epoch+1 {", New: "now > k.epoch+1000 {", Test: "TestChurn$"},
	{Rule: "an INSERT publishes an object of its epoch", File: "change.go",
		Old: "if o.epoch != s.epoch() {", New: "if o.epoch > s.epoch() {", Test: "TestChurn$"},
	{Rule: "objects are their client's for one epoch", File: "object.go",
		Old: "if now := s.epoch(); o.epoch != now {", New: "if now := s.epoch(); o.epoch > now {", Test: "TestChurn$"},
	{Rule: "a sweep comes behind a fence", File: "../../node/cluster/barrier.go",
		Old: "if err := k.f.Fence(to.Epoch); err != nil {", New: "if err := error(nil); err != nil {", Test: "TestChurn$"},
	// Tombstones.
	{Rule: "nothing is written above a tombstone", File: "write.go",
		Old: "gone := top.top()", New: "gone := false"},
	{Rule: "a tombstone is the highest", File: "tombstone.go",
		Old: "s := stampOf(tombstone, c.tid%c.Words)", New: "s := c.stamp(c.maxI()-1, c.tid) | verified"},
	{Rule: "a write that was read before the tombstone is no failure", File: "write.go",
		Old: "case !locked:\n", New: "case !locked && !gone:\n", Seed: 3135},
	{Rule: "a tombstone that a write met is there for all", File: "write.go",
		Old: "\tif gone {\n\t\tif err := c.bury(k); err != nil {", New: "\tif gone {\n\t\tk.gone = true\n\t\tif err := error(nil); err != nil {", Test: "TestTombstoneOfTheDead$"},
	{Rule: "a register that is not cached is read first", File: "write.go",
		Old: "if !k.warm || !guesses {", New: "if !guesses {", Test: "TestTrips$"},
	{Rule: "a register that was read is cached", File: "read.go",
		Old: "k.warm = true // a WRITE", New: "// a WRITE", Test: "TestTrips$"},
}

// suite is contention's, over more seeds.
var suite = teeth.Suite{
	Test: "TestContention$/^3_replicas", Flags: []string{"-rapid.nofailfile"}, Env: []string{"FARKV_SEEDS=10000"}, Seen: caught,
}

// caught is what a test says when it has seen a wrong answer.
var caught = regexp.MustCompile(`not linearizable|operations failed|the last timestamp is|is taken|took \d+ trips|took longer than|an operation took|` +
	`cut at|operation failed|keeper: |check: |does not have the value|is free, and|walk the free buffers|key 0, and|have an owner|were handed out|i is \d+ of|later stamp|is returned|fell to|left unmarked|read 1: |want an error|i has`)

func TestMutants(t *testing.T) { teeth.Check(t, mutants) }

func TestTeeth(t *testing.T) {
	suite.Run(t, mutants)
}
