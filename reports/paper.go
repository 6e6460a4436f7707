package reports

import (
	"context"
	"fmt"
	"strings"
)

// Papers are the papers that have an evaluation here.
var Papers = []*Paper{Fusee, Swarm, Rcuckoo, Rowan, RTX}

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

// unproven is the reason why the quick size does not decide on a statement while testdata has no
// result of the full size.
const unproven = "The full size has not been run for this statement."

// plan is how a paper's evaluation is done again. S has its sizes.
type plan[S any] struct {
	size  func(quick bool, seed uint64) S
	setUp func(S) string
	list  []experiment[S]
}

func newPaper[S any](p *Paper, how plan[S]) *Paper {
	text, err := published.ReadFile("published/" + strings.ToLower(p.Name) + ".json")
	if err != nil {
		panic(err)
	}
	p.read(text)
	for _, e := range how.list {
		p.Parts = append(p.Parts, [2]string{e.name, e.title})
	}
	p.report = func(ctx context.Context, o Options) (*Report, error) {
		list, err := pick(how.list, o.Only)
		if err != nil {
			return nil, err
		}
		s := how.size(o.Quick, o.Seed)
		parts, err := do(ctx, p, list, s, o)
		if err != nil {
			return nil, err
		}
		return &Report{
			Paper: fmt.Sprintf("%s (%s), %s, in virtual time", p.Name, p.Source, p.Section), SetUp: how.setUp(s),
			Parts: parts,
		}, nil
	}
	return p
}

// Report does the evaluation again. Errors are workloads.UsageErrors, or a simulation's.
func (p *Paper) Report(ctx context.Context, o Options) (*Report, error) { return p.report(ctx, o) }
