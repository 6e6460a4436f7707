package plot

import (
	"math"
	"strconv"
	"strings"
)

// scale maps the numbers of an axis to positions of a drawing.
type scale struct {
	axis      *Axis
	low, high float64 // of the axis, or their logarithms
	from, to  float64 // positions
	ticks     []tick
}

type tick struct {
	at    float64
	text  string
	minor bool // a line without a text
}

func (s *scale) at(v float64) float64 {
	if s.axis.Log {
		v = math.Log10(v)
	}
	return s.from + (v-s.low)/(s.high-s.low)*(s.to-s.from)
}

// newScale makes a scale. With round set the scale ends at ticks.
func newScale(a *Axis, low, high, from, to float64, round bool) *scale {
	s := &scale{axis: a, from: from, to: to}
	switch {
	case len(a.Names) > 0:
		s.low, s.high = -0.5, float64(len(a.Names))-0.5
		for i, name := range a.Names {
			s.ticks = append(s.ticks, tick{at: float64(i), text: name})
		}
	case a.Log:
		s.decades(low, high, round)
	default:
		s.linear(low, high, round)
	}
	return s
}

// decades makes the ticks of a logarithmic axis: each power of ten, 2 and 5 of few of them, every
// digit of one, and lines between.
func (s *scale) decades(low, high float64, round bool) {
	if round {
		// niceStep/2 is below low: steps are 2 or 2.5 times the one before
		low, high = niceStep(low*1.001)/2, niceStep(high)
	}
	s.low, s.high = math.Log10(low), math.Log10(high)
	if s.high-s.low < 0.3 {
		s.low, s.high = s.low-0.15, s.high+0.15
	}
	first, last := math.Floor(s.low), math.Ceil(s.high)
	span := s.high - s.low
	every := math.Max(1, math.Ceil((last-first)/10))
	for e := first; e <= last; e++ {
		for digit := 1.0; digit < 10; digit++ {
			v := digit * math.Pow(10, e)
			if l := math.Log10(v); l < s.low-1e-9 || l > s.high+1e-9 {
				continue
			}
			named := digit == 1 && math.Mod(e-first, every) == 0 || span < 2 && (digit == 2 || digit == 5) || span < 0.8
			if t := (tick{at: v, minor: !named}); named {
				t.text = format(v, s.axis.Unit, v)
				s.ticks = append(s.ticks, t)
			} else if span < 5 {
				s.ticks = append(s.ticks, t)
			}
		}
	}
}

// linear makes some five ticks at multiples of 1, 2 or 5. An axis that begins not far from 0 begins
// there.
func (s *scale) linear(low, high float64, round bool) {
	if low > 0 && low < 0.7*high || low == high && low > 0 {
		low = 0
	}
	if high < 0 {
		high = 0
	}
	if high-low < least {
		high = low + 1
	}
	step := niceStep((high - low) / 6)
	s.low, s.high = low, high
	if round {
		s.low, s.high = math.Floor(low/step+1e-9)*step, math.Ceil(high/step-1e-9)*step
	}
	for i := math.Ceil(s.low/step - 1e-9); i*step <= s.high+step*1e-9 && len(s.ticks) < 20; i++ {
		s.ticks = append(s.ticks,
			tick{at: i*step + 0, text: format(i*step+0, s.axis.Unit, math.Max(math.Abs(s.low), math.Abs(s.high)))})
	}
}

// niceStep returns the least of 1, 2 or 5 times a power of ten that is not below v.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, digit := range []float64{1, 2, 5} {
		if digit*power >= v*(1-1e-9) {
			return digit * power
		}
	}
	return 10 * power
}

// prefixes of each unit: from which size on they are used, and their text.
var prefixes = map[Unit][]struct {
	from float64
	text string
}{
	Number:  {{1e12, " T"}, {1e9, " G"}, {1e6, " M"}, {1e3, " k"}, {0, ""}},
	Rate:    {{1e9, " G/s"}, {1e6, " M/s"}, {1e3, " k/s"}, {1, "/s"}},
	Seconds: {{1, " s"}, {1e-3, " ms"}, {1e-6, " µs"}, {1e-9, " ns"}},
	Micros:  {{1e6, " s"}, {1e3, " ms"}, {1, " µs"}, {1e-3, " ns"}},
	Percent: {{1, " %"}},
	Bytes:   {{1 << 30, " GiB"}, {1 << 20, " MiB"}, {1 << 10, " KiB"}, {1, " B"}},
}

// format writes v with the prefix that suits a number of the size of like, to four digits.
func format(v float64, u Unit, like float64) string {
	list, known := prefixes[u]
	if !known {
		return digits(v) + " " + string(u)
	}
	if v == 0 {
		like = 0
	}
	like = math.Abs(like)
	p := list[len(list)-1]
	for _, q := range list {
		if like >= q.from*(1-1e-9) && q.from > 0 {
			p = q
			break
		}
	}
	if p.from == 0 || u == Percent {
		return digits(v) + p.text
	}
	if v == 0 {
		return "0"
	}
	return digits(v/p.from) + p.text
}

// digits writes v to four digits, without an exponent where that is readable.
func digits(v float64) string {
	if a := math.Abs(v); a != 0 && (a >= 1e7 || a < 1e-4) {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	text := strconv.FormatFloat(v, 'f', -1, 64)
	return strings.Replace(text, "-", "−", 1)
}
