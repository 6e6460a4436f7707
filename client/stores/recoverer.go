package stores

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/farkv/farkv/client/fusee/recovery"
	"github.com/farkv/farkv/node/rdma"
)

// fuseeRecoverer reports how long the steps of a client's recovery took, under the paper's names.
type fuseeRecoverer struct{ *recovery.Recoverer }

func newFuseeRecoverer(ep rdma.Endpoint) (fuseeRecoverer, error) {
	m, err := recovery.NewRecoverer(ep)
	return fuseeRecoverer{m}, err
}

// Report implements cluster.Reporter: FUSEE's Table 1. It leaves out the set-up of connections,
// which a master has already, and adds the rest of the recovery before anything is freed.
func (m fuseeRecoverer) Report() string {
	b := m.Breakdown()
	steps := []struct {
		name string
		took time.Duration
		what string
	}{
		{"get metadata", b.Metadata, fmt.Sprintf("%d blocks", b.Blocks)},
		{"traverse log", b.Log, fmt.Sprintf("%d objects", b.Objects)},
		{"recover KV requests", b.Requests, fmt.Sprintf("%d unfinished", b.Unfinished)},
		{"rest", b.Rest, ""},
		{"construct free list", b.Free, fmt.Sprintf("%d objects freed", b.Freed)},
	}
	total := time.Duration(0)
	for _, s := range steps {
		total += s.took
	}
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, s := range steps {
		share := 0.0
		if total > 0 {
			share = 100 * float64(s.took) / float64(total)
		}
		fmt.Fprintf(t, "%s\t%8.3f ms\t%5.1f%%", s.name, float64(s.took)/float64(time.Millisecond), share)
		if s.what != "" {
			fmt.Fprint(t, "\t", s.what)
		}
		fmt.Fprintln(t)
	}
	t.Flush() // a Builder takes everything
	return text.String()
}
