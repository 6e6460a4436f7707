package reports

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/farkv/farkv/ops/virtual"
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
// S says how large.
type experiment[S any] struct {
	name, title, setUp string
	cases              func(s S) []trial
	evaluate           func(s S, r results, p *Part)
}

// trial is one simulation of an experiment, or something else that is worked out.
type trial struct {
	name string
	virtual.Simulation
	micro    int64 // operations of each kind by one client alone, instead of the workload
	stranded bool  // simulate.Stranded, instead of the workload
	// compute is done instead of a simulation of a store: computed has what it returns. same says
	// what that is where several experiments ask for it.
	compute func(context.Context) (any, error)
	same    string
}

// results are those of an experiment's simulations, by the names of their trials.
type results map[string]*simulate.Result

func (t *trial) run(ctx context.Context) (*simulate.Result, error) {
	c, err := t.Complete()
	if err != nil {
		return nil, err
	}
	switch {
	case t.stranded:
		return simulate.Stranded(ctx, c)
	case t.micro > 0:
		c.Pool.Records += uint64(t.micro)
		return simulate.Micro(ctx, c, t.micro)
	}
	return simulate.Run(ctx, c)
}

// pick returns the experiments that are asked for, in their order.
func pick[S any](all []experiment[S], only []string) (list []experiment[S], err error) {
	var names []string
	for _, e := range all {
		if names = append(names, e.name); len(only) == 0 || slices.Contains(only, e.name) {
			list = append(list, e)
		}
	}
	for _, name := range only {
		if !slices.Contains(names, name) {
			return nil, workloads.Usagef("unknown part %q: there are %s", name, strings.Join(names, ", "))
		}
	}
	return list, nil
}

// job is a simulation that one or more of the experiments ask for.
type job struct {
	*trial
	of       string // the experiment that asked first
	result   *simulate.Result
	computed any
}

func (j *job) do(ctx context.Context) (err error) {
	if j.compute != nil {
		j.computed, err = j.compute(ctx)
	} else {
		j.result, err = j.run(ctx)
	}
	return err
}

// do runs the experiments, as many simulations at a time as there are processors: each has one
// goroutine. What several experiments ask for is run once.
func do[S any](ctx context.Context, paper *Paper, list []experiment[S], s S, o Options) ([]*Part, error) {
	var order []*job
	jobs := map[string]*job{}
	trials := make([][]trial, len(list))
	for i, e := range list {
		trials[i] = e.cases(s)
		for k := range trials[i] {
			t := &trials[i][k]
			if k := t.key(e.name); jobs[k] == nil {
				jobs[k] = &job{trial: t, of: e.name}
				order = append(order, jobs[k])
			}
		}
	}
	if err := simulateAll(ctx, order, o.Say); err != nil {
		return nil, err
	}
	parts := make([]*Part, len(list))
	for i, e := range list {
		r := results{}
		parts[i] = &Part{Name: e.name, Title: e.title, SetUp: e.setUp, paper: paper, quick: o.Quick,
			work: map[string]any{}}
		if o.Quick {
			parts[i].small = paper.Small
		}
		for k := range trials[i] {
			t := &trials[i][k]
			if j := jobs[t.key(e.name)]; t.compute != nil {
				parts[i].work[t.name] = j.computed
			} else {
				r[t.name] = j.result
			}
		}
		e.evaluate(s, r, parts[i])
		parts[i].Units = parts[i].units()
	}
	return parts, nil
}

// key tells simulations apart that differ in more than their names, and from them what an
// experiment computes.
func (t *trial) key(of string) string {
	switch {
	case t.same != "":
		return t.same
	case t.compute != nil:
		return of + ": " + t.name
	}
	return fmt.Sprintf("%+v %d %t", t.Simulation, t.micro, t.stranded)
}

// computed returns what a trial of the part's computed.
func computed[T any](p *Part, parts ...any) T { return p.work[key(parts...)].(T) }

func simulateAll(ctx context.Context, jobs []*job, say func(string, ...any)) error {
	if say == nil {
		say = func(string, ...any) {}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, j := range jobs {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := j.do(ctx); err != nil {
				return fmt.Errorf("%s: %s: %w", j.of, j.name, err)
			}
			say("%s: %s", j.of, j.name)
			return nil
		})
	}
	return g.Wait()
}
