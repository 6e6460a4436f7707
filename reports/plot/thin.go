package plot

// thin returns the points to draw of those that lie in one column of pixels: the first, the least,
// the most and the last, in their order, so that no extreme is lost. Gaps are kept.
func thin(points []Point, column func(Point) int) []Point {
	if len(points) < 4 {
		return points
	}
	var out []Point
	for i := 0; i < len(points); {
		first, low, high := i, i, i
		gap := !finite(points[i].X) || !finite(points[i].Y)
		for i++; !gap && i < len(points) && finite(points[i].X) && finite(points[i].Y) &&
			column(points[i]) == column(points[first]); i++ {
			if points[i].Y < points[low].Y {
				low = i
			}
			if points[i].Y > points[high].Y {
				high = i
			}
		}
		kept := -1
		for _, k := range []int{first, min(low, high), max(low, high), i - 1} {
			if k > kept {
				out = append(out, points[k])
				kept = k
			}
		}
	}
	return out
}
