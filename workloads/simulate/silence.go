package simulate

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// silent is a pool in which the master detects failures late: it reports a dead client as alive
// until the client has been dead for a time.
type silent struct {
	*sim.Sim
	least time.Duration
	since map[uint64]time.Duration // when a client was missed first, by its life
}

// Clients implements rdma.Fabric.
func (s *silent) Clients() []rdma.Client {
	all := s.Sim.Clients()
	for i := range all {
		c := &all[i]
		if c.Alive {
			continue
		}
		if _, missed := s.since[c.Life]; !missed {
			s.since[c.Life] = s.Now()
		}
		c.Alive = s.Now()-s.since[c.Life] < s.least
	}
	return all
}
