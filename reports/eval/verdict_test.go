package eval

import (
	"testing"
)

func TestPrinted(t *testing.T) {
	for _, x := range []struct {
		ours      float64
		text      string
		met, near bool
	}{
		{2.44, "2.4", true, true}, {2.45, "2.4", true, true}, {2.46, "2.4", false, true}, {2.7, "2.4", false, false},
		{3.4, "3", true, true}, {3.6, "3", false, true}, {4, "3", false, false}, {1030.4, "1030", true, true},
		{1031, "1030", false, true},
		{-9.4, "-9", true, true}, {-16, "-9", false, false},
	} {
		unit := map[bool]string{true: "%"}[x.ours < 0]
		if got := Printed(x.ours, x.text, unit); got != (Test{x.met, x.near}) {
			t.Errorf("%g printed as %s: %+v", x.ours, x.text, got)
		}
	}
	if got := Printed(45.6+2.9, "45.6", "%"); got.Met || !got.near {
		t.Errorf("2.9 percent off: %+v", got)
	}
	if got := Printed(45.6+3.2, "45.6", "%"); got.Met || got.near {
		t.Errorf("3.2 percent off: %+v", got)
	}
}

func TestTests(t *testing.T) {
	yes, no, nearly, barely := Test{true, false}, Test{false, false}, Test{false, true}, Test{true, true}
	for _, x := range []struct {
		got, want Test
	}{
		{More(2, 1), yes}, {More(1, 2), no}, {More(1.03, 1), barely}, {Less(1.03, 1), nearly}, {Less(-2, -1), yes},
		{Is(true), yes},
		{Inside(1, 0.5, 2), yes}, {Inside(1.97, 0.5, 2), barely}, {Inside(3, 0.5, 2), no}, {Similar(1.3, 1, 0.15), no},
		{Similar(1, 1, 0.15), yes},
		{All(yes, yes), yes}, {All(yes, barely), barely}, {All(barely, nearly), nearly}, {All(yes, nearly), nearly},
		{All(barely, no), no}, {All(nearly, no), no},
	} {
		if x.got != x.want {
			t.Errorf("%+v, want %+v", x.got, x.want)
		}
	}
}

// TestClaim: what is fitted counts for nothing, the quick size says when it is too small, and a
// reason is shown or not known.
func TestClaim(t *testing.T) {
	figures := map[string]Figure{
		"fit": {Printed: "2.0", Fitted: "the link was chosen so"}, "number": {Printed: "2.0"},
		"words": {When: "it is so"}, "few": {When: "it is so"},
	}
	for _, quick := range []bool{false, true} {
		p := &Part{Paper: &Paper{Figures: figures}, quick: quick}
		if quick {
			p.small = map[string]string{"few": "There are few."}
		}
		p.Same("fit", 2, Unknown(""))
		p.Same("number", 2, Unknown(""))
		p.Same("number", 3, Because("with half of it", "2.01", Printed(2.01, "2.0", "")))
		p.Same("number", 3, Because("with half of it", "2.9", Printed(2.9, "2.0", "")))
		p.Claim("words", Is(true), "so", Unknown(""))
		p.Claim("few", Is(false), "so", Unknown("It may be %d.", 5))
		want := []Verdict{
			{Outcome: Fitted, Why: "It does not count: the link was chosen so."},
			{Outcome: Holds},
			{Outcome: Differs, Why: "It holds with half of it: 2.01.", Shown: true},
			{Outcome: Differs, Why: "Why is not known. It still differs with half of it: 2.9."},
			{Outcome: Holds},
			{Outcome: Differs, Why: "Why is not known. It may be 5."},
		}
		if quick {
			want[1] = Verdict{Outcome: TooSmall,
				Why: "The quick size is not exact enough: this is too near to where the verdict turns."}
			want[5] = Verdict{Outcome: TooSmall, Why: "There are few."}
		}
		for i, v := range p.Claims {
			if v.Outcome != want[i].Outcome || v.Why != want[i].Why || v.Shown != want[i].Shown {
				t.Errorf("quick %t: %d is %s, %t: %s", quick, i, v.Outcome, v.Shown, v.Why)
			}
		}
	}
}
