package sim_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, o sim.Options) *sim.Sim {
	s := sim.New(o)
	t.Cleanup(func() { s.Close() })
	return s
}

// load reads a word outside Run.
func load(t testing.TB, s *sim.Sim, a rdma.Addr) uint64 {
	t.Helper()
	ep, err := s.Open("reader")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	b := ep.Batch()
	defer b.Release()
	op := b.Read(a, 8)
	if err := rdma.Do(ep, b, rdma.Forever); err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(op.Buf)
}

// busy is a worker that uses every verb, a task, sleeps and its generator.
func busy(ep rdma.Endpoint) {
	ep.Go("task", func(ep rdma.Endpoint) {
		for range 5 {
			ep.Sleep(time.Microsecond)
			faa(ep, rdma.At(1, 8))
		}
	})
	for range 20 {
		b := ep.Batch()
		p := b.Alloc(200)
		for i := range p {
			p[i] = byte(ep.Rand().Uint32())
		}
		b.Write(rdma.At(0, 4096+ep.Rand().Uint64N(1000)), p)
		b.Read(rdma.At(0, 4096), 1000)
		b.CompareSwap(rdma.At(1, 0), ep.Rand().Uint64N(3), ep.Rand().Uint64N(3)).Fence = true
		b.FetchAdd(rdma.At(0, 8), 1)
		ep.Post(b)
		ep.Wait(b, 2, time.Duration(ep.Rand().Uint64N(5000)))
		b.Release()
	}
}

func faa(ep rdma.Endpoint, a rdma.Addr) uint64 {
	b := ep.Batch()
	defer b.Release()
	op := b.FetchAdd(a, 1)
	if err := rdma.Do(ep, b, rdma.Forever); err != nil {
		return 0
	}
	return op.Result + 1
}

// traceOf runs four busy workers, one of which crashes, and returns a hash of all that happened.
func traceOf(t *testing.T, seed uint64) uint64 {
	h := fnv.New64a()
	o := sim.Hostile(seed)
	o.Nodes = 2
	o.Trace = func(e sim.Event) { fmt.Fprintf(h, "%#v %s\n", e, e) }
	s := open(t, o)
	for i := range 4 {
		s.CrashAt(s.Go(fmt.Sprint("worker ", i), busy), uint64(40+20*i))
	}
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	return h.Sum64()
}

func TestSameSeedSameRun(t *testing.T) {
	a := traceOf(t, 1)
	if b := traceOf(t, 1); a != b {
		t.Errorf("two runs of seed 1 differ: %#x, %#x", a, b)
	}
	if b := traceOf(t, 2); a == b {
		t.Error("seeds 1 and 2 are the same run")
	}
}

func TestDroppingAWorkerLeavesTheOthersDraws(t *testing.T) {
	draws := func(names ...string) map[string]uint64 {
		s := open(t, sim.Options{Seed: 7})
		got := map[string]uint64{}
		for _, n := range names {
			s.Go(n, func(ep rdma.Endpoint) { got[n] = ep.Rand().Uint64() })
		}
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		return got
	}
	all, some := draws("a", "b", "c"), draws("c", "b")
	if all["b"] != some["b"] || all["c"] != some["c"] {
		t.Errorf("draws changed: %v, %v", all, some)
	}
	if all["a"] == all["b"] || all["b"] == all["c"] {
		t.Errorf("workers draw alike: %v", all)
	}
}

// counter adds n times, one verb a batch, and notes its end.
func counter(n int, ended *bool) func(rdma.Endpoint) {
	return func(ep rdma.Endpoint) {
		defer func() { *ended = true }()
		for range n {
			faa(ep, rdma.At(0, 0))
		}
	}
}

func TestCrashAtEachVerb(t *testing.T) {
	for k := range uint64(7) {
		s := sim.New(sim.Options{Seed: k})
		var ended bool
		w := s.Go("victim", counter(5, &ended))
		s.CrashAt(w, k)
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		if got, want := load(t, s, rdma.At(0, 0)), min(k, 5); got != want {
			t.Errorf("crash at %d: %d verbs landed, want %d", k, got, want)
		}
		if w.Crashed() != (k <= 5) || w.Finished() == w.Crashed() || ended != w.Finished() {
			t.Errorf("crash at %d: crashed %v, finished %v, defers ran %v", k, w.Crashed(), w.Finished(), ended)
		}
		listed := len(s.Clients()) == 1 && !s.Clients()[0].Alive
		if listed != w.Crashed() {
			t.Errorf("crash at %d: clients are %v", k, s.Clients())
		}
		s.Close()
		if !ended {
			t.Errorf("crash at %d: Close did not unwind the worker", k)
		}
	}
}

func TestCrashSplitsABatchAndTakesTasksAlong(t *testing.T) {
	s := open(t, sim.Options{Nodes: 2})
	taskVerbs := 0
	w := s.Go("victim", func(ep rdma.Endpoint) {
		ep.Go("task", func(ep rdma.Endpoint) {
			ep.Sleep(time.Second)
			taskVerbs++
		})
		b := ep.Batch()
		for i := range 6 {
			b.FetchAdd(rdma.At(i%2, uint64(i)*8), 1)
		}
		rdma.Do(ep, b, rdma.Forever)
	})
	s.CrashAt(w, 4)
	recovered := 0
	w.WhenCrashed(func() { s.Go("master", func(ep rdma.Endpoint) { ep.Sleep(2 * time.Second); recovered++ }) })
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		want := uint64(0)
		if i < 4 {
			want = 1
		}
		if got := load(t, s, rdma.At(i%2, uint64(i)*8)); got != want {
			t.Errorf("op %d: word is %d, want %d", i, got, want)
		}
	}
	if taskVerbs != 0 || recovered != 1 {
		t.Errorf("task of a dead client went on %d times, the recovery ran %d times", taskVerbs, recovered)
	}
}

func TestDeadNode(t *testing.T) {
	s := open(t, sim.Options{Nodes: 2})
	s.KillNodeAt(0, 3)
	var errs []error
	s.Go("client", func(ep rdma.Endpoint) {
		for range 5 {
			b := ep.Batch()
			b.FetchAdd(rdma.At(0, 0), 1)
			b.FetchAdd(rdma.At(1, 0), 1)
			errs = append(errs, rdma.Do(ep, b, rdma.Forever))
			b.Release()
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	for i, err := range errs {
		if i < 2 && err != nil || i > 2 && !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("verb %d: %v", i+1, err)
		}
	}
	if s.Landed(0) != 3 || load(t, s, rdma.At(1, 0)) != 5 {
		t.Errorf("%d verbs landed on the dead node, %d on the other", s.Landed(0), s.Landed(1))
	}
}

func TestRevokeDropsWhatFlies(t *testing.T) {
	landed := 0
	for seed := range uint64(200) {
		s := sim.New(sim.Options{Seed: seed, FlyProb: 0.5, FlyMax: 10 * time.Microsecond})
		w := s.Go("slow", func(ep rdma.Endpoint) {
			for range 20 {
				faa(ep, rdma.At(0, 0))
			}
			b := ep.Batch()
			b.FetchAdd(rdma.At(0, 0), 1)
			if err := ep.Post(b); !errors.Is(err, rdma.ErrRevoked) && s.Now() > 1e6 {
				t.Errorf("seed %d: post of a revoked client: %v", seed, err)
			}
		})
		s.Go("master", func(ep rdma.Endpoint) {
			ep.Sleep(20 * time.Microsecond)
			if err := s.Revoke(w.Client()); err != nil {
				t.Error(err)
			}
			before := faa(ep, rdma.At(0, 0))
			ep.Sleep(time.Millisecond)
			if after := faa(ep, rdma.At(0, 0)); after != before+1 {
				t.Errorf("seed %d: %d verbs landed after Revoke", seed, after-before-1)
			}
			landed += int(before)
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	if landed <= 200 {
		t.Error("no verb landed before Revoke in any run")
	}
}

func TestStuckNamesWorkersAndWaits(t *testing.T) {
	s := open(t, sim.Options{MaxEvents: 1000})
	s.Go("poller", func(ep rdma.Endpoint) {
		for faa(ep, rdma.At(0, 8)) < 1e9 {
		}
	})
	s.Go("sleeper", func(ep rdma.Endpoint) { ep.Sleep(30 * time.Minute) })
	err := s.Run()
	if !errors.Is(err, sim.ErrStuck) || !strings.Contains(err.Error(), "poller waits for 1 of 1 chains") ||
		!strings.Contains(err.Error(), "FAA 0:0x8") || !strings.Contains(err.Error(), "sleeper sleeps until 30m") {
		t.Errorf("error is %v", err)
	}
}

func TestMixingAtomicsAndWrites(t *testing.T) {
	run := func(o sim.Options, f func(b *rdma.Batch, p []byte)) error {
		s := open(t, o)
		s.Go("client", func(ep rdma.Endpoint) {
			b := ep.Batch()
			f(b, b.Alloc(24))
			rdma.Do(ep, b, rdma.Forever)
		})
		return s.Run()
	}
	breach := func(b *rdma.Batch, p []byte) {
		b.FetchAdd(rdma.At(0, 4096), 0)
		b.Write(rdma.At(0, 4089), p[:8]).Fence = true
	}
	err := run(sim.Options{}, breach)
	if !errors.Is(err, sim.ErrMixed) || !strings.Contains(err.Error(), "client: WRITE of 8 bytes at 0:0xff9") {
		t.Errorf("a WRITE over a word changed by FAA: %v", err)
	}
	if err := run(sim.Options{AllowMixing: true}, breach); err != nil {
		t.Errorf("allowed, but: %v", err)
	}
	err = run(sim.Options{}, func(b *rdma.Batch, p []byte) {
		b.Write(rdma.At(0, 4088), p)
		b.FetchAdd(rdma.At(0, 4096), 1)
		b.Write(rdma.At(0, 4088), p[:8]).Fence = true
		b.Write(rdma.At(0, 4104), p[:8])
	})
	if err != nil {
		t.Errorf("initialisation and WRITEs next to the word: %v", err)
	}
}

func TestPanicAndCloseOfStubbornWorkers(t *testing.T) {
	s := open(t, sim.Options{MaxEvents: 500})
	s.Go("bad", func(rdma.Endpoint) { panic("oops") })
	if err := s.Run(); !errors.Is(err, sim.ErrPanic) || !strings.Contains(err.Error(), "bad: worker panicked: oops") {
		t.Errorf("error is %v", err)
	}
	s = open(t, sim.Options{MaxEvents: 500})
	unwound := 0
	for range 3 {
		s.Go("stubborn", func(ep rdma.Endpoint) {
			defer func() { unwound++ }()
			for {
				ep.Sleep(time.Microsecond) // never looks at an error
			}
		})
	}
	if err := s.Run(); !errors.Is(err, sim.ErrStuck) {
		t.Errorf("error is %v", err)
	}
	s.Close()
	if unwound != 3 {
		t.Errorf("%d of 3 unwound", unwound)
	}
}

func TestFlyingVerbsLandAfterTheirClientWasGone(t *testing.T) {
	late := 0
	for seed := range uint64(100) {
		s := sim.New(sim.Options{Seed: seed, FlyProb: 0.5, FlyMax: 50 * time.Microsecond})
		w := s.Go("victim", func(ep rdma.Endpoint) { faa(ep, rdma.At(0, 0)) })
		s.CrashAt(w, 1)
		s.Go("other", func(ep rdma.Endpoint) {
			ep.Sleep(10 * time.Microsecond)
			b := ep.Batch()
			op := b.Read(rdma.At(0, 0), 8)
			rdma.Do(ep, b, rdma.Forever)
			if binary.LittleEndian.Uint64(op.Buf) == 0 {
				late++
			}
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		if got := load(t, s, rdma.At(0, 0)); got != 1 {
			t.Errorf("seed %d: the dead client's verb never landed", seed)
		}
		s.Close()
	}
	if late < 10 || late > 90 {
		t.Errorf("%d of 100 verbs were late", late)
	}
}

func TestIdentitiesAreUsedAgainOnlyWhenNothingFlies(t *testing.T) {
	s := open(t, sim.Options{Clients: 2})
	s.Go("client", func(ep rdma.Endpoint) {
		other, err := s.Open("other")
		if err != nil {
			t.Error(err)
			return
		}
		b := other.Batch()
		b.FetchAdd(rdma.At(0, 0), 1)
		other.Post(b)
		other.Close()
		if _, err := s.Open("third"); !errors.Is(err, rdma.ErrFull) {
			t.Errorf("opened while a verb of the last holder flies: %v", err)
		}
		ep.Sleep(time.Second)
		third, err := s.Open("third")
		if err != nil || third.Client() != other.Client() {
			t.Errorf("opened later: %v", err)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}
