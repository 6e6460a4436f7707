package sherman

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule of the tree each. The explorer must notice, or the test that is named.
var mutants = []teeth.Mutant{
	// The way to a leaf.
	{Rule: "a leaf that is read has the key", In: "Store.onLeaf",
		At: "!$ok || $l.Side($s.$key) != 0", Do: "!ok"},
	{Rule: "a leaf that is changed has the key", In: "Store.lockLeaf",
		At: "!$ok || $l.Side($s.$key) != 0", Do: "!ok"},
	{Rule: "an internal node on the way has the key", In: "Store.walk",
		At: "$h.Side($s.$key) != 0 || $*others", Do: "h.Level > mostHeight", Test: "TestTree"},
	{Rule: "an outdated way is forgotten", In: "Store.dropWay",
		At: "$s.$height > 0", Do: "s.height < 0"},
	{Rule: "a root that was a leaf may be none", In: "Store.dropWay",
		At: "$s.$flat = false", Do: ""},
	// Splits.
	{Rule: "a parent has all of its children", In: "Store.divide",
		At: "return $s.adopt($tx, $level+1, btree.Entry{Key: $separator, Child: $right})", Do: "return nil"},
	{Rule: "a node's sibling is the next one", In: "Store.divide",
		At: "btree.SetSibling($s.$node, $right)", Do: ""},
	{Rule: "the left half ends at the separator", In: "Store.splitLeaf",
		At: "$left.Upper, $left.Last = $separator, false", Do: ""},
	{Rule: "the right half begins at the separator", In: "Store.adopt",
		At: "$right.Lower, $right.Leftmost = $separator, $middle.Child", Do: "right.Leftmost = middle.Child",
		Test: "TestTree"},
	{Rule: "the child of the middle entry is not lost", In: "Store.adopt",
		At: "$right.Lower, $right.Leftmost = $separator, $middle.Child", Do: "right.Lower = separator",
		Test: "TestTree"},
	{Rule: "a parent is the one that has the child", In: "Store.internal",
		At: "!$ok || $n.Level != $level || $n.Side($s.$key) != 0 || $*child", Do: "!ok", Test: "TestOldWay"},
	// Merges.
	{Rule: "a merged node has the keys of both", In: "joined",
		At: "$a.Upper, $a.Last, $a.Sibling = $b.Upper, $b.Last, $b.Sibling", Do: "a.Sibling = b.Sibling"},
	{Rule: "a merged node has the sibling of the right one", In: "joined",
		At: "$a.Upper, $a.Last, $a.Sibling = $b.Upper, $b.Last, $b.Sibling", Do: "a.Upper, a.Last = b.Upper, b.Last"},
	{Rule: "the right one of two that are merged is freed", In: "Store.merge",
		At: "if $err := $tx.free($one); $err != nil { $*fail }", Nth: "1/2", Do: ""},
	{Rule: "a root with one child frees it", In: "Store.merge",
		At: "if $err := $tx.free($one); $err != nil { $*fail }", Nth: "2/2", Do: ""},
	{Rule: "a parent loses the separator of what is merged", In: "Store.merge",
		At: "slices.Delete($*all, $x, $x+1)", Do: "slices.Delete(parent.Entries(s.entries[:0]), x, x)"},
	{Rule: "empty leaves are merged", In: "Store.few",
		At: "$pairs == 0 || $*quarter", Do: "false", Test: "TestTree"},
	{Rule: "a merge of unknown outcome is told", In: "Store.shrink",
		At: "errors.Is($err, client.ErrUncertain)", Do: "errors.Is(nil, client.ErrUncertain)",
		Test: "TestUncertainMerge"},
	{Rule: "a merge that failed leaves no lock to an idle worker", In: "Store.shrink",
		At: "$s.objects.settle() == nil", Do: "true", Test: "TestLockedMerge"},
	// Pairs.
	{Rule: "a key that is there is not inserted", In: "Store.insert",
		At: "$l.Find($s.$key) >= 0", Do: "false"},
	{Rule: "a value beside the leaf is replaced there", In: "Store.update",
		At: "$l.Pair($slot).Beside != 0", Do: "false"},
	{Rule: "a value that is read is the key's", In: "Store.onValue",
		At: "$ok && string($key) == string($s.$key)", Do: "ok && key != nil", Test: "TestOthersValue"},
	{Rule: "a value that is replaced is the key's", In: "Store.replace",
		At: "!$ok || string($key) != string($s.$key)", Do: "!ok || key == nil", Test: "TestOthersValue"},
	{Rule: "a DELETE frees the value beside the leaf", In: "Store.remove",
		At: "$at != 0", Do: "at == 1<<60"},
	// Scans.
	{Rule: "a leaf that a scan read ahead begins where the one before ends", In: "Store.scanAhead",
		At: "!$ok || !$c.$there[$i] || $l.Side($c.$from) != 0", Do: "!ok || !c.there[i]", Test: "TestScans"},
	{Rule: "a scan goes on in a leaf whose pairs it has not all seen", In: "Store.scanLeaf",
		At: "$end == len($c.$pairs)", Do: "true", Test: "TestScanOfDeleted"},
	{Rule: "a value that a scan yields is its key's", In: "scan.open",
		At: "!$ok || !bytes.Equal($key, $c.$pairs[$c.$of[$i]].Key)", Do: "!ok || key == nil", Test: "TestOthersValue"},
	{Rule: "a scan leaves out what is below its start", In: "Store.scanLeaf",
		At: "$first < len($c.$pairs) && $*below", Do: "false", Test: "TestScans"},
	// Recovery, and what looks at it.
	{Rule: "a recovery gives an identity back that owns nothing", In: "rtxRecoverer.Recover",
		At: "return $m.$w.Recover($c)", Do: "return nil"},
	// What is different over package dtx.
	{Rule: "dtx: a value has room for the longest that may replace it", In: "dtxObjects.create",
		At: "$r, $err := $tx.NewRoom($*how)", Do: "$r, $err := $tx.New(data)"},
	{Rule: "dtx: a log has room for a split of all levels", In: "dtxLog",
		At: "$mostWrites-1", Do: "2", Test: "TestCrashes"},
	{Rule: "an INSERT of a key that is there says so in a full pool, too", In: "Store.Insert",
		At: "errors.Is($err, client.ErrFull) && $s.look() == nil", Do: "errors.Is(err, client.ErrFull) && err == nil",
		Test: "TestFull"},
	{Rule: "a merge in which others are in the way gives up", In: "Store.merge",
		At: "$s.$ep.Now() > $s.$mergeUntil", Do: "false", Test: "TestMergeGivesUp"},
	{Rule: "dtx: each value that a pair may have has a size", In: "dtxSizes",
		At: "$p.besideBytes($p.ValueBytes)", Do: "p.besideBytes(p.ValueBytes / 4)"},
	{Rule: "dtx: a tree in which a commit is not finished is not judged", In: "dtxObjects.check",
		At: "$u.Waiting > 0", Nth: "2/2", Do: "false", Test: "TestDead"},
	{Rule: "dtx: chunks of a client that there is not are damage", In: "dtxObjects.check",
		At: "$u.Lost > 0", Do: "u.Lost < 0", Test: "TestLostChunks"},
}

var suite = teeth.Suite{Test: "TestExplore", Env: []string{"FARKV_SEEDS=1500"}}

func TestMutants(t *testing.T) { suite.Run(t, mutants) }
