package simulate

import "time"

// timeline counts operations by when they ended.
type timeline struct {
	interval time.Duration // 0: nothing is counted
	points   []point
}

type point struct {
	operations, failed uint64
	took               time.Duration // all of them together
}

func (t *timeline) add(at time.Duration, p point) {
	if t.interval <= 0 || p.operations == 0 {
		return
	}
	i := int(at / t.interval)
	if i >= maxIntervals {
		return
	}
	for len(t.points) <= i {
		t.points = append(t.points, point{})
	}
	sum := &t.points[i]
	sum.operations += p.operations
	sum.failed += p.failed
	sum.took += p.took
}
