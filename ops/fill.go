package ops

import (
	"fmt"
	"io"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
)

// Fill says how full a part of a pool is.
type Fill struct {
	Of      string  `json:"of"`
	Full    float64 `json:"full"` // 0 to 1
	Used    uint64  `json:"used"`
	All     uint64  `json:"all"`
	Sampled bool    `json:"sampled,omitempty"` // Used and All are of a part that stands for the whole
}

// KnownFills returns the fills without those that are not known.
func KnownFills(all []stores.Fill) []Fill {
	fills := []Fill{}
	for _, f := range all {
		if f.All > 0 {
			fills = append(fills, Fill{f.Of, float64(f.Used) / float64(f.All), f.Used, f.All, f.Sampled})
		}
	}
	return fills
}

// addFill adds how full the pool is, or why that is not known.
func (s *State) addFill(p *stores.Pool) {
	all, err := p.Kind.Fill(p.Fabric)
	if err != nil {
		s.Problem = err.Error()
	}
	s.Fill = KnownFills(all)
}

func (s *State) printFill(w io.Writer) {
	if len(s.Fill) == 0 {
		return
	}
	rows := [][]string{{"how full", "", "used", "of", ""}}
	for _, f := range s.Fill {
		sampled := ""
		if f.Sampled {
			sampled = "in a sample"
		}
		rows = append(rows, []string{f.Of, fmt.Sprintf("%.1f %%", 100*f.Full), format.Count(f.Used),
			format.Count(f.All), sampled})
	}
	fmt.Fprintln(w)
	table.Print(w, rows, 4)
}
