package cluster_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// strictFabric is a fabric that fences only through nodes that answer, or were expelled, as one
// of real nodes does.
type strictFabric struct {
	*sim.Sim
	open []bool // nodes that were expelled
}

func (f *strictFabric) answers() error {
	for n, expelled := range f.open {
		if !expelled && f.Sim.Dead(n) {
			return fmt.Errorf("node %d does not answer: %w", n, rdma.ErrNodeDown)
		}
	}
	return nil
}

func (f *strictFabric) Fence(epoch uint64) error { return errors.Join(f.answers(), f.Sim.Fence(epoch)) }

func (f *strictFabric) RevokeLife(c rdma.Client) error {
	if err := f.answers(); err != nil {
		return err
	}
	return f.Sim.RevokeLife(c)
}

func (f *strictFabric) Expel(epoch uint64, node int) error {
	err := f.Sim.Expel(epoch, node)
	if err == nil {
		f.open[node] = true
	}
	return err
}

// majority is a QuorumRecoverer. Its clients write under busy views, too.
type majority struct {
	*fake
	asked, fences *int
}

func (m *majority) Spares() []int        { return nil }
func (m *majority) Mend(rdma.View) error { return nil }
func (m *majority) Restore(v rdma.View, node, spare int) error {
	m.t.Errorf("restore node %d on node %d in view %+v", node, spare, v)
	return nil
}

func (m *majority) Need(v rdma.View) (cluster.Need, error) {
	if v.Busy {
		m.t.Errorf("asked in view %+v", v)
	}
	switch {
	case *m.asked > 0:
		return cluster.NeedSweep, nil
	case *m.fences > 0:
		*m.fences--
		return cluster.NeedFence, nil
	}
	return cluster.NeedNothing, nil
}

// Sweep checks that nothing lands any more that was posted in the epoch before.
func (m *majority) Sweep(v rdma.View) error {
	if !v.Busy || v.Epoch == 0 || v.Epoch >= epochs {
		m.t.Errorf("sweep in view %+v", v)
	}
	*m.asked = max(*m.asked-1, 0)
	for _, n := range alive(v) {
		var sums [2]uint64
		for look := range sums {
			var err error
			if sums[look], err = read(m.ep, rdma.At(n, writes+8*(v.Epoch-1))); err != nil {
				return err
			}
			m.ep.Sleep(3 * time.Microsecond)
		}
		if sums[0] != sums[1] {
			m.t.Errorf("sweep in epoch %d, but verbs of the one before land on node %d: %v", v.Epoch, n, sums)
		}
	}
	if err := m.alone(v, "sweep", 3); err != nil {
		return err
	}
	return m.finish("sweep %d", v.Epoch)
}

// persist adds to the word of its epoch on all nodes that answer, whatever the view is.
func (w *world) persist(ep rdma.Endpoint) {
	v, err := ep.Join()
	for w.s.Now() < limit-20*lease && err == nil {
		b := ep.Batch()
		for n := range v.Members {
			b.Chain()
			b.FetchAdd(rdma.At(n, writes+8*v.Epoch), 1)
		}
		failed := rdma.Do(ep, b, forever)
		b.Release()
		switch {
		case errors.Is(failed, rdma.ErrClosed), errors.Is(failed, rdma.ErrRevoked):
			return
		case errors.Is(failed, rdma.ErrStale):
			w.done["stale"]++
			was := v.Epoch
			if v, err = ep.Join(); err == nil && v.Epoch > was+1 {
				w.done["skipped"]++
			}
		case failed != nil && !errors.Is(failed, rdma.ErrNodeDown):
			w.t.Errorf("write: %v", failed)
			return
		}
		ep.Sleep(time.Duration(ep.Rand().IntN(20)) * time.Microsecond)
	}
	if err != nil && !errors.Is(err, rdma.ErrClosed) {
		w.t.Errorf("join: %v", err)
	}
}

// quorumPool is a pool that lives with dead nodes.
type quorumPool struct {
	*world
	asked  int // sweeps that clients ask for
	fences int // epochs without a sweep
}

func (e *quorumPool) recoverer(ep rdma.Endpoint) (cluster.Recoverer, error) {
	return &majority{&fake{e.world, ep}, &e.asked, &e.fences}, nil
}

func (e *quorumPool) keep(ep rdma.Endpoint) {
	o := cluster.Options{
		Lease: lease, Stop: func() bool { return e.s.Now() > limit },
		Log: func(ev cluster.Event) { e.events = append(e.events, ev) },
	}
	for {
		err := cluster.Keep(ep, e.f, e.recoverer, o)
		if err == nil {
			return
		}
		if !errors.Is(err, rdma.ErrRevoked) {
			e.t.Errorf("keep: %v", err)
			return
		}
		ep.Close()
		if ep, err = e.s.Open("keeper again"); err != nil {
			return // the simulation ends
		}
	}
}

func newQuorumPool(t testing.TB, o sim.Options, keepers int) *quorumPool {
	o.Nodes, o.Memory, o.Limit = holders, 1<<16, time.Second
	s := sim.New(o)
	f := &strictFabric{s, make([]bool, holders)}
	e := &quorumPool{world: &world{t: t, s: s, f: f, done: map[string]int{}}}
	for i := range keepers {
		e.keepers = append(e.keepers, s.Go(fmt.Sprint("keeper ", i), e.keep))
	}
	for i := range 3 {
		e.writers = append(e.writers, s.Go(fmt.Sprint("writer ", i), e.persist))
	}
	return e
}

// settled checks that everything was done that had to be.
func (e *quorumPool) settled(epochs uint64, gone ...int) {
	e.t.Helper()
	v := e.s.View()
	if v.Busy || v.Epoch < epochs {
		e.t.Errorf("in the end the view is %+v, want epoch %d", v, epochs)
	}
	for n, m := range v.Members {
		if m.Gone != slices.Contains(gone, n) {
			e.t.Errorf("in the end node %d %v", n, m)
		}
	}
	for _, c := range e.s.Clients() {
		if !c.Alive {
			e.t.Errorf("client %d (%s) waits for recovery in the end", c.ID, c.Name)
		}
	}
	if e.asked > 0 {
		e.t.Errorf("%d sweeps that were asked for did not take place", e.asked)
	}
	if e.t.Failed() {
		for _, ev := range e.events {
			e.t.Log(ev.At, ev)
		}
	}
}

// TestNodeDeathBeginsNoEpoch: the death of a node begins no epoch, so that no client is fenced, and
// no keeper probes.
func TestNodeDeathBeginsNoEpoch(t *testing.T) {
	e := newQuorumPool(t, sim.Hostile(1), 2)
	e.s.KillNodeAfter(1, time.Millisecond)
	e.end()
	e.settled(0)
	if v := e.s.View(); v.Epoch != 0 || e.done["stale"] > 0 {
		t.Errorf("view %+v, and writers were fenced %d times", v, e.done["stale"])
	}
	for _, k := range e.keepers {
		if verbs := k.Endpoint().Counters(); verbs.Verbs() > 0 {
			t.Errorf("a keeper sent verbs: %+v", verbs)
		}
	}
}

// TestQuorumRecovererSweeps: a sweep that is asked for takes an epoch, and so does each client
// that died; nodes that are dead then are expelled.
func TestQuorumRecovererSweeps(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			e := newQuorumPool(t, sim.Hostile(seed), 2)
			e.asked = 2
			e.s.KillNodeAfter(1, 3*time.Millisecond)
			e.s.CrashAfter(e.writers[0], 5*time.Millisecond)
			e.end()
			e.settled(3, 1)
			if v := e.s.View(); v.Epoch > 4 {
				t.Errorf("%d epochs", v.Epoch)
			}
			if e.done[fmt.Sprintf("recover %d", e.writers[0].Client())] == 0 {
				t.Error("the dead writer was not recovered")
			}
		})
	}
}

// TestQuorumRecovererKeeperCrashesAnywhere crashes the first master at each of its verbs and
// changes of the view.
func TestQuorumRecovererKeeperCrashesAnywhere(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for k, most := 0, 0; (most == k || k < 20) && k < 400; k++ {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			e := newQuorumPool(t, sim.Hostile(uint64(k)), 3)
			e.asked = 1
			e.s.KillNodeAfter(1, 300*time.Microsecond)
			e.s.CrashAt(e.writers[0], 30)
			e.s.CrashAt(e.keepers[0], uint64(k))
			e.end()
			e.settled(1, 1)
			most = int(e.keepers[0].Sent()) + 1
		})
	}
}

// TestEpochsComeOneAtATime: whatever the first master came to before it died, clients that are
// never idle meet each epoch, so that no operation, which is shorter than a tick, lasts for two.
func TestEpochsComeOneAtATime(t *testing.T) {
	for k := range 40 {
		e := newQuorumPool(t, sim.Options{Seed: uint64(k)}, 3)
		e.asked = 1
		e.s.CrashAt(e.keepers[0], uint64(k))
		e.end()
		e.settled(1)
		if n := e.done["skipped"]; n > 0 {
			t.Errorf("the master died at its verb %d: clients skipped an epoch %d times", k, n)
		}
	}
}

// TestOnceRecoversQuorum recovers a pool that has no keeper: it comes to its end though a node
// stays dead.
func TestOnceRecoversQuorum(t *testing.T) {
	e := newQuorumPool(t, sim.Hostile(3), 0)
	e.asked = 2
	e.s.KillNodeAfter(1, 200*time.Microsecond)
	e.s.CrashAt(e.writers[0], 30)
	var did []cluster.Event
	e.s.Go("operator", func(ep rdma.Endpoint) {
		ep.Sleep(2 * time.Millisecond)
		var err error
		if did, err = cluster.Once(ep, e.f, e.recoverer, cluster.Options{Lease: lease}); err != nil {
			t.Error(err)
		}
	})
	e.end()
	e.settled(2, 1)
	want := []string{"elected", "expelled", "mended", "swept", "recovered", "mended", "swept"}
	var got []string
	for _, ev := range did {
		got = append(got, ev.What.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("did %v, want %v\n%s", got, want, lines(did))
	}
}

// unfenced is a fabric that does not fence.
type unfenced struct{ *strictFabric }

func (unfenced) Fence(uint64) error { return nil }

// TestQuorumRecovererHasTeeth: a sweep that nothing was fenced for is seen.
func TestQuorumRecovererHasTeeth(t *testing.T) {
	caught := 0
	for seed := range uint64(30) {
		h := &countingTB{TB: t}
		o := sim.Hostile(seed)
		o.Faults = sim.Faults{{Kind: sim.FlyFault, Client: "writer 0", At: 5 * time.Microsecond,
			For: 100 * time.Microsecond}}
		e := newQuorumPool(h, o, 1)
		e.f = unfenced{e.f.(*strictFabric)}
		e.asked = 1
		e.end()
		caught += min(h.failures, 1)
	}
	if caught == 0 {
		t.Error("nothing is fenced, and no run fails")
	}
	t.Logf("seen in %d of 30 runs", caught)
}
