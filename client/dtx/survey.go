package dtx

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Survey says how much of a pool was handed out to clients, on all nodes that
// answer. A client may have some of what was handed out to it free.
type Survey struct {
	// Chunks counts those that were handed out, by the size of their objects.
	Chunks     []uint64
	MostChunks uint64
	// Owned counts the chunks that a client has now.
	Owned uint64
}

// Survey reads the tables of a pool. It takes each for one trip at most. Any
// endpoint will do, also one without an identity. Clients may work meanwhile.
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
