package rcuckoo

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/recovery"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// lossyEndpoint is the endpoint of a worker that loses its connection now and then, at the worst
// moment: the WRITE that ends an intent, for which the worker does not wait, is lost. The worker
// learns of it later.
type lossyEndpoint struct {
	rdma.Endpoint
	late *rdma.Batch // that was lost
	when time.Duration
	lost int
	calm bool // it is not cut
	next bool // but the next end of an intent is lost
}

func (e *lossyEndpoint) Post(b *rdma.Batch) error {
	if e.late != nil && e.Now() >= e.when {
		e.reportLoss()
	}
	if b.Step() != steps.Done || b.Len() != 1 || !e.next && (e.calm || e.Rand().IntN(4) > 0) {
		return e.Endpoint.Post(b)
	}
	if e.late != nil {
		e.reportLoss()
	}
	e.next = false
	e.lost++
	e.Endpoint.(interface{ Posted(*rdma.Batch) }).Posted(b)
	e.late, e.when = b, e.Now()+time.Duration(e.Rand().Int64N(int64(impatient/5)))
	return nil
}

func (e *lossyEndpoint) Wait(b *rdma.Batch, n int, until time.Duration) error {
	if b == e.late {
		e.reportLoss()
		return nil
	}
	return e.Endpoint.Wait(b, n, until)
}

func (e *lossyEndpoint) reportLoss() {
	e.late.Op(0).Err = rdma.ErrNodeDown
	e.late.Complete(0)
	e.late = nil
}

// unreliablePool is a pool as a worker sees it over connections that are cut now and then:
// ListClients may take long, and now and then reports a living client as dead.
type unreliablePool struct {
	*sim.Sim
	ep       rdma.Endpoint
	asked    int
	fenced   map[string]int
	calm     bool // it answers at once, and correctly
	unlisted bool // it cannot list its clients
}

func (h *unreliablePool) ListClients() ([]rdma.Client, error) {
	h.asked++
	switch {
	case h.unlisted:
		return nil, rdma.ErrUnreachable
	case h.calm:
		return h.Sim.Clients(), nil
	}
	if h.ep.Rand().IntN(3) == 0 {
		h.ep.Sleep(5 * impatient)
	}
	list := h.Sim.Clients()
	for i := range list {
		list[i].Alive = list[i].Alive && h.ep.Rand().IntN(3) == 0
	}
	return list, nil
}

// Clients is what a fabric that cannot list its clients answers: none.
func (h *unreliablePool) Clients() []rdma.Client {
	list, _ := h.ListClients()
	return list
}

func (h *unreliablePool) RevokeLife(c rdma.Client) error {
	h.fenced[c.Name]++
	return h.Sim.RevokeLife(c)
}

// faultyRun is a pool of workers that are cut off, or stopped for a part of a failure timer.
// Once all are stopped together for four failure timers. Some of them die.
type faultyRun struct {
	*sim.Sim
	t      *testing.T
	seed   uint64
	fenced map[string]int
	keys   [2][][]byte // of a shard
	asked  int
	lost   int
	calm   bool // no connection is cut
}

const (
	survivors = 4
	victims   = 3
)

func newFaultyRun(t *testing.T, seed uint64) *faultyRun {
	rng := rand.New(rand.NewPCG(seed, 5))
	p := tiny(false, 2*time.Second)
	p.Rows, p.RowsPerLock = 12, 12
	l, err := table.New(p, 1)
	must(t, err)
	o := sim.Hostile(seed)
	o.Memory, o.Clients, o.Handler = l.Bytes, p.Clients, node.Serve
	for w := range survivors {
		for verb := uint64(100); verb < 3000; verb += 200 + rng.Uint64N(400) {
			o.Faults = append(o.Faults, sim.Fault{Kind: sim.StallFault, Client: fmt.Sprint("survivor ", w),
				Verb: verb, For: impatient / 5})
		}
	}
	for i := range 8 {
		at := time.Duration(10*i+5+rng.IntN(5)) * impatient
		o.Faults = append(o.Faults, sim.Fault{Kind: sim.StallFault, Client: sim.AnyClient, At: at, For: 4 * impatient})
	}
	m := &faultyRun{Sim: sim.New(o), t: t, seed: seed, fenced: map[string]int{}}
	must(t, Make(m.Sim, p))
	for i := 0; len(m.keys[0]) < 3 || len(m.keys[1]) < 3; i++ {
		key := fmt.Appendf(nil, "key %d", i)
		at := l.Place(key)
		m.keys[at.Shard] = append(m.keys[at.Shard], key)
	}
	return m
}

func (m *faultyRun) enter(name string, f func(s *Store, ep rdma.Endpoint) error) *sim.Worker {
	return m.Sim.Go(name, func(ep rdma.Endpoint) {
		cut := &lossyEndpoint{Endpoint: ep, calm: m.calm}
		pool := &unreliablePool{Sim: m.Sim, ep: ep, fenced: m.fenced, calm: m.calm}
		s, err := Open(cut, session.Options{Pool: pool, Failure: impatient})
		if err == nil {
			err = errors.Join(f(s, ep), s.Close())
		}
		if err != nil && !errors.Is(err, rdma.ErrClosed) { // ErrClosed is how a crashed worker ends at last
			m.t.Errorf("seed %d: %s: %v", m.seed, name, err)
		}
		m.asked, m.lost = m.asked+pool.asked, m.lost+cut.lost
	})
}

// survive works for a while in one shard, then in another; for a while it changes values, then it
// only reads.
func (m *faultyRun) survive(s *Store, ep rdma.Endpoint) error {
	rng := ep.Rand()
	for range 12 {
		keys, reads := m.keys[rng.IntN(2)], rng.IntN(2) == 0
		for i := range 40 {
			key, err := keys[rng.IntN(len(keys))], error(nil)
			if reads && i > 0 {
				_, err = s.Get(key)
			} else {
				err = s.Update(key, key)
			}
			if err != nil {
				return fmt.Errorf("%q: %w", key, err)
			}
			ep.Sleep(time.Duration(rng.Int64N(int64(impatient / 5))))
		}
	}
	return nil
}

// TestOnlyTheDead: clients that die are fenced off, and their locks become free. No client that
// makes progress is fenced off, though connections are cut, Clients takes long, and machines
// stop.
func TestOnlyTheDead(t *testing.T) {
	asked, lost, fenced := 0, 0, 0
	for _, seed := range crashSeeds(t, 20) {
		m := newFaultyRun(t, seed)
		loaded := m.enter("loader", func(s *Store, _ rdma.Endpoint) error {
			for _, key := range append(m.keys[0], m.keys[1]...) {
				if err := s.Insert(key, key); err != nil {
					return err
				}
			}
			return nil
		})
		must(t, m.Run())
		if !loaded.Finished() {
			t.Fatal("nothing is loaded")
		}
		for i := range survivors {
			m.enter(fmt.Sprint("survivor ", i), m.survive)
		}
		rng := rand.New(rand.NewPCG(seed, 6))
		for i := range victims {
			var victim *sim.Worker
			victim = m.enter(fmt.Sprint("victim ", i), func(s *Store, ep rdma.Endpoint) error {
				ep.Sleep(time.Duration(i*15) * impatient)
				m.CrashAt(victim, victim.Sent()+1+rng.Uint64N(60))
				return m.survive(s, ep)
			})
		}
		must(t, m.Run())
		for name := range m.fenced {
			if !strings.HasPrefix(name, "victim") {
				t.Errorf("seed %d: %s was fenced off", seed, name)
			}
			fenced++
		}
		r, err := Check(m.Sim)
		must(t, err)
		if len(r.Damage) > 0 {
			t.Errorf("seed %d: %q", seed, r.Damage)
		}
		must(t, m.Close())
		asked, lost = asked+m.asked, lost+m.lost
		if t.Failed() {
			t.FailNow()
		}
	}
	if asked == 0 || lost == 0 || fenced == 0 {
		t.Errorf("the pool was asked %d times, %d ends of intents were lost, %d clients fenced off", asked, lost,
			fenced)
	}
	t.Logf("the pool was asked %d times, %d ends of intents were lost, %d clients fenced off", asked, lost, fenced)
}

// hold locks a key's rows for some failure timers, and sends heartbeats.
func (m *faultyRun) hold(s *Store, key []byte, timers int) error {
	at := s.session.Table.Place(key)
	s.locks.Start(at.Shard)
	s.locks.LockRow(s.op, at.First)
	s.locks.ReadPlace(s.op, at)
	if err := s.acquire(s.op, table.Ref{}, key, key); err != nil {
		return err
	}
	for beat := range uint64(10 * timers) {
		s.session.EP.Sleep(impatient / 10)
		b := s.session.EP.Batch()
		b.WriteWord(s.session.Table.IntentAt(at.Shard, s.session.ID).Add(table.IntentHeartbeat), beat+1)
		must(m.t, s.op.Do(steps.Lock, b))
		b.Release()
	}
	return s.locks.Release(s.op)
}

// mend repairs the lock words of a key's rows, for some failure timers, and renews its leases.
func (m *faultyRun) mend(s *Store, key []byte, timers int) error {
	at := s.session.Table.Place(key)
	word, _ := s.session.Table.LockOf(at.First)
	r := &recovery.Mending{Shard: at.Shard, Words: []uint32{uint32(word)}}
	err := errors.Join(s.detector.Look(s.op, at.Shard), s.repairer.TakeLeases(s.op, r),
		s.repairer.SetRepair(s.op, r))
	for range 10 * timers {
		s.session.EP.Sleep(impatient / 10)
		err = errors.Join(err, s.repairer.Renew(s.op, r))
	}
	return errors.Join(err, s.repairer.UnsetRepair(s.op, r), s.repairer.FreeLeases(s.op, r))
}

// TestWaitersBeat: a client that waits for a lock for longer than a failure timer is not taken for
// dead by another that waits for it, too.
func TestWaitersBeat(t *testing.T) {
	m := newFaultyRun(t, 1)
	m.calm = true
	defer m.Close()
	key, held := m.keys[0][0], true
	m.enter("holder", func(s *Store, ep rdma.Endpoint) error {
		defer func() { held = false }()
		s.op.Begin()
		return errors.Join(s.Insert(key, key), m.hold(s, key, 10))
	})
	for i := range 2 {
		m.enter("waiter", func(s *Store, ep rdma.Endpoint) error {
			ep.Sleep(impatient / 2)
			if i == 0 { // a client that cannot ask the pool waits for as long as it takes
				s.session.Opt.Pool = nil
			}
			if !held {
				t.Error("there is nothing to wait for")
			}
			return s.Update(key, key)
		})
	}
	must(t, m.Run())
	if len(m.fenced) > 0 {
		t.Errorf("fenced off: %v", m.fenced)
	}
}

// TestLostEnds: if the WRITE that ends a client's intent is lost, the client gives the intent up,
// whatever it does next.
func TestLostEnds(t *testing.T) {
	const timers = 4
	for _, c := range []struct {
		next        string
		hold, mends bool
		step        func(s *Store, key []byte) error // again and again, unless it has to wait
	}{
		{next: "it reads", step: func(s *Store, key []byte) error { _, err := s.Get(key); return err }},
		{next: "it works in another shard", step: func(s *Store, key []byte) error { return s.Update(key, key) }},
		{next: "it waits for a lock in another shard", hold: true},
		{next: "it waits for a repair of another shard", mends: true},
	} {
		t.Run(c.next, func(t *testing.T) {
			m := newFaultyRun(t, 1)
			m.t, m.calm = t, true
			defer m.Close()
			here, there := m.keys[0][0], m.keys[1][0]
			m.enter("loader", func(s *Store, _ rdma.Endpoint) error {
				return errors.Join(s.Insert(here, here), s.Insert(there, there))
			})
			must(t, m.Run())
			m.enter("holder", func(s *Store, _ rdma.Endpoint) error {
				s.op.Begin()
				switch {
				case c.hold:
					return m.hold(s, here, timers)
				case c.mends:
					return m.mend(s, here, timers)
				}
				return nil
			})
			m.enter("unlucky", func(s *Store, ep rdma.Endpoint) error {
				ep.Sleep(impatient / 2)
				s.session.EP.(*lossyEndpoint).next = true
				if err := s.Update(there, there); err != nil || s.session.EP.(*lossyEndpoint).lost != 1 {
					return fmt.Errorf("%d ends were lost: %w", s.session.EP.(*lossyEndpoint).lost, err)
				}
				if c.step == nil {
					s.session.Opt.Pool = nil // it does not ask the pool
					return s.Update(here, here)
				}
				for range 10 * timers {
					ep.Sleep(impatient / 10)
					if err := c.step(s, here); err != nil {
						return err
					}
				}
				return nil
			})
			m.enter("repairer", func(s *Store, ep rdma.Endpoint) error {
				ep.Sleep(impatient)
				s.op.Begin()
				return s.repairer.Repair(s.op, s.session.Table.Place(there).Shard, []uint32{0})
			})
			must(t, m.Run())
			if len(m.fenced) > 0 {
				t.Errorf("fenced off: %v", m.fenced)
			}
		})
	}
}

// TestTimers: a failure timer runs while its client looks, and not while that client is stopped:
// the clients that it looks at may be stopped as well.
func TestTimers(t *testing.T) {
	m := newFaultyRun(t, 1)
	m.calm = true
	defer m.Close()
	key := m.keys[0][0]
	var looked rdma.ClientID
	m.enter("stopped", func(s *Store, ep rdma.Endpoint) error {
		s.op.Begin()
		looked = s.session.ID
		at := s.session.Table.Place(key)
		s.locks.Start(at.Shard)
		s.locks.LockRow(s.op, at.First)
		if err := s.acquire(s.op, table.Ref{}, key, key); err != nil {
			return err
		}
		ep.Sleep(20 * impatient)
		return s.locks.Release(s.op)
	})
	m.enter("onlooker", func(s *Store, ep rdma.Endpoint) error {
		ep.Sleep(impatient / 10)
		err := s.detector.Look(s.op, 0)
		for range 3 {
			ep.Sleep(2 * impatient)
			if err = errors.Join(err, s.detector.Look(s.op, 0)); s.detector.Gone(looked) {
				t.Error("a client is taken for dead that was looked at now and then")
			}
		}
		for range session.LookShares {
			ep.Sleep(impatient / session.LookShares)
			err = errors.Join(err, s.detector.Look(s.op, 0))
		}
		if !s.detector.Gone(looked) {
			t.Error("a client that was looked at for a failure timer is not taken for dead")
		}
		return err
	})
	must(t, m.Run())
}

// TestUnlisted: while the pool's clients cannot be listed, a client that makes no progress cannot
// be fenced off, so its lock and its repair lease stay its own.
func TestUnlisted(t *testing.T) {
	m := newFaultyRun(t, 1)
	m.calm = true
	defer m.Close()
	key, mended := m.keys[0][0], m.keys[1][0]
	m.enter("loader", func(s *Store, _ rdma.Endpoint) error {
		return errors.Join(s.Insert(key, key), s.Insert(mended, mended))
	})
	must(t, m.Run())
	stopped := [2]bool{true, true}
	m.enter("holder", func(s *Store, ep rdma.Endpoint) error {
		s.op.Begin()
		at := s.session.Table.Place(key)
		s.locks.Start(at.Shard)
		s.locks.LockRow(s.op, at.First)
		if err := s.acquire(s.op, table.Ref{}, key, key); err != nil {
			return err
		}
		ep.Sleep(20 * impatient)
		stopped[0] = false
		return s.locks.Release(s.op)
	})
	m.enter("repairer", func(s *Store, ep rdma.Endpoint) error {
		s.op.Begin()
		at := s.session.Table.Place(mended)
		r := &recovery.Mending{Shard: at.Shard, Words: []uint32{0}}
		err := errors.Join(s.detector.Look(s.op, at.Shard), s.repairer.TakeLeases(s.op, r),
			s.repairer.SetRepair(s.op, r))
		ep.Sleep(20 * impatient)
		stopped[1] = false
		return errors.Join(err, s.repairer.Renew(s.op, r), s.repairer.UnsetRepair(s.op, r),
			s.repairer.FreeLeases(s.op, r))
	})
	for i, k := range [][]byte{key, mended} {
		m.enter("worker", func(s *Store, ep rdma.Endpoint) error {
			ep.Sleep(impatient / 10)
			pool := s.session.Opt.Pool.(*unreliablePool)
			pool.unlisted = true
			err := s.Update(k, k)
			if pool.asked == 0 || stopped[i] {
				t.Errorf("%q: the pool was asked %d times, its client is stopped: %v", k, pool.asked, stopped[i])
			}
			return err
		})
		m.enter("second repairer", func(s *Store, ep rdma.Endpoint) error {
			s.session.Opt.Pool.(*unreliablePool).unlisted = true
			o, shard := s.op.Begin(), s.session.Table.Place(k).Shard
			for range 2 * session.LookShares {
				ep.Sleep(impatient / session.LookShares)
				if err := s.repairer.Repair(o, shard, []uint32{0}); !errors.Is(err, session.ErrAgain) {
					t.Errorf("%q: a repair ends with %v", k, err)
				}
				word, err := o.ReadWord(o.Table.LockAt(shard, 0))
				if err != nil || i == 0 && word&table.LockRepair != 0 {
					t.Errorf("%q: the lock word is %#x without a repairer: %v", k, word, err)
				}
			}
			return nil
		})
	}
	must(t, m.Run())
	r, err := Check(m.Sim)
	must(t, err)
	if len(r.Damage) > 0 {
		t.Errorf("%q", r.Damage)
	}
}

// TestTwoInFlight: a shard where an operation failed is not settled while a verb of the operation
// is in flight, though what failed since has landed. READs that failed are not waited for.
func TestTwoInFlight(t *testing.T) {
	const timeout = 4 * impatient
	p, key := tiny(false, timeout), []byte("key")
	p.RowsPerLock = p.Rows // the key's rows have one lock
	run := func(next func(*Store) error, flying int, faults ...sim.Fault) (sent uint64) {
		l, err := table.New(p, 1)
		must(t, err)
		o := sim.Hostile(1)
		o.Memory, o.Clients, o.Handler, o.Faults = l.Bytes, p.Clients, node.Serve, faults
		m := &faultyRun{Sim: sim.New(o), t: t, seed: 1, fenced: map[string]int{}, calm: true}
		defer m.Close()
		must(t, Make(m.Sim, p))
		settled := false
		var late *sim.Worker
		late = m.enter("late", func(s *Store, ep rdma.Endpoint) error {
			must(t, s.Insert(key, key))
			err := s.Update(key, key)
			if sent = late.Sent(); faults == nil {
				return err
			}
			if !errors.Is(err, client.ErrUncertain) {
				t.Errorf("the update ends with %v", err)
			}
			if err := next(s); !errors.Is(err, rdma.ErrTimeout) {
				t.Errorf("what is next ends with %v", err)
			}
			st := &s.session.Shards[l.Place(key).Shard]
			if n := len(st.Flying); n != flying {
				t.Errorf("%d batches are waited for, want %d", n, flying)
			}
			for ; st.Dirty && !t.Failed(); ep.Sleep(impatient) {
				if _, err := s.Get(key); err != nil {
					return err
				}
			}
			settled = true
			return nil
		})
		if faults != nil {
			m.enter("holder", func(s *Store, ep rdma.Endpoint) error {
				for !settled && !t.Failed() {
					ep.Sleep(impatient / 10)
				}
				s.op.Begin()
				return m.hold(s, key, 15)
			})
		}
		must(t, m.Run())
		return sent
	}
	sent := run(nil, 0) // with the WRITE that ends the intent, behind the CAS that releases the locks
	for i, next := range []func(*Store) error{
		func(s *Store) error { _, err := s.Get(key); return err },
		func(s *Store) error { return s.op.Begin().SendHeartbeat(s.session.Table.Place(key).Shard) },
	} {
		run(next, 1+i, sim.Fault{Kind: sim.FlyFault, Client: "late", Verb: sent - 1, For: 5 * timeout},
			sim.Fault{Kind: sim.FlyFault, Client: "late", Verb: sent, For: timeout * 3 / 2})
	}
}

// TestRepairGivenUp: a repair that has waited for too long unsets the repair bits that it has set.
// A bit that an earlier repair has left stays: by it others find the word.
func TestRepairGivenUp(t *testing.T) {
	for _, left := range []bool{false, true} {
		m := newFaultyRun(t, 1)
		m.calm = true
		key := m.keys[0][0]
		m.enter("holder", func(s *Store, _ rdma.Endpoint) error {
			s.op.Begin()
			return m.hold(s, key, 4)
		})
		m.enter("repairer", func(s *Store, ep rdma.Endpoint) error {
			ep.Sleep(impatient / 10)
			o, shard := s.op.Begin(), s.session.Table.Place(key).Shard
			if left {
				must(t, s.repairer.SetRepair(o, &recovery.Mending{Shard: shard, Words: []uint32{0}}))
			}
			o.Until = ep.Now() + impatient
			if err := s.repairer.Repair(o, shard, []uint32{0}); !errors.Is(err, session.ErrWaited) {
				t.Errorf("left %v: the repair ends with %v", left, err)
			}
			word, err := o.ReadWord(o.Table.LockAt(shard, 0))
			if err == nil && (word&^table.LockRepair == 0 || (word&table.LockRepair != 0) != left) {
				t.Errorf("left %v: the lock word is %#x", left, word)
			}
			return err
		})
		must(t, m.Run())
		must(t, m.Close())
	}
}
