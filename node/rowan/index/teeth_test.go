package index_test

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "an insert is refused beside what was not seen", In: "Index.Insert",
		At: "!slices.Contains($seen, $*item)", Do: "slices.Contains($seen[:0], $*item)"},
	{Rule: "what was seen is in no insert's way", In: "Index.Insert",
		At: "!slices.Contains($seen, $*item)", Do: "!slices.Contains($seen[:0], $*item)", Test: "TestInsertRefused"},
	{Rule: "a replace is of the item that was compared", In: "Index.Replace",
		At: "$s.find($first, $*item)", Do: "&$first.items[0]"},
	{Rule: "only what is there is replaced", In: "Index.Replace",
		At: "return $item != nil", Do: "return true"},
	{Rule: "only what is there is removed", In: "Index.Remove",
		At: "return $item != nil", Do: "return true", Test: "TestModel"},
	{Rule: "an item keeps its tag", In: "Index.Replace",
		At: "*$item = $tag | $at", Do: "*$item = $at"},
	{Rule: "lookups are of the tag", In: "Index.Lookup",
		At: "$item&^maxAddr == $tag", Do: "$item&^maxAddr|$tag == $item&^maxAddr|$tag", Test: "TestSpread"},
	{Rule: "tags have all bits", In: "Index.place",
		At: "$mixed << addrBits", Do: "$mixed << (addrBits + 6)", Test: "TestSpread"},
	{Rule: "hashes are mixed", In: "Index.place",
		At: "$high ^ $low", Do: "hash | ($high^$low)&0", Test: "TestSpread"},
	{Rule: "lookups follow chains", In: "Index.Lookup",
		At: "$s.behind($b)", Do: "nil", Test: "TestChain"},
	{Rule: "inserts follow chains", In: "Index.Insert",
		At: "$s.behind($b)", Do: "nil"},
	{Rule: "traversals follow chains", In: "Index.Chain",
		At: "$s.behind($b)", Do: "nil"},
	{Rule: "0 is no item", In: "Index.Lookup",
		At: "$*tag && $item != 0", Do: "$*tag", Test: "TestAddresses"},
	{Rule: "addresses are above 0", In: "check",
		At: "$at == 0", Do: "false", Test: "TestAddresses"},
	{Rule: "addresses end below the tag", In: "check",
		At: "$at > maxAddr", Do: "$at > maxAddr+1", Test: "TestAddresses"},
	{Rule: "chains have no gaps", In: "stripe.remove",
		At: "*$item = $b.items[$last]", Do: "*$item = 0"},
	{Rule: "what fills a gap is in one place", In: "stripe.remove",
		At: "$b.items[$last] = 0", Do: ""},
	{Rule: "buckets without items leave their chain", In: "stripe.remove",
		At: "$last == 0 && $b != $first", Do: "false"},
	{Rule: "and are used again", In: "stripe.remove",
		At: "$b.next, $s.free = $s.free, $n", Do: "$b.next, _ = 0, $n", Test: "TestBytes"},
	{Rule: "once", In: "stripe.take",
		At: "$s.free = $s.chained[$*n].next", Do: "", Test: "TestChain"},
	{Rule: "an update is omitted below the indexed one's version", In: "Index.Update",
		At: "$relation == AsNew", Do: "$relation == AsNew && !x.Replace(hash, old, at)"},
	{Rule: "an update that was refused is repeated", In: "Index.Update",
		At: "$relation == OtherKey && $x.Insert($*args)", Do: "$relation == OtherKey && ($x.Insert($*args) || true)"},
	{Rule: "so is one that replaces", In: "Index.Update",
		At: "$relation == Older && $x.Replace($*args)", Do: "$relation == Older && ($x.Replace($*args) || true)"},
	{Rule: "a comparison that fails changes nothing", In: "Index.Update",
		At: "$err != nil", Do: "false", Test: "TestUpdateFails"},
}

func TestMutants(t *testing.T) {
	seen := regexp.MustCompile(`^ +\w+_test\.go:\d+: |^panic: runtime error`)
	teeth.Suite{Test: "TestTasks", Seen: seen}.Run(t, mutants)
}
