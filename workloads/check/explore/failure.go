package explore

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/rdma/sim"
)

// Guilt is the kind of a failure. Shrink keeps it.
type Guilt string

// The kinds of failures.
const (
	BadPlan     Guilt = "bad plan"             // the pool could not be made
	BrokenRule  Guilt = "broken rule"          // a WRITE touched a word of atomics
	Panic       Guilt = "panic"                // a worker's
	Endless     Guilt = "endless"              // workers that wait for each other, or never end
	Failed      Guilt = "failed operation"     // with an error that no fault excuses
	Late        Guilt = "late operation"       // waited for longer than the operation timeout
	Disorder    Guilt = "not linearizable"     // no order explains the answers
	Unserved    Guilt = "failed server"        // one ended, or did not when it was to
	Damage      Guilt = "damage"               // the structure is not what it should be, or leaks
	Waiting     Guilt = "waits for recovery"   // although that is over
	Unrecovered Guilt = "recovery did not end" // within its time
)

// Failure is the judgement on a run.
type Failure struct {
	Guilt Guilt
	Err   error
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %v", f.Guilt, f.Err) }

func (f *Failure) Unwrap() error { return f.Err }

func guilty(g Guilt, format string, args ...any) *Failure {
	return &Failure{g, fmt.Errorf(format, args...)}
}

// ofRun returns the failure for the error of a simulation.
func ofRun(err error) *Failure {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sim.ErrMixed):
		return &Failure{BrokenRule, err}
	case errors.Is(err, sim.ErrPanic):
		return &Failure{Panic, err}
	case errors.Is(err, sim.ErrStuck):
		return &Failure{Endless, err}
	case errors.Is(err, errServer):
		return &Failure{Unserved, err}
	}
	return &Failure{BadPlan, err}
}
