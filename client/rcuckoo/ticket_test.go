package rcuckoo

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// crush is a set of clients that UPDATE one key all the time, on the model of the paper's testbed.
type crush struct {
	v       *sim.Sim
	workers []*sim.Worker
	each    []time.Duration // of the UPDATEs of the clients that did not crash
	took    time.Duration
	stats   session.Stats
}

// newCrush has clients do so many UPDATEs each. The first of them are victims, which crash
// together: after the k-th verb of one of them, counted from its second UPDATE on, while the
// other clients wait for the lock.
func newCrush(t *testing.T, tickets, clients, updates, victims int, k uint64) *crush {
	t.Helper()
	profile, err := sim.LookupProfile("rcuckoo-testbed")
	must(t, err)
	p := inlinePool(1)
	p.Tickets, p.Clients, p.Timeout = tickets, clients+2, time.Second
	l := lay(t, p, 1)
	offset, bytes, err := table.Device(p, 1)
	must(t, err)
	o := profile.Options(1, 1)
	o.Memory, o.Clients, o.Handler, o.Device = l.Bytes, p.Clients, node.Serve,
		[]sim.Range{{Node: 0, Offset: offset, Bytes: bytes}}
	c := &crush{v: sim.New(o)}
	must(t, Make(c.v, p))
	key, value := []byte("key"), make([]byte, 100)
	ep, err := c.v.Open("loader")
	must(t, err)
	loader, err := Open(ep, session.Options{Pool: c.v})
	must(t, err)
	must(t, loader.Insert(key, value))
	must(t, loader.Close())
	must(t, ep.Close())
	for i := range clients {
		c.workers = append(c.workers, nil)
		c.workers[i] = c.v.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
			s, err := Open(ep, session.Options{Pool: c.v, Failure: impatient})
			if err != nil {
				t.Error(err)
				return
			}
			for n := range updates {
				if i == 0 && victims > 0 && n == 1 {
					c.v.CrashAt(c.workers[i], c.workers[i].Sent()+k)
					c.workers[i].WhenCrashed(func() {
						for _, w := range c.workers[1:victims] {
							c.v.CrashAfter(w, 0)
						}
					})
				}
				begun := ep.Now()
				if err := s.Update(key, value); err != nil {
					if !c.workers[i].Crashed() {
						t.Errorf("client %d: %v", i, err)
					}
					return
				}
				if i >= victims {
					c.each = append(c.each, ep.Now()-begun)
				}
			}
			c.took = max(c.took, ep.Now())
			c.stats.Repairs += s.session.Stats.Repairs
			if err := s.Close(); err != nil && !c.workers[i].Crashed() {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	must(t, c.v.Run())
	t.Cleanup(func() { must(t, c.v.Close()) })
	slices.Sort(c.each)
	return c
}

func (c *crush) mean() time.Duration {
	sum := time.Duration(0)
	for _, d := range c.each {
		sum += d
	}
	return sum / time.Duration(len(c.each))
}

func (c *crush) worst() time.Duration { return c.each[len(c.each)-1] }

func (c *crush) String() string {
	return fmt.Sprintf("%d UPDATEs in %v: mean %v, p99 %v, worst %v", len(c.each), c.took, c.mean(),
		c.each[len(c.each)*99/100], c.worst())
}

// TestFair: 64 clients that want one lock get it in turn, and no fewer UPDATEs are done than
// without tickets.
func TestFair(t *testing.T) {
	alone(t)
	const clients, updates = 64, 150
	without := newCrush(t, 0, clients, updates, 0, 0)
	c := newCrush(t, 16, clients, updates, 0, 0)
	t.Logf("without tickets %v", without)
	t.Logf("with tickets %v", c)
	if p99 := c.each[len(c.each)*99/100]; p99 > 3*c.mean() || c.worst() > 10*c.mean() {
		t.Errorf("%v: want at most 3 and 10 times the mean", c)
	}
	if c.took > without.took*5/4 {
		t.Errorf("it takes %v, and %v without tickets", c.took, without.took)
	}
}

// TestFairCrashes lets a client crash after each verb of an UPDATE for which it waits, alone or
// with others that wait. The clients that are left wait at most one failure timer longer than
// without the crash, once.
func TestFairCrashes(t *testing.T) {
	alone(t)
	const clients, updates = 48, 6
	calm := newCrush(t, 16, clients, updates, 0, 0)
	t.Logf("calm: %v", calm)
	repairs := uint64(0)
	for _, victims := range []int{1, 20} {
		crashed := true
		for k := uint64(0); crashed; k += seeds.Step(1, 6) {
			c := newCrush(t, 16, clients, updates, victims, k)
			crashed = c.workers[0].Crashed()
			repairs += c.stats.Repairs
			late := 0
			for _, d := range c.each {
				if d > 2*calm.worst() {
					late++
				}
			}
			if c.worst() > impatient+2*calm.worst() || late > clients {
				t.Errorf("%d clients crash behind verb %d: %v, and %d waited for it", victims, k, c, late)
			}
		}
	}
	if repairs == 0 {
		t.Error("no crash left a lock that was held")
	}
	t.Logf("%d repairs", repairs)
}

// TestManyLocks: an operation that wants several locks, and clients stand in line for each of them,
// gets them in its time, though they are never free together. Those that it has taken when it
// crashes are repaired in time for the others.
func TestManyLocks(t *testing.T) {
	alone(t)
	crashed := manyLocks(t, 20, 0)
	if crashed {
		t.Error("it crashed")
	}
	crashed = true
	k := uint64(1)
	for ; crashed; k += seeds.Step(3, 41) {
		crashed = manyLocks(t, 1, k)
	}
	t.Logf("%d verbs", k)
}

// lockedApart returns keys that have different locks of the first word, each one, and their rows.
func lockedApart(l *table.Layout, n int) (keys [][]byte, rows []uint32) {
	for i, word := 0, uint64(0); len(keys) < n; i++ {
		key := fmt.Append(nil, i)
		at := l.Place(key)
		w1, bit := l.LockOf(at.First)
		if w2, b := l.LockOf(at.Second); w1 == 0 && w2 == 0 && b == bit && word>>bit&1 == 0 {
			keys, rows, word = append(keys, key), append(rows, at.First), word|1<<bit
		}
	}
	return keys, rows
}

// manyLocks has clients UPDATE hot keys while two others take the locks of all of them, so many
// times each. One of the two crashes behind its k-th verb, unless k is 0. manyLocks reports whether
// it did.
func manyLocks(t *testing.T, times int, k uint64) (crashed bool) {
	t.Helper()
	profile, err := sim.LookupProfile("rcuckoo-testbed")
	must(t, err)
	const hot, each = 6, 5 // keys, and clients of each
	p := inlinePool(1)
	p.Tickets, p.Clients, p.Timeout = 126, hot*each+3, 4*time.Millisecond
	l := lay(t, p, 1)
	keys, rows := lockedApart(l, hot)
	o := profile.Options(1, 1)
	o.Memory, o.Clients, o.Handler = l.Bytes, p.Clients, node.Serve
	v := sim.New(o)
	must(t, Make(v, p))
	value, over := make([]byte, 100), false
	open := func(ep rdma.Endpoint) *Store {
		s, err := Open(ep, session.Options{Pool: v, Failure: impatient})
		must(t, err)
		return s
	}
	for i := range hot * each {
		v.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
			s, key := open(ep), keys[i%hot]
			if err := s.Insert(key, value); err != nil && !errors.Is(err, client.ErrExists) {
				t.Error(err)
			}
			for !over {
				if err := s.Update(key, value); err != nil {
					t.Errorf("crash behind verb %d: client %d: %v", k, i, err)
				}
			}
			must(t, s.Close())
		})
	}
	left := 2
	for i := range left { // one of them crashes
		var w *sim.Worker
		w = v.Go(fmt.Sprint("all of them ", i), func(ep rdma.Endpoint) {
			s := open(ep)
			ep.Sleep(time.Millisecond)
			if i == 0 && k > 0 {
				v.CrashAt(w, w.Sent()+k)
			}
			var err error
			for n := 0; n < times && err == nil; n++ {
				op := s.op.Begin()
				err = op.Repeat(func() error {
					s.locks.Start(0)
					for _, row := range rows {
						s.locks.LockRow(op, row)
					}
					if err := s.acquire(op, table.Ref{}, nil, nil); err != nil {
						return err
					}
					return s.locks.Release(op)
				})
			}
			if left--; left == 0 {
				over = true
			}
			if err = errors.Join(err, s.Close()); err != nil && !w.Crashed() {
				t.Errorf("crash behind verb %d: all of them %d: %v", k, i, err)
			}
		})
		w.WhenCrashed(func() {
			crashed = true
			v.Go("end", func(ep rdma.Endpoint) { // others go on for a while
				ep.Sleep(2 * p.Timeout)
				over = true
			})
		})
	}
	must(t, v.Run())
	must(t, v.Close())
	return crashed
}

// TestTicketsComeLast: in a pool with tickets all other parts lie where they lie without tickets,
// so that clients of both versions can use pools of both.
func TestTicketsComeLast(t *testing.T) {
	for _, p := range []table.Params{small(), inlinePool(2), extentPool(5)} {
		without := lay(t, p, 2)
		p.Tickets = 100
		with := lay(t, p, 2)
		if with.Areas.Rows != without.Areas.Rows || with.Areas.Slabs != without.Areas.Slabs ||
			with.Areas.Queues.Base < with.Areas.Slabs.Of(with.PerNode) {
			t.Errorf("%+v: %+v, and without tickets %+v", p, with, without)
		}
	}
}
