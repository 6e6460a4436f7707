package swarm

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Fill returns how full the directory is, by a sample if it is large; how many objects are in
// use; and how many buffers were ever handed out, of which some may be free again. It may run
// while clients work. What only dead nodes know is left out.
func Fill(f rdma.Fabric) ([]client.Fill, error) {
	ep, l, _, err := client.Look(f, "see how full the pool is", readAnyPlan)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	entries, err := l.dir.Fill(ep, l.Timeout)
	if err != nil {
		return nil, fmt.Errorf("see how full the directory is: %w", err)
	}
	objects := client.Fill{Of: "objects"}
	for region := range l.Regions {
		n, err := l.usedObjects(ep, region)
		if errors.Is(err, rdma.ErrNodeDown) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("see how full region %d is: %w", region, err)
		}
		objects.Add(n, uint64(l.Objects))
	}
	all := []client.Fill{entries, objects}
	if l.Words == 0 {
		return all, nil // RAW needs no buffers
	}
	buffers := client.Fill{Of: "buffers of values handed out"}
	for n := range l.nodes {
		handed, err := l.values.Handed(ep, n, l.Timeout)
		if errors.Is(err, rdma.ErrNodeDown) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("see how full the pool is: %w", err)
		}
		buffers.Add(handed, uint64(l.values.Segments)*uint64(l.values.Buffers))
	}
	return append(all, buffers), nil
}

// usedObjects returns how many objects of a region were handed out, less those that are retired.
func (l *plan) usedObjects(ep rdma.Endpoint, region int) (uint64, error) {
	used, err := l.handed(ep, region)
	if err == nil {
		err = l.eachRetired(ep, stepCount, region, 0, used, l.Timeout, func(uint64, uint64) { used-- })
	}
	return uint64(used), err
}
