package extendible

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/wait"
)

// TestTornPair: a pair that is damaged is not taken for another one, or for none.
func TestTornPair(t *testing.T) {
	f := memPool(t, 2, RTX, Params{Groups: 64, PairBytes: 200, Depth: 8, Clients: 8, Timeout: 20 * time.Second})
	s := storeOn(t, f)
	must(t, s.Insert(key(1), []byte("a value of some bytes")))
	s.start(key(1))
	a, found, err := s.find()
	if must(t, err); !found {
		t.Fatal("it is not there")
	}
	b := s.ep.Batch()
	b.WriteWord(s.blockAt(s.block(a.word)).Add(pairHeader+8), 7) // in the value
	must(t, s.trips.Do(stepReadPairs, b))
	b.Release()
	for _, err := range []error{s.Update(key(1), nil), s.Delete(key(1)),
		func() error { _, err := s.Get(key(1)); return err }()} {
		if !errors.Is(err, client.ErrDamaged) {
			t.Errorf("it ends in %v", err)
		}
	}
	must(t, s.Close())
	if r, err := Check(f); err != nil || len(r.Damage) != 1 {
		t.Errorf("check finds %v, %v", r.Damage, err)
	}
}

// TestDeleteRecord: a void word of a DELETE that is still in its slot is taken away
// before the delete record is used again.
func TestDeleteRecord(t *testing.T) {
	f := memPool(t, 2, RTX, Params{Groups: 64, PairBytes: 200, Depth: 8, Clients: 8, Timeout: 20 * time.Second})
	s := storeOn(t, f)
	must(t, s.Insert(key(1), nil))
	must(t, s.Insert(key(2), nil))
	must(t, s.Delete(key(1)))
	if _, ok, err := s.trips.Swap(stepClear, s.addrOf(s.removal.at), 0, uint64(s.op.word)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	s.removal.looks = false // as if a rehash had moved it
	must(t, s.Delete(key(2)))
	must(t, s.Close())
	r, err := Check(f)
	must(t, err)
	for _, fact := range r.Facts {
		if fact.Name == slotsLeft && fact.Count > 0 {
			t.Errorf("%d slots have words of former DELETEs", fact.Count)
		}
	}
	sound(t, f, 0)
}

// TestRecoverUnderRehash: a dead client's proposal is taken away even if its key
// may be moving.
func TestRecoverUnderRehash(t *testing.T) {
	f := memPool(t, 2, RTX, Params{Groups: 64, PairBytes: 200, Depth: 8, Clients: 8, Timeout: 20 * time.Second})
	victim, other, master := storeOn(t, f), storeOn(t, f), storeOn(t, f)
	moving := 0
	for ; ; moving++ { // a key that the next rehash moves
		victim.start(key(moving))
		if (subtable{}).moves(victim.op.hash) {
			break
		}
	}
	must(t, victim.startWrite(key(moving), nil))
	victim.op.insert = true
	a, _, err := victim.find()
	must(t, err)
	if ok, _, err := victim.change(stepPropose, a, 0, victim.op.word.as(proposed)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	must(t, f.Revoke(victim.id))
	w := other.directory.shared.(*objects).w
	err = w.Run(func(tx *rtx.Tx) error {
		if err := tx.Lock(other.objects.Root(0)); err != nil {
			return err
		}
		return (&Recoverer{master}).Recover(rdma.View{}, victim.id)
	})
	must(t, err)
	must(t, victim.ep.Close())
	for _, dead := range f.Clients() {
		if dead.ID == victim.id {
			must(t, f.Forget(dead))
		}
	}
	must(t, other.Close())
	must(t, master.Close())
	sound(t, f, 0)
}

// TestDeadProposals: clients have died behind their proposals of one key. An INSERT waits for one
// lease, not for one after the other; also where it finds no empty slot before half of that time is
// over.
func TestDeadProposals(t *testing.T) {
	for _, full := range []bool{false, true} {
		p := Params{Groups: 2, PairBytes: 64, Depth: 1, Clients: 8, Timeout: time.Second}
		f := sim.New(sim.Options{Nodes: 1, Memory: 8 << 20, Clients: p.Clients, Handler: node.Serve})
		t.Cleanup(func() { must(t, f.Close()) })
		must(t, Make(f, RTX, p))
		for range 6 { // some of them in slots in front of the next one's
			x := storeOn(t, f)
			must(t, x.startWrite(key(0), nil))
			x.op.insert = true
			a, _, err := x.find()
			must(t, err)
			if ok, _, err := x.change(stepPropose, a, 0, x.op.word.as(proposed)); !ok || err != nil {
				t.Fatal(ok, err)
			}
			must(t, f.Revoke(x.id))
		}
		insert := func(ep rdma.Endpoint) {
			s, err := Open(ep, Options{})
			must(t, err)
			began := ep.Now()
			must(t, s.Insert(key(0), nil))
			if took := ep.Now() - began; took < s.Lease || took > s.Lease+s.Lease/8 {
				t.Errorf("full: %t: the INSERT took %v, and a lease is %v", full, took, s.Lease)
			}
		}
		f.Go("worker", func(ep rdma.Endpoint) {
			s, err := Open(ep, Options{})
			must(t, err)
			var there [][]byte
			for i := 1; full && i < 250; i++ { // most of them find no slot
				if s.Insert(key(i), nil) == nil {
					there = append(there, key(i))
				}
			}
			f.Go("inserts", insert)
			ep.Sleep(s.Lease / 2)
			for _, k := range there {
				must(t, s.Delete(k))
			}
		})
		must(t, f.Run())
	}
}

// failingOn returns a store of which the first verb of a step fails, with keys that are there.
func failingOn(t *testing.T, f rdma.Fabric, step rdma.Step, with error, keys int) *Store {
	t.Helper()
	ep, err := f.Open("worker")
	must(t, err)
	s, err := Open(fault.New(ep, fault.Fault{Step: step, Err: with}), Options{})
	must(t, err)
	for i := range keys {
		must(t, s.Insert(key(i), key(i)))
	}
	return s
}

// has expects keys with the values that they were inserted with.
func has(t *testing.T, s *Store, keys int) {
	t.Helper()
	for i := range keys {
		if v, err := s.Get(key(i)); err != nil || string(v) != string(key(i)) {
			t.Errorf("get %d: %q, %v", i, v, err)
		}
	}
}

// TestMemoryOfFailedRehash: a rehash of the original fails when an entry names the new subtable. It
// is ended by the next write, and the rehash behind that takes other memory.
func TestMemoryOfFailedRehash(t *testing.T) {
	const keys = 20
	for _, step := range []rdma.Step{stepMoveSlot, stepWriteSubtable} {
		f := memPool(t, 2, Locked, Params{Groups: 4, PairBytes: 64, Depth: 8, Clients: 8, Timeout: time.Second})
		s := failingOn(t, f, step, rdma.ErrNodeDown, keys)
		if err := s.split(); err == nil {
			t.Fatalf("%s fails, and the rehash does not", step)
		}
		must(t, s.Insert(key(keys), key(keys)))
		must(t, s.split())
		has(t, s, keys+1)
		must(t, s.Close())
		sound(t, f, keys+1)
	}
}

// TestUnfinishedRehash: an INSERT that leaves a rehash unfinished, of which other clients meet the
// locks, says that its outcome is unknown, so that its worker is given up. If the worker goes on
// with GETs, these end the rehash.
func TestUnfinishedRehash(t *testing.T) {
	const keys = 20
	for _, c := range []struct {
		format string
		step   rdma.Step
	}{{Locked, stepSwapEntry}, {Locked, stepWriteSubtable}, {Locked, stepMoveSlot}, {DTX, "write the log"},
		{RTX, "decide"}} {
		f := memPool(t, 2, c.format, Params{Groups: 4, PairBytes: 64, Depth: 8, Clients: 8, Timeout: time.Second})
		s := failingOn(t, f, c.step, rdma.ErrTimeout, keys)
		s.splits = func(int) bool { return true }
		if err := s.Insert(key(keys), nil); !errors.Is(err, client.ErrUncertain) {
			t.Errorf("%s: an INSERT where %q fails ends in %v", c.format, c.step, err)
		}
		s.splits = nil
		has(t, s, keys)
		must(t, s.Insert(key(keys), key(keys)))
		has(t, s, keys+1)
		must(t, s.Close())
		sound(t, f, keys+1)
	}
}

// TestRehashOfDeadNode: a worker has left a rehash unfinished when a node dies, so that it cannot
// end the rehash. Its GET of a key that the rehash moves ends within its timeout, and it leaves:
// only then it is fenced off and recovered.
func TestRehashOfDeadNode(t *testing.T) {
	f := memPool(t, 2, Locked, Params{Groups: 4, PairBytes: 64, Depth: 8, Clients: 8, Timeout: time.Second})
	const keys = 20
	s := failingOn(t, f, stepMoveSlot, rdma.ErrNodeDown, keys)
	if err := s.split(); !errors.Is(err, client.ErrUncertain) {
		t.Fatalf("the rehash ends in %v", err)
	}
	must(t, f.(rdma.NodeKiller).KillNode(1))
	moving := keys // a key that is not there, so that no pair is read
	for s.start(key(moving)); !(subtable{}).moves(s.op.hash); s.start(key(moving)) {
		moving++
	}
	for _, c := range []struct {
		what string
		do   func() error
		want error
	}{
		{"GET", func() error { _, err := s.Get(key(moving)); return err }, rdma.ErrNodeDown},
		{"Close", s.Close, client.ErrUncertain},
	} {
		ended := make(chan error, 1)
		go func() { ended <- c.do() }()
		select {
		case err := <-ended:
			if !errors.Is(err, c.want) {
				t.Errorf("%s ends in %v, want %v", c.what, err, c.want)
			}
		case <-time.After(wait.Hang):
			t.Fatalf("%s does not end", c.what)
		}
	}
}

// TestAwayForLonger: a node is out of reach for several tries, from the CAS of an UPDATE on. The
// update goes on when the node is back.
func TestAwayForLonger(t *testing.T) {
	f := memPool(t, 2, RTX, Params{Groups: 64, PairBytes: 64, Depth: 8, Clients: 8, Timeout: time.Second})
	ep, err := f.Open("worker")
	must(t, err)
	var away rdma.Endpoint = fault.New(ep, fault.Fault{Step: stepSwapSlot, Err: rdma.ErrNodeDown})
	for range 3 {
		away = fault.New(away, fault.Fault{Step: stepFindWord, Err: rdma.ErrNodeDown})
	}
	s, err := Open(away, Options{})
	must(t, err)
	must(t, s.Insert(key(0), []byte("old")))
	if err := s.Update(key(0), []byte("new")); err != nil {
		t.Errorf("an UPDATE ends in %v", err)
	}
	if v, err := s.Get(key(0)); err != nil || string(v) != "new" {
		t.Errorf("a GET finds %q, %v", v, err)
	}
	must(t, s.Close())
}
