package state

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/workloads/check/teeth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var mutants = []teeth.Mutant{
	{Rule: "CommitVer waits for all below", In: "Shard.Done",
		At: "$s.acked[$*word]>>($*bit)&1 != 0", Do: "v <= $s.version", Test: "TestCommitVer"},
	{Rule: "versions in flight are bounded", In: "Shard.Next",
		At: "$s.version-$s.commit.Version >= window", Do: "false", Test: "TestCommitVer"},
	{Rule: "versions of a new primary are above all found", In: "Shard.Find",
		At: "$s.version = max($s.version, $version)", Do: "", Test: "TestLead"},
	{Rule: "and above all learned", In: "Shard.Learn", At: "$s.version = max($s.version, $commit)", Do: "",
		Test: "TestLearned"},
	{Rule: "a new primary has nothing acknowledged above these", In: "Shard.Lead", At: "clear($s.acked[:])", Do: "",
		Test: "TestLeadsAgain"},
	{Rule: "CommitVer of a new primary covers these", In: "Shard.Lead",
		At: "$s.commit.Version = $s.version", Do: "", Test: "TestLead"},
	{Rule: "a cleaner reads no blocks that may be used anew", In: "Space.Pick", At: "$e.named > 0", Do: "true",
		Test: "TestScattered"},
	{Rule: "no other entry at the place is taken for one that was moved", In: "Space.Forget", At: "$i != $seg.Index",
		Do: "$i != $seg.Index && false", Test: "TestScattered"},
	{Rule: "that of one that goes on does not", In: "Shard.Lead", At: "!$s.serves", Do: "true", Test: "TestLead"},
	{Rule: "CommitVer begins again with a term", In: "Shard.Settle",
		At: "$s.commit, $s.leader = kv.Order{Term: $term}, $node", Do: "$s.commit.Term, $s.leader = $term, $node",
		Test: "TestCommittedByTerm"},
	{Rule: "only that of the primary of the term counts", In: "Shard.Learn", At: "$node == $s.leader", Do: "true",
		Test: "TestCommittedByTerm"},
	{Rule: "a server that has begun anew knows none", In: "Shard.Learn", At: "$s.commit.Term > 0", Do: "true",
		Test: "TestCommittedByTerm"},
	{Rule: "what was appended before a server is a replica is not its own", In: "Shard.Takes",
		At: "$s.index != nil && $term >= $s.since", Do: "$s.index != nil", Test: "TestGained"},
	{Rule: "what a server had of a shard that it lost is not what it has", In: "Shard.Lose",
		At: "$s.index = nil", Do: "", Test: "TestGained"},
	{Rule: "an index is emptied when workers have left it", In: "Shard.Leaving",
		At: "$l.term <= $term", Do: "true", Test: "TestGained"},
	{Rule: "idle tasks look seldom", In: "Lull.Next", At: "2*$l.pause", Do: "$l.pause", Test: "TestLull"},
	{Rule: "but not at once", In: "Lull.Next", At: "$now < $l.awake", Do: "false", Test: "TestLull"},
	{Rule: "and at once when cleaners ask", In: "Lull.Next", At: "$question != $l.question", Do: "false",
		Test: "TestLull"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{}.Run(t, mutants)
}
