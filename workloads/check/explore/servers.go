package explore

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// Servers are what runs beside the memory nodes of a pool.
type Servers interface {
	Stop()          // has them end soon
	Running() []int // nodes with servers that have not ended
	Err() error     // of those that ended and should not have
}

// dismissal is how long servers may take to end, in virtual time.
const dismissal = time.Second

var errServer = errors.New("a server failed")

// Dismiss has the servers of a simulated pool end, so that nothing works on it when it is checked.
// Those beside dead nodes crashed. An error wraps what went wrong with others.
func Dismiss(s *sim.Sim, servers Servers) error {
	servers.Stop()
	running := func() []int { return slices.DeleteFunc(servers.Running(), s.Dead) }
	s.Go("dismissal", func(ep rdma.Endpoint) {
		for until := ep.Now() + dismissal; len(running()) > 0 && ep.Now() < until; {
			ep.Sleep(100 * time.Microsecond)
		}
	})
	if err := s.Run(); err != nil {
		return err
	}
	if err := servers.Err(); err != nil {
		return fmt.Errorf("%w: %w", errServer, err)
	}
	if nodes := running(); len(nodes) > 0 {
		return fmt.Errorf("%w: those of nodes %d have not ended", errServer, nodes)
	}
	return nil
}
