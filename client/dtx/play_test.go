package dtx

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
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
	detect   time.Duration // how often dead clients are looked for
	reapers  int           // at a time; one that dies is replaced
	keeper   bool          // reapers are cluster.Keep's
	hurried  bool          // operations may end in rdma.ErrTimeout
	guess    bool          // workers guess what they have seen

	total *totals
	trace func(sim.Event)

	s       *sim.Sim
	l       *Layout
	started []*sim.Worker
	crashed int // reapers
	failed  error
}

func draw(seed uint64) *run {
	rng := rand.New(rand.NewPCG(seed, 19))
	r := &run{workers: 2 + rng.IntN(4), accounts: 2 + rng.IntN(3), ops: 4 + rng.IntN(8), rounds: 1 + rng.IntN(2)}
	r.shape = Shape{Nodes: 1 + rng.IntN(3), Memory: 112 << 10, Clients: 32, Roots: r.accounts + 1, RootBytes: 256,
		Sizes: []int{64, 256}, Writes: 6, Chunk: 1 << (10 + rng.IntN(2))}
	r.pad = []int{0, 100}[rng.IntN(2)]
	r.guess = rng.IntN(3) == 0
	r.detect, r.reapers, r.keeper = 50*time.Microsecond<<rng.IntN(8), 1+rng.IntN(2), rng.IntN(3) == 0
	r.options = Options{Timeout: 10 * time.Second}
	if r.hurried = rng.IntN(4) == 0; r.hurried {
		r.options.Timeout = 20 * time.Microsecond << rng.IntN(6)
	}
	r.network = sim.Hostile(seed)
	r.network.Nodes, r.network.Memory, r.network.Clients, r.network.Handler = r.shape.Nodes, r.shape.Memory, 32,
		node.Serve
	r.network.FlyProb, r.network.FlyMax = []float64{0, 0.02, 0.1}[rng.IntN(3)], 20*time.Microsecond<<rng.IntN(8)
	if rng.IntN(2) == 0 {
		r.network.Drift, r.network.ClockOffset = 1e5, time.Hour
	}
	if rng.IntN(3) == 0 { // a few chunks, which clients scan, and take from each other
		if l, err := NewLayout(r.shape); err == nil {
			r.shape.Memory = l.chunks.Table + uint64(2+rng.IntN(6))*uint64(l.Chunk+8) + 2*unitBytes
		}
	}
	for w := range r.workers {
		name := fmt.Sprintf("worker %d", w)
		verb := 1 + rng.Uint64N(uint64(30*r.ops))
		switch rng.IntN(6) {
		case 0, 1, 2:
			r.network.Faults = append(r.network.Faults, sim.Fault{Kind: sim.CrashFault, Client: name, Verb: verb})
		case 3:
			r.network.Faults = append(r.network.Faults, sim.Fault{Kind: sim.StallFault, Client: name, Verb: verb,
				For: r.detect * time.Duration(1+rng.IntN(4))})
		case 4:
			r.network.Faults = append(r.network.Faults, sim.Fault{Kind: sim.FlyFault, Client: name, Verb: verb,
				For: r.detect * time.Duration(1+rng.IntN(4))})
		}
	}
	for n := range 2 * r.reapers {
		if rng.IntN(2) == 0 {
			f := sim.Fault{Kind: sim.CrashFault, Client: fmt.Sprintf("reaper %d", n), Verb: 1 + rng.Uint64N(80)}
			if rng.IntN(3) == 0 {
				f.Kind, f.For = sim.StallFault, r.detect*time.Duration(1+rng.IntN(4))
			}
			r.network.Faults = append(r.network.Faults, f)
		}
	}
	return r
}

// play lets the workers meet while the dead are recovered, and judges all answers
// and what is left in the pool.
func (r *run) play() error {
	l, err := NewLayout(r.shape)
	if err != nil {
		return err
	}
	r.network.Trace = r.trace
	s := sim.New(r.network)
	defer s.Close()
	r.s, r.l = s, l
	k := newBank(l, r.accounts)
	k.Pad, k.Clock = r.pad, s.Now
	ep, err := s.Open("first")
	if err != nil {
		return err
	}
	first, err := Open(ep, l, Options{Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	if err := errors.Join(k.Found(customer{first, nil}), first.Close()); err != nil {
		return err
	}
	for round := range r.rounds {
		r.started = nil
		for n := range r.workers {
			name := fmt.Sprintf("worker %d", n+round*r.workers)
			r.started = append(r.started, s.Go(name, func(ep rdma.Endpoint) { r.fail(r.work(ep, k, name)) }))
		}
		for range r.reapers {
			r.reaper()
		}
		if err := s.Run(); err != nil || r.failed != nil {
			return errors.Join(err, r.failed)
		}
	}
	s.Go("end", func(ep rdma.Endpoint) { r.fail(r.end(ep, k)) })
	return errors.Join(s.Run(), r.failed)
}

func (r *run) fail(err error) { r.failed = errors.Join(r.failed, err) }

// hasty reports whether an operation may end so.
func (r *run) hasty(err error) bool {
	return r.hurried && (errors.Is(err, rdma.ErrTimeout) || errors.Is(err, client.ErrUncertain))
}

// work is a worker's part.
func (r *run) work(ep rdma.Endpoint, k *accounts, name string) error {
	w, err := Open(ep, r.l, Options{Timeout: 10 * time.Second})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	w.opt = r.options
	c := customer{w, nil}
	if r.guess {
		c.known = map[Ref]Version{}
	}
	for range r.ops {
		err := k.Act(c, name, ep.Rand())
		if err != nil && !errors.Is(err, rdma.ErrClosed) && !errors.Is(err, client.ErrFull) && !r.hasty(err) {
			return fmt.Errorf("%s at %v: %w", name, r.s.Now(), err)
		}
	}
	if r.total != nil {
		r.total.add(w.stats)
	}
	if err := w.Close(); err != nil { // as client.Leave does
		if !r.hasty(err) && !errors.Is(err, rdma.ErrClosed) {
			return fmt.Errorf("%s: close: %w", name, err)
		}
		return r.s.RevokeLife(rdma.Client{ID: ep.Client(), Life: ep.Life()})
	}
	return nil
}

// mostReapers bounds those that replace others that died.
const mostReapers = 12

func (r *run) reaper() {
	name := fmt.Sprintf("reaper %d", r.crashed)
	r.crashed++
	w := r.s.Go(name, func(ep rdma.Endpoint) {
		err := r.reap(ep)
		if errors.Is(err, rdma.ErrRevoked) && r.crashed < mostReapers { // it was slow, and taken for dead
			r.reaper()
			return
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		r.fail(err)
	})
	if r.crashed < mostReapers {
		w.WhenCrashed(r.reaper)
	}
}

// quiet reports whether all workers have ended and all dead ones were recovered.
func (r *run) quiet() bool {
	busy := slices.ContainsFunc(r.started, func(o *sim.Worker) bool { return !o.Finished() && !o.Crashed() })
	return !busy && !slices.ContainsFunc(r.s.Clients(), func(c rdma.Client) bool { return !c.Alive && !c.Held })
}

// reap recovers dead clients.
func (r *run) reap(ep rdma.Endpoint) error {
	o := Options{Timeout: 10 * time.Second}
	if r.keeper {
		recoverer := func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep, r.l, o) }
		lease := max(r.detect, 500*time.Microsecond, 2*r.network.FlyMax) // of a network that is late by as much
		return cluster.Keep(ep, r.s, recoverer, cluster.Options{Lease: lease, Tick: r.detect, Stop: r.quiet})
	}
	w, err := Open(ep, r.l, o)
	if err != nil {
		return err
	}
	for !r.quiet() {
		if err := adoptAll(r.s, w); err != nil {
			return err
		}
		ep.Sleep(r.detect)
	}
	if r.total != nil {
		r.total.add(w.stats)
	}
	return w.Close()
}

func adoptAll(f rdma.Fabric, w *Worker) error {
	for _, c := range f.Clients() {
		if c.Alive || c.Held {
			continue
		}
		if err := w.Adopt(f, c); err != nil && !errors.Is(err, rdma.ErrHeld) {
			return err
		}
	}
	return nil
}

// end recovers the dead, and judges.
func (r *run) end(ep rdma.Endpoint, k *accounts) error {
	w, err := Open(ep, r.l, Options{Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	if err := adoptAll(r.s, w); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if err := k.End(customer{w, nil}); err != nil {
		return fmt.Errorf("in the end: %w", err)
	}
	alive := map[rdma.ClientID]bool{}
	for _, c := range r.s.Clients() {
		alive[c.ID] = c.Alive
	}
	u, err := w.Check(func(c rdma.ClientID) bool { return alive[c] })
	if err != nil {
		return err
	}
	if u.Lost > 0 || u.Waiting > 0 {
		return fmt.Errorf("leaked: %+v", u)
	}
	if r.total != nil {
		r.total.add(w.stats)
	}
	return r.fill(w, u)
}

// fill makes objects until the pool is full: nothing has leaked if there is one at each place.
func (r *run) fill(w *Worker, before Usage) error {
	made := 0
	for i := range r.shape.Roots {
		if err := set(w, "root", r.l.Root(i)); err != nil {
			return err
		}
	}
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
	if u.Objects != before.Objects+made || u.Objects != u.Places || u.Handed != w.Nodes*int(w.chunks.Count) ||
		u.Held > 0 {
		return fmt.Errorf("leaked: %d objects, then %d more and the pool of %d chunks was full: %+v", before.Objects,
			made, w.Nodes*int(w.chunks.Count), u)
	}
	return nil
}

// totals are the Stats of workers of several runs.
type totals struct {
	mu sync.Mutex
	Stats
}

func (s *totals) add(o Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Commits, s.Retries, s.Waits, s.Torn = s.Commits+o.Commits, s.Retries+o.Retries, s.Waits+o.Waits, s.Torn+o.Torn
	s.Freed, s.Recovered, s.Replayed = s.Freed+o.Freed, s.Recovered+o.Recovered, s.Replayed+o.Replayed
	s.Claims, s.Scans = s.Claims+o.Claims, s.Scans+o.Scans
}

// TestSerializable draws banks, networks and faults from seeds.
func TestSerializable(t *testing.T) {
	virtual(t)
	var total totals
	count := seeds.Each(t, 3000, func(seed uint64) error {
		r := draw(seed)
		r.total = &total
		return r.play()
	})
	t.Logf("%d runs: %+v", count, total.Stats)
}
