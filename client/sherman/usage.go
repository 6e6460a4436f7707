package sherman

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/sherman/btree"
	"github.com/farkv/farkv/node/rdma"
)

// places returns for how many pairs the pool has room: all of its memory, with
// nodes that are two thirds full, and values that take the largest buffers.
func (l *layout) places() uint64 {
	// A pair takes its part of a leaf that is two thirds full, and a fifth of the
	// nodes lies above the leaves.
	each := uint64(l.NodeBytes)*3/2*5/4/uint64(l.format.Slots()) + 1
	if l.ValueBytes > btree.Inline {
		each += uint64(l.largest())
	}
	return uint64(l.nodes) * l.library.bytes() / each
}

// Usage says what the memory of a pool is used for. It may run while clients
// work. What was handed out to a client counts as used, even if the client has it
// free.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	ep, l, _, err := client.Look(f, "read the use of memory", readLayout)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	s, err := l.library.survey(ep, l.Timeout)
	if err != nil {
		return nil, fmt.Errorf("read the use of memory: %w", err)
	}
	uses := append([]client.Use{{Name: "entries", Count: l.places()}}, s.uses...)
	handed := uint64(0)
	for i, chunks := range s.chunks {
		name := fmt.Sprintf("chunks of keys with values, up to %d bytes", s.sizes[i])
		if s.sizes[i] == l.format.NodeBytes {
			name = "chunks of nodes"
		}
		uses = append(uses, client.Use{Name: name, Count: chunks, Bytes: chunks * uint64(l.Chunk)})
		handed += chunks
	}
	free := s.most - handed
	return append(uses, client.Use{Name: "chunks that were never used", Count: free, Bytes: free * uint64(l.Chunk)}),
		nil
}

// Fill returns how many pairs there are, of those that the pool has room for, and
// how much of its memory was handed out to clients. When all of it was handed
// out, INSERTs still find what is free in it.
func Fill(f rdma.Fabric) ([]client.Fill, error) {
	ep, l, _, err := client.Look(f, "see how full the pool is", readLayout)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	pairs := client.Fill{Of: "pairs", All: l.places()}
	pairs.Used, pairs.Sampled, err = l.estimate(ep)
	if err != nil {
		return nil, fmt.Errorf("see how full the pool is: %w", err)
	}
	s, err := l.library.survey(ep, l.Timeout)
	if err != nil {
		return nil, fmt.Errorf("see how full the pool is: %w", err)
	}
	chunks := client.Fill{Of: "chunks", All: s.most}
	for _, n := range s.chunks {
		chunks.Used += n
	}
	return []client.Fill{pairs, chunks}, nil
}

// sampledNodes is how many nodes of a level an estimate looks at.
const sampledNodes = 256

// estimate returns how many pairs there are. It counts them if each level has few
// nodes. Otherwise it counts those of some nodes, evenly spread, which stand for
// all. Nodes that are changed meanwhile, or are gone, are left out. It reads node
// by node without a transaction, so a node that is split or merged meanwhile may
// count twice, or not at all.
func (l *layout) estimate(ep rdma.Endpoint) (pairs uint64, sampled bool, err error) {
	nodes := []btree.Ref{l.library.root()}
	// share is how many nodes of a level each of nodes stands for.
	share := 1.0
	for range mostHeight + 1 {
		if n := len(nodes); n > sampledNodes {
			for i := range sampledNodes {
				// In place: what is read lies behind what was written, or is the
				// same.
				nodes[i] = nodes[i*n/sampledNodes]
			}
			nodes, sampled = nodes[:sampledNodes], true
			// Each node of the sample stands for so many more.
			share *= float64(n) / sampledNodes
		}
		var below []btree.Ref
		read, count := 0, 0
		for _, r := range nodes {
			p, err := l.library.peek(ep, r, l.Timeout)
			if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
				return 0, sampled, err
			}
			// p is nil for an object that changes or is gone, which decodes as no
			// node.
			if leaf, ok := l.format.DecodeLeaf(p); ok {
				read, count = read+1, count+leaf.Count()
			} else if n, ok := l.format.DecodeInternal(p); ok {
				read++
				for i := range n.Count() + 1 {
					below = append(below, n.Child(i))
				}
			}
		}
		if read > 0 {
			// The nodes that were read stand for those that were not, too.
			share *= float64(len(nodes)) / float64(read)
		}
		if len(below) == 0 {
			return uint64(float64(count)*share + 0.5), sampled, nil
		}
		nodes = below
	}
	return 0, sampled, fmt.Errorf("the tree has more than %d levels: %w", mostHeight, client.ErrDamaged)
}
