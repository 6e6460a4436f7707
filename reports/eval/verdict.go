package eval

import (
	"fmt"
	"math"
	"strings"
)

// Outcome is what became of a statement.
type Outcome string

// The outcomes. Only the first two count.
const (
	Holds    Outcome = "HOLDS"
	Differs  Outcome = "DIFFERS"
	Fitted   Outcome = "FITTED"    // a parameter was chosen to match the statement: that it does says nothing
	TooSmall Outcome = "TOO SMALL" // too small to tell: the quick size does not suffice for this statement
)

// Verdict is what the paper says, and whether it holds here.
type Verdict struct {
	About string `json:"about"` // the name of the statement in Paper.Figures
	Figure
	Ours    string  `json:"ours"`
	Outcome Outcome `json:"verdict"`
	// Why tells why it differs, or does not count.
	Why string `json:"why,omitempty"`
	// Shown is set when the reason is shown by an experiment: with what is blamed changed, the
	// statement holds.
	Shown bool `json:"shown,omitempty"`
}

// slack is how far from a limit a measured number has to be, as a part of it, so that the quick
// size is trusted: by about so much its numbers differ between seeds, and from those of the full
// size where nothing else makes them differ.
const slack = 0.05

// Test is a criterion that was applied: whether it is met, and whether slack could turn it.
type Test struct{ Met, near bool }

// Is makes a test of what has no margin, such as a count.
func Is(met bool) Test { return Test{Met: met} }

// More tests whether a is more than b.
func More(a, b float64) Test {
	return Test{a > b, math.Abs(a-b) <= slack*max(math.Abs(a), math.Abs(b))}
}

// Less tests whether a is less than b.
func Less(a, b float64) Test { return More(b, a) }

// Inside tests whether x is between two limits.
func Inside(x, low, high float64) Test { return All(More(x, low), Less(x, high)) }

// Similar tests whether a number is another, give or take a part of it.
func Similar(a, b, part float64) Test { return Inside(a/b, 1-part, 1+part) }

// Printed tests whether ours is what the paper prints. Of shares and changes, in percent, slack is
// at least 3.
func Printed(ours float64, text, unit string) Test {
	v, half := number(text)
	room := slack * math.Abs(v)
	if unit == "%" {
		room = max(room, 3)
	}
	off := math.Abs(ours - v)
	return Test{off <= half+1e-9, off <= half+room}
}

// Percents tests whether each of some percentages is what the paper prints.
func Percents(ours []float64, texts ...string) Test {
	var list []Test
	for i, text := range texts {
		list = append(list, Printed(ours[i], text, "%"))
	}
	return All(list...)
}

// All tests whether all of the tests are met.
func All(list ...Test) Test {
	sum, fails, firm := Test{Met: true}, 0, 0
	for _, t := range list {
		if sum.near = sum.near || t.near; !t.Met {
			fails++
			if !t.near {
				firm++
			}
		}
	}
	if sum.Met = fails == 0; firm > 0 {
		sum.near = false // one that is far off decides
	}
	return sum
}

// Reason is why a statement differs.
type Reason struct {
	text  string
	Shown bool
}

// Unknown is the reason where no experiment turns the verdict; the facts may help.
func Unknown(facts string, args ...any) Reason {
	text := "Why is not known."
	if facts != "" {
		text += " " + fmt.Sprintf(facts, args...)
	}
	return Reason{text: text}
}

// Because is a reason with its experiment: what was changed, what ours is then, and the criterion,
// applied again. When the statement does not hold then, the reason is not known.
func Because(changed, ours string, again Test) Reason {
	if !again.Met {
		return Unknown("It still differs %s: %s.", changed, ours)
	}
	return Reason{fmt.Sprintf("It holds %s: %s.", changed, ours), true}
}

// And adds facts to a reason.
func (r Reason) And(facts string, args ...any) Reason {
	r.text += " " + fmt.Sprintf(facts, args...)
	return r
}

// Figure returns what is published about something.
func (p *Part) Figure(about string) Figure {
	f, ok := p.Paper.Figures[about]
	if !ok {
		panic("no published figure is about " + about)
	}
	return f
}

// Published returns the number that the paper has about something.
func (p *Part) Published(about string) float64 { return Value(p.Figure(about).Printed) }

// Claim adds a verdict to p; why is told where it differs.
func (p *Part) Claim(about string, t Test, ours string, why Reason) {
	v := Verdict{About: about, Figure: p.Figure(about), Ours: ours}
	small, few := p.small[about]
	switch {
	case v.Fitted != "":
		v.Outcome, v.Why = Fitted, "It does not count: "+v.Fitted+"."
	case few:
		v.Outcome, v.Why = TooSmall, small
	case p.quick && t.near:
		v.Outcome, v.Why = TooSmall, "The quick size is not exact enough: this is too near to where the verdict turns."
	case t.Met:
		v.Outcome = Holds
	default:
		v.Outcome, v.Why, v.Shown = Differs, why.text, why.Shown
	}
	p.Claims = append(p.Claims, v)
}

// Same claims that a number is the paper's, to the digit that the paper prints.
func (p *Part) Same(about string, ours float64, why Reason) {
	f := p.Figure(about)
	decimals := 2
	if f.Unit == "%" {
		decimals = 1
	}
	p.Claim(about, Printed(ours, f.Printed, f.Unit), strings.TrimSpace(fmt.Sprintf("%.*f %s", decimals, ours, f.Unit)),
		why)
}

// AsPrinted tests whether a number is what the paper prints about something.
func (p *Part) AsPrinted(about string, ours float64) Test {
	f := p.Figure(about)
	return Printed(ours, f.Printed, f.Unit)
}
