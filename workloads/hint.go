package workloads

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Hint says what a user can do about errors that wrap one of some others.
type Hint struct {
	Of     []error // any of these
	Unless bool    // the hint is of no use here
	// Usagef makes the error a UsageError: no state of the world would make right what was asked
	// for.
	Misuse  bool
	Instead string // what is said in place of the error, where a cause says enough; "": the error's own text
	Say     string // "": the error says enough
}

// Explain adds to an error the first of the hints that is about it. The error stays as it is where
// none is.
func Explain(err error, hints []Hint) error {
	for _, h := range hints {
		if h.Unless || !h.about(err) {
			continue
		}
		var say string
		if h.Say != "" {
			say = " (hint: " + h.Say + ")"
		}
		if h.Misuse {
			return Usagef("%s%s", cmp.Or(h.Instead, err.Error()), say)
		}
		if h.Instead != "" {
			return errors.New(h.Instead + say)
		}
		return fmt.Errorf("%w%s", err, say)
	}
	return err
}

func (h *Hint) about(err error) bool {
	return slices.ContainsFunc(h.Of, func(of error) bool { return errors.Is(err, of) })
}
