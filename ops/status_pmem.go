package ops

import (
	"fmt"
	"io"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
)

// amplification returns how much a module has written for what it was asked to write.
func amplification(d pmem.DIMM) string {
	if d.WriteRequests == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(d.MediaWrites)/float64(d.WriteRequests))
}

// printPMem shows the counters of the nodes' modules, where there are any.
func (s *State) printPMem(w io.Writer) {
	modelled := false
	rows := [][]string{{"node", "dimm", "media reads", "media writes", "read requests", "write requests", "DLWA"}}
	for i, n := range s.Nodes {
		if n.Served == nil || n.PMem == nil {
			continue
		}
		modelled = modelled || n.PMem.Model
		for _, d := range n.PMem.DIMMs {
			rows = append(rows, []string{fmt.Sprint(i), d.ID, format.Count(d.MediaReads), format.Count(d.MediaWrites),
				format.Count(d.ReadRequests), format.Count(d.WriteRequests), amplification(d)})
		}
	}
	if len(rows) > 1 {
		fmt.Fprintln(w)
		table.Print(w, rows, 1)
		fmt.Fprintln(w, "each counts 64 bytes since the module was powered on; DLWA is write amplification since "+
			"then, 'farkv monitor' shows what it is now")
		if modelled {
			fmt.Fprintln(w, "there are no modules called model: a model counts what they would have done since their "+
				"node started")
		}
	}
}
