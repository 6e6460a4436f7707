package reports

import (
	"context"
	"fmt"
)

// Papers are those whose evaluations can be done again.
var Papers = []*Paper{Fusee, Swarm, Rcuckoo}

// Paper is one whose evaluation can be done again.
type Paper struct {
	Name    string // FUSEE
	Source  string // who published it, where and when
	Section string // of the evaluation
	Figures map[string]Figure
	Parts   [][2]string // names and titles
	report  func(context.Context, Options) (*Report, error)
}

// plan is how a paper's evaluation is done again; S says how large.
type plan[S any] struct {
	size  func(quick bool, seed uint64) S
	setUp func(S) string
	list  []experiment[S]
}

func newPaper[S any](p *Paper, how plan[S]) *Paper {
	for _, e := range how.list {
		p.Parts = append(p.Parts, [2]string{e.name, e.title})
	}
	p.report = func(ctx context.Context, o Options) (*Report, error) {
		list, err := pick(how.list, o.Only)
		if err != nil {
			return nil, err
		}
		s := how.size(o.Quick, o.Seed)
		parts, err := do(ctx, p, list, s, o.Say)
		if err != nil {
			return nil, err
		}
		return &Report{
			Paper: fmt.Sprintf("%s (%s), %s, in virtual time", p.Name, p.Source, p.Section), SetUp: how.setUp(s), Parts: parts,
		}, nil
	}
	return p
}

// Report does the evaluation again. Errors are workloads.UseErrors, or a simulation's.
func (p *Paper) Report(ctx context.Context, o Options) (*Report, error) { return p.report(ctx, o) }

// figure returns what is published about something.
func (p *Part) figure(about string) Figure {
	f, ok := p.paper.Figures[about]
	if !ok {
		panic("no published figure is about " + about)
	}
	f.Paper = p.paper.Name
	return f
}

// claim adds a verdict to p; why is told where it does not hold.
func (p *Part) claim(about string, holds bool, ours, why string) {
	v := Verdict{Figure: p.figure(about), Ours: ours, Holds: holds}
	if !holds {
		v.Why = why
	}
	p.Claims = append(p.Claims, v)
}
