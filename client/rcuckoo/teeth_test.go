package rcuckoo

import (
	"slices"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule of the protocol each. The explorer must notice, or the test that is named.
var mutants = []teeth.Mutant{
	{Rule: "rows are read behind the lock", File: "lock.go",
		Old: "op.Fence = fence && i == 0", New: "op.Fence = false"},
	{Rule: "who holds a lock has an intent", File: "lock.go",
		Old: "encodeIntent(b.Alloc(intentBytes), l.shard, s.id, st.seq, l.wants)", New: "encodeIntent(b.Alloc(intentBytes), l.shard, s.id, st.seq, nil)", Test: "TestEveryPrefix$"},
	{Rule: "who waits for a lock beats", File: "lock.go",
		Old: "} else if r.Tries > 0 {", New: "} else if tries > 1<<30 {", Test: "TestWaitersBeat$"},
	{Rule: "nobody takes a lock that is being repaired", File: "lock.go",
		Old: "0, w.bits|lockRepair, w.bits, w.bits)", New: "0, w.bits, w.bits, w.bits)", Test: "Test(EveryPrefix|Slow|Explore)$"},
	{Rule: "who waits for a repair has no intent", File: "lock.go",
		Old: "case slow || met&lockRepair != 0:", New: "case slow:", Test: "TestEveryPrefix$"},
	{Rule: "a miss is proven by a second look", File: "read.go",
		Old: "(now == *before || at.first == at.second)", New: "true", Test: "TestMoved$"},
	{Rule: "a row that is torn is read again", File: "read.go",
		Old: "if !s.valid(r, at.shard, n) {", New: "if s.version(r) == 0 && !s.valid(r, at.shard, n) {"},
	{Rule: "a value is its ref's", File: "read.go",
		Old: "	return s.value, ok, nil", New: "	return s.value, true, nil"},
	{Rule: "a key that is there is not inserted", File: "insert.go",
		Old: "	if slot >= 0 {", New: "	if slot >= 1<<30 {"},
	{Rule: "rows are rolled forward", File: "repair.go",
		Old: "		if err := s.rollForward(m.shard, c, t.state>>1); err != nil {", New: "		if err := error(nil); t.state == 1 {", Test: "TestEveryPrefix$"},
	{Rule: "rows that were written stay", File: "redo.go",
		Old: "v > version || whole && v == version {", New: "v > 1<<60 {"},
	{Rule: "suspects are fenced off", File: "repair.go",
		Old: "			if err := s.opt.Pool.RevokeLife(l); err != nil {", New: "			if err := error(nil); err != nil {", Test: "TestSlow$"},
	{Rule: "a repair waits for those who hold locks", File: "repair.go",
		Old: "				waits = true", New: "				waits = false", Test: "Test(EveryPrefix|Slow|Explore)$"},
	{Rule: "only suspects are fenced off", File: "failure.go",
		Old: "return still >= s.opt.Failure ||", New: "return still >= s.opt.Failure/10 ||", Test: "TestOnlyTheDead$"},
	{Rule: "what the pool says is not enough", File: "failure.go",
		Old: "still >= s.opt.Failure/2 && s.dead(c)", New: "s.dead(c)", Test: "TestOnlyTheDead$"},
	{Rule: "timers run while somebody looks on", File: "failure.go",
		Old: "v.clock += min(now-v.looked, s.opt.Failure/gapShares)", New: "v.clock += now - v.looked", Test: "TestTimers$"},
	{Rule: "who asks the pool has no intent", File: "failure.go",
		Old: "	v, blocked, slow := &s.vigil, false, false", New: "	s.ask()\n	v, blocked, slow := &s.vigil, false, false", Test: "TestOnlyTheDead$"},
	{Rule: "who asks the pool has no lease", File: "repair.go",
		Old: "	if err := s.last(m); err != nil {", New: "	s.ask()\n	if err := s.last(m); err != nil {", Test: "TestOnlyTheDead$"},
	{Rule: "the end of an intent that is lost is noticed", File: "settle.go",
		Old: "func (s *Store) owing() bool {\n	s.ended(false)\n", New: "func (s *Store) owing() bool {\n", Test: "TestLostEnds$"},
	{Rule: "what is owed is given up", File: "settle.go",
		Old: "(st.dirty || len(st.leased) > 0) && !slices", New: "len(st.leased) > 0 && !slices", Test: "TestOnlyTheDead$"},
	{Rule: "all of it before any of it is settled", File: "settle.go",
		Old: "st.dirty && !st.given {", New: "st.given {", Test: "TestOnlyTheDead$"},
	{Rule: "by who waits, too", File: "lock.go",
		Old: "	case s.owing(): // others", New: "	case false: // others", Test: "TestLostEnds$"},
	{Rule: "and by who waits for a repair", File: "lock.go",
		Old: "if s.owing() || s.shards[shard].dirty {", New: "if s.shards[shard].dirty {", Test: "TestLostEnds$"},
	{Rule: "and by who only reads", File: "read.go",
		Old: "	for range joins {\n		s.pay()\n", New: "	for range joins {\n", Test: "TestLostEnds$"},
	{Rule: "who was fenced off while he repaired is followed by another", File: "repair.go",
		Old: "	return s.revoke(list, holder)\n", New: "	_ = list\n	return errBusy\n", Test: "TestRepairersCrash$"},
	{Rule: "one repairs at a time", File: "repair.go",
		Old: "	if took < len(m.words) {\n		if err := s.freeLeases", New: "	if took > len(m.words) {\n		if err := s.freeLeases", Test: "TestOnlyTheDead$"},
	{Rule: "an identity goes on above its last intent", File: "store.go",
		Old: "s.shards[i].seq = max(s.shards[i].seq, word>>1)", New: "s.shards[i].seq = max(s.shards[i].seq, 0)", Test: "TestIdentityAgain$"},
	{Rule: "the use of an extent is marked by whoever repairs", File: "redo.go",
		Old: "	if freed := decodeRef(p[redoFreed:]); freed.stamp != 0 {", New: "	if freed := decodeRef(p[redoFreed:]); freed.stamp == 1<<60 {", Test: "TestMarkedAgain$"},
	{Rule: "what is claimed is in the hand before", File: "slab.go",
		Old: "	x.addHand(b, shard, hints)\n", New: "	b.Read(x.handAt(shard, x.id), 8)\n", Test: "TestHands$"},
	{Rule: "a claim is its client's", File: "extent.go",
		Old: "return (stamp>>16+1)<<16 | uint64(c)", New: "return (stamp>>16 + 1) << 16", Test: "TestExtentsAtEveryCrash$"},
	{Rule: "a keeper frees what the dead had in hand", File: "hand.go",
		Old: "		return x.reclaim(shard, c, until)", New: "		return 0, nil", Test: "TestKilled$"},
	{Rule: "two looks find no row that names what is freed", File: "hand.go",
		Old: "if both && u.look && x.version(r1) == u.first && x.version(r2) == u.second {", New: "if both {", Test: "TestHandOfWhatMoves$"},
	{Rule: "what a row names is not freed", File: "hand.go",
		Old: "if whole1 && x.inUse(r1, u) || whole2 && x.inUse(r2, u) {", New: "if whole1 && x.inUse(r1, u) {", Test: "TestHands$"},
	{Rule: "claims that may be under way are waited for", File: "hand.go",
		Old: "read.Fence = true", New: "read.Fence = false", Test: "TestUnknownOutcome$"},
	{Rule: "an extent in doubt is looked for", File: "hand.go",
		Old: "if len(st.doubts) == 0 {", New: "if len(st.doubts) >= 0 {", Test: "TestHands$"},
}

var suite = teeth.Suite{Test: "TestExplore$", Env: []string{"FARKV_SEEDS=1200"}}

func TestMutants(t *testing.T) { teeth.Check(t, slices.Concat(mutants, growing)) }

func TestTeeth(t *testing.T) { suite.Run(t, slices.Concat(mutants, growing)) }
