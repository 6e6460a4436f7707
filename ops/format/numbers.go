// Package format writes numbers, sizes, latencies and settings as all commands print them.
package format

import (
	"fmt"
	"strconv"
	"strings"
)

// Count writes a number with its thousands apart.
func Count[N int | int64 | uint64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// Size writes bytes in the largest binary unit that leaves at least one digit before the point.
func Size(n uint64) string {
	if n < 1<<10 {
		return Count(n) + " B"
	}
	v, unit := float64(n), ""
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if v < 1023.95 {
			break
		}
		v, unit = v/1024, u
	}
	return Significant(v) + " " + unit
}

// Significant writes a positive number with one decimal below 100, and none from there on.
func Significant(v float64) string {
	if v < 99.95 {
		return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
	}
	return Count(int64(v + 0.5))
}

// Latency writes microseconds.
func Latency(us float64) string {
	switch {
	case us < 0.9995:
		return fmt.Sprintf("%.0f ns", us*1e3)
	case us < 999.95:
		return fmt.Sprintf("%.1f µs", us)
	case us < 999_950:
		return fmt.Sprintf("%.1f ms", us/1e3)
	}
	return fmt.Sprintf("%.1f s", us/1e6)
}

// Words are the texts of words that have a type of their own.
func Words[S ~string](all []S) (texts []string) {
	for _, s := range all {
		texts = append(texts, string(s))
	}
	return texts
}

// Plural writes a number of things.
func Plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + more
}
