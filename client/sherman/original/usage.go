package original

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// counts are how many objects of an arena are linked, in a client's name, and
// there at all.
// What has a client's name is not lost: it is what the client has for later
// operations, or is about to be linked, or to become free.
type counts struct{ linked, held, all uint64 }

// survey counts the objects of both arenas, on memory nodes that answer. It may
// run while clients work.
// The words are read in runs, one after another. So the counts are of no one
// moment.
func survey(f rdma.Fabric, what string) (l *layout, trees, blocks counts, err error) {
	ep, l, v, err := client.Look(f, what, readLayout)
	if err != nil {
		return nil, trees, blocks, err
	}
	defer ep.Close()
	s := looker(l, ep, v)
	for _, c := range []struct {
		a  *arena
		to *counts
	}{{&l.trees, &trees}, {&l.blocks, &blocks}} {
		c.to.all = uint64(c.a.count) * uint64(l.nodes)
		for n := range l.nodes {
			err := s.words(n, c.a.words, c.a.count, func(_ int, w uint64) error {
				switch owner(w).client() {
				// The tree names it.
				case linked:
					c.to.linked++
				case 0:
				default:
					c.to.held++
				}
				return nil
			})
			if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
				return nil, trees, blocks, fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	return l, trees, blocks, nil
}

// looker returns what reads a tree, and does nothing else.
// It takes no lock and no memory, so nothing has to be given back when it ends.
func looker(l *layout, ep rdma.Endpoint, v *kit.Member) *tree {
	t := &tree{session: newSession(l, ep, v, l.Timeout), cache: newCache(&l.format, 0)}
	t.span()
	return t
}

// Usage says what the memory of a pool is used for. It may run while clients
// work.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	l, trees, blocks, err := survey(f, "read the use of memory")
	if err != nil {
		return nil, err
	}
	use := func(name string, n uint64, bytes int) client.Use {
		return client.Use{Name: name, Count: n, Bytes: n * uint64(bytes)}
	}
	return []client.Use{
		{Name: "entries", Count: l.places()},
		use("locks", uint64(l.Locks)*uint64(l.nodes), 8),
		use("words of objects", trees.all+blocks.all, 8),
		use("nodes of the tree", trees.linked, l.nodeBytes),
		use("nodes that clients have for splits", trees.held, l.nodeBytes),
		use("free nodes", trees.all-trees.linked-trees.held, l.nodeBytes),
		use("values beside leaves", blocks.linked, l.blockBytes),
		use("blocks that clients have", blocks.held, l.blockBytes),
		use("free blocks", blocks.all-blocks.linked-blocks.held, l.blockBytes),
	}, nil
}

// places returns for how many pairs the pool has room, with leaves that are two
// thirds full.
func (l *layout) places() uint64 {
	// Four fifths of the nodes are leaves, which are two thirds full.
	pairs := uint64(l.nodes) * uint64(l.trees.count) * 4 / 5 * uint64(l.slots) * 2 / 3
	if l.blocks.count > 0 {
		pairs = min(pairs, uint64(l.nodes)*uint64(l.blocks.count))
	}
	return max(pairs, 1)
}

// Fill returns how many pairs there are, of those that the pool has room for, and
// how much of its memory is used, or in a client's name.
func Fill(f rdma.Fabric) ([]client.Fill, error) {
	const what = "see how full the pool is"
	l, trees, blocks, err := survey(f, what)
	if err != nil {
		return nil, err
	}
	// The estimate reads the tree with an endpoint of its own: that of survey
	// is closed.
	pairs := client.Fill{Of: "pairs", All: l.places()}
	ep, l, v, err := client.Look(f, what, readLayout)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	if pairs.Used, pairs.Sampled, err = looker(l, ep, v).estimate(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	list := []client.Fill{pairs, {Of: "nodes beside the first", Used: trees.linked + trees.held - 1,
		All: trees.all - 1}}
	if blocks.linked > 0 {
		list = append(list, client.Fill{Of: "values beside leaves", Used: blocks.linked + blocks.held, All: blocks.all})
	}
	return list, nil
}

// sampledNodes is how many nodes of a level an estimate looks at.
const sampledNodes = 256

// estimate returns how many pairs there are. It counts them if each level has few
// nodes. Otherwise it counts those of some nodes, evenly spread, which stand for
// all. Nodes that their parents do not name yet, or that do not answer, are left
// out.
func (t *tree) estimate() (pairs uint64, sampled bool, err error) {
	t.span()
	if err := t.readRoot(); errors.Is(err, rdma.ErrNodeDown) {
		return 0, false, nil
	} else if err != nil {
		return 0, false, err
	}
	// share is how many nodes of a level each of nodes stands for.
	nodes, share := []ref{t.root.ref()}, 1.0
	for level := t.root.level(); ; level-- {
		if n := len(nodes); n > sampledNodes {
			for i := range sampledNodes {
				nodes[i] = nodes[i*n/sampledNodes]
			}
			nodes, sampled = nodes[:sampledNodes], true
			// Each node of the sample stands for so many more.
			share *= float64(n) / sampledNodes
		}
		// Only what parents name is followed, not siblings: a level is read in
		// the order of the keys, and each node once.
		var below []ref
		count := 0
		for _, r := range nodes {
			t.span()
			if level == 0 {
				n, err := t.countLeaf(r)
				if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
					return 0, sampled, err
				}
				count += n
				continue
			}
			n, err := t.internalAt(r)
			if errors.Is(err, rdma.ErrNodeDown) {
				continue
			}
			if err != nil {
				return 0, sampled, err
			}
			for i := range n.count + 1 {
				below = append(below, n.at(i))
			}
		}
		if level == 0 {
			return uint64(float64(count)*share + 0.5), sampled, nil
		}
		nodes = below
	}
}

// countLeaf returns how many pairs a leaf has; 0: it is not whole.
// A pair that is being written may count, or not.
func (t *tree) countLeaf(r ref) (n int, err error) {
	b, p, err := t.read(stepSurvey, t.trees.at(r), t.nodeBytes)
	if err != nil {
		return 0, err
	}
	defer b.Release()
	if l, ok := t.readLeaf(p, r); ok {
		n = len(l.pairs(nil))
	}
	return n, nil
}
