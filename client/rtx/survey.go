package rtx

import (
	"errors"
	"time"

	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Survey says how much of a pool was handed out to clients, on all nodes that
// answer. A client may have some of what was handed out to it free.
type Survey struct {
	// Objects is the room for metadata that was handed out, and MostObjects how
	// much there is.
	Objects, MostObjects uint64
	// Chunks counts the chunks of data that were handed out, by size.
	Chunks []uint64
	// MostChunks is the number of chunks of data in the pool.
	MostChunks uint64
	// Owned counts the chunks, of either kind, that a client has now.
	Owned uint64
}

// Survey reads the tables of a pool. It takes each for one trip at most. Any
// endpoint will do, also one without an identity. Clients may work meanwhile.
func (l *Layout) Survey(ep rdma.Endpoint, each time.Duration) (Survey, error) {
	s := Survey{Chunks: make([]uint64, len(l.Sizes))}
	s.MostObjects = uint64(l.Nodes) * l.metas.Count * ChunkObjects
	s.MostChunks = uint64(l.Nodes) * l.data.Count
	for n := range l.Nodes {
		for _, a := range []*chunks.Arena{&l.metas, &l.data} {
			all, err := a.Survey(ep, stepReadTable, n, each)
			if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
				return s, err
			}
			s.add(a == &l.metas, all)
		}
	}
	return s, nil
}

// add counts the words of some chunks.
func (s *Survey) add(metas bool, all []node.Entry) {
	for _, e := range all {
		switch {
		case e == 0:
			continue
		case metas:
			s.Objects += ChunkObjects
		case e.Class() < len(s.Chunks):
			s.Chunks[e.Class()]++
		}
		if e.Owner() != node.Left {
			s.Owned++
		}
	}
}
