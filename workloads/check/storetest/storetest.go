// Package storetest is what every store must pass: the contract of client.Store operation by
// operation, a model, and histories of many workers checked for linearizability: on real
// goroutines, across processes, and in virtual time over many seeds, with torn, reordered and late
// verbs and with clients that crash at any verb.
//
// A store's test is a call:
//
//	func TestStore(t *testing.T) {
//		h := storetest.Harness{Handler: node.Serve, Format: ..., Open: ..., Check: ...}
//		storetest.Run(t, h)
//	}
//
// -fabric runs what needs real time on one fabric, as in
//
//	go test -tags ibverbs ./client/fusee -run TestStore -fabric rdma -rdma 10.0.0.5 -part 4
//
// and -part with one operation in four. $FARKV_SEEDS is how many seeds each suite in virtual time
// tries and $FARKV_SEED the first. A failure prints the command that replays its seed. With
// $FARKV_LONG=1, and with -fabric, each harness runs all suites, and more processes are killed.
package storetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/seeds"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// long reports whether each harness runs all suites, and more processes are killed.
func long() bool { return os.Getenv("FARKV_LONG") == "1" || *fabric != "" }

// Runs in virtual time leave much garbage and keep little, so that the collector would run all the
// time: a quarter of the CPU time of a store's tests.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

// Harness is a store as the suites see it, and the pools to try it on.
type Harness struct {
	Nodes   int    // memory nodes; 3 by default
	Memory  uint64 // bytes a node; 64 MiB by default
	Clients int    // identities; 64 by default
	Handler rdma.Handler

	// Format writes an empty store into a new pool.
	Format func(f rdma.Fabric) error
	// Serve starts what runs beside the nodes of a formatted pool; nil: nothing does. Where it is
	// there, the suites run on mem pools and in virtual time alone: on others node processes have
	// the servers.
	Serve func(f rdma.Fabric) (explore.Servers, error)
	// Open returns a worker's view of the store. OpenOn does the same, with
	// the pool's fabric, for stores in which workers repair what others left. One of the two is
	// set.
	Open   func(ep rdma.Endpoint) (client.Store, error)
	OpenOn func(f rdma.Fabric, ep rdma.Endpoint) (client.Store, error)
	// Impatient is Open with a short timeout: for processes of which one is killed, and for a crash
	// behind every verb, since those that depend on the dead wait as long. Elsewhere a loaded
	// machine may stop workers for longer than that. Open by default.
	Impatient func(ep rdma.Endpoint) (client.Store, error)
	// Check walks the structure of a pool without active workers. It reports damage, and what dead
	// clients left for recovery.
	Check func(f rdma.Fabric) (client.Report, error)

	// Recoverer makes what recovers a pool. A store that has one copes with nodes that are out of
	// its reach for a moment, and is tried on that.
	Recoverer func(ep rdma.Endpoint) (cluster.Recoverer, error)

	// MaxKey and MaxValue are the bytes of the largest pair that the pool takes: such a key
	// together with such a value. One byte more of either is ErrTooLarge. 64 and 1000 by default.
	MaxKey, MaxValue int

	// Longest is the most virtual time that an operation may take while no worker crashes; 0: any.
	// It distinguishes an operation that waits for its timeout and goes on from one that works.
	Longest time.Duration

	// Alike says that workers share memory as in another harness of the package, and differ in what
	// each does by itself: -race leaves it out. Its suites across processes, on memory nodes and
	// with a crash behind every verb run with $FARKV_LONG=1 or -fabric, and where it has servers
	// that against a model, too.
	Alike bool

	// MinSeeds is the number of seeds when $FARKV_SEEDS does not say; 100 by default. With -race it
	// is a tenth.
	MinSeeds int
}

const inLong = "takes its time: FARKV_LONG=1 runs it, as .ci/run does"

// Run runs every suite, each as a test of its own below t.
func Run(t *testing.T, h Harness) {
	h.defaults()
	if h.child(t) {
		return
	}
	if h.Alike && teeth.UnderRace {
		t.Skip("workers share memory as in others of these tests; run without -race")
	}
	on, alone, err := chosen()
	report(t, err)
	t.Run("contract", func(t *testing.T) { report(t, h.contract()) })
	t.Run("model", func(t *testing.T) {
		if h.Alike && h.Serve != nil && !long() {
			t.Skip(inLong)
		}
		h.model(t)
	})
	t.Run("histories", func(t *testing.T) { report(t, h.histories()) })
	if h.Serve == nil && (!h.Alike || long()) {
		fabrics := []real{on}
		if !alone {
			on, fabrics = onTCP, []real{onShm, onTCP}
			t.Run("tcp", func(t *testing.T) { report(t, h.historiesOn(onTCP)) })
		}
		if h.Recoverer != nil && on.wired != nil {
			t.Run("cuts", func(t *testing.T) { h.cuts(t, on.wired) })
		}
		t.Run("processes", func(t *testing.T) { h.processes(t, fabrics...) })
	}
	if alone {
		return
	}
	t.Run("sim", func(t *testing.T) {
		t.Run("histories", func(t *testing.T) { report(t, h.overSeeds(t.Name(), 1, h.simHistories)) })
		t.Run("crashes", func(t *testing.T) { report(t, h.overSeeds(t.Name(), 1, h.simCrashes)) })
		t.Run("everycrash", func(t *testing.T) {
			if teeth.UnderRace {
				t.Skip("virtual time, in which one task runs at a time; run without -race")
			}
			if h.Alike && !long() {
				t.Skip(inLong)
			}
			hasty := h
			if h.Impatient != nil {
				hasty.Open = h.Impatient
			}
			report(t, hasty.overSeeds(t.Name(), 100, hasty.everyCrash))
		})
	})
}

func (h *Harness) defaults() {
	set := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	set(&h.Nodes, 3)
	set(&h.Clients, 64)
	set(&h.MaxKey, 64)
	set(&h.MaxValue, 1000)
	set(&h.MinSeeds, 100)
	if h.Memory == 0 {
		h.Memory = 64 << 20
	}
}

func report(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fresh makes a formatted pool of this process, or on the fabric that was chosen; end takes it
// away.
func (h *Harness) fresh(seed uint64) (made rdma.Fabric, end func() error, err error) {
	if on, alone, err := chosen(); alone || err != nil {
		if err != nil {
			return nil, nil, err
		}
		f, _, end, err := on.make(h)
		return f, end, err
	}
	f, err := shm.NewMem(shm.Geometry{Nodes: h.Nodes, Memory: h.Memory, Clients: h.Clients}, h.Handler)
	if err != nil {
		return nil, nil, err
	}
	f.Seed = seed
	if err := h.Format(f); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("format: %w", err)
	}
	if h.Serve == nil {
		return f, f.Close, nil
	}
	servers, err := h.Serve(f)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("serve: %w", err), f.Close())
	}
	return f, func() error {
		servers.Stop()
		return errors.Join(f.Close(), servers.Err())
	}, nil
}

// simLimit is far above the virtual time of any run in which operations end at their timeouts.
const simLimit = 10 * time.Minute

// sim makes a formatted pool in virtual time, with everything a fabric may do happening to it.
// servers are nil where the store has none.
func (h *Harness) sim(seed uint64) (s *sim.Sim, servers explore.Servers, err error) {
	o := sim.Hostile(seed)
	o.Nodes, o.Memory, o.Clients, o.Handler = h.Nodes, h.Memory, h.Clients, h.Handler
	o.Limit = simLimit
	s = sim.New(o)
	if err = h.Format(s); err != nil {
		err = fmt.Errorf("format: %w", err)
	} else if h.Serve != nil {
		servers, err = h.Serve(s)
	}
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, servers, nil
}

// worker is a Store with the Endpoint below it.
type worker struct {
	client.Store
	ep rdma.Endpoint
	f  rdma.Fabric
}

// worker opens a Store on f, through what the wraps make of its Endpoint.
func (h *Harness) worker(f rdma.Fabric, name string, wraps ...func(rdma.Endpoint) rdma.Endpoint) (*worker, error) {
	ep, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	for _, wrap := range wraps {
		ep = wrap(ep)
	}
	s, err := h.open(f, ep)
	if err != nil {
		ep.Close()
		return nil, fmt.Errorf("open store: %w", err)
	}
	return &worker{s, ep, f}, nil
}

// open opens a Store.
func (h *Harness) open(f rdma.Fabric, ep rdma.Endpoint) (client.Store, error) {
	if h.OpenOn != nil {
		return h.OpenOn(f, ep)
	}
	return h.Open(ep)
}

// Close closes the Store and then the Endpoint. One that cannot be closed is left for recovery.
func (w *worker) Close() error { return client.Leave(w.Store, w.ep, w.f) }

// sound checks the structure of a pool without active workers. If no client crashed, no work may be
// left for recovery.
func (h *Harness) sound(f rdma.Fabric, crashed bool) error {
	r, err := h.Check(f)
	switch {
	case err != nil:
		return fmt.Errorf("check: %w", err)
	case len(r.Damage) > 0:
		return fmt.Errorf("check found damage:\n  %s", strings.Join(r.Damage, "\n  "))
	case len(r.Waiting) > 0 && !crashed:
		return fmt.Errorf("check found work for recovery, but no client crashed:\n  %s",
			strings.Join(r.Waiting, "\n  "))
	}
	return nil
}

// tally is what the runs of a suite add up to, so that a suite that tries nothing fails.
type tally struct{ ops, oks atomic.Int64 }

// overSeeds tries the seeds, as many at a time as there are processors. A suite with long runs
// tries one in share of them. It returns the failure of the lowest seed that failed.
func (h *Harness) overSeeds(test string, share uint64, try func(seed uint64, t *tally) error) error {
	first, count, err := seeds.Read(uint64(h.MinSeeds))
	if err != nil {
		return err
	}
	count = (count + share - 1) / share
	var sum tally
	if i, err := seeds.Lowest(count, func(i uint64) error { return try(first+i, &sum) }); err != nil {
		return fmt.Errorf("seed %d: %w\nreplay: %s", first+i, err, replay(test, first+i))
	}
	if sum.oks.Load() == 0 {
		return fmt.Errorf("none of %d operations in %d runs succeeded", sum.ops.Load(), count)
	}
	return nil
}

// replay is the command that runs a test with one seed.
func replay(test string, seed uint64) string {
	return fmt.Sprintf("FARKV_SEED=%d FARKV_SEEDS=1 go test -count=1 -run '%s' %s", seed, pattern(test), packagePath())
}

// pattern makes go test run one test.
func pattern(test string) string {
	return "^" + strings.ReplaceAll(regexp.QuoteMeta(test), "/", "$/^") + "$"
}

// packagePath is the package under test as seen from the root of its module.
func packagePath() string {
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for root := dir; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			rel, _ := filepath.Rel(root, dir)
			return "./" + filepath.ToSlash(rel)
		}
		if root == filepath.Dir(root) {
			return "."
		}
	}
}
