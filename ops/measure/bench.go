// Package measure measures stores side by side, and the verbs that their operations are made of.
package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/version"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/ycsb"
)

// Bench loads and runs a workload on pools of its own, one store after the other.
type Bench struct {
	Stores   []string // AllStores stands for each that there is
	Peers    []string // redis
	Workload string   // what ycsb.Find takes
	Records  int64
	Ops      int64 // a run
	Threads  int
	Nodes    int // memory nodes
	Replicas int // of index and data; 0: each store has its own default
	Seed     uint64
	Shared   bool                             // pools in files that processes share, instead of private memory
	Say      func(format string, args ...any) // told of the progress
}

// AllStores stands for the names of all stores.
const AllStores = "all"

// peerTime bounds the run of a peer, some of which are a hundred times slower, and loadPatience
// times as much its load, without all of which there is no run.
const (
	peerTime     = 5 * time.Second
	loadPatience = 6
)

// Run does it. When it fails, or ctx ends it, the Comparison holds what was measured before.
func (b *Bench) Run(ctx context.Context) (*Comparison, error) {
	if b.Say == nil {
		b.Say = func(string, ...any) {}
	}
	kinds, err := b.kinds()
	if err != nil {
		return nil, err
	}
	c, p, err := b.configure()
	if err != nil {
		return nil, err
	}
	if err := b.check(ctx, kinds, c.Spec); err != nil {
		return nil, err
	}
	t := &Comparison{
		Workload: b.Workload, Title: title(b.Workload), Records: b.Records, Operations: b.Ops, Threads: b.Threads,
		Nodes: b.Nodes, Replicas: b.Replicas, PairBytes: c.Spec.PairBytes(), ObjectSizes: c.Spec.ObjectSizes,
		Seed: c.Seed, Shared: b.Shared,
		Commit: version.Commit(), Rows: []Row{}, Skipped: map[string]string{},
	}
	if err := b.warm(ctx, kinds, c); err != nil {
		return t, fmt.Errorf("warm up: %w", err)
	}
	for _, kind := range kinds {
		if err := b.store(ctx, kind, c, t); err != nil {
			return t, fmt.Errorf("bench %s: %w", kind.Name, err)
		}
	}
	for _, name := range b.Peers {
		if err := b.peer(ctx, name, c, p, t); err != nil {
			return t, fmt.Errorf("bench %s: %w", name, err)
		}
	}
	return t, nil
}

func (b *Bench) kinds() (kinds []*stores.Kind, err error) {
	names := b.Stores
	if slices.Contains(names, AllStores) {
		names = stores.Names()
		for _, name := range b.Stores {
			if name != AllStores && !slices.Contains(names, name) {
				names = append(names, name) // which is unknown
			}
		}
	}
	for _, name := range names {
		k, err := stores.Lookup(name)
		if err != nil {
			return nil, workloads.Usagef("%v", err)
		}
		kinds = append(kinds, k)
	}
	for _, name := range b.Peers {
		if name != "redis" {
			return nil, workloads.Usagef("unknown peer %q: there is redis", name)
		}
	}
	if b.Replicas < 0 || b.Replicas > b.Nodes {
		return nil, workloads.Usagef("%d replicas need as many memory nodes, and --nodes is %d", b.Replicas, b.Nodes)
	}
	return kinds, nil
}

// check makes sure that each store can be measured, before the first is: with the workload, and on
// the pool that it is to have, which is made, opened and thrown away.
func (b *Bench) check(ctx context.Context, kinds []*stores.Kind, s *workloads.Spec) error {
	for _, kind := range kinds {
		if s.Scan > 0 && !kind.Scans {
			return workloads.Usagef("workload %s scans, and %s has no scans: use a, b, c, d or f", b.Workload,
				kind.Name)
		}
	}
	for _, kind := range kinds {
		p, remove, err := b.pool(kind, s)
		if err == nil {
			err = errors.Join(p.Close(), remove(), ctx.Err())
		}
		switch {
		case runner.Misused(err) && b.Replicas > 0:
			return workloads.Usagef("%v (hint: leave --replicas out, and each store has its own, or choose --stores)",
				err)
		case err != nil:
			return err
		}
	}
	return nil
}

// configure reads the workload.
func (b *Bench) configure() (runner.Config, *properties.Properties, error) {
	file, err := ycsb.Find(b.Workload)
	if err != nil {
		return runner.Config{}, nil, err
	}
	p, err := file.Properties(map[string]string{
		"recordcount": strconv.FormatInt(b.Records, 10), "operationcount": strconv.FormatInt(b.Ops, 10),
		"threadcount": strconv.Itoa(b.Threads), "seed": strconv.FormatUint(b.Seed, 10), "table": "usertable",
		"insertstart": "0", "insertcount": strconv.FormatInt(b.Records, 10), "measurement.interval": "1",
	})
	if err != nil {
		return runner.Config{}, nil, err
	}
	c, err := runner.Configure(p)
	return c, p, err
}

func title(workload string) string {
	if file, err := ycsb.Find(workload); err == nil && file.Title() != "" {
		return file.Title()
	}
	return filepath.Base(workload)
}

// params are those of the pools, but for what is a store's own.
func (b *Bench) params(s *workloads.Spec) stores.Params {
	return stores.Params{
		Nodes: b.Nodes, IndexReplicas: b.Replicas, DataReplicas: b.Replicas, PairBytes: s.PairBytes(),
		KeyBytes: s.KeyBytes(),
		Records:  uint64(s.RecordCount + s.ExpectedInserts()), Clients: b.Threads + 16,
	}
}

// pool makes the pool for a store; remove takes it away once it is closed.
func (b *Bench) pool(kind *stores.Kind, s *workloads.Spec) (p *stores.Pool, remove func() error, err error) {
	addr, remove := b.address(kind.Name)
	p, err = stores.Create(addr, kind.Name, b.params(s))
	switch {
	case errors.Is(err, fabrics.ErrOvercommit):
		return nil, nil, fmt.Errorf("%w (hint: lower --records or --nodes)", err)
	case err != nil:
		return nil, nil, ops.Explain(err, addr)
	}
	if err := p.Keep(cluster.Options{}); err != nil {
		return nil, nil, errors.Join(ops.Explain(err, addr), p.Close(), remove())
	}
	return p, remove, nil
}

// address names a pool of this process's own.
func (b *Bench) address(what string) (addr string, remove func() error) {
	if !b.Shared {
		return "mem:", func() error { return nil }
	}
	addr = fmt.Sprintf("shm:farkv-bench-%d-%s", os.Getpid(), what)
	return addr, func() error { return fabrics.Remove(addr, true) }
}

// warmRecords bounds the records of the warm-up.
const warmRecords = 100_000

// warm loads a pool and throws it away: a process's first load pays for growing its heap, which
// would be the first store's loss alone.
func (b *Bench) warm(ctx context.Context, kinds []*stores.Kind, c runner.Config) (err error) {
	if len(kinds) == 0 {
		return nil
	}
	b.Say("warming up")
	s := *c.Spec
	s.InsertCount = min(s.InsertCount, warmRecords)
	p, remove, err := b.pool(kinds[0], &s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(), remove()) }()
	c.Spec, c.Name, c.Load = &s, "warm-up", true
	c.Database = drivers.Embed(kinds[0], p.Fabric, stores.Options{}, &s)
	r, err := runner.Run(ctx, c)
	switch {
	case err != nil:
		return err
	case r.Interrupted:
		return ctx.Err()
	case r.Failed > 0:
		return crowded(r.Err())
	}
	return nil
}

// crowded tells what fills a pool that has room for all records: blocks that every client has for
// itself.
func crowded(err error) error {
	if errors.Is(err, rdma.ErrFull) && !errors.As(err, new(syscall.Errno)) {
		return fmt.Errorf("%w (hint: each thread takes blocks of its own: lower --threads, or raise --records)", err)
	}
	return err
}

// newFloor makes the copy of p that its store's batches are measured on.
func (b *Bench) newFloor(p *stores.Pool) (*floor, error) {
	addr, remove := b.address("floor")
	f, err := newFloor(addr, p.Fabric)
	if err != nil {
		return nil, fmt.Errorf("measure the floor: %w", err)
	}
	if err := remove(); err != nil { // f stays usable: it is open
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// store measures one store and adds a row.
func (b *Bench) store(ctx context.Context, kind *stores.Kind, c runner.Config, t *Comparison) (err error) {
	p, remove, err := b.pool(kind, c.Spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(), remove()) }()
	row := Row{Name: kind.Name, Replicas: kind.Size(b.params(c.Spec)).DataReplicas}
	c.Name, c.Database = kind.Name, drivers.Embed(kind, p.Fabric, stores.Options{}, c.Spec)
	if err := b.loadAndRun(ctx, c, &row); err != nil {
		return err
	}
	b.Say("%s: checking the pool", kind.Name)
	f, err := ops.FindDamage(p)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Err(), ctx.Err()); err != nil {
		return err
	}
	uses, err := kind.Usage(p.Fabric)
	if err != nil {
		return err
	}
	b.Say("%s: measuring Get and Update against the floor", kind.Name)
	get, update, user, err := b.costs(ctx, kind, p, c.Spec, row.inserted)
	if err != nil {
		return err
	}
	row.BytesPerByte = float64(bytesInUse(uses)) / float64(user)
	if kind.Serve == nil {
		row.Get, row.Update = &get, &update
	}
	t.Rows = append(t.Rows, row)
	return nil
}

// loadAndRun fills in what a run of the workload measures.
func (b *Bench) loadAndRun(ctx context.Context, c runner.Config, row *Row) error {
	limit := c.MaxTime
	for _, load := range []bool{true, false} {
		c.Load, c.MaxTime = load, limit
		if load {
			c.MaxTime *= loadPatience
		}
		what, total, things := "running", b.Ops, "operations"
		if load {
			what, total, things = "loading", b.Records, "records"
		}
		b.Say("%s: %s, %s %s", c.Name, what, format.Count(total), things)
		c.Progress = func(p runner.Progress) {
			ended, _ := p.Ended.Ended()
			b.Say("%s: %s, %s of %s %s, %s a second", c.Name, what,
				format.Count(p.Operations), format.Count(total), things,
				format.Count(int64(float64(ended)/p.Interval.Seconds())))
		}
		r, err := runner.Run(ctx, c)
		switch {
		case err != nil:
			return err
		case r.Interrupted:
			return ctx.Err()
		case r.Failed > 0:
			return fmt.Errorf("%s: %s of %s operations failed; the first: %w", what, format.Count(r.Failed),
				format.Count(r.Operations), crowded(r.Err()))
		case r.Problem != "":
			return errors.New(r.Problem)
		}
		if load {
			row.Load = r.Throughput
		} else {
			row.fill(r)
		}
		if r.Operations < uint64(total) {
			row.Cut = append(row.Cut, Cut{what, r.Operations, total, c.MaxTime.Seconds()})
			return nil // a run would miss records that were not loaded
		}
	}
	return nil
}
