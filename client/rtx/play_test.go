package rtx

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// run is a bank in virtual time, drawn from a seed.
type run struct {
	shape    Shape
	network  sim.Options
	options  Options
	workers  int
	accounts int
	ops      int
	pad      int
	rounds   int           // of workers: later ones have identities of those that died
	bound    time.Duration // of an operation of those that live
	guess    bool          // workers guess what they have seen
	late     bool          // every other worker is late from its first moment on
	reaper   bool          // dead clients are recovered while others go on

	total *Stats
	sent  []uint64
	trace func(sim.Event)
}

const simMemory = 1 << 18

func draw(seed uint64) *run {
	rng := rand.New(rand.NewPCG(seed, 19))
	r := &run{workers: 2 + rng.IntN(4), accounts: 2 + rng.IntN(3), ops: 4 + rng.IntN(8), rounds: 1 + rng.IntN(2),
		reaper: rng.IntN(2) == 0}
	r.shape = Shape{Nodes: 1 + rng.IntN(3), Memory: 96 << 10, Clients: 16, Roots: r.accounts + 1, Objects: 512,
		Sizes: []int{64, 256}, Chunk: 1 << (10 + rng.IntN(2))}
	r.pad = []int{0, 100}[rng.IntN(2)]
	r.guess = rng.IntN(3) == 0
	r.late = seed%3 == 0
	r.options = Options{Drift: 100 * time.Microsecond << rng.IntN(5), Log: rng.IntN(4) == 0, Timeout: 10 * time.Second}
	if rng.IntN(2) == 0 {
		r.options.Quarantine = 1
	}
	r.network = sim.Hostile(seed)
	r.network.Nodes, r.network.Memory, r.network.Clients, r.network.Handler = r.shape.Nodes, r.shape.Memory, 16,
		node.Serve
	r.network.FlyProb, r.network.FlyMax = []float64{0, 0.02, 0.1}[rng.IntN(3)], 20*time.Microsecond<<rng.IntN(8)
	if rng.IntN(2) == 0 {
		r.network.Drift, r.network.ClockOffset = 1e5, time.Hour
	}
	for w := range r.workers {
		name := fmt.Sprintf("worker %d", w)
		verb := 1 + rng.Uint64N(uint64(40*r.ops))
		switch rng.IntN(6) {
		case 0, 1:
			r.network.Faults = append(r.network.Faults, sim.Fault{Kind: sim.CrashFault, Client: name, Verb: verb})
		case 2:
			r.network.Faults = append(r.network.Faults, sim.Fault{Kind: sim.StallFault, Client: name, Verb: verb,
				For: r.options.Drift * time.Duration(1+rng.IntN(4))})
		case 3:
			r.network.Faults = append(r.network.Faults, sim.Fault{Kind: sim.FlyFault, Client: name, Verb: verb,
				For: r.options.Drift * time.Duration(1+rng.IntN(4))})
		case 4:
			by := time.Hour
			if rng.IntN(2) == 0 {
				by = -by
			}
			r.network.Faults = append(r.network.Faults,
				sim.Fault{Kind: sim.StepFault, Client: name, Verb: verb, By: by})
		}
	}
	return r
}

// play lets the workers meet, recovers the dead, and judges all answers and what
// is left in the pool.
func (r *run) play() error {
	l, err := NewLayout(r.shape)
	if err != nil {
		return err
	}
	r.network.Trace = r.trace
	s := sim.New(r.network)
	defer s.Close()
	k := newBank(l, r.accounts)
	k.Pad, k.Clock = r.pad, s.Now
	first, err := r.open(s, "first", l)
	if err != nil {
		return err
	}
	if err := errors.Join(k.Found(customer{first, nil}), first.Close()); err != nil {
		return err
	}
	var failed error
	for round := range r.rounds {
		var started []*sim.Worker
		for n := range r.workers {
			name := fmt.Sprintf("worker %d", n+round*r.workers)
			w := s.Go(name, func(ep rdma.Endpoint) { failed = errors.Join(failed, r.work(ep, l, k, name)) })
			started = append(started, w)
		}
		if r.reaper {
			s.Go("reaper", func(ep rdma.Endpoint) { failed = errors.Join(failed, r.reap(s, ep, l, started)) })
		}
		if err := s.Run(); err != nil {
			return err
		}
		for _, w := range started {
			r.sent = append(r.sent, w.Sent())
		}
		if failed != nil {
			return failed
		}
	}
	s.Go("end", func(ep rdma.Endpoint) { failed = r.end(s, ep, l, k) })
	return errors.Join(s.Run(), failed)
}

func (r *run) open(f rdma.Fabric, name string, l *Layout) (*Worker, error) {
	ep, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	return Open(ep, l, r.options)
}

// work is a worker's part.
func (r *run) work(ep rdma.Endpoint, l *Layout, k *accounts, name string) error {
	o := r.options
	if r.late && ep.Client()%2 == 0 {
		o.Late = 1
	}
	w, err := Open(ep, l, o)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c := customer{w, nil}
	if r.guess {
		c.known = map[Ref]Meta{}
	}
	for range r.ops {
		began := k.Now(c)
		err := k.Act(c, name, ep.Rand())
		if err != nil && !errors.Is(err, rdma.ErrClosed) && !errors.Is(err, client.ErrFull) {
			return fmt.Errorf("%s at %v: %w", name, k.Now(c), err)
		}
		if took := k.Now(c) - began; r.bound > 0 && took > r.bound {
			return fmt.Errorf("%s at %v: an operation took %v", name, k.Now(c), took)
		}
	}
	if r.total != nil {
		r.total.add(w.stats)
	}
	if err := w.Close(); err != nil && !errors.Is(err, rdma.ErrClosed) {
		return fmt.Errorf("%s: close: %w", name, err)
	}
	return nil
}

// reap recovers dead clients until all workers have ended.
func (r *run) reap(s *sim.Sim, ep rdma.Endpoint, l *Layout, started []*sim.Worker) error {
	w, err := Open(ep, l, r.options)
	if err != nil {
		return err
	}
	for left := true; left; {
		left = false
		for _, o := range started {
			left = left || !o.Finished() && !o.Crashed()
		}
		if err := adoptAll(s, w); err != nil {
			return err
		}
		ep.Sleep(50 * time.Microsecond)
	}
	return w.Close()
}

func adoptAll(f rdma.Fabric, w *Worker) error {
	for _, c := range f.Clients() {
		if c.Alive || c.Held {
			continue
		}
		if err := w.Adopt(f, c); err != nil {
			return err
		}
	}
	return nil
}

// end recovers the dead, and judges.
func (r *run) end(s *sim.Sim, ep rdma.Endpoint, l *Layout, k *accounts) error {
	w, err := Open(ep, l, r.options)
	if err != nil {
		return err
	}
	if err := k.End(customer{w, nil}); err != nil { // before any recovery
		return err
	}
	if err := adoptAll(s, w); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if err := k.End(customer{w, nil}); err != nil {
		return fmt.Errorf("behind the recovery: %w", err)
	}
	alive := map[rdma.ClientID]bool{}
	for _, c := range s.Clients() {
		alive[c.ID] = c.Alive
	}
	u, err := w.Check(func(c rdma.ClientID) bool { return alive[c] })
	if err != nil {
		return err
	}
	if u.Lost > 0 || u.Objects != u.Named {
		return fmt.Errorf("leaked: %+v", u)
	}
	if r.total != nil {
		r.total.add(w.stats)
	}
	return r.fill(w, u)
}

// fill makes objects until the pool is full: nothing has leaked if there is room for as many as
// there can be.
func (r *run) fill(w *Worker, before Usage) error {
	made := 0
	for _, size := range r.shape.Sizes {
		for {
			_, err := create(w, string(make([]byte, size)))
			if errors.Is(err, client.ErrFull) {
				break
			}
			if err != nil {
				return err
			}
			made++
		}
	}
	u, err := w.Check(func(rdma.ClientID) bool { return true })
	if err != nil {
		return err
	}
	most := w.Nodes * int(w.metas.Count) * metaChunk / MetaBytes
	if u.Objects != before.Objects+made || u.Objects-r.shape.Roots != most && u.Named < u.Buffers {
		return fmt.Errorf("leaked: %d objects, then %d more and the pool was full: %+v", before.Objects, made, u)
	}
	return nil
}

func (s *Stats) add(o Stats) {
	s.Commits, s.Alone, s.Retries, s.Waits = s.Commits+o.Commits, s.Alone+o.Alone, s.Retries+o.Retries, s.Waits+o.Waits
	s.Freed, s.Aborted, s.Stolen, s.Finished = s.Freed+o.Freed, s.Aborted+o.Aborted, s.Stolen+o.Stolen,
		s.Finished+o.Finished
	s.Wanted += o.Wanted
	s.Lost, s.Claims, s.Scans = s.Lost+o.Lost, s.Claims+o.Claims, s.Scans+o.Scans
}

// TestSerializable draws banks, networks and faults from seeds.
func TestSerializable(t *testing.T) {
	virtual(t)
	var total Stats
	count := seeds.Each(t, 3000, func(seed uint64) error {
		r := draw(seed)
		r.total = &total
		return r.play()
	})
	t.Logf("%d runs: %+v", count, total)
}

// wrapping draws runs in which a buffer's tags come back within a few of its uses, with verbs that
// are late by as long as that.
func wrapping(seed uint64, quarantine time.Duration) *run {
	r := draw(seed)
	r.shape.TagBits, r.shape.Chunk, r.shape.Nodes, r.network.Nodes, r.workers = 1, 1024, 1, 1, 3
	r.accounts, r.shape.Roots, r.ops, r.rounds, r.pad = 2, 3, 60, 1, 0
	r.options = Options{Drift: 30 * time.Microsecond, Timeout: 10 * time.Second, Quarantine: quarantine}
	r.network.FlyProb, r.network.FlyMax, r.network.Drift, r.network.ClockOffset = 0.05, 200*time.Microsecond, 0, 0
	r.network.Faults = nil
	return r
}

// TestWrappingTags: tags that come back do no harm where a buffer's quarantine is longer than verbs
// are late, and without one histories show it.
func TestWrappingTags(t *testing.T) {
	virtual(t)
	var total Stats
	seeds.Each(t, 300, func(seed uint64) error {
		r := wrapping(seed, 500*time.Microsecond)
		r.total = &total
		return r.play()
	})
	t.Logf("%+v", total)
	for seed := uint64(1); ; seed++ {
		if err := wrapping(seed, 1).play(); err != nil {
			t.Logf("without a quarantine, seed %d: %v", seed, err)
			return
		}
		if seed == 3000 {
			t.Fatal("no history shows that tags come back too soon")
		}
	}
}
