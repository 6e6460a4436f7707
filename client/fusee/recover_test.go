package fusee

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// TestCrashes is TestContention with deaths: clients and nodes die while a few workers meet on a few keys, and a master
// mends the pool meanwhile. Afterwards nothing may be lost, wrong, or leaked.
func TestCrashes(t *testing.T) {
	seeds, first := env("FARKV_SEEDS", 100), env("FARKV_SEED", 1)
	for _, r := range []struct{ nodes, spares, index, data int }{{1, 0, 1, 1}, {3, 1, 2, 2}, {3, 0, 3, 2}, {4, 1, 3, 3}, {6, 1, 5, 3}} {
		t.Run(fmt.Sprintf("%d index replicas, %d of data", r.index, r.data), func(t *testing.T) {
			var seen tally
			for seed := first; seed < first+seeds; seed++ {
				if err := crash(seed, r.nodes, r.spares, r.index, r.data, &seen); err != nil {
					t.Fatalf("seed %d: %v\nreplay: FARKV_SEED=%d FARKV_SEEDS=1 go test ./client/fusee -run '^TestCrashes$/^%d_index_replicas,_%d'", seed, err, seed, r.index, r.data)
				}
			}
			t.Logf("%+v", seen)
		})
	}
}

var TRACE bool

type tally struct{ clients, nodes, masters, slow, unfinished, freed, uncertain int }

func crash(seed uint64, nodes, spares, index, data int, seen *tally) error {
	rng := rand.New(rand.NewPCG(seed, 11))
	p := Params{IndexReplicas: index, DataReplicas: data, Subtables: 2, Groups: 2, Regions: 2*nodes + 3, Spares: spares,
		RegionBytes: 32 << 10, BlockBytes: 4 << 10, Clients: 16, Timeout: 50 * time.Millisecond, TagBits: race.MaxTagBits}
	l, err := newLayout(p, nodes, 1<<40)
	if err != nil {
		return err
	}
	o := sim.Hostile(seed)
	o.Nodes, o.Memory, o.Clients, o.Handler = nodes, l.bytes, p.Clients, node.Serve
	o.FlyProb = []float64{0, 0.02, 0.2}[rng.IntN(3)]
	o.MaxLatency = []time.Duration{2, 10, 50}[rng.IntN(3)] * time.Microsecond
	o.Trace = func(e sim.Event) {
		if TRACE {
			fmt.Println(e)
		}
	}
	s := sim.New(o)
	defer s.Close()
	if err := Make(s, p); err != nil {
		return err
	}
	if os.Getenv("DUMP") != "" {
		TRACE = true
	}
	workers, ops, keys, mix := 2+rng.IntN(4), 5+rng.IntN(30), 1+rng.IntN(4), mixes[rng.IntN(len(mixes))]
	size := []int{0, 900}[rng.IntN(2)]
	recorders, errs := make([]*check.Recorder, workers), make([]error, workers+1)
	working := workers
	for w := range workers {
		x := s.Go(fmt.Sprintf("worker %d", w), func(ep rdma.Endpoint) {
			defer func() { working-- }()
			c, err := Open(ep, Options{CacheThreshold: 0.9})
			if err != nil {
				if !errors.Is(err, rdma.ErrRevoked) {
					errs[w] = err
				}
				return
			}
			recorders[w] = check.NewRecorder(w, c, ep.Now)
			for i := range ops {
				meet(recorders[w], ep.Rand(), mix, keys, check.MakeValue(nil, w, i+1, size))
				if h := recorders[w].History(); h[len(h)-1].Answer == check.Failed {
					break // fenced off
				}
			}
			if err := c.Close(); !errors.Is(err, rdma.ErrRevoked) {
				errs[w] = err
			}
		})
		x.WhenCrashed(func() { working-- })
		if rng.IntN(3) == 0 {
			seen.clients++
			s.CrashAt(x, uint64(5+rng.IntN(ops*8)))
		}
	}
	if index > 1 && data > 1 && rng.IntN(2) == 0 {
		seen.nodes++
		s.KillNodeAfter(rng.IntN(nodes-spares), time.Duration(rng.IntN(ops*10))*o.MaxLatency)
	}
	if rng.IntN(4) == 0 { // declared dead, and only slow
		seen.slow++
		victim, after := rdma.ClientID(2+rng.IntN(workers)), time.Duration(rng.IntN(ops*10))*o.MaxLatency
		s.Go("accuser", func(ep rdma.Endpoint) {
			ep.Sleep(after)
			errs[workers] = s.Revoke(victim)
		})
	}
	var lead func(n int)
	lead = func(n int) {
		x := s.Go(fmt.Sprintf("master %d", n), func(ep rdma.Endpoint) {
			errs[workers] = errors.Join(errs[workers], master(s, ep, func() bool { return working == 0 }, seen))
		})
		if n < 3 && rng.IntN(3) == 0 {
			seen.masters++
			s.CrashAt(x, uint64(10+rng.IntN(150)))
			x.WhenCrashed(func() { lead(n + 1) })
		}
	}
	lead(1)
	if err := s.Run(); err != nil {
		return err
	}
	s.Go("last master", func(ep rdma.Endpoint) {
		ep.Sleep(50 * time.Millisecond) // the last fault has come
		errs[workers] = errors.Join(errs[workers], master(s, ep, func() bool { return true }, seen))
		m, err := NewMender(ep)
		if err == nil {
			err = m.Sweep(s.View())
		}
		errs[workers] = errors.Join(errs[workers], err)
	})
	if err := s.Run(); err != nil {
		return err
	}
	for _, c := range s.Clients() {
		return fmt.Errorf("client %v is left", c)
	}
	return judgeCrash(s, recorders, errors.Join(errs...), seen)
}

// master is a keeper without an election.
func master(s *sim.Sim, ep rdma.Endpoint, over func() bool, seen *tally) error {
	m, err := NewMender(ep)
	if err != nil {
		return err
	}
	for rounds := 0; ; rounds++ {
		ending := over()
		if err := watchNodes(s, ep, m); err != nil {
			return err
		}
		v, err := ep.Join()
		if err != nil {
			return err
		}
		for _, c := range s.Clients() {
			if c.Alive {
				continue
			}
			if err := s.Revoke(c.ID); err != nil {
				return err
			}
			if err := m.Recover(v, c.ID); err != nil {
				if interrupted(err) {
					ending = false
					break
				}
				return err
			}
			seen.unfinished += m.report.Unfinished
			seen.freed += m.report.Freed
			if err := s.Forget(c); err != nil && !errors.Is(err, rdma.ErrHeld) {
				return err
			}
		}
		if ending {
			return nil
		}
		ep.Sleep(100 * time.Microsecond)
	}
}

func watchNodes(s *sim.Sim, ep rdma.Endpoint, m *Mender) error {
	v, err := ep.Join()
	if err != nil {
		return err
	}
	gone := -1
	for n, x := range v.Members {
		if x.Gone && n < len(v.Members)-len(m.Spares()) {
			gone = n
		}
		if x.StandsFor > 0 {
			gone = -1
			break
		}
	}
	var dead []int
	for n, x := range v.Members {
		if x.Gone {
			continue
		}
		b := ep.Batch()
		b.Read(rdma.At(n, 0), 8)
		if errors.Is(rdma.Do(ep, b, time.Second), rdma.ErrNodeDown) {
			dead = append(dead, n)
		}
		b.Release()
	}
	if len(dead) == 0 && !v.Busy && (gone < 0 || len(m.Spares()) == 0) {
		return nil
	}
	barrier := func(act func(v rdma.View) error) error {
		now := s.View()
		e := now.Epoch + 1
		if ok, err := s.Advance(rdma.State{Epoch: e - 1, Busy: now.Busy}, rdma.State{Epoch: e, Busy: true}); !ok || err != nil {
			return fmt.Errorf("advance: %v %v", ok, err)
		}
		if err := act(s.View()); err != nil {
			return err
		}
		_, err := s.Advance(rdma.State{Epoch: e, Busy: true}, rdma.State{Epoch: e})
		return err
	}
	fence := func() (rdma.View, error) {
		if err := s.Fence(s.View().Epoch); err != nil {
			return rdma.View{}, err
		}
		return ep.Join()
	}
	err = barrier(func(v rdma.View) error {
		for _, n := range dead {
			gone := v.Members[n]
			gone.Gone = true
			if _, err := s.SetMember(v.Epoch, n, v.Members[n], gone); err != nil {
				return err
			}
			if err := s.Expel(n); err != nil {
				return err
			}
		}
		v, err := fence()
		if err != nil {
			return err
		}
		return m.Mend(v)
	})
	if len(dead) > 0 && dead[0] < len(v.Members)-len(m.Spares()) {
		gone = dead[0]
	}
	if err != nil || len(m.Spares()) == 0 || gone < 0 {
		return err
	}
	return barrier(func(v rdma.View) error {
		v, err := fence()
		if err != nil {
			return err
		}
		spare := m.Spares()[0]
		if err := m.Restore(v, gone, spare); err != nil {
			return err
		}
		_, err = s.SetMember(v.Epoch, spare, v.Members[spare], rdma.Member{StandsFor: uint16(gone + 1), Since: v.Epoch})
		return err
	})
}

func judgeCrash(f rdma.Fabric, recorders []*check.Recorder, err error, seen *tally) error {
	if err != nil {
		return err
	}
	var h check.History
	for _, r := range recorders {
		if r != nil {
			h = append(h, r.History()...)
		}
	}
	seen.uncertain += len(h.With(check.Uncertain))
	bad := h.With(check.Failed, check.Refused)
	bad = slices.DeleteFunc(bad, func(o check.Op) bool { return strings.Contains(o.String(), rdma.ErrRevoked.Error()) })
	if len(bad) > 0 {
		return fmt.Errorf("%d of %d operations failed, the first is: %v", len(bad), len(h), &bad[0])
	}
	if err := check.Linearizable(h, check.Options{}); err != nil {
		return err
	}
	r, err := Check(f)
	if os.Getenv("TMPMEM") != "" {
		r.Damage = slices.DeleteFunc(r.Damage, func(s string) bool {
			return strings.Contains(s, "leaked") || strings.Contains(s, "is free")
		})
	}
	if os.Getenv("DUMP") != "" {
		ep, _ := f.Open("dump")
		c, err := open(ep, Options{CacheBytes: -1})
		if err != nil {
			panic(err)
		}
		var reg, idx int
		fmt.Sscanf(os.Getenv("DUMP"), "%d %d", &reg, &idx)
		blk := node.Block{Region: reg, Index: idx}
		b := c.ep.Batch()
		op := b.Read(c.space.Entry(blk, 0), 8)
		c.do(b)
		cl := node.Entry(le.Uint64(op.Buf)).Class()
		for i := range c.classes.objects[cl] {
			for r := range c.space.Copies(reg) {
				b := c.ep.Batch()
				op := b.Read(c.space.UnitAt(c.space.Object(blk, i, c.classes.units[cl]), r), c.classes.units[cl]*64)
				if c.do(b) != nil {
					continue
				}
				h := headOf(op.Buf)
				f, ok := decode(op.Buf)
				if h.incarnation == 0 || h.free() {
					continue
				}
				fmt.Printf("object %d copy %d unit %d: %+v ok %v op %d key %q", i, r, c.space.Object(blk, i, c.classes.units[cl]), h, ok, f.op, f.key)
				if ok {
					o, inc, lok := getLog(op.Buf[logAt(len(f.key), len(f.value))+opAt:])
					fmt.Printf(" log %v %d %v", o, inc, lok)
				}
				fmt.Println()
			}
		}
	}
	if err == nil && len(r.Damage)+len(r.Waiting) > 0 {
		err = fmt.Errorf("check found damage: %q %q", r.Damage, r.Waiting)
	}
	return err
}
