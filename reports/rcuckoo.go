package reports

import "fmt"

// rcuckooSize is how large the simulations of RCuckoo's report are.
type rcuckooSize struct {
	seed    uint64
	rows    int   // of the table of Figure 4
	tables  []int // rows, of those that are filled
	fills   int   // how many of each
	keys    int   // that are hashed
	factors []float64
}

func newRcuckooSize(quick bool, seed uint64) *rcuckooSize {
	if quick {
		return &rcuckooSize{
			seed: seed, rows: 10_000, tables: []int{1000, 4000}, fills: 2, keys: 100_000, factors: []float64{1.9, 2.3, 2.5},
		}
	}
	return &rcuckooSize{
		seed: seed, rows: 100_000, tables: []int{1000, 10_000, 100_000}, fills: 10, keys: 10_000_000,
		factors: []float64{1.5, 1.9, 2.1, 2.3, 2.5, 2.7, 3},
	}
}

// Rcuckoo is RCuckoo's paper.
var Rcuckoo = newPaper(&Paper{
	Name: "RCuckoo", Source: "Grant and Snoeren, ATC 2025", Section: "sections 3 and 5", Figures: rcuckooFigures,
}, plan[*rcuckooSize]{newRcuckooSize, rcuckooSetUp, rcuckooExperiments})

func rcuckooSetUp(s *rcuckooSize) string {
	return fmt.Sprintf("Seed %d. What the paper says is read off its words, not its plots.", s.seed)
}

var rcuckooExperiments = []experiment[*rcuckooSize]{
	{"distances", "how far apart a key's two rows lie (Figure 4a)", "The paper's formula, no table: keys are hashed.", distanceCases, distanceTable},
	{"fill", "how full a table is when the first INSERT fails (Figure 4b)", "A table in a client's own memory, paths of up to 5 moves.", fillCases, fillTable},
	{"spans", "how many rows a cuckoo path spans (Figure 4c)", "A table in a client's own memory, filled to 95 %, 8 entries a row.", spanCases, spanTable},
}
