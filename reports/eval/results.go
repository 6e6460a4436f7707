package eval

import (
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/workloads/simulate"
)

// Change returns by how many percent to differs from from.
func Change(from, to float64) float64 { return 100 * (to/from - 1) }

// Millis returns d in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Results are those of an experiment's simulations, by the names of their trials.
type Results map[string]*simulate.Result

// Key names a trial.
func Key(parts ...any) string { return strings.TrimSpace(fmt.Sprintln(parts...)) }

// Gets returns what was measured of the GETs of the trial with this Key.
func (r Results) Gets(parts ...any) *simulate.Call { return r[Key(parts...)].Call("READ") }

// All returns what was measured of all operations of a trial.
func (r Results) All(parts ...any) *simulate.Call { return r[Key(parts...)].Call("TOTAL") }

// Updates returns what was measured of the UPDATEs of a trial.
func (r Results) Updates(parts ...any) *simulate.Call { return r[Key(parts...)].Call("UPDATE") }

// Busiest returns the part of a machine that was busiest in a run.
func Busiest(r *simulate.Result) string {
	m, p := r.Busiest()
	what := fmt.Sprintf("memory node %d", m.Node)
	if m.Compute {
		what = fmt.Sprintf("compute node %d", m.Node)
	}
	return fmt.Sprintf("%s of %s, %.0f %%", p.Name, what, 100*p.Busy)
}

// MeanThroughput returns the mean throughput of the paper's seconds from one up to another.
func MeanThroughput(r *simulate.Result, from, to int) float64 {
	sum := 0.0
	for _, p := range r.Points[from:to] {
		sum += p.Throughput
	}
	return sum / float64(to-from)
}

// MixName returns the name of a mix of YCSB as papers print it.
func MixName(mix string) string { return string(mix[0] - 'a' + 'A') }

// AtOnce is the share of the calls that take one trip, in percent, and the median of them, which
// are the fastest.
func AtOnce(c *simulate.Call) (share, median float64) {
	if len(c.ByTrips) > 1 {
		share = c.ByTrips[1]
	}
	return 100 * share, c.At(share / 2)
}
