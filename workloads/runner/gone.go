package runner

import (
	"context"
	"time"
)

// Perishable is a Database that can be taken away while it is in use.
type Perishable interface {
	// Gone returns why there is nothing left to run on, now and for good; nil: there may be. It waits for nothing, and
	// is safe for concurrent use.
	Gone() error
}

// Gone returns why a database is gone for good; nil: it is not, or it cannot be.
func Gone(d Database) error {
	if p, ok := d.(Perishable); ok {
		return p.Gone()
	}
	return nil
}

// gonePeriod is how often a run looks whether its database is gone: within a quarter of a second it begins to end.
const gonePeriod = 250 * time.Millisecond

// watch ends the run when its database is gone. Operations that have begun have their time to fail.
func (r *run) watch(stopped context.Context) {
	tick := time.NewTicker(gonePeriod)
	defer tick.Stop()
	for {
		select {
		case <-stopped.Done():
			return
		case <-tick.C:
		}
		if err := Gone(r.Database); err != nil && r.busy.Load() > 0 {
			r.gone = err
			r.cancel()
			return
		}
	}
}
