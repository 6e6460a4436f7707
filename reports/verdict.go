package reports

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

// test is a criterion that was applied: whether it is met, and whether slack could turn it.
type test struct{ met, near bool }

// is makes a test of what has no margin, such as a count.
func is(met bool) test { return test{met: met} }

// more tests whether a is more than b.
func more(a, b float64) test {
	return test{a > b, math.Abs(a-b) <= slack*max(math.Abs(a), math.Abs(b))}
}

// less tests whether a is less than b.
func less(a, b float64) test { return more(b, a) }

// inside tests whether x is between two limits.
func inside(x, low, high float64) test { return all(more(x, low), less(x, high)) }

// similar tests whether a number is another, give or take a part of it.
func similar(a, b, part float64) test { return inside(a/b, 1-part, 1+part) }

// printed tests whether ours is what the paper prints. Of shares and changes, in percent, slack is
// at least 3.
func printed(ours float64, text, unit string) test {
	v, half := number(text)
	room := slack * math.Abs(v)
	if unit == "%" {
		room = max(room, 3)
	}
	off := math.Abs(ours - v)
	return test{off <= half+1e-9, off <= half+room}
}

// percents tests whether each of some percentages is what the paper prints.
func percents(ours []float64, texts ...string) test {
	var list []test
	for i, text := range texts {
		list = append(list, printed(ours[i], text, "%"))
	}
	return all(list...)
}

// all tests whether all of the tests are met.
func all(list ...test) test {
	sum, fails, firm := test{met: true}, 0, 0
	for _, t := range list {
		if sum.near = sum.near || t.near; !t.met {
			fails++
			if !t.near {
				firm++
			}
		}
	}
	if sum.met = fails == 0; firm > 0 {
		sum.near = false // one that is far off decides
	}
	return sum
}

// reason is why a statement differs.
type reason struct {
	text  string
	shown bool
}

// unknown is the reason where no experiment turns the verdict; the facts may help.
func unknown(facts string, args ...any) reason {
	text := "Why is not known."
	if facts != "" {
		text += " " + fmt.Sprintf(facts, args...)
	}
	return reason{text: text}
}

// because is a reason with its experiment: what was changed, what ours is then, and the criterion,
// applied again. When the statement does not hold then, the reason is not known.
func because(changed, ours string, again test) reason {
	if !again.met {
		return unknown("It still differs %s: %s.", changed, ours)
	}
	return reason{fmt.Sprintf("It holds %s: %s.", changed, ours), true}
}

// and adds facts to a reason.
func (r reason) and(facts string, args ...any) reason {
	r.text += " " + fmt.Sprintf(facts, args...)
	return r
}

// figure returns what is published about something.
func (p *Part) figure(about string) Figure {
	f, ok := p.paper.Figures[about]
	if !ok {
		panic("no published figure is about " + about)
	}
	return f
}

// published returns the number that the paper has about something.
func (p *Part) published(about string) float64 { return value(p.figure(about).Printed) }

// claim adds a verdict to p; why is told where it differs.
func (p *Part) claim(about string, t test, ours string, why reason) {
	v := Verdict{About: about, Figure: p.figure(about), Ours: ours}
	small, few := p.small[about]
	switch {
	case v.Fitted != "":
		v.Outcome, v.Why = Fitted, "It does not count: "+v.Fitted+"."
	case few:
		v.Outcome, v.Why = TooSmall, small
	case p.quick && t.near:
		v.Outcome, v.Why = TooSmall, "The quick size is not exact enough: this is too near to where the verdict turns."
	case t.met:
		v.Outcome = Holds
	default:
		v.Outcome, v.Why, v.Shown = Differs, why.text, why.shown
	}
	p.Claims = append(p.Claims, v)
}

// same claims that a number is the paper's, to the digit that the paper prints.
func (p *Part) same(about string, ours float64, why reason) {
	f := p.figure(about)
	decimals := 2
	if f.Unit == "%" {
		decimals = 1
	}
	p.claim(about, printed(ours, f.Printed, f.Unit), strings.TrimSpace(fmt.Sprintf("%.*f %s", decimals, ours, f.Unit)),
		why)
}
