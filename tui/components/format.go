package components

import (
	"fmt"
	"math"
	"time"
)

// significant returns v with three digits that count.
func significant(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case a == 0:
		return "0"
	case a < 0.01:
		return "<0.01"
	case a < 9.995:
		return fmt.Sprintf("%.2f", v)
	case a < 99.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// Count returns a number with three digits that count, in thousands (k), millions (M) or more.
func Count(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	for i, unit := range []string{"", " k", " M", " G", " T", " P"} {
		if w := v / math.Pow(1000, float64(i)); math.Abs(w) < 999.5 || i == 5 {
			return significant(w) + unit
		}
	}
	return "–"
}

// Bytes returns a number of bytes with three digits that count, by powers of 1024.
func Bytes(v float64) string {
	for i, unit := range []string{" B", " KiB", " MiB", " GiB", " TiB", " PiB"} {
		w := v / math.Pow(1024, float64(i))
		if math.Abs(w) < 999.5 || i == 5 {
			if i == 0 {
				return fmt.Sprintf("%.0f B", w)
			}
			return significant(w) + unit
		}
	}
	return "–"
}

// Latency returns a duration with three digits that count; "–" of none.
func Latency(d time.Duration) string {
	v := float64(d)
	switch {
	case d <= 0:
		return "–"
	case v < 999.5:
		return fmt.Sprintf("%d ns", d)
	case v < 999.5e3:
		return significant(v/1e3) + " µs"
	case v < 999.5e6:
		return significant(v/1e6) + " ms"
	}
	return significant(v/1e9) + " s"
}

// Tick returns a round duration as short as it can be said: 10 µs, 2.5 ms.
func Tick(ns float64) string {
	for _, u := range []struct {
		ns   float64
		name string
	}{{1e9, " s"}, {1e6, " ms"}, {1e3, " µs"}} {
		if ns >= u.ns*0.9999 {
			return fmt.Sprintf("%.3g%s", ns/u.ns, u.name)
		}
	}
	return fmt.Sprintf("%.3g ns", ns)
}

// TickCount returns a round number as short as it can be said: 250 k, 1.5 M.
func TickCount(v float64) string {
	for i, unit := range []string{"", " k", " M", " G", " T"} {
		if w := v / math.Pow(1000, float64(i)); math.Abs(w) < 999.95 || i == 4 {
			return fmt.Sprintf("%.3g%s", w, unit)
		}
	}
	return "–"
}

// Percent returns a fraction in percent.
func Percent(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*v)
}
