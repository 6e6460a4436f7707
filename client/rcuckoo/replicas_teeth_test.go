package rcuckoo

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// unlike are the rules of replication, each broken. The explorer must notice, or the test that is named.
var unlike = []teeth.Mutant{
	{Rule: "locks are let go of, and the leader's rows are written, when all backups are whole", File: "replicas.go",
		Old: "	if err := s.do(stepWriteBackups, b); err != nil {\n		return s.lost(", New: "	if err := s.ep.Post(b); err != nil {\n		return s.lost("},
	{Rule: "backups get the value of an extent", File: "lock.go",
		Old: "if content != nil && s.Replicas > 1 {", New: "if content != nil && s.Replicas > 8 {"},
	{Rule: "all copies are asked for a redo", File: "replicas.go",
		Old: "	for _, at := range s.copies[shard] {\n		err = s.within(", New: "	for _, at := range s.copies[shard][:1] {\n		err = s.within(", Test: "TestRecovered$"},
	{Rule: "whoever brings an operation to its end writes its redo to each copy", File: "replicas.go",
		Old: "			if s.Replicas > 1 {\n				if err := s.copyRedo", New: "			if s.Replicas > 8 {\n				if err := s.copyRedo"},
	{Rule: "operations are brought to their ends on all copies", File: "replicas.go",
		Old: "range slices.Backward(s.copies[shard]) {", New: "range s.copies[shard][:1] {", Test: "TestRecovered$"},
	{Rule: "a takeover brings to their ends what has begun", File: "takeover.go",
		Old: "whole && seq > found[i].seq {", New: "whole && seq > found[i].seq+1<<60 {"},
	{Rule: "a takeover tells clients what has begun", File: "takeover.go",
		Old: "r.seq<<1|idleBit)", New: "idleBit)"},
	{Rule: "a takeover makes marks of what rows name", File: "takeover.go",
		Old: "if stamp, ok := named[extent]; ok {", New: "if stamp, ok := named[extent]; ok && stamp == 0 {", Test: "TestTakeover$"},
	{Rule: "the role is written last", File: "takeover.go",
		Old: "	if err := s.finishBegun(shard); err != nil {", New: "	if err := s.makeLeader(shard); err != nil {\n		return err\n	}\n	if err := s.finishBegun(shard); err != nil {"},
	{Rule: "stock is forgotten when somebody else leads", File: "replicas.go",
		Old: "		s.extents.forget(shard)\n", New: "", Test: "TestTakeover$"},
	{Rule: "the extent of the operation at work is stock, too", File: "replicas.go",
		Old: "		if s.takenIn == shard {", New: "		if s.takenIn < 0 {", Test: "TestMidst$"},
	{Rule: "nobody changes anything under a busy view", File: "replicas.go",
		Old: "return s.Replicas > 1 && s.view.Busy }", New: "return s.Replicas > 8 && s.view.Busy }"},
	{Rule: "nobody reads what has not taken over", File: "replicas.go",
		Old: "	if s.takeoverPending[shard] {", New: "	if s.takeoverPending[shard] && shard < 0 {", Test: "TestBusyView$"},
	{Rule: "who waits for backups shows that he is alive", File: "replicas.go",
		Old: "		if err := pulse(); err != nil {", New: "		if err := error(nil); err != nil {", Test: "TestSlowBackup$"},
	{Rule: "leases are the leader's", File: "repair.go",
		Old: "s.within(m.shard, s.copies[m.shard][0], func() error { return s.beat(m) })", New: "s.beat(m)", Test: "TestSlowBackup$"},
	{Rule: "a spare gets the values", File: "restore.go",
		Old: "le.Uint64(b.Op(i).Buf) != 0 {", New: "le.Uint64(b.Op(i).Buf) == 1 {", Test: "TestTakeover$"},
}

var unlikely = teeth.Suite{Test: "TestExploreReplicas$", Env: []string{"FARKV_SEEDS=2500"}}

func TestMutantsReplicas(t *testing.T) { teeth.Check(t, unlike) }

func TestTeethReplicas(t *testing.T) { unlikely.Run(t, unlike) }
