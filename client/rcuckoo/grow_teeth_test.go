package rcuckoo

import "github.com/farkv/farkv/workloads/check/teeth"

// growing are the rules of tables that grow.
var growing = []teeth.Mutant{
	{Rule: "a row that was not made is no place", File: "search.go",
		Old: "r != nil && l.belongs(id, segment, r) {", New: "r != nil {", Test: "TestNotMade$"},
	{Rule: "a new row is written ahead of the old one", File: "grow.go",
		Old: "	s.changes[n] = change{kind: filling, row: s.child(id, level), slots: moving}\n	s.changes[n+1] = change{",
		New: "	s.changes[n+1] = change{kind: filling, row: s.child(id, level), slots: moving}\n	s.changes[n] = change{", Test: "TestEveryPrefixGrowing$"},
	{Rule: "who misses a key looks at the rows' levels", File: "read.go",
		Old: "now.known && s.Levels > 0 &&", New: "now.known && s.Levels > 1<<30 &&", Test: "TestReadWhileItGrows$"},
	{Rule: "what is changed is found by the rows' levels", File: "modify.go",
		Old: "	if err := s.descend(at); err != nil {", New: "	if err := error(nil); err != nil {", Test: "TestGrow$"},
	{Rule: "rows are divided under their locks", File: "grow.go",
		Old: "		s.wantRow(id)", New: "		s.wantRow(from)", Test: "TestExploreGrowing$"},
	{Rule: "what moves is the key's own segment", File: "search.go",
		Old: "	return p.other(number), p.bits,", New: "	return p.other(number), 0,", Test: "TestGrow$"},
	{Rule: "a division is no INSERT", File: "grow.go",
		Old: "	s.locks.sent = false", New: "	s.locks.sent = true", Test: "TestDivisionIsNoInsert$"},
	{Rule: "memory is there before its level", File: "grow.go",
		Old: "s.backLevel(shard, level+1)", New: "s.backLevel(shard, level)", Test: "TestGrow$"},
	{Rule: "a level is begun once", File: "grow.go",
		Old: "uint64(level)<<levelShift, levelMask, next", New: "uint64(level)<<levelShift, 0, next", Test: "TestExploreGrowing$"},
	{Rule: "a division is repaired", File: "redo.go",
		Old: "	if c.kind == filling {\n		clear(r)\n	}", New: "	if c.kind == filling {\n		return\n	}", Test: "TestEveryPrefixGrowing$"},
	{Rule: "a redo mends no row that a later one tore", File: "redo.go",
		Old: "v > version || whole && v == version {", New: "whole && v >= version {", Test: "TestRedoOfLongAgo$"},
	{Rule: "what is in a hand is looked for by the rows' levels", File: "hand.go",
		Old: "whole1 && whole2 && x.follow(&u.at, r1, r2)", New: "whole1 && whole2", Test: "TestHandOfGrown$"},
	{Rule: "a view's contradictions are read again", File: "search.go",
		Old: "			return max(id, next), nil", New: "			return min(id, next), r", Test: "TestContradiction$"},
	{Rule: "a look at other rows is none", File: "read.go",
		Old: "		s.levels.doubts[at.shard] = true\n		now.known = false", New: "		s.levels.doubts[at.shard] = true\n		return nil, far, false, errNotFound", Test: "TestReadWhileItGrows$"},
}
