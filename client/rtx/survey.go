package rtx

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Survey says how much of a pool was handed out to clients, of all nodes that answer. What clients have handed out, they
// may have free.
type Survey struct {
	Objects, MostObjects uint64   // room for metadata, and how much of it there is
	Chunks               []uint64 // of data that were handed out, by size
	MostChunks           uint64
	Owned                uint64 // chunks, of either kind, that a client has now
}

// Survey reads the tables of a pool, in the time of each for one trip, by any endpoint, also one without an identity.
// Clients may work meanwhile.
func (l *Layout) Survey(ep rdma.Endpoint, each time.Duration) (Survey, error) {
	s := Survey{Chunks: make([]uint64, len(l.Sizes))}
	s.MostObjects = uint64(l.Nodes) * l.metas.chunks * ChunkObjects
	s.MostChunks = uint64(l.Nodes) * l.data.chunks
	for n := range l.Nodes {
		for _, a := range []*arena{&l.metas, &l.data} {
			for from := 0; from < int(a.chunks); from += tableAtOnce {
				p, err := rdma.ReadBytes(ep, stepReadTable, a.entryAt(n, from), 8*min(tableAtOnce, int(a.chunks)-from), each)
				if errors.Is(err, rdma.ErrNodeDown) {
					break
				}
				if err != nil {
					return s, fmt.Errorf("read the table of node %d: %w", n, err)
				}
				s.add(l, a, p)
			}
		}
	}
	return s, nil
}

// add adds the words of some chunks.
func (s *Survey) add(l *Layout, a *arena, table []byte) {
	for ; len(table) > 0; table = table[8:] {
		e := node.Entry(le.Uint64(table))
		switch {
		case e == 0:
			continue
		case a == &l.metas:
			s.Objects += ChunkObjects
		case e.Class() < len(s.Chunks):
			s.Chunks[e.Class()]++
		}
		if e.Owner() != node.Left {
			s.Owned++
		}
	}
}
