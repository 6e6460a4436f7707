package rowan

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
)

// Describe returns a function that tells what lies at an address of the pool that ep reaches.
func Describe(ep rdma.Endpoint) (func(a rdma.Addr) string, error) {
	// The layout never changes, so the function stays right while the pool lives.
	l, _, err := readLayout(ep)
	if err != nil {
		return nil, fmt.Errorf("describe a pool: %w", err)
	}
	return func(a rdma.Addr) string {
		// The pool's header is at the beginning of each node.
		if a.Offset() < node.HeaderBytes {
			return "header"
		}
		return l.servers.Describe(a)
	}, nil
}

// counts returns the states of the segments of each node that answers.
func (l *layout) counts(ep rdma.Endpoint) (all []rowan.Counts, err error) {
	// A table is read by one-sided READs: no server takes part.
	for n := range l.nodes {
		t, err := kv.ReadTable(ep, l.servers, l.promises(), n)
		// The others say how full the pool is.
		if errors.Is(err, rdma.ErrNodeDown) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the segments of node %d: %w", n, err)
		}
		all = append(all, t.Count())
	}
	return all, nil
}

// Fill returns how many segments are filled, of those that PUTs may fill, and the same for the
// fullest node: when one node has no room, the shards of which it is a replica take no PUTs.
// Segments that servers keep ahead for others' entries, and free for DELs and cleaners, count as
// neither. Dead entries in a segment count as filled until they are cleaned. It may run while
// clients work. Dead nodes are left out.
func Fill(f rdma.Fabric) ([]client.Fill, error) {
	ep, l, _, err := client.Look(f, "see how full the pool is", readLayout)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	counts, err := l.counts(ep)
	if err != nil {
		return nil, fmt.Errorf("see how full the pool is: %w", err)
	}
	// A write needs room at each replica of its shard, so the fullest node decides.
	all, fullest := client.Fill{Of: "segments"}, client.Fill{Of: "segments of the fullest node"}
	// PUTs leave these free.
	keep := l.servers.WithDefaults().Keep
	for _, c := range counts {
		// Segments ahead are neither taken nor free for PUTs.
		taken := uint64(c.Filling + c.Used + c.Committed)
		of := taken + uint64(max(c.Free-keep, 0))
		all.Add(taken, of)
		// It compares the shares of nodes, without divisions.
		if fullest.All == 0 || taken*fullest.All > fullest.Used*of {
			fullest.Used, fullest.All = taken, of
		}
	}
	return []client.Fill{all, fullest}, nil
}

// Usage returns what the memory of a pool is used for, by its tables of segments. It may run while
// clients work. Dead nodes are left out.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	ep, l, _, err := client.Look(f, "read the use of memory", readLayout)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	counts, err := l.counts(ep)
	if err != nil {
		return nil, fmt.Errorf("read the use of memory: %w", err)
	}
	var sum rowan.Counts
	for _, c := range counts {
		sum.Add(c)
	}
	segments := func(name string, n int) client.Use {
		return client.Use{Name: name, Count: uint64(n), Bytes: uint64(n) * uint64(l.SegmentBytes)}
	}
	// What is not segments is states, floors, leave, and the servers' words.
	tables := l.servers.Size() - uint64(l.Segments)*uint64(l.SegmentBytes)
	return []client.Use{
		{Name: "tables of segments", Count: uint64(len(counts)), Bytes: tables * uint64(len(counts))},
		segments("segments free", sum.Free),
		segments("segments ahead of others' entries", sum.Ahead),
		segments("segments that own logs fill", sum.Filling),
		segments("segments full", sum.Used),
		segments("segments committed", sum.Committed),
	}, nil
}

// Configuration describes the configuration of a pool: see shards.Config.Summary.
func Configuration(f rdma.Fabric) (string, error) {
	// Registers alone are read, so it works with any number of dead nodes that they outlive.
	c, err := readConfig(f)
	if err != nil {
		return "", err
	}
	return c.Summary(), nil
}
