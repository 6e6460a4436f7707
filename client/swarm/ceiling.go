package swarm

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// ceilingAhead is by how much a ceiling is raised at a time. It counts the finest ticks there are.
const ceilingAhead = uint64(time.Second >> tickBits)

// openCeiling opens the ceiling of ep's identity: a writer's timestamps only rise, though its
// number was another client's before. It lies on the first 2f+1 nodes.
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

// closeCeiling lowers the ceiling to what was used, so that its next holder is not ahead of all
// clocks.
func (s *Store) closeCeiling() { s.ceiling.Lower(s.ticks.Used()) }
