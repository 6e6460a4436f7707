package runner

import (
	"context"
	"time"
)

// gonePeriod is how often a run looks whether its database is gone: within a quarter of a second it
// begins to end.
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
		if err := r.Database.Gone(); err != nil && r.busy.Load() > 0 {
			r.gone = err
			r.cancel()
			return
		}
	}
}
