package swarm

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// ceilingAhead is by how much a ceiling is raised beyond what is needed, in the finest ticks: a
// second's. So a client raises it about once a second, and the next holder of its identity begins
// at most a second above the numbers that it has used.
const ceilingAhead = uint64(time.Second >> tickBits)

// openCeiling opens the ceiling of ep's identity. With it the timestamps of a writer's number only
// rise, also across the clients that have the number one after the other. Its replicas lie on the
// first 2f+1 nodes, at the front, a word for each identity.
func (s *Store) openCeiling(o quorum.Options) error {
	id := s.ep.Client()
	at := make([]rdma.Addr, s.Replicas)
	for r := range at {
		at[r] = rdma.At(r, node.HeaderBytes+8*uint64(id-1))
	}
	s.ceiling = quorum.NewCeiling(s.ep, at, o)
	var err error
	if s.ticks, err = kit.OpenNumbers(s.ceiling, ceilingAhead); err != nil {
		return fmt.Errorf("read the ceiling of client %d: %w", id, err)
	}
	return nil
}
