package simulate

import "time"

// timeline counts operations by when they ended.
type timeline struct {
	interval time.Duration // 0: nothing is counted
	points   []point
}

type point struct{ operations, failed uint64 }

func (t *timeline) add(at time.Duration, operations, failed uint64) {
	if t.interval <= 0 || operations == 0 {
		return
	}
	i := int(at / t.interval)
	if i >= maxIntervals {
		return
	}
	for len(t.points) <= i {
		t.points = append(t.points, point{})
	}
	t.points[i].operations += operations
	t.points[i].failed += failed
}
