package extendible

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// fill inserts until the pool is full, and returns how many pairs it has then.
func fill(t *testing.T, s *Store, from int) int {
	t.Helper()
	for i := from; ; i++ {
		err := s.Insert(key(i), key(i))
		if errors.Is(err, client.ErrFull) && !errors.Is(err, client.ErrUncertain) {
			return i
		}
		if err != nil {
			t.Fatalf("insert %d: %v", i, err)
		}
	}
}

// TestFull: a pool that has no memory for pairs is read, and pairs are deleted, also by clients
// that were not there before; then others are inserted, by whichever client. A client that is idle
// keeps little of what is free.
func TestFull(t *testing.T) {
	for _, format := range Formats {
		f := memPool(t, 2, format, Params{Groups: 16, PairBytes: 64, Depth: 12, Clients: 8, Chunks: 20,
			Timeout: 20 * time.Second})
		idle := storeOn(t, f)
		n := fill(t, idle, 0)
		if all := 2 * 20 * 32; n < all*9/10 { // of 32 blocks to a chunk
			t.Errorf("%s: it is full with %d pairs of %d", format, n, all)
		}
		s := storeOn(t, f)
		for i := range n {
			if v, err := s.Get(key(i)); err != nil || string(v) != string(key(i)) {
				t.Fatalf("%s: get %d of %d: %q, %v", format, i, n, v, err)
			}
		}
		if err := s.Insert(key(n), nil); !errors.Is(err, client.ErrFull) {
			t.Errorf("%s: insert into a full pool: %v", format, err)
		}
		for i := range n {
			must(t, s.Delete(key(i)))
		}
		more := fill(t, s, 0)
		if more < n/2 {
			t.Errorf("%s: behind as many DELETEs it takes %d pairs of %d", format, more, n)
		}
		must(t, idle.Close())
		more = fill(t, s, more)
		if more < n*9/10 {
			t.Errorf("%s: when the other client has left it takes %d pairs of %d", format, more, n)
		}
		must(t, s.Close())
		sound(t, f, uint64(more))
	}
}

// TestNoSubtable: when no memory is left for a subtable, only INSERTs that find
// no slot end in ErrFull.
func TestNoSubtable(t *testing.T) {
	for _, format := range Formats {
		// as deep as it becomes
		p := Params{Groups: 2, PairBytes: 1000, Depth: 3, Clients: 8, Timeout: 20 * time.Second}
		f := memPool(t, 2, format, p)
		s := storeOn(t, f)
		n := fill(t, s, 0)
		for i := range n {
			_, err := s.Get(key(i))
			must(t, err)
			must(t, s.Update(key(i), key(i+1)))
		}
		for i := range n {
			must(t, s.Delete(key(i)))
		}
		if more := fill(t, s, 0); more < n/2 {
			t.Errorf("%s: behind as many DELETEs it takes %d pairs of %d", format, more, n)
		}
		must(t, s.Close())
	}
}

// TestDeadRehash: a client dies in a rehash. With the original protocol others
// wait until it is recovered, and their errors name it. With rTX they go on after
// a lease.
func TestDeadRehash(t *testing.T) {
	for _, format := range Formats {
		s := sim.New(sim.Options{Seed: 1, Nodes: 2, Memory: 2 << 20, Clients: 16, Handler: node.Serve})
		defer s.Close()
		must(t, Make(s, format, Params{Groups: 4, PairBytes: 64, Depth: 8, Clients: 16,
			Timeout: 100 * time.Millisecond}))
		const keys = 40
		var failed error
		work := func(name string, f func(st *Store) error) *sim.Worker {
			return s.Go(name, func(ep rdma.Endpoint) {
				st, err := Open(ep, Options{})
				if err == nil {
					err = errors.Join(f(st), st.Close())
				}
				failed = errors.Join(failed, err)
			})
		}
		work("founder", func(st *Store) (err error) {
			for i := range keys {
				err = errors.Join(err, st.Insert(key(i), key(i)))
			}
			return err
		})
		must(t, errors.Join(s.Run(), failed))
		victim := work("victim", func(st *Store) error { return st.split() })
		s.CrashAt(victim, 60) // in the midst of it
		must(t, s.Run())
		var blocked error
		longest := time.Duration(0)
		work("other", func(st *Store) error {
			for i := range keys {
				began := st.ep.Now()
				if _, err := st.Get(key(i)); err != nil {
					blocked = err
				}
				longest = max(longest, st.ep.Now()-began)
			}
			return nil
		})
		must(t, errors.Join(s.Run(), failed))
		if !victim.Crashed() {
			t.Fatalf("%s: the rehash took fewer verbs", format)
		}
		holder := fmt.Sprintf("client %d, which", victim.Client())
		text := fmt.Sprint(blocked)
		switch named := strings.Contains(text, holder) && strings.Contains(text, "farkv recover"); {
		case format == RTX && (blocked != nil || longest > DefaultLease+2*time.Millisecond):
			t.Errorf("rTX: a GET took %v, and %v", longest, blocked)
		case format == DTX && !errors.Is(blocked, rdma.ErrTimeout):
			t.Errorf("DTX: a GET ends in %v", blocked)
		case format == Locked && (!errors.Is(blocked, rdma.ErrTimeout) || !named):
			t.Errorf("the original: a GET ends in %v", blocked)
		}
		work("master", func(st *Store) error {
			for _, dead := range s.Clients() {
				if !dead.Alive {
					m := &Recoverer{st}
					return errors.Join(s.RevokeLife(dead), m.Recover(rdma.View{}, dead.ID), s.Forget(dead))
				}
			}
			return errors.New("no client is dead")
		})
		work("last", func(st *Store) (err error) {
			st.ep.Sleep(50 * time.Millisecond)
			for i := range keys {
				_, failed := st.Get(key(i))
				err = errors.Join(err, failed)
			}
			return err
		})
		must(t, errors.Join(s.Run(), failed))
		sound(t, s, keys)
	}
}

// TestRehashTime: a rehash of the largest default, in the model's time on the papers' testbed,
// blocks no operation for 50 ms.
func TestRehashTime(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time; run without -race")
	}
	const most = 50 * time.Millisecond
	profile, err := sim.LookupProfile("rtx-testbed")
	must(t, err)
	o := profile.Options(1, 2)
	o.Memory, o.Clients, o.Handler = 64<<20, 16, node.Serve
	s := sim.New(o)
	defer s.Close()
	must(t, Make(s, RTX, Params{Groups: mostGroups, PairBytes: 16, Depth: 8, Clients: 16, Timeout: 10 * time.Second}))
	var failed error
	longest, full := time.Duration(0), false
	s.Go("writer", func(ep rdma.Endpoint) {
		st, err := Open(ep, Options{})
		for i := 0; err == nil && st.stats.Splits == 0; i++ {
			began := ep.Now()
			err = st.Insert(key(i), nil)
			longest = max(longest, ep.Now()-began)
		}
		failed, full = errors.Join(failed, err), true
	})
	s.Go("reader", func(ep rdma.Endpoint) {
		st, err := Open(ep, Options{})
		for i := 0; err == nil && !full; i++ {
			began := ep.Now()
			if _, err = st.Get(key(i % 100)); errors.Is(err, client.ErrNotFound) {
				err = nil
			}
			longest = max(longest, ep.Now()-began)
		}
		failed = errors.Join(failed, err)
	})
	must(t, errors.Join(s.Run(), failed))
	if t.Logf("the longest operation took %v", longest); longest > most {
		t.Errorf("an operation took %v, want up to %v", longest, most)
	}
}

// TestDeadRehashTime: a rehash of the largest default takes longer than the lease. While its client
// lives it is not suspected. When that dies in the midst of it others wait for what is left of a
// lease.
func TestDeadRehashTime(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time; run without -race")
	}
	const (
		keys  = 15_000
		drift = time.Millisecond
		dead  = 2 * time.Millisecond // into it
	)
	for _, dies := range []bool{false, true} {
		profile, err := sim.LookupProfile("rtx-testbed")
		must(t, err)
		o := profile.Options(1, 2)
		o.Memory, o.Clients, o.Handler = 64<<20, 16, node.Serve
		s := sim.New(o)
		defer s.Close()
		must(t, Make(s, RTX, Params{Groups: mostGroups, PairBytes: 16, Depth: 8, Clients: 16,
			Timeout: 10 * time.Second, Lease: drift}))
		var failed error
		work := func(name string, f func(st *Store) error) *sim.Worker {
			return s.Go(name, func(ep rdma.Endpoint) {
				st, err := Open(ep, Options{})
				if err == nil {
					err = f(st)
				}
				if !errors.Is(err, rdma.ErrClosed) { // which is what the dead are told in the end
					failed = errors.Join(failed, err)
				}
			})
		}
		work("founder", func(st *Store) (err error) {
			for i := 0; err == nil && i < keys; i++ {
				err = st.Insert(key(i), nil)
			}
			return err
		})
		must(t, errors.Join(s.Run(), failed))
		began, longest, suspected := s.Now(), time.Duration(0), uint64(0)
		splitter := work("splitter", func(st *Store) error { return st.split() })
		if dies {
			s.CrashAfter(splitter, dead)
		}
		work("reader", func(st *Store) (err error) {
			for i := 0; err == nil && s.Now() < began+5*drift; i++ {
				from := s.Now()
				_, err = st.Get(key(i % keys))
				longest = max(longest, s.Now()-from)
			}
			suspected = st.directory.shared.(*objects).w.Stats().Aborted
			return err
		})
		must(t, errors.Join(s.Run(), failed))
		if splitter.Crashed() != dies || (suspected > 0) != dies || !dies && longest < 2*drift ||
			dies && longest > dead+2*drift {
			t.Errorf("a client that splits a subtable dies: %v; a GET takes %v, and suspects %d", dies, longest,
				suspected)
		}
	}
}

// TestUnswept: the buckets of an INSERT are full of keys that have left with a
// rehash, and the client of that rehash did not sweep them. The INSERT takes a
// slot of such a key, and splits nothing.
func TestUnswept(t *testing.T) {
	for _, format := range []string{RTX, DTX} { // the original moves slots
		f := memPool(t, 1, format, Params{Groups: 2, PairBytes: 64, Depth: 8, Clients: 8, Timeout: 20 * time.Second})
		s := storeOn(t, f)
		n := 0
		for ; s.stats.Splits == 0; n++ {
			must(t, s.Insert(key(n), key(n)))
		}
		in, err := s.directory.find(s.op.hash)
		must(t, err)
		place, err := s.memory.takeSubtable(0)
		must(t, err)
		s.trips.Begin()
		r := rehash{s: s, from: in, to: place}
		done, err := s.directory.shared.split(&r) // and no sweep
		if !done || err != nil || len(r.moves) == 0 {
			t.Fatalf("%s: %t, %v, %d move", format, done, err, len(r.moves))
		}
		other := storeOn(t, f)
		for i := n; other.stats.Swept == 0 && other.stats.Splits == 0; i++ {
			if race.Suffix(race.Hash(key(i)), in.depth+1) == in.suffix {
				must(t, other.Insert(key(i), key(i)))
				n++
			}
		}
		if other.stats.Splits > 0 || len(other.memory.spare) > 0 { // which is what a rehash in vain leaves
			t.Errorf("%s: it swept %d slots, split %d subtables, and tried to split %d", format, other.stats.Swept,
				other.stats.Splits, len(other.memory.spare))
		}
		must(t, errors.Join(s.Close(), other.Close()))
		sound(t, f, uint64(n))
	}
}

// TestLostRehash: a client that finds that another one has split a subtable takes no memory for it,
// so that INSERTs find a slot until the subtables have used all of it.
func TestLostRehash(t *testing.T) {
	for _, format := range Formats {
		f := memPool(t, 2, format, Params{Groups: 2, PairBytes: 64, Depth: 8, Clients: 8, Timeout: 20 * time.Second})
		s, loser := storeOn(t, f), storeOn(t, f)
		must(t, s.Insert(key(0), nil))
		_, err := loser.Get(key(0))
		must(t, err)
		must(t, s.split())
		must(t, loser.split())
		if loser.stats.Splits > 0 || len(loser.memory.spare) > 0 {
			t.Errorf("%s: a client that came too late has split %d subtables, and has memory for %d", format,
				loser.stats.Splits, len(loser.memory.spare))
		}
		must(t, errors.Join(s.Close(), loser.Close()))
		sound(t, f, 1)
	}
}

// TestFailedCallUnderLock: a node does not hand out memory to a client that has the lock of the
// original. The client releases the lock: others split the subtable. One that has given up the call
// leaves its identity to recovery, since the node may hand the memory out yet.
func TestFailedCallUnderLock(t *testing.T) {
	for failed, closes := range map[error]error{rdma.ErrNodeDown: nil, rdma.ErrTimeout: client.ErrUncertain} {
		f := memPool(t, 2, Locked, Params{Groups: 4, PairBytes: 64, Depth: 8, Clients: 8, Timeout: time.Second})
		other := storeOn(t, f)
		must(t, other.Insert(key(1), nil))
		ep, err := f.Open("worker")
		must(t, err)
		s, err := Open(fault.New(ep, fault.Fault{Step: stepClaimChunk, Err: failed}), Options{})
		must(t, err)
		if err := s.split(); !errors.Is(err, failed) || errors.Is(err, client.ErrUncertain) {
			t.Fatalf("it ends in %v", err)
		}
		if must(t, other.split()); other.stats.Splits != 1 {
			t.Errorf("another client has split %d subtables", other.stats.Splits)
		}
		if err := s.Close(); !errors.Is(err, closes) {
			t.Errorf("behind %v it closes with %v", failed, err)
		}
		must(t, other.Close())
	}
}

// TestNoMemoryUnderLock: a client finds no memory for a subtable when it has the lock. It releases
// the lock, and asks no node again. Memory that is given back later makes a subtable.
func TestNoMemoryUnderLock(t *testing.T) {
	for _, format := range Formats {
		f := memPool(t, 2, format, Params{Groups: 2, PairBytes: 1000, Depth: 8, Clients: 8, Timeout: time.Second})
		hoarder, s, other := storeOn(t, f), storeOn(t, f), storeOn(t, f)
		must(t, s.Insert(key(1), nil))
		hoarder.trips.Begin()
		err := error(nil)
		for err == nil {
			_, err = hoarder.memory.takeSubtable(0)
		}
		wantFull := func(err error) {
			t.Helper()
			if !errors.Is(err, client.ErrFull) || errors.Is(err, client.ErrUncertain) {
				t.Fatalf("%s: it ends in %v", format, err)
			}
		}
		wantFull(err)
		if must(t, s.split()); !s.memory.bare() || s.stats.Splits > 0 {
			t.Errorf("%s: it has split %d subtables, and goes on asking for memory", format, s.stats.Splits)
		}
		wantFull(s.split())
		must(t, hoarder.Close())
		must(t, other.split()) // which learns that nothing is left that was never used
		must(t, other.split())
		if other.stats.Splits != 1 {
			t.Errorf("%s: it has split %d subtables with memory that was given back", format, other.stats.Splits)
		}
		must(t, errors.Join(s.Close(), other.Close()))
		sound(t, f, 1)
	}
}
