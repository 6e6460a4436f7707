package rtx

import (
	"errors"
	"time"

	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Survey says how much of a pool was handed out to clients, of all nodes that answer. What clients
// have handed out, they may have free.
type Survey struct {
	Objects, MostObjects uint64   // room for metadata, and how much of it there is
	Chunks               []uint64 // of data that were handed out, by size
	MostChunks           uint64
	Owned                uint64 // chunks, of either kind, that a client has now
}

// Survey reads the tables of a pool, in the time of each for one trip, by any endpoint, also one
// without an identity. Clients may work meanwhile.
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

// add adds the words of some chunks.
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
