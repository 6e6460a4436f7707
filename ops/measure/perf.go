package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/simulate"
)

// Perf measures verbs, one at a time and many in flight, as perftest's ib_read_lat, ib_write_bw and
// their kin do.
type Perf struct {
	Pool    string   // an address, or sim: for Profile; "": the Fabrics of this machine
	Fabrics []string // of PerfFabrics
	Profile string   // of the hardware that sim: stands for
	Sizes   []int    // bytes of READs and WRITEs
	Batches []int    // verbs in flight
	Memory  uint64   // bytes of a node that verbs go over
	Time    time.Duration
	Ops     int    // Time and Ops bound each number that is measured; whichever is over first
	Seed    uint64 // of the addresses
	Program string // this one, which is started as memory nodes
	Say     func(format string, args ...any)
}

// PerfFabrics are the fabrics that Perf knows, in the order of their columns.
var PerfFabrics = append(fabrics.Fabrics(), "sim")

// What a Perf may ask for.
const (
	MaxPerfBatch  = 256 // in flight
	MaxPerfSize   = 1 << 20
	mostInFlight  = 64 << 20 // bytes: the worker's buffer
	leastPerfTime = time.Microsecond
)

// Run measures. When it fails, or ctx ends it, the Performance holds what was measured before.
func (p *Perf) Run(ctx context.Context) (*Performance, error) {
	if p.Say == nil {
		p.Say = func(string, ...any) {}
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	r := &Performance{
		Seconds: p.Time.Seconds(), Ops: p.Ops, Memory: p.Memory, Batches: p.Batches, Fabrics: []FabricPerf{},
		Skipped: map[string]string{},
	}
	if p.Pool != "" {
		f, err := p.measure(ctx, p.Pool)
		return r.add(f), err
	}
	for _, name := range p.Fabrics {
		f, err := p.fabric(ctx, name)
		var missing ops.Lacking
		if errors.As(err, &missing) {
			r.Skipped[name] = missing.Error()
			continue
		}
		if r.add(f); err != nil {
			return r, fmt.Errorf("perf %s: %w", name, err)
		}
	}
	if len(r.Fabrics) == 0 {
		return r, r.nothing()
	}
	return r, nil
}

// check refuses what cannot be measured.
func (p *Perf) check() error {
	for _, n := range p.Sizes {
		if n < 1 || n > MaxPerfSize {
			return workloads.Usagef("--sizes: %d bytes: want 1 to %s", n, format.Size(MaxPerfSize))
		}
	}
	for _, n := range p.Batches {
		if n < 1 || n > MaxPerfBatch {
			return workloads.Usagef("--batches: %d in flight: want 1 to %d", n, MaxPerfBatch)
		}
	}
	for _, name := range p.Fabrics {
		if !slices.Contains(PerfFabrics, name) {
			return workloads.Usagef("--fabrics: unknown fabric %q: there are %s", name, strings.Join(PerfFabrics, ", "))
		}
	}
	switch least := leastPerfMemory(p.Sizes); {
	case largest(p.Sizes)*largest(p.Batches) > mostInFlight:
		return workloads.Usagef("--sizes and --batches: %d times %d bytes are in flight, and %s may be",
			largest(p.Batches), largest(p.Sizes), format.Size(mostInFlight))
	case p.Memory < least || p.Memory > fabrics.MaxMemory:
		return workloads.Usagef("--memory %d: want %d bytes at least, for these sizes", p.Memory, least)
	case p.Ops < 1 || p.Time < leastPerfTime:
		return workloads.Usagef("--ops and --time bound what is measured: want 1 or more, and %v or more",
			leastPerfTime)
	case p.Pool == "" && len(p.Fabrics) == 0:
		return workloads.Usagef("nothing to measure: --fabrics is empty")
	case p.Pool == "":
		if err := fabrics.Afford("mem:", p.Memory); err != nil {
			return fmt.Errorf("%w (hint: lower --memory)", err)
		}
	}
	return nil
}

func largest(all []int) int { return slices.Max(append([]int{0}, all...)) }

// fabric measures on memory of this machine.
func (p *Perf) fabric(ctx context.Context, name string) (*FabricPerf, error) {
	if err := fabrics.Missing(name); err != nil {
		return nil, ops.Lacking{Err: err}
	}
	addr := name + ":"
	switch {
	case slices.Contains(fabrics.NodeFabrics(), name):
		return p.started(ctx, name)
	case slices.Contains(fabrics.NamedFabrics(), name):
		addr += fmt.Sprintf("farkv-perf-%d", os.Getpid())
	}
	return p.measure(ctx, addr)
}

// started measures on a memory node that it starts as a process, and ends. What a crash here leaves
// 'farkv list' shows, and 'farkv down' ends.
func (p *Perf) started(ctx context.Context, fabric string) (f *FabricPerf, err error) {
	by := ops.Starter{Program: p.Program, Fabric: fabric}
	addr, stop, err := by.StartNode(ctx, fmt.Sprintf("farkv-perf-%s-%d", fabric, os.Getpid()), p.Memory)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	return p.measure(ctx, addr)
}

// errMeasured ends the making of a pool of which nothing is to stay.
var errMeasured = errors.New("measured")

// measure measures on an address at which there is no pool.
//
// The pool is never finished: while it is being made no other program can open it, and when making
// it ends in an error, or with this process, the nodes are as free as they were. So it harms no
// pool, and a crash leaves none.
func (p *Perf) measure(ctx context.Context, addr string) (*FabricPerf, error) {
	if profile, ok := strings.CutPrefix(addr, "sim:"); ok {
		return p.simulated(ctx, profile)
	}
	a, err := fabrics.Parse(addr)
	if err != nil {
		return nil, ops.Explain(err, addr)
	}
	r := &FabricPerf{Fabric: a.Scheme, Pool: a.String(), Nodes: max(len(a.Nodes), 1)}
	g := fabrics.Geometry{Nodes: r.Nodes, Memory: p.Memory, Clients: 1, Store: "perf"}
	made, err := fabrics.Create(addr, g, func(f rdma.Fabric) error {
		if err := commitAll(f); err != nil {
			return err
		}
		ep, err := f.Open("perf")
		if err != nil {
			return err
		}
		if err := cmp.Or(p.on(ctx, f, ep, r), ep.Close()); err != nil { // what fails behind a failure follows from it
			return err
		}
		return errMeasured
	})
	if err == nil {
		return r, errors.Join(fmt.Errorf("%s: making a pool that was to fail succeeded", addr), made.Close(),
			fabrics.Remove(addr, true))
	}
	if errors.Is(err, errMeasured) {
		return r, nil
	}
	if len(r.Verbs) > 0 {
		return r, err
	}
	return r, p.explain(err, addr)
}

// explain adds what the user can do about an address at which nothing can be measured.
func (p *Perf) explain(err error, addr string) error {
	lower := "lower --memory, which is " + format.Size(p.Memory)
	return workloads.Explain(err, append([]workloads.Hint{
		{Of: []error{fabrics.ErrExists},
			Say: "perf writes over memory, and measures only where there is no pool: name nodes that serve none, " +
				"which 'farkv node' starts"},
		{Of: []error{rdma.ErrFull}, Unless: !strings.HasPrefix(addr, "consul:"),
			Say: lower + ", or try again: of nodes that become free Consul hears a moment later"},
		{Of: []error{rdma.ErrFull}, Say: lower},
		{Of: []error{rdma.ErrNodeDown}, Say: "'farkv node' serves memory there"},
	}, ops.Hints(addr)...))
}

// simulated measures a profile's hardware, in virtual time.
func (p *Perf) simulated(ctx context.Context, profile string) (*FabricPerf, error) {
	profile = cmp.Or(profile, p.Profile)
	r := &FabricPerf{Fabric: "sim", Pool: "sim:" + profile, Nodes: 1, Virtual: true}
	return r, simulate.Bare(profile, p.Memory, p.Seed,
		func(f rdma.Fabric, ep rdma.Endpoint) error { return p.on(ctx, f, ep, r) })
}

// on measures all verbs through an endpoint.
func (p *Perf) on(ctx context.Context, f rdma.Fabric, ep rdma.Endpoint, r *FabricPerf) error {
	g := newGauge(ctx, p, f, ep)
	defer g.close()
	p.Say("measuring %s", r.Pool)
	if err := g.fill(); err != nil {
		return fmt.Errorf("prepare memory: %w", err)
	}
	if !r.Virtual {
		r.Clock = g.clock()
	}
	for _, v := range g.verbs() {
		m, err := g.verb(&v)
		if err != nil {
			return fmt.Errorf("%s: %w", v.title(), err)
		}
		r.Verbs = append(r.Verbs, *m)
	}
	return nil
}
