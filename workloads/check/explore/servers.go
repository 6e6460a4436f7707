package explore

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// Servers are what runs beside the memory nodes of a pool.
type Servers interface {
	Stop()        // has them end soon
	Running() int // those that have not ended
	Err() error   // of those that ended and should not have
}

// dismissal is how long servers may take to end, in virtual time.
const dismissal = time.Second

// Dismiss has the servers of a simulated pool end, so that nothing works on it when it is checked. An error wraps what
// went wrong with them.
func Dismiss(s *sim.Sim, servers Servers) error {
	servers.Stop()
	s.Go("dismissal", func(ep rdma.Endpoint) {
		for until := ep.Now() + dismissal; servers.Running() > 0 && ep.Now() < until; {
			ep.Sleep(100 * time.Microsecond)
		}
	})
	if err := s.Run(); err != nil {
		return err
	}
	if err := servers.Err(); err != nil {
		return fmt.Errorf("a server failed: %w", err)
	}
	if n := servers.Running(); n > 0 {
		return fmt.Errorf("%d servers have not ended", n)
	}
	return nil
}
