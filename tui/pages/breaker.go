package pages

import (
	"context"
	"time"

	"github.com/farkv/farkv/node/telemetry"
)

// A Breaker breaks parts of a pool on purpose.
type Breaker interface {
	// Offers returns what can be broken, of the pool as s shows it, with what cannot be and why.
	Offers(s *telemetry.Sample) []Offer
	// Break breaks, and calls tell with what came of it: at once, whenever that changes, and in the
	// end with Done. It returns when the pool is whole again, or ctx ends. An error means that
	// nothing was broken, or that it is not known what came of it.
	Break(ctx context.Context, what Break, tell func(Outcome)) error
}

// An Offer is a kind of failure.
type Offer struct {
	Kind    string   // such as "kill a node"
	About   string   // a sentence
	Targets []Target // to choose one of
	Steps   []string // of clients, at which they may end; empty: at once only
	// Amount is what a stop, a delay or a cut has: how long; 0: the kind has none.
	Amount  time.Duration
	Refused string // why it cannot be done in this pool; "": it can
}

// A Target is what can be broken, with the name that confirms it.
type Target struct {
	Name  string // such as "node 1"
	About string
	Risk  string // what would be lost; "": nothing
}

// A Break is one that was chosen.
type Break struct {
	Kind   string
	Target string
	Step   string // "": at once
	Amount time.Duration
}

// An Outcome is what came of a Break, up to now.
type Outcome struct {
	Text            string        // what happens now
	Done            bool          // the pool is whole, and the figures are final
	UntilWhole      time.Duration // so far
	Failed, Unknown uint64        // operations
	LongestGap      time.Duration // without an operation that ended
}
