package cluster_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/wait"
)

// lines are events as people read them, without how long they took.
func lines(events []cluster.Event) string {
	var all []string
	for _, e := range events {
		e.Took = 0
		all = append(all, e.String())
	}
	return strings.Join(all, "\n")
}

// TestOnce recovers a pool that has no keeper, as often as it is asked to.
func TestOnce(t *testing.T) {
	w := begin(t, sim.Hostile(1), 0)
	w.s.KillNodeAfter(1, time.Millisecond)
	var did []cluster.Event
	w.s.Go("operator", func(ep rdma.Endpoint) {
		ep.Sleep(2 * time.Millisecond)
		var err error
		if did, err = cluster.Once(ep, w.s, w.recoverer, cluster.Options{Lease: lease}); err != nil {
			t.Error(err)
		}
		again, err := cluster.Once(ep, w.s, w.recoverer, cluster.Options{Lease: lease})
		if err != nil || lines(again) != "elected master (tenure 2)\nblocks that clients left swept" {
			t.Errorf("nothing was left to do, and it did: %v, %s", err, lines(again))
		}
	})
	w.end()
	w.whole(1)
	want := `elected master (tenure 1)
node 1 is gone: expelled in epoch 1
replicas mended in epoch 1, in 0s
client 1 "writer 0" recovered in 0s
replicas mended in epoch 2, in 0s
node 3 stands for node 1 since epoch 2, after 0s
blocks that clients left swept`
	if got := lines(did); got != want {
		t.Errorf("did:\n%s\nwant:\n%s", got, want)
	}
}

// bound is a recoverer that can recover a client only when another one was.
type bound struct {
	*fake
	first, second rdma.ClientID
	done          *bool
}

func (b *bound) Recover(v rdma.View, c rdma.ClientID) error {
	if c == b.second && !*b.done {
		return fmt.Errorf("client %d is in the way: %w", b.first, errNotYet)
	}
	err := b.fake.Recover(v, c)
	*b.done = *b.done || err == nil && c == b.first
	return err
}

// TestOnceInAnyOrder: a client that cannot be recovered before another one is recovered behind it,
// and none is left.
func TestOnceInAnyOrder(t *testing.T) {
	w := begin(t, sim.Hostile(3), 0)
	w.s.CrashAt(w.writers[0], 40)
	w.s.CrashAt(w.writers[1], 40)
	first, second, done := w.writers[0].Client(), w.writers[1].Client(), false
	if first < second { // which is tried first
		first, second = second, first
	}
	recovered, failed := 0, 0
	w.s.Go("operator", func(ep rdma.Endpoint) {
		ep.Sleep(20 * time.Millisecond)
		make := func(ep rdma.Endpoint) (cluster.Recoverer, error) {
			return &bound{&fake{w, ep}, first, second, &done},
				nil
		}
		did, err := cluster.Once(ep, w.s, make, cluster.Options{Lease: 50 * lease})
		if err != nil {
			t.Error(err)
		}
		for _, e := range did {
			switch e.What {
			case cluster.Recovered:
				recovered++
			case cluster.Failed:
				failed++
			}
		}
	})
	w.end()
	if recovered != 2 || failed != 1 {
		t.Errorf("recovered %d clients, failed %d times", recovered, failed)
	}
}

func TestOnceBesideAKeeper(t *testing.T) {
	w := begin(t, sim.Hostile(2), 1)
	w.s.Go("operator", func(ep rdma.Endpoint) {
		ep.Sleep(time.Millisecond)
		_, err := cluster.Once(ep, w.s, w.recoverer, cluster.Options{Lease: lease})
		var other *cluster.OtherMaster
		if !errors.As(err, &other) || other.Role.Owner != w.keepers[0].Client() {
			t.Errorf("a pool with a keeper: %v", err)
		}
	})
	w.end()
	w.whole()
}

// TestSilentNode has a node that is too slow to answer anything. It counts as dead after a while,
// not before.
func TestSilentNode(t *testing.T) {
	for factor, gone := range map[float64][]int{1e4: {1}, 100: nil} {
		o := sim.Hostile(3)
		o.Faults = sim.Faults{{Kind: sim.SlowFault, Node: 1, Factor: factor, At: lease, For: 20 * lease}}
		w := begin(t, o, 2)
		w.end()
		w.whole(gone...)
		for _, e := range w.events {
			if e.What == cluster.Expelled && e.At < 10*lease {
				t.Errorf("%v at %v", e, e.At)
			}
		}
	}
}

// TestAllNodesComeBack: all nodes are away for a while, and come back at whatever moment, also
// between a probe that failed and the question whether enough answer to expel others. None is
// expelled.
func TestAllNodesComeBack(t *testing.T) {
	for k := range time.Duration(60) {
		o := sim.Hostile(3)
		o.PMem = new(pmem.Testbed())
		away := 25*lease + k*lease/20
		o.Faults = sim.Faults{{Kind: sim.RestartFault, Node: sim.AnyNode, At: 5 * lease, For: away}}
		w := begin(t, o, 2)
		w.f = sim.Returning{Sim: w.s}
		w.end()
		if w.whole(); t.Failed() {
			t.Fatalf("all nodes were away for %v", away)
		}
	}
}

// graceful is a fabric in which nodes must have failed verbs for a while before they may be
// expelled.
type graceful struct {
	*sim.Sim
	grace time.Duration
}

func (g *graceful) NodeGrace(int) time.Duration { return g.grace }

// TestKeeperStoodStill cuts the keeper off a node for less than the node's grace while it runs, and
// has it stand still for longer than that meanwhile. Its last probe before and its first one behind
// fail: the node is well all the same. So it is where a probe is not answered that long. Where the
// keeper runs all the time, the node counts as dead.
func TestKeeperStoodStill(t *testing.T) {
	const at, grace = 5 * lease, 5 * lease
	for name, retry := range map[string]time.Duration{"probes fail": lease / 4, "a probe waits": time.Hour} {
		for _, still := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, still: %t", name, still), func(t *testing.T) {
				o := sim.Hostile(3)
				o.RetryTimeout = retry
				o.Faults = sim.Faults{{Kind: sim.PartitionFault, Client: "keeper 0", Node: 1, At: at, For: 14 * lease}}
				if still {
					o.Faults = append(o.Faults, sim.Fault{Kind: sim.StallFault, Client: "keeper 0", At: at + 2*lease,
						For: 11 * lease})
				}
				w := begin(t, o, 1)
				w.f = &graceful{w.s, grace}
				w.end()
				if gone := w.s.View().Members[1].Gone; gone == still {
					t.Errorf("gone: %t\n%s", gone, lines(w.events))
				}
			})
		}
	}
}

// failingRecoverer is a recoverer that fails for its own reasons at first.
type failingRecoverer struct {
	*fake
	failures map[string]int
}

var errNotYet = errors.New("not yet")

func (s *failingRecoverer) fails(what string) error {
	if s.failures[what] > 0 {
		s.failures[what]--
		return fmt.Errorf("%s: %w", what, errNotYet)
	}
	return nil
}

func (s *failingRecoverer) Mend(v rdma.View) error {
	return errors.Join(s.fails("mend"), s.fake.Mend(v))
}

func (s *failingRecoverer) Restore(v rdma.View, node, spare int) error {
	if err := s.fails("restore"); err != nil {
		return err
	}
	return s.fake.Restore(v, node, spare)
}

func (s *failingRecoverer) Recover(v rdma.View, c rdma.ClientID) error {
	if err := s.fails(fmt.Sprint("recover ", c)); err != nil {
		return err
	}
	return s.fake.Recover(v, c)
}

func (s *failingRecoverer) Report() string { return "as it was told" }

// TestWhatFailsIsTriedAgain has a recoverer fail: other things are done meanwhile.
func TestWhatFailsIsTriedAgain(t *testing.T) {
	failures := map[string]int{"mend": 3, "restore": 2, "recover 2": 4}
	w := begin(t, sim.Hostile(4), 0)
	w.s.CrashAt(w.writers[1], 40)
	w.s.KillNodeAfter(1, time.Millisecond)
	w.keepers = append(w.keepers, w.s.Go("keeper", func(ep rdma.Endpoint) {
		o := cluster.Options{
			Lease: lease, Stop: func() bool { return w.s.Now() > limit },
			Log: func(e cluster.Event) { w.events = append(w.events, e) },
		}
		make := func(ep rdma.Endpoint) (cluster.Recoverer, error) {
			return &failingRecoverer{&fake{w, ep}, failures}, nil
		}
		if err := cluster.Keep(ep, w.s, make, o); err != nil {
			t.Error(err)
		}
	}))
	w.end()
	w.whole(1)
	failed, order := 0, ""
	for _, e := range w.events {
		switch e.What {
		case cluster.Failed:
			if failed++; !errors.Is(e.Err, errNotYet) {
				t.Error(e)
			}
		case cluster.Recovered:
			order += e.Client.Name + " "
			if e.Report != "as it was told" {
				t.Errorf("%v: %q", e, e.Report)
			}
		}
	}
	if failed != 9 || order != "writer 0 writer 1 " {
		t.Errorf("%d failures, recovered: %s\n%s", failed, order, lines(w.events))
	}
}

// readingRecoverer is a recoverer on real memory: all it does is to read.
type readingRecoverer struct {
	ep        rdma.Endpoint
	recovered *atomic.Int64
}

func (i *readingRecoverer) Spares() []int                     { return []int{2} }
func (i *readingRecoverer) Mend(rdma.View) error              { _, err := read(i.ep, rdma.At(0, 0)); return err }
func (i *readingRecoverer) Restore(rdma.View, int, int) error { return i.Mend(rdma.View{}) }
func (i *readingRecoverer) Sweep(rdma.View) error             { return i.Mend(rdma.View{}) }
func (i *readingRecoverer) Recover(rdma.View, rdma.ClientID) error {
	i.recovered.Add(1)
	return i.Mend(rdma.View{})
}

// TestKeepersOnSharedMemory runs keepers in tasks, which end with the fabric.
func TestKeepersOnSharedMemory(t *testing.T) {
	f, err := shm.NewMem(shm.Geometry{Nodes: 3, Memory: 4096, Clients: 16}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := f.Open("test")
	if err != nil {
		t.Fatal(err)
	}
	var recovered atomic.Int64
	var mu sync.Mutex
	var events []cluster.Event
	make := func(ep rdma.Endpoint) (cluster.Recoverer, error) { return &readingRecoverer{ep, &recovered}, nil }
	o := cluster.Options{Lease: 5 * time.Millisecond, Log: func(e cluster.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	}}
	for range 3 {
		if err := ep.Go("keeper", func(own rdma.Endpoint) { cluster.Keep(own, f, make, o) }); err != nil {
			t.Fatal(err)
		}
	}
	victim, err := f.Open("victim")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Revoke(victim.Client()), victim.Close(), f.KillNode(1)); err != nil {
		t.Fatal(err)
	}
	whole := func() bool {
		return !f.View().Busy && f.View().Members[2].Replaces == 2 && recovered.Load() > 0 &&
			!strings.Contains(fmt.Sprint(f.Clients()), "victim")
	}
	for until := time.Now().Add(wait.Hang); !whole() && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	if !whole() {
		mu.Lock()
		t.Errorf("view %+v, clients %+v, events:\n%s", f.View(), f.Clients(), lines(events))
		mu.Unlock()
	}
	if err := errors.Join(ep.Close(), f.Close()); err != nil {
		t.Error(err)
	}
}

// succeeding is a fabric in which each master follows one that could not be fenced off everywhere.
type succeeding struct{ rdma.Fabric }

func (f succeeding) TryMaster(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error) {
	r, ok, err := f.Fabric.TryMaster(owner, lease)
	r.FenceEpoch = 3
	return r, ok, err
}

// TestFenceEpoch: if verbs of a predecessor may be in flight, a master fences them off before it
// does anything else, and does so once.
func TestFenceEpoch(t *testing.T) {
	f, err := shm.NewMem(shm.Geometry{Nodes: 3, Memory: 4096, Clients: 16}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 2}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ep, err := f.Open("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	victim, err := f.Open("victim")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Revoke(victim.Client()), victim.Close()); err != nil {
		t.Fatal(err)
	}
	var recovered atomic.Int64
	make := func(ep rdma.Endpoint) (cluster.Recoverer, error) { return &readingRecoverer{ep, &recovered}, nil }
	for _, want := range []string{"elected mended recovered swept", "elected swept"} {
		did, err := cluster.Once(ep, succeeding{f}, make, cluster.Options{Lease: time.Second})
		var got []string
		for _, e := range did {
			got = append(got, e.What.String())
		}
		if err != nil || strings.Join(got, " ") != want || f.View().Epoch != 3 {
			t.Errorf("did %v in epoch %d, want %s (%v)", got, f.View().Epoch, want, err)
		}
	}
}

// TestOnceGivesUp: a recoverer that no number of rounds helps, since the nodes that it needs are
// down, ends Once after a while, and Stop ends it at once.
func TestOnceGivesUp(t *testing.T) {
	w := begin(t, sim.Hostile(5), 0)
	without := func(rdma.Endpoint) (cluster.Recoverer, error) {
		return nil, fmt.Errorf("1 of 3 replicas answered: %w", rdma.ErrNodeDown)
	}
	w.s.Go("operator", func(ep rdma.Endpoint) {
		began := ep.Now()
		_, err := cluster.Once(ep, w.s, without, cluster.Options{Lease: lease})
		if took := ep.Now() - began; !errors.Is(err, rdma.ErrNodeDown) || took < 10*lease || took > 25*lease {
			t.Errorf("after %v: %v", took, err)
		}
		stop := ep.Now() + 3*lease
		_, err = cluster.Once(ep, w.s, without, cluster.Options{Lease: lease,
			Stop: func() bool { return ep.Now() > stop }})
		if late := ep.Now() - stop; !errors.Is(err, cluster.ErrStopped) || late > lease {
			t.Errorf("%v behind its stop: %v", late, err)
		}
	})
	w.end()
}
