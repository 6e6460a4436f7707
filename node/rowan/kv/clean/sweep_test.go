package clean

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/kv/worker"
	"github.com/farkv/farkv/node/rowan/shards"
)

// slow is a cleaner that copies what it has looked up later.
type slow struct {
	*cleaner
	seg  rowan.Segment
	has  bool
	left int // steps until it does
}

func (s *slow) goOn(left int) error {
	if !s.has {
		s.s.Quiet.Pass(s.reader, s.s.Quiet.Last())
		if s.seg, _, s.has = s.s.Space.Pick(100); !s.has {
			return s.free()
		}
		s.batch, s.group, s.left = s.ep.Batch(), s.group[:0], left
		return s.s.Table.Scan(s.ep, s.seg, s.scratch, s.move)
	}
	if s.left--; s.left > 0 {
		return nil
	}
	s.has = false
	if err := s.flush(); err != nil {
		return err
	}
	s.batch.Release()
	s.waiting = append(s.waiting, leaving{s.seg, s.s.Quiet.Ask()})
	return s.free()
}

// TestSweep: a tombstone is dropped when no PUT of its key is in memory, and not before; in the end
// each is.
func TestSweep(t *testing.T) {
	b, _ := kvtest.New(t, 1, kv.Rowan, worker.New)
	b.Server.Opt.Tombs, b.Server.Opt.FullAfter = 1, 0
	c, other := newCleaner(b.Server, b.Endpoint, 0), slow{cleaner: newCleaner(b.Server, b.Endpoint, 1)}
	scratch := make([]byte, b.Server.Table.SegmentBytes())
	there, deleted := map[string]bool{}, 0
	// check looks for what would be back behind a crash.
	check := func() {
		t.Helper()
		tombs, puts := map[string]bool{}, map[string]bool{}
		for _, seg := range b.Server.Table.Held() {
			err := b.Server.Table.Peek(b.Endpoint, seg, scratch, func(kind uint8, data []byte, at rdma.Addr) {
				r, ok := kv.ParseRecord(data)
				_, named := b.Server.Shards[r.Shard].Naming(kv.Hash(r.Key), at.Offset())
				switch {
				case !ok:
					t.Fatalf("the entry at %s is no record", at)
				case kind == kv.Put:
					puts[string(r.Key)] = true
				case named:
					tombs[string(r.Key)] = true
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for key := range puts {
			if !there[key] && !tombs[key] {
				t.Fatalf("%s is deleted, has a PUT in memory, and no tombstone", key)
			}
		}
	}
	rng, live := rand.New(rand.NewPCG(1, 2)), []string{}
	for n := range 10_000 {
		if len(live) < rng.IntN(40) {
			key := fmt.Sprint("key-", n)
			b.End(b.BeginWith([]byte(key), kv.ProcInsert, strings.Repeat("x", rng.IntN(200))), kv.StatusOK)
			live, there[key] = append(live, key), true
		} else {
			i := rng.IntN(len(live))
			b.End(b.BeginWith([]byte(live[i]), kv.ProcDelete, ""), kv.StatusOK)
			delete(there, live[i])
			live = slices.Delete(live, i, i+1)
			deleted++
		}
		if t.Failed() {
			return
		}
		if b.Server.Table.Free() > 12 && n%16 > 0 {
			continue // much changes while the sweep looks
		}
		if err := b.Worker.GoOn(); err != nil { // it passes questions
			t.Fatal(err)
		}
		b.Server.Quiet.Pass(b.Server.Opt.ReceiverReader(), b.Server.Quiet.Last())
		b.Server.Quiet.Pass(b.Server.Opt.ExchangerReader(), b.Server.Quiet.Last())
		if _, err := c.goOn(); err != nil {
			t.Fatal(err)
		}
		if err := other.goOn(rng.IntN(30)); err != nil {
			t.Fatal(err)
		}
		check()
	}
	stats := b.Server.Stats()
	t.Logf("of %d keys that were deleted, %+v", deleted, stats)
	if stats.Tombs > deleted/4 {
		t.Errorf("of %d keys that were deleted %d have tombstones", deleted, stats.Tombs)
	}
	if other.has {
		other.batch.Release()
	}
}

// TestSweepWaits: a sweep looks at no segment before all readers have passed what they had in hand,
// cleaners with their copies, too.
func TestSweepWaits(t *testing.T) {
	b, _ := kvtest.New(t, 1, kv.Rowan, worker.New)
	b.End(b.Begin(kv.ProcInsert, "value"), kv.StatusOK)
	b.Server.Opt.Tombs = 0
	w := newSweep(b.Server, b.Endpoint, make([]byte, b.Server.Table.SegmentBytes()))
	w.begin()
	if n := len(b.Server.Quiet.Passed); n != b.Server.Opt.Workers+b.Server.Opt.Cleaners+2 {
		t.Fatalf("%d readers are asked, want workers, cleaners, the exchanger, and the task that receives", n)
	}
	for reader := range b.Server.Quiet.Passed {
		if swept, err := w.step(true); swept || err != nil || len(w.held) > 0 {
			t.Errorf("a sweep looks before reader %d has passed, %v", reader, err)
		}
		b.Server.Quiet.Pass(reader, b.Server.Quiet.Last())
	}
	if _, err := w.step(true); err != nil || len(w.held) == 0 {
		t.Errorf("a sweep does not look when all have passed, %v", err)
	}
}

// TestCopiesKeepTerms: a copy that a cleaner makes says in which term its entry came to the server.
func TestCopiesKeepTerms(t *testing.T) {
	b, _ := kvtest.New(t, 1, kv.Rowan, worker.New)
	b.End(b.Begin(kv.ProcInsert, "value"), kv.StatusOK)
	c := newCleaner(b.Server, b.Endpoint, 0)
	terms := func(f func(*rowan.Entry) error) (all []uint64) {
		for _, seg := range b.Server.Table.Left() {
			err := b.Server.Table.Scan(b.Endpoint, seg, c.scratch, func(e *rowan.Entry) error {
				all = append(all, kv.TermOf(e))
				return f(e)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	c.batch = b.Endpoint.Batch()
	terms(func(e *rowan.Entry) error {
		e.Stamp = 7<<32 | e.Stamp&(1<<32-1)
		return c.move(e)
	})
	if err := c.flush(); err != nil {
		t.Fatal(err)
	}
	c.batch.Release()
	if got := terms(func(*rowan.Entry) error { return nil }); len(got) != 2 || got[1] != 7 {
		t.Errorf("entries of terms %d, want a copy of term 7", got)
	}
}

// TestSweepSpares: no tombstone is dropped of a shard of which older PUTs may be on their way:
// while it is copied to the server, or migrates to it, and before the server has what others give
// it in a term.
func TestSweepSpares(t *testing.T) {
	b, _ := kvtest.New(t, 1, kv.Rowan, worker.New)
	b.End(b.Begin(kv.ProcInsert, "value"), kv.StatusOK)
	b.End(b.Begin(kv.ProcDelete, ""), kv.StatusOK)
	first := b.Server.Known.Last().Config
	shard, seg := first.Find(kv.Hash(b.Key())), b.Server.Table.Left()[0]
	w := newSweep(b.Server, b.Endpoint, make([]byte, b.Server.Table.SegmentBytes()))
	drop := func(term uint64, s shards.Shard, settled bool) uint64 {
		t.Helper()
		c := *first
		c.Term, c.Shards = term, slices.Clone(c.Shards)
		c.Shards[shard] = s
		b.Server.Known.Adopt(state.NewTerm(&c, 0))
		if settled {
			b.Server.Known.Settle(term)
		}
		b.Server.Space.Offer([]rowan.Segment{seg})
		if err := w.drop(seg); err != nil {
			t.Fatal(err)
		}
		b.Server.Space.Take(seg)
		return b.Server.Stats().Dropped
	}
	for i, s := range []shards.Shard{
		{Primary: 1, Source: shards.None, Copying: []int{0}},
		{Primary: 0, Source: 1},
	} {
		if n := drop(uint64(2+i), s, true); n != 0 {
			t.Errorf("%d tombstones are dropped with %+v", n, s)
		}
	}
	backup := shards.Shard{Primary: 1, Source: shards.None, Backups: []int{0}}
	if n := drop(4, backup, false); n != 0 {
		t.Errorf("%d tombstones are dropped before others have given what they have", n)
	}
	if n := drop(4, backup, true); n != 1 {
		t.Errorf("%d tombstones are dropped of a complete replica, want 1", n)
	}
}
