package eval

import (
	"encoding/json"
	"fmt"

	"github.com/farkv/farkv/reports/plot"
)

// Cell is a number with its text, or text alone.
type Cell struct {
	Text   string
	Value  float64
	number bool
	unit   plot.Unit // of the number
}

// MarshalJSON writes the number, or the text where there is none.
func (c Cell) MarshalJSON() ([]byte, error) {
	if c.number {
		return json.Marshal(c.Value)
	}
	return json.Marshal(c.Text)
}

// Text is text alone.
func Text(format string, args ...any) Cell { return Cell{Text: fmt.Sprintf(format, args...)} }

// Mops is a throughput, which cells write in million operations a second.
func Mops(perSecond float64) Cell {
	return Cell{Text: fmt.Sprintf("%.2f", perSecond/1e6), Value: perSecond, number: true, unit: plot.Rate}
}

// Micros is a latency in microseconds, with one decimal.
func Micros(us float64) Cell {
	return Cell{Text: fmt.Sprintf("%.1f", us), Value: us, number: true, unit: plot.Micros}
}

// Count is a number of no unit, such as a mean of trips.
func Count(format string, v float64) Cell {
	return Cell{Text: fmt.Sprintf(format, v), Value: v, number: true}
}

// Percent is a change, in percent, with its sign.
func Percent(v float64) Cell {
	return Cell{Text: fmt.Sprintf("%+.1f %%", v), Value: v, number: true, unit: plot.Percent}
}

// FineMicros is a latency in microseconds, with two decimals.
func FineMicros(v float64) Cell {
	return Cell{Text: fmt.Sprintf("%.2f", v), Value: v, number: true, unit: plot.Micros}
}

// Kops is a throughput, which cells write in thousand operations a second.
func Kops(perSecond float64) Cell {
	return Cell{Text: fmt.Sprintf("%.0f", perSecond/1e3), Value: perSecond, number: true, unit: plot.Rate}
}

// Share is a part of all, in percent.
func Share(v float64) Cell {
	return Cell{Text: fmt.Sprintf("%.1f %%", v), Value: v, number: true, unit: plot.Percent}
}

// Gigabytes is a bandwidth, which cells write in GB/s.
func Gigabytes(perSecond float64) Cell {
	return Cell{Text: fmt.Sprintf("%.1f", perSecond/1e9), Value: perSecond, number: true, unit: plot.Bytes}
}
