package original

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each. The explorer must notice, or the test that is named.
var mutants = []teeth.Mutant{
	// Reads without locks.
	{Rule: "a header that is torn is none", In: "format.readCopy",
		At: "le.Uint32($c) != checksum($*what) || $*long", Do: "lower > f.keyBytes || upper > f.keyBytes",
		Test: "TestTornAcrossSplit"},
	{Rule: "a slot that is torn is not believed", In: "leaf.whole",
		At: "le.Uint32($s) == $l.$f.slotSum($s, $l.$r)", Do: "true"},
	{Rule: "a slot that is newer than the header sends the reader back", In: "leaf.steady",
		At: "(le.Uint64($l.slot($i)) == 0 || $*newer)", Do: "true", Test: "TestTornAcrossSplit"},
	{Rule: "a key is not there when all slots are steady", In: "tree.look",
		At: "return $l.allSteady(), false, nil", Do: "return true, false, nil", Test: "TestTornAcrossSplit"},
	{Rule: "a key beyond the fence is looked for in the sibling", In: "tree.get",
		At: "$whole && $l.beyond($key)", Do: "whole && len(l.upper) > 1000"},
	{Rule: "a block that is read is the one that the slot names", In: "tree.readValue",
		At: "!$ok || $k.$self != $p || $*key", Do: "!ok || bytes.Equal(key, nil)", Test: "TestOthersBlock"},
	// Locks.
	{Rule: "a lock is taken when it is free", In: "locker.contend",
		At: "if $cas.Swapped() { return nil }", Do: "return nil"},
	{Rule: "a lock that was handed over is made the worker's own", In: "locker.takeOver",
		At: "!$cas.Swapped()", Do: "cas == nil", Test: "TestStaleHandOver"},
	{Rule: "a leaf that is changed has the key", In: "Store.lockLeaf",
		At: "!$l.beyond($key)", Nth: "2/2", Do: "true"},
	// Writes.
	{Rule: "the value's word goes first where the kind changes", In: "Store.update",
		At: "if $kind == $before { $*whole } else { $*parts }", Do: "s.addSlot(b, &l, slot, key, kind, word)",
		Test: "TestTornWrites"},
	{Rule: "a block is written in front of what names it", In: "Store.insert",
		At: "$word, $err = $s.addBlock($b, &$l, 0, $key, $value)",
		Do: "word, err = s.addBlock(s.ep.Batch(), &l, 0, key, value)"},
	{Rule: "a value that is deleted is claimed first", In: "Store.remove",
		At: "$l.kind($slot) == slotBeside", Do: "false"},
	{Rule: "a block that is deleted has no job left", In: "Store.claim",
		At: "if $err := $s.marked($p); $err != nil { $*fail }", Do: ""},
	{Rule: "a new block keeps its client's name until the old one is free", In: "locker.used",
		At: "$s.later(job{a: &$s.$blocks, take: $f.$replaces, mark: $f.$block})",
		Do: "k.later(job{a: &k.blocks, mark: f.block}); k.later(job{a: &k.blocks, take: f.replaces})"},
	{Rule: "a block that is used again has another generation", In: "pointer.next",
		At: "$p.generation()+1", Do: "p.generation()"},
	// Splits.
	{Rule: "the header of a leaf that is split is written before its slots", In: "Store.splitLeaf",
		At: "$b.Write($at.Add(uint64(int($h.version&1)*$s.$header)), $head)",
		Do: "defer b.Write(at.Add(uint64(int(h.version&1)*s.header)), head)", Test: "TestTornWrites"},
	{Rule: "a split writes its header to the other copy", In: "Store.splitLeaf",
		At: "int($h.version&1)*$s.$header", Do: "int(l.version&1)*s.header", Test: "TestTornWrites"},
	{Rule: "a new pair in the slot of one that moved is as of the new header", In: "Store.splitLeaf",
		At: "$s.writeSlot($body[$slot*$s.$slot:], $l.$r, $h.$version, $*pair)",
		Do: "s.writeSlot(body[slot*s.slot:], l.r, l.version, key, kind, word)", Test: "TestTornAcrossSplit"},
	{Rule: "a new node on another memory node is waited for", In: "Store.addTree",
		At: "$p.ref().node() == $left.node()", Do: "p != 0"},
	{Rule: "a root is replaced if it is still the root", In: "Store.raise",
		At: "!$swapped", Do: "!swapped && sep.level == 0"},
	{Rule: "a parent gets the separator", In: "Store.adoptInto",
		At: "$s.$entries = slices.Insert($s.$entries, $at, entry{$*what})", Do: "_ = at", Test: "TestTree"},
	// Scans.
	{Rule: "a scan takes a leaf that begins where the one before ends", In: "scan.scanAhead",
		At: "$ok && !$l.has($c.$from)", Do: "false", Test: "TestScans"},
	{Rule: "a scan takes a leaf whose slots are steady", In: "scan.scanAhead",
		At: "!$ok || !$l.allSteady()", Do: "!ok", Test: "TestScans"},
	{Rule: "a value that a scan yields is its key's", In: "scan.scanned",
		At: "$ok && $k.$self == pointer($l.value($slot)) && $*key", Do: "ok", Test: "TestOthersBlock"},
	{Rule: "a block that a job takes is not grabbed, too", In: "memory.grab",
		At: "$w.client() == 0 && !$m.takes($a, $q)", Do: "w.client() == 0", Test: "TestFreedForIt"},
	// What failures leave.
	{Rule: "an INSERT that took effect is not run again", In: "Store.write",
		At: "$err != nil && !$s.unresolved.open && !errors.Is($err, client.ErrUncertain) && $s.rejoin($err)",
		Do: "err != nil && !s.unresolved.open && s.rejoin(err)", Test: "TestSeparatorFails"},
	{Rule: "nothing is locked behind a release that is to be settled", In: "Store.insert",
		At: "if $err := $s.unlock(); $err != nil { $*fail }", Do: "_ = s.unlock()", Test: "TestReleaseFails"},
	{Rule: "a separator that took effect does not count as the INSERT", In: "Store.write",
		At: "$done = $done && $*own", Do: "_ = did", Test: "TestAdoptFails"},
	{Rule: "a release of settle's own does not say that the write took effect", In: "locker.trySettle",
		At: "$d.left != nil", Do: "false", Test: "TestSettledTwice"},
	{Rule: "a lock that was handed over in vain is the next one's in line", In: "LocalLocks.Leave",
		At: "$l.first = $w.next", Do: "l.first, l.word = w.next, 0", Test: "TestHandedOverInVain"},
	{Rule: "a worker that leaves releases what was handed over in vain", In: "Store.tryLeave",
		At: "if $err := $s.releaseUnclaimed(); $err != nil { $*fail }", Do: "", Test: "TestHandedOverInVain"},
	{Rule: "a worker that gives up releases what it is handed meanwhile", In: "locker.lock",
		At: "_ = $k.releaseUnclaimed()", Do: "", Test: "TestHandedOverInVain"},
	{Rule: "a worker that was to take a lock over releases it behind its failure", In: "locker.settle",
		At: "_ = $k.releaseUnclaimed()", Do: "", Test: "TestHandedOverInVain"},
	{Rule: "a release of a lock that was handed over is waited for", In: "locker.releaseUnclaimed",
		At: "$k.landed(&$k.releasing)", Do: "error(nil)", Test: "TestHangingRelease"},
	// Recovery.
	{Rule: "a recovery releases locks", In: "Recoverer.Recover",
		At: "$err = recovery{s}.recoverLocks($c)", Do: "err = nil"},
	{Rule: "a recovery mends what was half written", In: "recovery.recoverLock",
		At: "$s.mend($m, $p, $r, $w)", Do: "error(map[bool]error{}[p == nil])", Test: "TestTornWrites"},
	{Rule: "a torn slot of an INSERT is free", In: "locker.mend",
		At: "$kind = slotFree", Nth: "1/2", Do: "", Test: "TestTornWrites"},
	{Rule: "a torn slot of an UPDATE becomes what the lock says", In: "locker.mend",
		At: "$kind = $w.kind()", Do: "", Test: "TestTornWrites"},
	{Rule: "a torn internal node is written anew", In: "locker.mend",
		At: "$s.bodyWhole($p, $r, &$h)", Do: "true", Test: "TestTornWrites"},
	{Rule: "a recovery finishes a split", In: "recovery.recoverObjects",
		At: "$a == &$s.$trees", Do: "a == nil"},
	{Rule: "a recovery frees what a dead client's block has replaced", In: "recovery.finishBlock",
		At: "_, $err = $s.retire($*what)", Do: ""},
}

var suite = teeth.Suite{Test: "TestExplore", Env: []string{"FARKV_SEEDS=1500"}}

func TestMutants(t *testing.T) { suite.Run(t, mutants) }
