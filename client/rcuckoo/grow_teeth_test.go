package rcuckoo

import "github.com/farkv/farkv/workloads/check/teeth"

// growing are the rules of tables that grow.
var growing = []teeth.Mutant{
	{Rule: "a new row is written ahead of the old one", In: "Store.addDivision",
		At:   "$s.$changes[$n] = $table.$Change{$*new}; $s.$changes[$n+1] = $table.$Change{$*old}",
		Do:   "$s.$changes[$n+1] = $table.$Change{$*new}; $s.$changes[$n] = $table.$Change{$*old}",
		Test: "TestEveryPrefixGrowing"},
	{Rule: "a client that misses a key looks at the rows' levels", In: "Store.answer",
		At: "$s.$table.$Levels > 0", Do: "$s.$table.$Levels > 1<<30", Test: "TestReadWhileItGrows"},
	{Rule: "what is changed is found by the rows' levels", In: "Store.held",
		At: "$err := $s.$descend($o, $at)", Do: "$err := error(nil)", Test: "TestGrow"},
	{Rule: "rows are divided under their locks", In: "Store.share",
		At:   "for $id := $from; $id < $to; $id++ { $s.$locks.$lockRow($o, $id) }",
		Do:   "for $id := $from; $id < $to; $id++ { $s.$locks.$lockRow($o, $from) }",
		Test: "TestExploreGrowing"},
	{Rule: "what moves is the key's own segment", Pkg: "search", In: "Search.other",
		At: "$p.Bits", Nth: "1/2", Do: "0", Test: "TestGrow"},
	{Rule: "a division is no INSERT", In: "Store.divide",
		At: "$s.$locks.$sent = false", Do: "$s.$locks.$sent = true", Test: "TestDivisionIsNoInsert"},
	{Rule: "memory is there before its level", In: "Store.raise",
		At: "$s.$backLevel($o, $shard, $level+1)", Do: "$s.$backLevel($o, $shard, $level)", Test: "TestGrow"},
	{Rule: "a level is begun once", In: "Store.raise",
		At: "levelMask", Do: "0", Test: "TestExploreGrowing"},
	{Rule: "a division is repaired", Pkg: "table", In: "Layout.Redone",
		At: "if $c.$kind == $filling { clear($r) }", Do: "if $c.$kind == $filling { return }",
		Test: "TestEveryPrefixGrowing"},
	{Rule: "a redo mends no row that a later one tore", Pkg: "recovery", In: "RedoStep",
		At: "$v > $version || $whole && $v == $version", Do: "$whole && $v >= $version", Test: "TestRedoOfLongAgo"},
	{Rule: "what is in a hand is looked for by the rows' levels", Pkg: "extents", In: "Client.look",
		At: "$whole1 && $whole2 && $x.$table.$Follow(&$u.$at, $r1, $r2)", Do: "$whole1 && $whole2",
		Test: "TestClaimsOfGrown"},
	{Rule: "a look at other rows is none", In: "Store.answer",
		At: "$now.$known = false", Nth: "2/2", Do: "return nil, far, false, errNotFound",
		Test: "TestReadWhileItGrows"},
}
