package explore

import (
	"bufio"
	"fmt"
	"io"

	"github.com/farkv/farkv/node/rdma/sim"
)

// Replay runs a plan and writes everything that happens: what the workers begin and what they are
// answered, every verb with its step as the store's paper calls it, when it was posted and when it
// took effect, faults, and the verdict. The error is that of writing.
func (s *Subject) Replay(p *Plan, w io.Writer) (*Failure, error) {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "plan: %s\n", p)
	r, f := s.play(p, func(r *run, o *sim.Options) {
		r.tell = func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
		o.Trace = func(e sim.Event) {
			if tells(&e) {
				fmt.Fprintln(out, e)
			}
		}
	})
	switch {
	case f != nil:
		fmt.Fprintf(out, "verdict: %v\n", f)
	case r.stats.Undecided > 0:
		fmt.Fprintln(out, "verdict: undecided, no order of the answers was found in time")
	default:
		fmt.Fprintln(out, "verdict: all is well")
	}
	if err := out.Flush(); err != nil {
		return f, fmt.Errorf("write replay: %w", err)
	}
	return f, nil
}

// tells reports whether a replay shows an event. Completions without an error are left out: the
// line on the verb's effect implies them.
func tells(e *sim.Event) bool { return e.Kind != sim.Complete || e.Err != nil }
