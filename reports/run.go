package reports

import (
	"context"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/simulate"
)

// Options say what of a report to do.
type Options struct {
	Only  []string // names of parts; all when there are none
	Quick bool     // a size that ends in a minute
	Seed  uint64
	Say   func(format string, args ...any) // told of the progress, by several goroutines at a time
}

// experiment is a part of a report: simulations by their names, and what to make of their results.
type experiment struct {
	name, title, setUp string
	cases              func(s *size) []trial
	evaluate           func(s *size, r results, p *Part)
}

// trial is one simulation of an experiment.
type trial struct {
	name string
	ops.Simulation
	micro int64 // operations of each kind by one client alone, instead of the workload
}

// results are the experiment's, by the names of their trials.
type results map[string]*simulate.Result

func (t *trial) run(ctx context.Context) (*simulate.Result, error) {
	c, err := t.Config()
	if err != nil {
		return nil, err
	}
	if t.micro == 0 {
		return simulate.Run(ctx, c)
	}
	c.Pool.Records += uint64(t.micro)
	return simulate.Micro(ctx, c, t.micro)
}

// pick returns the experiments that are asked for, in their order.
func pick(all []experiment, only []string) (list []experiment, err error) {
	var names []string
	known := map[string]bool{}
	for _, e := range all {
		names, known[e.name] = append(names, e.name), true
	}
	wanted := map[string]bool{}
	for _, name := range only {
		if !known[name] {
			return nil, workloads.Misuse("unknown part %q: there are %q", name, names)
		}
		wanted[name] = true
	}
	for _, e := range all {
		if len(only) == 0 || wanted[e.name] {
			list = append(list, e)
		}
	}
	return list, nil
}

// do runs the experiments, as many simulations at a time as there are processors: each has one goroutine.
func do(ctx context.Context, list []experiment, s *size, say func(string, ...any)) ([]*Part, error) {
	if say == nil {
		say = func(string, ...any) {}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	trials := make([][]trial, len(list))
	done := make([][]*simulate.Result, len(list))
	for i, e := range list {
		trials[i] = e.cases(s)
		done[i] = make([]*simulate.Result, len(trials[i]))
		for k := range trials[i] {
			g.Go(func() error {
				t := &trials[i][k]
				if err := ctx.Err(); err != nil {
					return err
				}
				r, err := t.run(ctx)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", e.name, t.name, err)
				}
				say("%s: %s", e.name, t.name)
				done[i][k] = r
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	parts := make([]*Part, len(list))
	for i, e := range list {
		r := results{}
		for k := range trials[i] {
			r[trials[i][k].name] = done[i][k]
		}
		parts[i] = &Part{Name: e.name, Title: e.title, SetUp: e.setUp}
		e.evaluate(s, r, parts[i])
	}
	return parts, nil
}
