package swarm

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/node/rdma"
)

// Usage returns what the memory of a pool is used for, by the counts of what was handed out. It may
// run while clients work. Bytes are those of all replicas. Dead nodes are left out.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	ep, l, _, err := client.Look(f, "read the use of memory", readAnyPlan)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	objects, each := uint64(0), uint64(0)
	for r := range l.Replicas {
		each += l.stride(r)
	}
	for region := range l.Regions {
		n, err := l.handed(ep, region)
		if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
			return nil, fmt.Errorf("read the use of memory: %w", err)
		}
		objects += uint64(n)
	}
	uses := []client.Use{
		{Name: "directory buckets", Count: l.Buckets, Bytes: l.dir.Bytes() * uint64(l.nodes)},
		{Name: "objects handed out", Count: objects, Bytes: objects * each},
		{Name: "objects", Count: uint64(l.Regions) * uint64(l.Objects),
			Bytes: uint64(l.Regions) * uint64(l.Objects) * each},
	}
	for _, s := range []struct {
		*buffers.Space
		of string
	}{{&l.values, "values"}, {&l.index, "the directory"}} {
		handed := uint64(0)
		for n := range l.nodes {
			h, err := s.Handed(ep, n, l.Timeout)
			if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
				return nil, fmt.Errorf("read the use of memory: %w", err)
			}
			handed += h
		}
		all := uint64(l.nodes) * uint64(s.Segments) * uint64(s.Buffers)
		uses = append(uses,
			client.Use{Name: "buffers of " + s.of + " handed out", Count: handed, Bytes: handed * uint64(s.Bytes)},
			client.Use{Name: "buffers of " + s.of, Count: all, Bytes: all * uint64(s.Bytes)})
	}
	return uses, nil
}

// handed returns how many objects of a region were ever handed out: those of the lowest numbers.
func (l *plan) handed(ep rdma.Endpoint, region int) (int, error) {
	n, err := rdma.ReadWord(ep, stepCount, rdma.At(l.regions[region][0].Node(), l.counters+8*uint64(region)), l.Timeout)
	return int(min(n, uint64(l.Objects))), err
}
