package rcuckoo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// twoShards makes a pool of two shards with one lock each, and returns a key of each shard.
func twoShards(t *testing.T, timeout time.Duration) (v *sim.Sim, l *table.Layout, keys [2][]byte) {
	p := tiny(false, timeout)
	p.RowsPerLock = p.Rows
	l = lay(t, p, 1)
	o := sim.Hostile(1)
	o.Memory, o.Clients, o.Handler = l.Bytes, p.Clients, node.Serve
	v = sim.New(o)
	t.Cleanup(func() { v.Close() })
	must(t, Make(v, p))
	for i := 0; keys[0] == nil || keys[1] == nil; i++ {
		key := fmt.Appendf(nil, "key %d", i)
		keys[l.Place(key).Shard] = key
	}
	return v, l, keys
}

// nothingWaits checks that the pool is sound, and that nothing of a dead client is left in it.
func nothingWaits(t *testing.T, v *sim.Sim) {
	t.Helper()
	r, err := Check(v)
	must(t, err)
	if len(r.Damage)+len(r.Waiting) > 0 {
		t.Errorf("%q, waiting: %q", r.Damage, r.Waiting)
	}
}

// TestManyDead: in each of two shards clients die that want one lock. The master recovers them in
// turn, and waits for a failure timer once a shard, not once a client.
func TestManyDead(t *testing.T) {
	v, _, keys := twoShards(t, 2*time.Second)
	var dead []*sim.Worker
	for i := range 10 {
		w := v.Go("dead", func(ep rdma.Endpoint) {
			s, err := Open(ep, session.Options{Pool: v})
			must(t, err)
			for {
				_ = s.Update(keys[i%2], keys[i%2])
			}
		})
		v.CrashAfter(w, 5*time.Millisecond)
		dead = append(dead, w)
	}
	must(t, v.Run())
	v.Go("master", func(ep rdma.Endpoint) {
		m, err := NewRecoverer(ep)
		must(t, err)
		view, err := ep.Join()
		must(t, err)
		began, timer := ep.Now(), m.s.session.Opt.Failure
		for _, w := range dead {
			must(t, v.Revoke(w.Client()))
			must(t, m.Recover(view, w.Client()))
		}
		if took := ep.Now() - began; took < timer || took > 3*timer {
			t.Errorf("the recovery of %d clients took %v: failure timer %v", len(dead), took, timer)
		}
	})
	must(t, v.Run())
	nothingWaits(t, v)
}

// TestDeadTogether: in each of two shards a client dies that holds a lock, and one that waits for
// the lock. The master recovers all of them, though it turns to the other shard each time, and so
// never waits in one for a failure timer.
func TestDeadTogether(t *testing.T) {
	v, l, keys := twoShards(t, 200*time.Millisecond)
	var dead []*sim.Worker
	for _, holds := range []bool{true, false} {
		for _, key := range keys {
			w := v.Go("dead", func(ep rdma.Endpoint) {
				s, err := Open(ep, session.Options{Pool: v})
				must(t, err)
				if holds {
					at := l.Place(key)
					s.locks.Start(at.Shard)
					s.locks.LockRow(s.op.Begin(), at.First)
					must(t, s.locks.Acquire(s.op, table.Ref{}, key, key))
					ep.Sleep(time.Second)
				}
				_ = s.Update(key, key)
			})
			v.CrashAfter(w, 5*time.Millisecond)
			dead = append(dead, w)
		}
		must(t, v.Run())
	}
	v.Go("master", func(ep rdma.Endpoint) {
		m, err := NewRecoverer(ep)
		must(t, err)
		view, err := ep.Join()
		must(t, err)
		waited := 0
		for round := range 2 {
			for _, w := range dead {
				c, began := w.Client(), ep.Now()
				must(t, v.Revoke(c))
				err := m.Recover(view, c)
				took := ep.Now() - began
				switch {
				case err == nil && m.s.detector.Condemned[c]:
					t.Errorf("client %d is recovered, and a new holder of its identity counts as fenced off", c)
				case round == 0 && errors.Is(err, session.ErrWaited):
					waited++
				case err != nil:
					t.Errorf("round %d: %v", round, err)
				case took > m.s.session.Opt.Failure/8:
					t.Errorf("client %d was recovered in %v, though what it waits for was fenced off before", c, took)
				}
			}
		}
		if waited != 2 {
			t.Errorf("%d recoveries have waited for others", waited)
		}
	})
	must(t, v.Run())
	nothingWaits(t, v)
}
