package dtx

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Survey says how much of a pool was handed out to clients, of all nodes that answer. What clients
// have handed out, they may have free.
type Survey struct {
	Chunks     []uint64 // that were handed out, by size of their objects
	MostChunks uint64
	Owned      uint64 // chunks that a client has now
}

// Survey reads the tables of a pool, in the time of each for one trip, by any endpoint, also one
// without an identity. Clients may work meanwhile.
func (l *Layout) Survey(ep rdma.Endpoint, each time.Duration) (Survey, error) {
	s := Survey{Chunks: make([]uint64, len(l.Sizes)), MostChunks: uint64(l.Nodes) * l.chunks.Count}
	for n := range l.Nodes {
		all, err := l.chunks.Survey(ep, stepReadTable, n, each)
		if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
			return s, err
		}
		for _, e := range all {
			s.add(e)
		}
	}
	return s, nil
}

// add adds the word of a chunk.
func (s *Survey) add(e node.Entry) {
	if e == 0 || e.Class() >= len(s.Chunks) {
		return
	}
	s.Chunks[e.Class()]++
	if e.Owner() != node.Left {
		s.Owned++
	}
}
