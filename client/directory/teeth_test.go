package directory

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each. The suite of contention must notice, over enough seeds, or the test that is named.
var mutants = []teeth.Mutant{
	// Paxos.
	{Rule: "a majority is more than half", File: "directory.go",
		Old: "return quorum.Majority(c.Replicas)", New: "return max(1, c.Replicas/2)"},
	{Rule: "nobody accepts without a majority's promises", File: "change.go",
		Old: "if err := c.prepare(); err != nil {", New: "if err := c.prepare(); err != nil && !passing(err) {"},
	{Rule: "what was promised to another is no promise", File: "change.go",
		Old: "case op.Swapped():\n\t\t\t\tk.word", New: "case op.Swapped() || Word(op.Result) == promise(c.promise, k.word.pointer()):\n\t\t\t\tk.word"},
	{Rule: "a replica that promised a higher round accepts nothing", File: "change.go",
		Old: "return k.word >= accept(c.promise, 0) }", New: "return false }"},
	{Rule: "a round is above all that is known", File: "change.go",
		Old: "c.promise = max(c.promise, c.replicas[r].word.round()+1)", New: "c.promise = max(c.promise, c.replicas[r].word.round())"},
	{Rule: "the base is the highest that was accepted", File: "change.go",
		Old: "if k := &c.replicas[r]; k.mine {", New: "if k := &c.replicas[r]; k.mine && (n == 0 || k.since <= round) {"},
	{Rule: "the base is that of those who promised", File: "change.go",
		Old: "if c.base.round != round {", New: "if false {"},
	{Rule: "a decision is made again when its base changed", File: "change.go",
		Old: "if !settled || decided != round {", New: "if !settled || decided > round {", Seed: 1936},
	{Rule: "a promise tells what was accepted before", File: "lookup.go",
		Old: "k.since, k.sure = w.since()", New: "k.since, _ = w.since()\n\tk.sure = true"},
	{Rule: "a promise keeps what was accepted", File: "change.go",
		Old: "uint64(promise(c.promise, k.word.pointer()))", New: "uint64(promise(c.promise, 0))"},
	{Rule: "a promised word does not tell when its value was accepted", File: "word.go",
		Old: "case w.accepted():\n\t\treturn w.round(), true", New: "case w.pointer() != 0:\n\t\treturn w.round(), true"},
	// Lookups.
	{Rule: "a lookup's majority agrees", File: "lookup.go",
		Old: "round, n = c.agreed(); n < c.majority() {", New: "round, n = c.agreed(); n < 1 {"},
	{Rule: "what lies in place is whole", File: "word.go",
		Old: "return p, le.Uint64(p) == xxhash.Sum64(p[8:])", New: "return p, true"},
	{Rule: "a value is of its word's round", File: "lookup.go",
		Old: "if !ok || roundOf(v) != round {", New: "if !ok {"},
	{Rule: "a value is of its bucket", File: "word.go",
		Old: "if tag>>8 != bucket || n > Slots {", New: "if n > Slots {", Test: "TestValues$"},
	{Rule: "what was found outlives its batch", File: "lookup.go",
		Old: "\tc.save()\n", New: ""},
	{Rule: "replicas that lag are made up for", File: "lookup.go",
		Old: "if rest.Len() < need {", New: "if true {", Test: "TestLagging$"},
	{Rule: "nodes that are silent are not asked to make up for others", File: "lookup.go",
		Old: "if c.replicas[r].known || c.quorum.Avoids(c.at[r].Node()) {", New: "if c.replicas[r].known {", Test: "TestLagging$"},
	{Rule: "a lookup settles what it cannot read", File: "change.go",
		Old: "if settled && ch.decide == nil {", New: "if (settled || c.has) && ch.decide == nil {"},
	{Rule: "a lookup mends what lies in place", File: "lookup.go",
		Old: "\t\tc.mend()\n", New: "", Test: "TestMended$"},
	// Changes.
	{Rule: "a change that was helped is done", File: "change.go",
		Old: "case c.base.has(ch.id):", New: "case false:"},
	{Rule: "a change that may have been forgotten is uncertain", File: "change.go",
		Old: "case ch.sent && !c.base.tells(ch.id, ch.first):", New: "case false:", Test: "TestHelped$"},
	{Rule: "changes are known for as long as they are remembered", File: "word.go",
		Old: "return v.changes < first+remembered", New: "return v.changes < first+remembered+1", Test: "TestHelped$"},
	{Rule: "a client's change takes the place of its change before", File: "word.go",
		Old: "v.ids[i] != 0 && who(v.ids[i]) != who(id) {", New: "v.ids[i] != 0 {", Test: "TestNeverForgotten$"},
	{Rule: "who has not changed a bucket for longest is forgotten", File: "word.go",
		Old: "copy(v.ids[1:i+1], v.ids[:i])\n\tv.ids[0] = id", New: "v.ids[i] = id", Test: "TestRemembered$"},
	{Rule: "a client's change before tells that this one was not made", File: "word.go",
		Old: "if other == 0 || who(other) == who(id) {", New: "if who(other) == who(id) {", Test: "TestNeverForgotten$"},
	{Rule: "the lowest number counts", File: "change.go",
		Old: "if !ch.sent || c.next.changes < ch.first {", New: "if !ch.sent {", Test: "TestNumberedTwice$"},
	{Rule: "a change is refused for what is chosen", File: "change.go",
		Old: "\terr = c.accept(ch, final)\n", New: "\tif final && ch.refused != nil {\n\t\treturn true, ch.refused\n\t}\n\terr = c.accept(ch, final)\n", Test: "TestRefusalIsChosen$"},
	{Rule: "what was sent may have taken effect", File: "change.go",
		Old: "\tif ch.sent {\n\t\treturn uncertain(err)", New: "\tif false {\n\t\treturn uncertain(err)", Test: "TestNodesDieUnderAChange$"},
	{Rule: "a bucket has room for its slots", File: "change.go",
		Old: "if err == nil && len(next) > Slots {", New: "if err == nil && len(next) > Slots+1 {", Test: "TestTrips$"},
	{Rule: "each batch has its own copy of a value", File: "change.go",
		Old: "if b.Len() == 0 { // a new batch", New: "if c.encoded == nil { // a new batch"},
	// Buffers.
	{Rule: "whose CAS succeeds takes what the word named", File: "change.go",
		Old: "c.spares[r] = Word(op.Expect).pointer() // what it held before", New: "c.spares[r] = 0"},
	{Rule: "what a word names is given to nobody", File: "change.go",
		Old: "c.spares[r] = Word(op.Expect).pointer() // what it held before", New: "if w := Word(op.Expect).pointer(); w != 0 {\n\t\tc.alloc.Give(c.at[r].Node(), c.bucket, w)\n\t}"},
	{Rule: "a buffer whose chain is in flight is nobody's", File: "change.go",
		Old: "\t\tc.spares[r] = 0\n\t\tif c.quorum.Flying()", New: "\t\tif c.quorum.Flying()"},
	{Rule: "buffers in flight come back", File: "change.go",
		Old: "\tc.strays.Keep(&c.quorum, c.bucket)\n", New: ""},
	{Rule: "a stray CAS takes what the word named", File: "change.go",
		Old: "case cas.Swapped():", New: "case false:"},
	{Rule: "a buffer comes before a promise", File: "change.go",
		Old: "if err := c.reserve(); err != nil && (ch.decide != nil ||", New: "if err := c.reserve(); err != nil && (", Test: "TestFull$"},
	{Rule: "a change that was sent is refused when it can take effect no more", File: "change.go",
		Old: "return ch.sent && ch.refused != nil", New: "return false", Test: "TestRefusedBehindAnAttempt$"},
	{Rule: "what is chosen needs no buffer to be told", File: "change.go",
		Old: "if err != nil && (!final || ch.loose() || n < c.majority()) {", New: "if err != nil && n >= 0 {", Test: "TestFull$"},
	{Rule: "what was not sent is known", File: "change.go",
		Old: "if c.offered&m == 0 || c.quorum.Unsent()&m != 0 {", New: "if c.offered&m == 0 {", Test: "TestNothingSent$"},
	{Rule: "a buffer in hand is its client's for one epoch", File: "directory.go",
		Old: "\t\tc.spares = [quorum.MaxReplicas]uint16{}\n", New: "", Test: "TestEpochUnderAChange$"},
	{Rule: "a change goes on in the epoch that it began in", File: "directory.go",
		Old: "if c.moved() { // by", New: "if false { // by", Test: "TestEpochUnderAChange$"},
	{Rule: "nothing at all agrees with no promise", File: "lookup.go",
		Old: "k.known && (k.word == 0 || k.word.accepted())", New: "k.sure", Test: "TestWalkIsLast$"},
	// Liveness, and walks.
	{Rule: "who is at work is not disturbed for ever", File: "change.go",
		Old: "return busy && p.idle <= polite && p.Tries < impolite", New: "return busy", Test: "TestChangeOfTheDead$"},
	{Rule: "a silent node is waited for briefly", File: "change.go",
		Old: `c.briefly(stepPrepare`, New: `c.gather(stepPrepare`, Test: "TestNobodyWaits$"},
	{Rule: "a walk waits for its own accepts", File: "walk.go",
		Old: "if err := c.Land(); err != nil {", New: "if err := error(nil); err != nil {"},
	{Rule: "a walk knows who did not answer", File: "walk.go",
		Old: "case silent[n]:", New: "case false:", Test: "TestWalk$"},
}

// suite is contention's, over more seeds.
var suite = teeth.Suite{
	Test: "TestContention$/^3_replicas", Flags: []string{"-rapid.nofailfile"}, Env: []string{"FARKV_SEEDS=6000"}, Seen: caught,
}

// caught is what a test says when it has seen a wrong answer.
var caught = regexp.MustCompile(`not linearizable|operations failed|is used twice|is lost|is there|want an error|a lookup (behind it )?took|` +
	`took \d+ trips|an operation took|took long|lookup took|changes by others|is taken for|(is|are) known|a change was refused|a walk round|buffers of a change|was brought along|entries, and|damaged|meet others|other clients changed|: full|worker panicked`)

func TestMutants(t *testing.T) { teeth.Check(t, mutants) }

func TestTeeth(t *testing.T) {
	suite.Run(t, mutants)
}
