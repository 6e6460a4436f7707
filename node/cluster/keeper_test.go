package cluster_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/teeth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	holders, spares = 3, 2 // memory nodes
	lease           = 200 * time.Microsecond
	limit           = 15 * time.Millisecond // when keepers are stopped
	forever         = time.Hour
)

// The words of every node.
const (
	ledger = 0  // recoverers add to it, one at a time
	holds  = 8  // of a spare: the node of which it has the contents, plus one
	writes = 64 // by epoch: what clients of that epoch have added
	epochs = 1000
)

// world is a pool with everything that happens to it.
type world struct {
	t       testing.TB
	s       *sim.Sim
	f       rdma.Fabric // s, or one that breaks a rule
	keepers []*sim.Worker
	writers []*sim.Worker
	events  []cluster.Event
	done    map[string]int // what recoverers finished
	// tell is the keepers' Options.Tell; nil: they tell nothing.
	tell func(ep rdma.Endpoint, v *rdma.View, did []cluster.Event, within time.Duration) error
}

// fake is a recoverer that has a pool's words to itself, or finds out that it does not.
type fake struct {
	*world
	ep rdma.Endpoint
}

func (w *world) recoverer(ep rdma.Endpoint) (cluster.Recoverer, error) { return &fake{w, ep}, nil }

func do(ep rdma.Endpoint, add func(b *rdma.Batch) *rdma.Op) (uint64, error) {
	b := ep.Batch()
	defer b.Release()
	op := add(b)
	err := rdma.Do(ep, b, 5*lease)
	if err == nil && op.Verb == rdma.Read {
		return binary.LittleEndian.Uint64(op.Buf), nil
	}
	return op.Result, err
}

func read(ep rdma.Endpoint, a rdma.Addr) (uint64, error) {
	return do(ep, func(b *rdma.Batch) *rdma.Op { return b.Read(a, 8) })
}

func add(ep rdma.Endpoint, a rdma.Addr, n uint64) (uint64, error) {
	return do(ep, func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(a, n) })
}

func alive(v rdma.View) (nodes []int) {
	for n, m := range v.Members {
		if !m.Gone {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// configure replaces the configuration: no other process does in this tenure.
func (f *fake) configure(what string) error {
	c, err := f.f.Config()
	if err != nil {
		return err
	}
	f.ep.Sleep(5 * time.Microsecond)
	ok, err := f.ep.(cluster.Configurer).SwapConfig(c.Version, []byte(what), "")
	if !ok && err == nil {
		f.t.Errorf("%s: another master has replaced version %d of the configuration", what, c.Version)
	}
	return err
}

// alone adds to the ledgers some times: there is no other writer meanwhile. What fails is told,
// what is wrong is an error.
func (f *fake) alone(v rdma.View, what string, times int) error {
	for _, n := range alive(v) {
		last := uint64(0)
		for i := range times {
			met, err := add(f.ep, rdma.At(n, ledger), 1)
			if err != nil {
				return err
			}
			if i > 0 && met != last+1 {
				f.t.Errorf("%s in epoch %d on node %d is not alone: it left %d and met %d", what, v.Epoch, n, last+1,
					met)
			}
			last = met
			if err := f.configure(what); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *fake) Spares() []int { return []int{holders, holders + 1} }

// busy checks that there is no writer, neither of an earlier epoch nor of this one.
func (f *fake) busy(v rdma.View, what string) error {
	if !v.Busy || v.Epoch == 0 || v.Epoch >= epochs {
		f.t.Errorf("%s in view %+v", what, v)
	}
	for _, n := range alive(v) {
		var sums [2][2]uint64
		for look := range sums {
			for i := range 2 {
				var err error
				if sums[look][i], err = read(f.ep, rdma.At(n, writes+8*(v.Epoch-uint64(i)))); err != nil {
					return err
				}
			}
			f.ep.Sleep(3 * time.Microsecond)
		}
		if sums[0] != sums[1] || sums[0][0] != 0 {
			f.t.Errorf("%s in epoch %d, but clients write to node %d: %v", what, v.Epoch, n, sums)
		}
	}
	return nil
}

func (f *fake) finish(format string, args ...any) error {
	f.done[fmt.Sprintf(format, args...)]++
	return nil
}

func (f *fake) Mend(v rdma.View) error {
	if err := errors.Join(f.busy(v, "mend"), f.alone(v, "mend", 3)); err != nil {
		return err
	}
	return f.finish("mend %d", v.Epoch)
}

func (f *fake) Restore(v rdma.View, node, spare int) error {
	if err := errors.Join(f.busy(v, "restore"), f.alone(v, "restore", 3)); err != nil {
		return err
	}
	if !v.Members[node].Gone || v.Members[spare] != (rdma.Member{}) || spare < holders {
		f.t.Errorf("restore node %d on node %d in view %+v", node, spare, v)
	}
	met, err := read(f.ep, rdma.At(spare, holds))
	if err == nil { // only what an attempt that was cut off left there
		_, err = do(f.ep, func(b *rdma.Batch) *rdma.Op {
			return b.CompareSwap(rdma.At(spare, holds), met, uint64(node+1))
		})
	}
	if err != nil {
		return err
	}
	return f.finish("restore %d", node)
}

func (f *fake) Sweep(v rdma.View) error {
	if v.Busy {
		return errors.New("sweep under a busy view")
	}
	return nil
}

func (f *fake) Recover(v rdma.View, c rdma.ClientID) error {
	for _, have := range f.s.Clients() {
		if have.ID == c && have.Alive {
			f.t.Errorf("client %d, which is alive, is recovered", c)
		}
	}
	if v.Busy {
		f.t.Errorf("client %d is recovered in view %+v", c, v)
	}
	if err := f.alone(v, "recover", 12); err != nil {
		return err
	}
	return f.finish("recover %d", c)
}

// write adds to the word of its epoch on all nodes, whenever the view is not busy.
func (w *world) write(ep rdma.Endpoint) {
	v, err := ep.Join()
	for w.s.Now() < limit-20*lease && err == nil {
		if v.Busy {
			ep.Sleep(10 * time.Microsecond)
			v, err = ep.Join()
			continue
		}
		b := ep.Batch()
		for _, n := range alive(v) {
			b.FetchAdd(rdma.At(n, writes+8*v.Epoch), 1)
		}
		failed := rdma.Do(ep, b, forever)
		b.Release()
		if failed != nil {
			if errors.Is(failed, rdma.ErrClosed) {
				return // it has crashed, and the simulation ends
			}
			if !errors.Is(failed, rdma.ErrStale) && !errors.Is(failed, rdma.ErrNodeDown) {
				w.t.Errorf("write: %v", failed)
				return
			}
			ep.Sleep(10 * time.Microsecond)
			v, err = ep.Join()
		}
		ep.Sleep(time.Duration(ep.Rand().IntN(20)) * time.Microsecond)
	}
	if err != nil && !errors.Is(err, rdma.ErrClosed) {
		w.t.Errorf("join: %v", err)
	}
}

// keep is a process's keeper, which begins again when it was fenced off.
func (w *world) keep(ep rdma.Endpoint) {
	o := cluster.Options{
		Lease: lease, Stop: func() bool { return w.s.Now() > limit },
		Log: func(e cluster.Event) { w.events = append(w.events, e) }, Tell: w.tell,
	}
	for err := cluster.Keep(ep, w.f, w.recoverer, o); err != nil; err = cluster.Keep(ep, w.f, w.recoverer, o) {
		if !errors.Is(err, rdma.ErrRevoked) {
			w.t.Errorf("keep: %v", err)
			return
		}
		ep.Close()
		if ep, err = w.s.Open("keeper again"); err != nil {
			if !errors.Is(err, rdma.ErrClosed) { // as a crashed one is told when the simulation ends
				w.t.Error(err)
			}
			return
		}
	}
}

// begin starts keepers and writers; one of the writers dies early.
func begin(t testing.TB, o sim.Options, keepers int) *world {
	o.Nodes, o.Memory, o.Limit = holders+spares, 1<<16, time.Second
	w := &world{t: t, s: sim.New(o), done: map[string]int{}}
	w.f = w.s
	for i := range keepers {
		w.keepers = append(w.keepers, w.s.Go(fmt.Sprint("keeper ", i), w.keep))
	}
	for i := range 3 {
		w.writers = append(w.writers, w.s.Go(fmt.Sprint("writer ", i), w.write))
	}
	w.s.CrashAt(w.writers[0], 30)
	return w
}

func (w *world) end() {
	w.t.Helper()
	defer w.s.Close()
	if err := w.s.Run(); err != nil {
		w.t.Error(err)
	}
}

// whole checks what has to be so in the end, as long as one keeper lives.
func (w *world) whole(gone ...int) {
	w.t.Helper()
	v := w.s.View()
	if v.Busy {
		w.t.Errorf("the view is busy in the end: %+v", v)
	}
	stands := 0
	for n, m := range v.Members {
		dead := false
		for _, g := range gone {
			dead = dead || g == n
		}
		if m.Gone != dead {
			w.t.Errorf("in the end node %d %v", n, m)
		}
		if m.Replaces > 0 {
			stands++
		}
	}
	if stands != min(spares, len(gone)) {
		w.t.Errorf("%d nodes stand for %v: %+v", stands, gone, v)
	}
	for _, c := range w.s.Clients() {
		if !c.Alive {
			w.t.Errorf("client %d (%s) waits for recovery in the end", c.ID, c.Name)
		}
	}
	if w.done[fmt.Sprintf("recover %d", w.writers[0].Client())] == 0 {
		w.t.Error("the dead writer was not recovered")
	}
	if w.t.Failed() {
		for _, e := range w.events {
			w.t.Log(e.At, e)
		}
	}
}

func TestNodesAndClientsDie(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := begin(t, sim.Hostile(seed), 2)
			w.s.KillNodeAfter(1, time.Millisecond)
			w.s.KillNodeAfter(holders, 5*time.Millisecond) // stands for node 1 by then
			w.end()
			w.whole(1, holders)
			v := w.s.View()
			if v.Members[holders].Replaces != 2 || v.Members[holders+1].Replaces != holders+1 {
				t.Errorf("no node stands for the stand-in: %+v", v)
			}
		})
	}
}

// TestKeeperCrashesAnywhere crashes the first master at each of its verbs and changes of the view.
// Others finish.
func TestKeeperCrashesAnywhere(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	run := func(t *testing.T, k int, second bool) uint64 {
		w := begin(t, sim.Hostile(uint64(k)), 3)
		w.s.KillNodeAfter(1, 300*time.Microsecond)
		w.s.CrashAt(w.keepers[0], uint64(k))
		if second {
			w.keepers[0].WhenCrashed(func() { w.s.CrashAfter(w.keepers[1], 3*lease/2) })
		}
		w.end()
		w.whole(1)
		return w.keepers[0].Sent()
	}
	most := 0
	for k := 0; most == k || k < 20; k++ { // until it outlives its work
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			most = int(run(t, k, k%2 == 1)) + 1
		})
		if k > 400 {
			break
		}
	}
}

// stalled stalls the first master at a moment, and lets it go on when others may be master; a verb
// of it lands while it is stalled, unless it is fenced off.
func stalled(t testing.TB, k int, change func(w *world)) *world {
	o := sim.Hostile(uint64(k))
	at, late := 100*time.Microsecond+time.Duration(k)*5*time.Microsecond, lease+time.Duration(k%16)*lease/16
	o.Faults = sim.Faults{
		{Kind: sim.FlyFault, Client: "keeper 0", At: at, For: late},
		{Kind: sim.StallFault, Client: "keeper 0", At: at + 10*time.Microsecond, For: 2 * late},
	}
	w := begin(t, o, 3)
	w.s.KillNodeAfter(1, 300*time.Microsecond)
	if change != nil {
		change(w)
	}
	w.end()
	w.whole(1)
	return w
}

// TestKeeperStallsAnywhere stalls the first master for many leases, at moments all over its work,
// and lets it go on.
func TestKeeperStallsAnywhere(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	lost := 0
	for k := range 150 {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			tenures := 0
			for _, e := range stalled(t, k, nil).events {
				if e.What == cluster.Elected {
					tenures++
				}
			}
			if tenures > 1 {
				lost++
			}
		})
	}
	if lost < 20 {
		t.Errorf("only %d masters lost their role", lost)
	}
}

// lax is a fabric with a control that is broken where its functions are set.
type lax struct {
	*sim.Sim
	fence  func(epoch uint64) error
	master func(owner rdma.ClientID, d time.Duration) (rdma.Role, bool, error)
	last   rdma.Role
	late   bool // a deposed master replaces the configuration
}

func (l *lax) SwapConfig(r rdma.Role, version uint64, data []byte) (bool, error) {
	ok, err := l.Sim.SwapConfig(r, version, data)
	if l.late && errors.Is(err, rdma.ErrStale) {
		return l.Sim.SwapConfig(l.last, version, data)
	}
	return ok, err
}

func (l *lax) Fence(epoch uint64) error { return l.fence(epoch) }

func (l *lax) TryMaster(owner rdma.ClientID, d time.Duration) (r rdma.Role, ok bool, err error) {
	if r, ok, err = l.master(owner, d); ok {
		l.last = r
	}
	return r, ok, err
}

func (l *lax) Renew(r rdma.Role, d time.Duration) (now rdma.Role, ok bool, err error) {
	if now, ok, err = l.Sim.Renew(r, d); ok {
		l.last = now
	}
	return now, ok, err
}

// countingTB counts what a test would fail with.
type countingTB struct {
	testing.TB
	failures int
}

func (h *countingTB) Helper()               {}
func (h *countingTB) Error(...any)          { h.failures++ }
func (h *countingTB) Errorf(string, ...any) { h.failures++ }
func (h *countingTB) Failed() bool          { return false }

// TestKeepersHaveTeeth breaks what keeps a lost master from harm, and expects the tests above to
// see it.
func TestKeepersHaveTeeth(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for name, breach := range map[string]func(l *lax){
		"a deposed master replaces the configuration": func(l *lax) { l.late = true },
		"nothing is fenced":                           func(l *lax) { l.fence = func(uint64) error { return nil } },
		"a lost master is not fenced off": func(l *lax) {
			l.master = func(owner rdma.ClientID, d time.Duration) (rdma.Role, bool, error) {
				if l.Now() >= l.last.Until {
					l.Sim.Resign(l.last)
				}
				return l.Sim.TryMaster(owner, d)
			}
		},
	} {
		caught := 0
		for k := range 150 {
			h := &countingTB{TB: t}
			stalled(h, k, func(w *world) {
				l := &lax{Sim: w.s, fence: w.s.Fence, master: w.s.TryMaster}
				breach(l)
				w.f = l
			})
			caught += min(h.failures, 1)
		}
		t.Logf("%s: seen in %d of 150 runs", name, caught)
		if caught == 0 {
			t.Errorf("%s, and no run fails", name)
		}
	}
}
