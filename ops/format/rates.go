package format

import (
	"fmt"
)

// PerSecond writes a rate.
func PerSecond(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.2f M", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.1f k", v/1e3)
	}
	return Count(int64(v + 0.5))
}

// UpTo says how large records are, the largest of which has most; sizes are those of
// workloads.Spec.
func UpTo(sizes, most string) string {
	if sizes == "" {
		return most
	}
	return fmt.Sprintf("up to %s as in %s", most, sizes)
}
