package swarm

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// storeMutants break one rule of the store each. The suite of workers that meet must notice, or the test that is named.
var storeMutants = []teeth.Mutant{
	{Rule: "who finds a dying entry ends its object first", File: "store.go",
		Old: "if err := s.finish(e.Location, now); err != nil {", New: "if false {", Test: "TestHalfDeleted$"},
	{Rule: "an entry is marked before its object ends", File: "change.go",
		Old: "	rest[at].Location |= dying\n", New: ""},
	{Rule: "a deleted object ends", File: "change.go",
		Old: "if err := s.c.Delete(&c.victim); !errors.Is(err, rdma.ErrStale) &&", New: "if err := error(nil); !errors.Is(err, rdma.ErrStale) &&"},
	{Rule: "a new key takes the place of a dying entry that is finished", File: "change.go",
		Old: "if err := c.s.finish(location, c.named); err != nil {", New: "if err := error(nil); err != nil {", Test: "TestHalfDeleted$"},
	{Rule: "an entry of another key gives way when its object has its tombstone", File: "change.go",
		Old: "		case !c.isBuried(e):\n", New: "		case false:\n", Test: "TestCrowdedHalfDeleted$"},
	{Rule: "what is dead of other keys gives way", File: "change.go",
		Old: "if rest, err = c.makeRoom(rest); err != nil {", New: "if err != nil {", Test: "TestCrowdedBucket$"},
	{Rule: "little of what is dead stays", File: "change.go",
		Old: "const mostDead = 2", New: "const mostDead = 99", Test: "TestFewDead$"},
	{Rule: "a READ of RAW does not prove that an object is still there", File: "read.go",
		Old: "		return c.readRaw(k)\n", New: "		k.met(began)\n		return c.readRaw(k)\n", Test: "TestRawObjectAgain$"},
	{Rule: "an operation waits for nodes that are out of reach", File: "persist.go",
		Old: "if now-t.began >= timeout {", New: "if true {", Test: "TestOutOfReach$"},
	{Rule: "a sweep is waited for until the timeout is over", File: "persist.go",
		Old: "max(t.began+timeout-now, 0)", New: "timeout/4", Test: "TestSlowSweep$"},
	{Rule: "a key that is there is not inserted", File: "change.go",
		Old: "if at >= 0 {", New: "if at > 1<<30 {"},
	{Rule: "a key that was deleted is looked up again", File: "store.go",
		Old: "if err == nil || !errors.Is(err, ErrGone) && (", New: "if err == nil || errors.Is(err, ErrGone) || ("},
	{Rule: "a pair that was written is another INSERT's no more", File: "change.go",
		Old: "		s.remember(c.hash, key, o.location, o.spare)\n		o.location = 0\n", New: "		s.remember(c.hash, key, o.location, o.spare)\n"},
	{Rule: "a READ is of its key", File: "store.go",
		Old: " || !bytes.Equal(pair[keyHeader:keyHeader+len(key)], key)", New: " || !bytes.Equal(nil, nil)", Test: "TestSameHash$"},
	{Rule: "a cached location is of its key", File: "store.go",
		Old: " && e.secret == seeded(s.secret, key)", New: "", Test: "TestSameHash$"},
	{Rule: "an identity goes on above its ceiling", File: "ceiling.go",
		Old: "			c.used = max(c.used, c.words[r])\n", New: "", Test: "TestIdentityAgain$"},
	{Rule: "a ceiling is raised before what it allows is used", File: "ceiling.go",
		Old: "if tick > c.limit {", New: "if false {", Test: "TestIdentityAgain$"},
	{Rule: "who closes leaves no ceiling that is ahead", File: "ceiling.go",
		Old: "min(c.words[r], c.used)", New: "c.words[r]", Test: "TestIdentityAgain$"},
	{Rule: "a WRITE to a pair of an earlier epoch begins with a READ", File: "persist.go",
		Old: "(k.epoch < s.member.Epoch || ", New: "(", Test: "TestUpdateOverEpochs$"},
	{Rule: "a client that has slept READs before it WRITEs", File: "persist.go",
		Old: " || now-s.proven > s.c.opt.Timeout/rustAfter)", New: ")", Test: "TestUpdateOverEpochs$"},
	{Rule: "objects lie apart", File: "pool.go",
		Old: ".Add(n % uint64(l.Objects) * l.stride(r))", New: ".Add(n % uint64(l.Objects) * l.stride(1))"},
}

// storeSuite is of workers that meet, over more seeds.
var storeSuite = teeth.Suite{Test: "TestStoreContention$/^swarm", Env: []string{"FARKV_SEEDS=2000"}}

func TestStoreMutants(t *testing.T) { teeth.Check(t, storeMutants) }

func TestStoreTeeth(t *testing.T) {
	storeSuite.Run(t, storeMutants)
}
