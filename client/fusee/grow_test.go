package fusee

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// growing returns the shape of a pool of which the index begins with 168 slots.
func growing(index, data, most int) layout.Params {
	p := small(3, index, data)
	p.Subtables, p.Groups, p.MaxSubtables, p.Regions = 1, 8, most, 24
	return p
}

// TestGrow: clients insert many times the pairs for which the index was made, and read, replace
// and delete what they inserted meanwhile, in a network in which verbs are late. Other clients,
// which cache nothing and write nothing, read pairs that stay. No operation fails, and every pair
// is found as it is, also by a client that comes later. Only a DELETE may be uncertain whose slot
// has one replica: when views change twice in its midst, and another pair took the slot in
// between and was moved away, nothing shows whether it took effect.
func TestGrow(t *testing.T) {
	for _, replicas := range [][2]int{{1, 1}, {2, 2}, {3, 2}} {
		t.Run(fmt.Sprintf("%d and %d replicas", replicas[0], replicas[1]), func(t *testing.T) {
			grown, uncertain := 0, 0
			runs := seeds.Each(t, seeds.Few(24), func(seed uint64) error {
				g := &growth{p: growing(replicas[0], replicas[1], 40)}
				defer func() { grown, uncertain = grown+g.grown, uncertain+g.uncertain }()
				return g.run(seed)
			})
			if uint64(grown) < 2*runs {
				t.Errorf("the index grew %d times in %d runs: this test shows nothing", grown, runs)
			}
			if uint64(uncertain) > 1+runs/50 {
				t.Errorf("%d DELETEs were uncertain in %d runs", uncertain, runs)
			}
		})
	}
}

// growth is a run of TestGrow.
type growth struct {
	*sim.Sim
	p       layout.Params
	working int
	// How many DELETEs were uncertain.
	uncertain int
	grown     int               // barriers in which the index grew
	pairs     map[string]string // as all acknowledged operations have left them
	stay      []string          // keys of pairs that are never changed
	errs      []error
}

func (g *growth) run(seed uint64) error {
	const writers, readers, each = 4, 2, 150
	l, err := layout.New(g.p, 3, 1<<40)
	if err != nil {
		return err
	}
	o := sim.Hostile(seed)
	o.Nodes, o.Memory, o.Clients, o.Handler = 3, l.Bytes, g.p.Clients, node.Serve
	g.Sim, g.pairs, g.working = sim.New(o), map[string]string{}, writers
	defer g.Close()
	if err := session.Make(g, g.p); err != nil {
		return err
	}
	for w := range writers {
		g.Go("writer", func(ep rdma.Endpoint) {
			defer func() { g.working-- }()
			g.errs = append(g.errs, g.write(ep, w, each))
		})
	}
	for range readers {
		g.Go("reader", func(ep rdma.Endpoint) { g.errs = append(g.errs, g.read(ep)) })
	}
	g.Go("keeper", func(ep rdma.Endpoint) {
		g.errs = append(g.errs, cluster.Keep(ep, g, recoverer, cluster.Options{Lease: time.Millisecond,
			Stop: func() bool { return g.working == 0 },
			Log: func(e cluster.Event) {
				if e.Report != "" {
					g.grown++
				}
			}}))
	})
	err = g.Run()
	if err = errors.Join(append(g.errs, err)...); err != nil {
		return err
	}
	g.Go("later", func(ep rdma.Endpoint) { g.errs = append(g.errs, g.readAll(ep)) })
	if err := g.Run(); err != nil {
		return err
	}
	r, err := Check(g)
	if len(r.Damage)+len(r.Waiting) > 0 {
		err = fmt.Errorf("check found damage: %q %q", r.Damage, r.Waiting)
	}
	return errors.Join(append(g.errs, err)...)
}

// write inserts n pairs of the writer's own, and changes some of them.
func (g *growth) write(ep rdma.Endpoint, w, n int) error {
	c, err := Open(ep, Options{})
	if err != nil {
		return err
	}
	name := func(i int) string { return fmt.Sprintf("%d of %d", i, w) }
	for i := range n {
		key := name(i)
		if err := c.Insert([]byte(key), []byte(key)); err != nil {
			return fmt.Errorf("pair %s: %w", key, err)
		}
		if g.pairs[key] = key; i%4 == 0 {
			g.stay = append(g.stay, key)
			continue
		}
		key = name(ep.Rand().IntN(i + 1))
		if err := g.change(ep, c, key); err != nil {
			return fmt.Errorf("pair %s: %w", key, err)
		}
	}
	return c.Close()
}

// change reads a pair, and replaces or deletes it if it is not to stay.
func (g *growth) change(ep rdma.Endpoint, c *Client, key string) error {
	if err := g.look(c, key); err != nil || slices.Contains(g.stay, key) || g.pairs[key] == "" {
		return err
	}
	if ep.Rand().IntN(2) == 0 {
		err := c.Delete([]byte(key))
		if g.p.IndexReplicas == 1 && errors.Is(err, client.ErrUncertain) {
			g.uncertain++
			if _, err = c.Get([]byte(key)); err == nil {
				return nil
			}
		}
		if delete(g.pairs, key); errors.Is(err, client.ErrNotFound) {
			err = nil
		}
		return err
	}
	g.pairs[key] += "."
	return c.Update([]byte(key), []byte(g.pairs[key]))
}

// look reads a pair that no other client changes.
func (g *growth) look(c *Client, key string) error {
	v, err := c.Get([]byte(key))
	if errors.Is(err, client.ErrNotFound) {
		v, err = nil, nil
	}
	if want := g.pairs[key]; err == nil && string(v) != want {
		err = fmt.Errorf("%q: got %q, want %q", key, v, want)
	}
	return err
}

func (g *growth) read(ep rdma.Endpoint) error {
	c, err := Open(ep, Options{CacheBytes: new(0)})
	if err != nil {
		return err
	}
	for g.working > 0 {
		if len(g.stay) == 0 {
			ep.Sleep(10 * time.Microsecond)
		} else if err := g.look(c, g.stay[ep.Rand().IntN(len(g.stay))]); err != nil {
			return err
		}
	}
	return c.Close()
}

func (g *growth) readAll(ep rdma.Endpoint) error {
	c, err := Open(ep, Options{})
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(g.pairs)) {
		if err := g.look(c, key); err != nil {
			return err
		}
	}
	return c.Close()
}

// fail notes an error in a worker of a simulation, which must not end the test.
func fail(t *testing.T, err error) {
	if err != nil {
		t.Error(err)
	}
}

// readAll reads the pairs from 1 on, again and again while the pool is mended.
func readAll(ep rdma.Endpoint, pairs int) error {
	c, err := Open(ep, Options{})
	if err != nil {
		return err
	}
	for i := 1; i < pairs; i++ {
		if v, err := c.Get(key(i)); err != nil || string(v) != fmt.Sprint(i) {
			return fmt.Errorf("%q: got %q, %v, want %d", key(i), v, err, i)
		}
	}
	return c.Close()
}

// TestIndexFull: an index that may not grow any more, or for which there is no master, is full. The
// pairs that are there are read, replaced and deleted, and there is room again.
func TestIndexFull(t *testing.T) {
	for _, most := range []int{1, 4} {
		f := simPool(t, 3, growing(2, 2, most))
		c := worker2(t, f)
		n := 0
		for ; ; n++ {
			if err := c.Insert(key(n), nil); err != nil {
				wantError(t, err, client.ErrFull)
				break
			}
		}
		if n < 120 {
			t.Errorf("full with %d pairs in 168 slots", n)
		}
		for i := range n {
			must(t, c.Update(key(i), []byte("1")))
			must(t, c.Delete(key(i)))
		}
		must(t, c.Insert(key(n), nil))
		must(t, c.Close())
		checkClean(t, f)
	}
}

// TestUnresolvedMoves: where a write of unknown outcome is looked for, its pair is by now.
func TestUnresolvedMoves(t *testing.T) {
	f := simPool(t, 3, growing(2, 2, 4))
	c := worker2(t, f)
	moves := 0
	for i := range 20 {
		must(t, c.Insert(key(i), nil))
	}
	for i := range 20 {
		hash := race.Hash(key(i))
		at, _, held, err := c.find(key(i), hash, false)
		must(t, err)
		held.Release()
		c.unresolved.list.Keep(unresolvedWrite{slot: at.slot, hash: hash, word: at.word})
	}
	must(t, c.views.ask(2))
	recoverNow(t, f)
	must(t, c.s.View.Join())
	must(t, c.views.learnSize())
	for i := range c.unresolved.list {
		s := &c.unresolved.list[i]
		if w, err := c.s.ReadSlot(session.StepReadSlots, s.slot, 0); err != nil || w != s.word {
			t.Errorf("slot %d: got %v, %v, want %v", s.slot, w, err, s.word)
		}
		if c.s.Index.Subtable(s.slot) == 1 {
			moves++
		}
	}
	if moves == 0 {
		t.Error("no pair has moved: this test shows nothing")
	}
}

// TestCannotGrow: an index cannot grow if all nodes of the next subtable are gone, or if one of
// them has no memory for it. The pool is mended all the same, and is full.
func TestCannotGrow(t *testing.T) {
	for _, test := range []struct {
		name  string
		serve rdma.Handler
		dies  bool
	}{
		{"no node", node.Serve, true},
		{"no memory", func(m rdma.Memory, r *rdma.Request) error {
			if r.Proc == node.ProcBack {
				return rdma.ErrFull
			}
			return node.Serve(m, r)
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := growing(1, 2, 4)
			l, err := layout.New(p, 3, 1<<40)
			must(t, err)
			f := sim.New(sim.Options{Nodes: 3, Memory: l.Bytes, Clients: p.Clients, Handler: test.serve})
			t.Cleanup(func() { f.Close() })
			must(t, session.Make(f, p))
			c := worker2(t, f)
			must(t, c.Insert(key(0), []byte("1")))
			if test.dies {
				victim := l.Original.Index[1][0].Node
				if victim == l.Original.Index[0][0].Node {
					t.Fatal("the first two subtables lie on one node")
				}
				must(t, f.KillNode(victim))
				recoverNow(t, f)
			}
			must(t, c.Update(key(0), []byte("1"))) // in the view as it is now
			must(t, c.views.ask(2))
			recoverNow(t, f)
			if v := f.View(); v.Busy {
				t.Fatalf("the view stays busy: %+v", v)
			}
			wantValue(t, c, string(key(0)), "1")
			if size := len(c.s.Index.Place); size != 1 {
				t.Errorf("the index has %d subtables", size)
			}
		})
	}
}

// TestSplitCutOff kills the master at every verb while it splits. The next one goes on, clients
// read every pair in between, and afterwards the index has its size on all nodes.
func TestSplitCutOff(t *testing.T) {
	const pairs = 140
	for at := uint64(1); ; at += seeds.Step(1, 3) {
		p := growing(2, 2, 4)
		p.Regions = 6
		f := simPool(t, 3, p)
		c := worker2(t, f)
		for i := range pairs {
			must(t, c.Insert(key(i), []byte(fmt.Sprint(i))))
		}
		must(t, c.Delete(key(0)))
		must(t, c.views.ask(3))
		keep := func(ep rdma.Endpoint) {
			if _, err := cluster.Once(ep, f, recoverer,
				cluster.Options{Lease: time.Millisecond}); !errors.Is(err, rdma.ErrClosed) { // it is dead
				fail(t, err)
			}
		}
		crashed := false
		x := f.Go("master", keep)
		f.CrashAt(x, at)
		x.WhenCrashed(func() {
			crashed = true
			f.Go("reader", func(ep rdma.Endpoint) {
				fail(t, readAll(ep, pairs))
			})
			f.Go("next master", keep)
		})
		must(t, f.Run())
		wantValue(t, c, string(key(0)), "")
		for i := 1; i < pairs; i++ {
			wantValue(t, c, string(key(i)), fmt.Sprint(i))
			must(t, c.Update(key(i), []byte("new")))
		}
		if size := len(c.s.Index.Place); size < 3 && !t.Failed() {
			t.Errorf("killed at verb %d: the index has %d subtables, not 3 or more", at, size)
		}
		must(t, c.Close())
		recoverNow(t, f)
		checkClean(t, f)
		if t.Failed() {
			t.Fatalf("killed at verb %d", at)
		}
		if !crashed {
			t.Logf("%d verbs", at)
			return
		}
	}
}

// growMutants break the rules of recovery/grow.go.
var growMutants = []teeth.Mutant{
	{Rule: "a reader that finds nothing under a busy view asks for the size", In: "follower.grewMeanwhile",
		At: "!$f.$s.$View.Busy", Do: "$f.$s.$View.Busy || true"},
	{Rule: "all nodes have the new size before anything is taken away", Pkg: "recovery", In: "Recoverer.split",
		At: "$m.$writeSize($to+1, true)", Do: "error(nil)", Test: "TestSplitCutOff"},
	{Rule: "what moved is taken away", Pkg: "recovery", In: "Recoverer.takeAway",
		At: "$m.$swapAll(session.StepClearMoved, $b)", Do: "error(nil)", Test: "TestSplitCutOff"},
	{Rule: "a split that was cut off is ended", Pkg: "recovery", In: "Recoverer.settleSize",
		At: "$m.$halfway = $halfway", Do: "$m.$halfway = false", Test: "TestSplitCutOff"},
	{Rule: "tombstones are on both sides of a split", Pkg: "recovery", In: "Recoverer.split",
		At: "$w.Empty() || $known && $next.Where($s, $hash) >= $first",
		Do: "$known && $next.Where($s, $hash) >= $first"},
	{Rule: "a write that was cut off is looked for where its pair is", In: "writer.resolveOnce",
		At: "$wr.$s.$Index.Where($w.$slot, $w.$hash)", Do: "$w.$slot"},
	{Rule: "an unresolved write moves with its pair", In: "unresolvedWrites.followPairs",
		At: "$u.$s.$Index.Where($s.$slot, $s.$hash)", Do: "$s.$slot", Test: "TestUnresolvedMoves"},
	{Rule: "a write becomes unresolved where its pair is by now", In: "Client.keepUnresolved",
		At: "$c.$s.$Index.Where($w.$slot, $w.$hash)", Do: "$w.$slot", Test: "TestUncertainWriteMoves"},
	{Rule: "what may be in no subtable of the next view is not cached", In: "Client.getOnce",
		At: "!$c.views.tentative($at.slot)", Do: "true", Test: "TestIndexShrinks/cached:_true"},
	{Rule: "a client learns the size in each view", In: "follower.applyView",
		At: "$f.$sized && $v.Epoch == $f.$s.$View.Epoch && !$v.Busy", Do: "$f.$sized"},
}

// stuckMutants let an index that cannot grow keep its pool busy, or fail its master.
var stuckMutants = []teeth.Mutant{
	{Rule: "an index does not grow where no node has the next subtable", Pkg: "recovery", In: "Recoverer.mayGrow",
		At: "!$lost", Do: "!$lost || true"},
	{Rule: "a node without memory for a subtable ends the growing", Pkg: "recovery", In: "Recoverer.backNext",
		At: "errors.Is($err, rdma.ErrFull) || errors.Is($err, rdma.ErrNotSupported)",
		Do: "errors.Is($err, rdma.ErrClosed)"},
}

func TestStuckMutants(t *testing.T) {
	s := protocolSuite
	s.Test, s.Seen = "TestCannotGrow", regexp.MustCompile(`mend epoch|the view stays busy`)
	s.Run(t, stuckMutants)
}

func TestGrowMutants(t *testing.T) {
	s := protocolSuite
	s.Test, s.Env = "TestGrow", []string{"FARKV_SEEDS=100"}
	s.Seen = regexp.MustCompile(caught.String() + `|is not the slot's pair|outcome unknown|outlast others`)
	s.Run(t, growMutants)
}
