package eval

import (
	"context"
	"fmt"
)

// Paper is the evaluation of one paper, to be done again.
type Paper struct {
	Name    string // FUSEE
	Source  string // authors, venue and year
	Section string // of the evaluation
	Figures map[string]Figure
	// Tables are the paper's tables as printed, by the name of the table and of the row. The header
	// is the row "".
	Tables map[string]map[string][]string
	Parts  [][2]string // names and titles
	// Small has the statements that the quick size cannot decide, however clear its numbers are,
	// with the reason.
	Small  map[string]string
	report func(context.Context, Options) (*Report, error)
}

// Unproven is the reason why the quick size does not decide on a statement while testdata has no
// result of the full size.
const Unproven = "The full size has not been run for this statement."

// Plan is how a paper's evaluation is done again. S has its sizes.
type Plan[S any] struct {
	Size        func(quick bool, seed uint64) S
	SetUp       func(S) string
	Experiments []Experiment[S]
}

// NewPaper completes p with its published statements and tables, a file in JSON, and with how its
// evaluation is done again. It panics when published is invalid.
func NewPaper[S any](p *Paper, published []byte, how Plan[S]) *Paper {
	p.read(published)
	for _, e := range how.Experiments {
		p.Parts = append(p.Parts, [2]string{e.Name, e.Title})
	}
	p.report = func(ctx context.Context, o Options) (*Report, error) {
		list, err := pick(how.Experiments, o.Only)
		if err != nil {
			return nil, err
		}
		s := how.Size(o.Quick, o.Seed)
		parts, err := do(ctx, p, list, s, o)
		if err != nil {
			return nil, err
		}
		return &Report{
			Paper: fmt.Sprintf("%s (%s), %s, in virtual time", p.Name, p.Source, p.Section), SetUp: how.SetUp(s),
			Parts: parts,
		}, nil
	}
	return p
}

// Report does the evaluation again. Errors are workloads.UsageErrors, or a simulation's.
func (p *Paper) Report(ctx context.Context, o Options) (*Report, error) { return p.report(ctx, o) }
