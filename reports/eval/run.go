package eval

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

// Experiment is a part of a report: simulations by their names, and what to make of their results.
// S says how large.
type Experiment[S any] struct {
	Name, Title, SetUp string
	Cases              func(s S) []Trial
	Evaluate           func(s S, r Results, p *Part)
}

// Trial is one simulation of an experiment, or something else that is worked out.
type Trial struct {
	Name string
	virtual.Simulation
	Micro    int64 // operations of each kind by one client alone, instead of the workload
	Stranded bool  // simulate.Stranded, instead of the workload
	// Compute is done instead of a simulation of a store: computed has what it returns. same says
	// what that is where several experiments ask for it.
	Compute func(context.Context) (any, error)
	Same    string
}

func (t *Trial) run(ctx context.Context) (*simulate.Result, error) {
	c, err := t.Complete()
	if err != nil {
		return nil, err
	}
	switch {
	case t.Stranded:
		return simulate.Stranded(ctx, c)
	case t.Micro > 0:
		c.Pool.Records += uint64(t.Micro)
		return simulate.Micro(ctx, c, t.Micro)
	}
	return simulate.Run(ctx, c)
}

// pick returns the experiments that are asked for, in their order.
func pick[S any](all []Experiment[S], only []string) (list []Experiment[S], err error) {
	var names []string
	for _, e := range all {
		if names = append(names, e.Name); len(only) == 0 || slices.Contains(only, e.Name) {
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
	*Trial
	of       string // the experiment that asked first
	result   *simulate.Result
	computed any
}

func (j *job) do(ctx context.Context) (err error) {
	if j.Compute != nil {
		j.computed, err = j.Compute(ctx)
	} else {
		j.result, err = j.run(ctx)
	}
	return err
}

// do runs the experiments, as many simulations at a time as there are processors: each has one
// goroutine. What several experiments ask for is run once.
func do[S any](ctx context.Context, paper *Paper, list []Experiment[S], s S, o Options) ([]*Part, error) {
	var order []*job
	jobs := map[string]*job{}
	trials := make([][]Trial, len(list))
	for i, e := range list {
		trials[i] = e.Cases(s)
		for k := range trials[i] {
			t := &trials[i][k]
			if k := t.key(e.Name); jobs[k] == nil {
				jobs[k] = &job{Trial: t, of: e.Name}
				order = append(order, jobs[k])
			}
		}
	}
	if err := simulateAll(ctx, order, o.Say); err != nil {
		return nil, err
	}
	parts := make([]*Part, len(list))
	for i, e := range list {
		r := Results{}
		parts[i] = &Part{Name: e.Name, Title: e.Title, SetUp: e.SetUp, Paper: paper, quick: o.Quick,
			work: map[string]any{}}
		if o.Quick {
			parts[i].small = paper.Small
		}
		for k := range trials[i] {
			t := &trials[i][k]
			if j := jobs[t.key(e.Name)]; t.Compute != nil {
				parts[i].work[t.Name] = j.computed
			} else {
				r[t.Name] = j.result
			}
		}
		e.Evaluate(s, r, parts[i])
		parts[i].Units = parts[i].units()
	}
	return parts, nil
}

// key tells simulations apart that differ in more than their names, and from them what an
// experiment computes.
func (t *Trial) key(of string) string {
	switch {
	case t.Same != "":
		return t.Same
	case t.Compute != nil:
		return of + ": " + t.Name
	}
	return fmt.Sprintf("%+v %d %t", t.Simulation, t.Micro, t.Stranded)
}

// Computed returns what a trial of the part's computed.
func Computed[T any](p *Part, parts ...any) T { return p.work[Key(parts...)].(T) }

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
				return fmt.Errorf("%s: %s: %w", j.of, j.Name, err)
			}
			say("%s: %s", j.of, j.Name)
			return nil
		})
	}
	return g.Wait()
}
