// Package simulate runs a workload in virtual time: as many clients as are asked for on as many
// memory nodes, on the hardware of one of package sim's profiles. The worker loop, the generators
// and the histograms are go-ycsb's, the stores are those that run on real fabrics, and the same
// configuration gives the same Result, to the byte, on any machine.
//
// What is to be measured begins at virtual time 0. Before it, in no time, the records are loaded,
// and the clients do Config.WarmUp operations of the mix, so that caches, allocators and the index
// are those of a store that has been busy for a while.
package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/workloads"
)

// Config says what to simulate. Zero values mean defaults.
type Config struct {
	Store   string
	Profile string // of the hardware: a name that Profiles lists
	// Hardware changes figures of the profile, by their names in sim.Hardware: LinkGbps=200,
	// Doorbell=100ns. NodeTimeout is how long a verb to a dead node takes to fail.
	Hardware []string
	// Slow makes the machines slower by this factor: see slow. Timeouts and leases of stores and
	// masters stay. 0: 1.
	Slow int
	// NodeCores are how many cores of a memory node serve two-sided calls; 0: the profile's.
	NodeCores int
	Pool      stores.Params
	Options   stores.Options // of each client; where stores.CacheBytes is not set there is room for all records
	Spec      *workloads.Spec
	// NoDevice keeps in the nodes' memory what stores keep in the device memory of NICs.
	NoDevice bool
	// StallFences lets fences wait for the answers of atomics on device memory even where the
	// profile's NICs need not.
	StallFences bool
	Clients     int // that are there from the beginning; default 1
	// InFlight are the operations that a client has in flight, each with a store and an identity of
	// its own, on the client's core; default 1. When a fault crashes a client, its other operations
	// go on.
	InFlight int
	// Processes makes the clients of a compute node workers of one process: their stores share what
	// stores of a process share. A crash still ends a single client, which no real process does:
	// faults of clients are for runs without Processes.
	Processes bool
	// Loading is how long loading the records takes. Stores with a quarantine for freed memory use
	// more memory when loading takes no time.
	Loading time.Duration
	// Known makes each client read each record once, before the warm-up. Caches have all that they
	// have room for then.
	Known bool
	// Fresh makes clients choose other records while they are measured than in the warm-up.
	// Otherwise the first choices are the same, and the records are cached.
	Fresh bool
	// Memory adds to the Result what the pool's memory is used for at the end.
	Memory  bool
	Changes []Change
	Shift   Shift  // what clients ask for changes
	Faults  string // what goes wrong, as sim.ParseFaults reads it, at times that count from when measuring begins
	// Lease is the lease of the pool's master, which exists if something goes wrong or requests
	// shift. It is the time scale on which crashes are noticed. 0: 100 ms.
	Lease time.Duration
	// Silence is how long a client is dead before the pool's master detects it. 0: the master looks
	// for dead clients four times in its lease, and detects all of them.
	Silence time.Duration
	Seed    uint64
	// Failures is how many clients a second die in the middle of an INSERT, in addition to Clients.
	// No master recovers them: a client that is blocked by what they left repairs it.
	Failures float64

	// Ops are measured, over all clients; 0: until the Duration, in virtual time, is over.
	Ops      int64
	Duration time.Duration
	// WarmUp are the operations that the clients of the beginning do before, together. They make
	// the same choices then as when they are measured, as if the run had been going on for long:
	// caches know what is asked for often, and what others changed since is stale in them.
	WarmUp   int64
	Target   float64       // operations a second, over all clients of the beginning; 0: as many as can be
	Interval time.Duration // of the throughput over time; 0: none
	// Think is what a client computes before each operation, beside posting and polling. It counts
	// for no latency.
	Think time.Duration
	// Trace, unless nil, is called with all events from the time at which measuring begins, in
	// order.
	Trace func(sim.Event)
	// Sample, unless nil, is called with a sample of the run after each Interval. Interval must be
	// set then.
	Sample func(*telemetry.Sample)
}

// Change is a number of clients that join, or, when negative, leave. Clients that joined last leave
// first.
type Change struct {
	At      time.Duration
	Clients int
}

// SortChanges sorts changes by time, as Config requires. Of changes at the same time, joins come
// before leaves.
func SortChanges(list []Change) {
	slices.SortStableFunc(list, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(b.Clients, a.Clients))
	})
}

// ClientName is what faults call the i-th client, counting from 0.
func ClientName(i int) string { return fmt.Sprintf("client %d", i) }

// Profiles lists the hardware profiles.
func Profiles() []sim.Profile { return sim.Profiles() }

// What bounds a simulation.
const (
	maxClients   = 1 << 14
	maxIntervals = 1 << 16
	maxSlow      = 1 << 12 // an operation takes some milliseconds then
)

// Run simulates what c says. An error is a workloads.UsageError when c makes no sense, or tells why
// the records cannot be loaded, clients cannot warm up, join or leave, or the simulation broke off.
// Operations that fail while they are measured are in the Result. When ctx is cancelled it returns
// ctx's error.
func Run(ctx context.Context, c Config) (*Result, error) {
	return simulate(ctx, c, (*run).work)
}

// simulate runs a task for each client, and returns what they measured.
func simulate(ctx context.Context, c Config, task func(*run, *participant, rdma.Endpoint)) (*Result, error) {
	c.Clients, c.InFlight = max(c.Clients, 1), max(c.InFlight, 1)
	if err := c.check(); err != nil {
		return nil, err
	}
	r := &run{Config: c, task: task, began: c.beginning()}
	defer context.AfterFunc(ctx, func() { r.stop.Store(true) })()
	var err error
	if r.pool, err = newPool(&c, r.began); err != nil {
		return nil, err
	}
	defer r.sim.Close()
	r.core = workloads.NewCore(c.Spec)
	for _, step := range []struct {
		what string
		do   func() error
	}{{"load", r.load}, {"open the store", r.start}, {"read the records", r.know}, {"warm up", r.warmUp},
		{"run", r.measure},
		{"look at the memory", r.look}} {
		if err := cmp.Or(step.do(), ctx.Err()); err != nil {
			return nil, fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return r.result(), nil // before Close, which lets the coroutines of crashed clients come to an end
}

// check returns an error when c makes no sense.
func (c *Config) check() error {
	most := c.Clients*c.InFlight + c.victims()
	for i, change := range c.Changes {
		if change.Clients > 0 {
			most += change.Clients * c.InFlight
		}
		if i > 0 && change.At < c.Changes[i-1].At {
			return workloads.Usagef("clients that join and leave have to be in the order of their times")
		}
	}
	switch {
	case most > maxClients:
		return workloads.Usagef("%d clients, with each of their operations in flight, are more than %d", most,
			maxClients)
	case c.Slow < 0 || c.Slow > maxSlow:
		return workloads.Usagef("machines that are %d times slower: want 1 to %d", c.Slow, maxSlow)
	case c.Ops < 0 || c.Duration < 0 || c.WarmUp < 0 || c.Interval < 0 || c.Target < 0 || c.Lease < 0 ||
		c.Silence < 0 || c.Loading < 0 || c.Think < 0:
		return workloads.Usagef("operations, times and targets are not negative")
	case c.Failures < 0 || c.Failures > 0 && c.Duration == 0:
		return workloads.Usagef("%g failures a second for %v: want 0 or more, and a duration", c.Failures, c.Duration)
	case c.Ops == 0 && c.Duration == 0:
		return workloads.Usagef("neither a number of operations nor a duration is given")
	case c.Sample != nil && c.Interval == 0:
		return workloads.Usagef("samples need an interval")
	case c.Spec.ShortKeys == workloads.NumberBytes &&
		(!c.Spec.Ordered || c.Spec.KeyPrefix != "" || c.Spec.RecordCount+c.Spec.ExpectedInserts() > math.MaxUint32):
		return fmt.Errorf("keys are no numbers of %d bytes: %w", workloads.NumberBytes, client.ErrTooLarge)
	case c.Interval > 0 && c.Duration/c.Interval > maxIntervals:
		return workloads.Usagef("%v in intervals of %v are more than %d", c.Duration, c.Interval, maxIntervals)
	}
	_, err := c.population()
	return errors.Join(err, c.Shift.check(c))
}

// span is when a client is there.
type span struct{ from, to time.Duration }

// population returns when each client is there; to is 0 for those that stay.
func (c *Config) population() ([]span, error) {
	all := make([]span, c.Clients, maxClients)
	for _, change := range c.Changes {
		for range change.Clients {
			all = append(all, span{from: change.At})
		}
		last := len(all) - 1
		for range -change.Clients {
			for last >= 0 && all[last].to > 0 {
				last--
			}
			if last < 0 {
				return nil, workloads.Usagef("%d clients cannot leave at %v: there are fewer", -change.Clients,
					change.At)
			}
			all[last].to = max(change.At, 1)
		}
	}
	return all, nil
}

// share says what a participant does of the run.
func (c *Config) share(i int, s span) workloads.Share {
	workers := c.Clients * c.InFlight
	share := workloads.Share{Worker: i, Workers: workers, Until: c.Duration}
	if s.to > 0 && (share.Until == 0 || s.to < share.Until) {
		share.Until = s.to
	}
	if c.Target > 0 {
		each := float64(time.Second) / c.Target
		share.First = s.from + time.Duration(float64(each*float64(i)))
		share.Period = max(time.Duration(each*float64(workers)), 1)
		share.Ops = workloads.SplitOps(c.Ops, i%workers, workers)
	}
	return share
}
