package original

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// counts are how many objects of an arena have a word that says so.
type counts struct{ linked, held, all uint64 }

// survey counts the objects of both arenas. It may run while clients do.
func survey(f rdma.Fabric, what string) (l *layout, trees, blocks counts, err error) {
	ep, l, v, err := client.Look(f, what, readLayout)
	if err != nil {
		return nil, trees, blocks, err
	}
	defer ep.Close()
	s := &Store{layout: l, ep: ep, view: v, timeout: l.Timeout}
	s.span()
	for _, c := range []struct {
		a  *arena
		to *counts
	}{{&l.trees, &trees}, {&l.blocks, &blocks}} {
		c.to.all = uint64(c.a.count) * uint64(l.nodes)
		for n := range l.nodes {
			err := s.words(n, c.a.words, c.a.count, func(_ int, w uint64) error {
				switch owner(w).client() {
				case linked:
					c.to.linked++
				case 0:
				default:
					c.to.held++
				}
				return nil
			})
			if err != nil {
				return nil, trees, blocks, fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	return l, trees, blocks, nil
}

// Usage tells what the memory of a pool is used for. It may run while clients do.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	l, trees, blocks, err := survey(f, "read the use of memory")
	if err != nil {
		return nil, err
	}
	use := func(name string, n uint64, bytes int) client.Use {
		return client.Use{Name: name, Count: n, Bytes: n * uint64(bytes)}
	}
	return []client.Use{
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

// Fill returns how much of a pool's memory is used, or clients have it.
func Fill(f rdma.Fabric) ([]client.Fill, error) {
	_, trees, blocks, err := survey(f, "see how full the pool is")
	if err != nil {
		return nil, err
	}
	list := []client.Fill{{Of: "nodes of the tree", Used: trees.linked + trees.held, All: trees.all}}
	if blocks.all > 0 {
		list = append(list, client.Fill{Of: "values beside leaves", Used: blocks.linked + blocks.held, All: blocks.all})
	}
	return list, nil
}
