package eval

import (
	"strings"
	"testing"
)

// TestPublished: what is wrong with published figures is said at once.
func TestPublished(t *testing.T) {
	const good = `{"about": "a", "section": "1", "says": "so", "printed": "2"}`
	for text, want := range map[string]string{
		`{"figures": [` + good + `]}`: "",
		`{"figures": [{"about": "a", "section": "1", "says": "so", "wen": "x"}]}`:             `unknown field "wen"`,
		`{"figures": [{"about": "a", "section": "1", "printed": "2"}]}`:                       "want one of a name",
		`{"figures": [{"about": "a", "says": "so", "printed": "2"}]}`:                         "want one of a name",
		`{"figures": [{"about": "a", "section": "1", "says": "so"}]}`:                         "want one of a name",
		`{"figures": [{"about": "a", "section": "1", "says": "", "holds_when": "it is"}]}`:    "want one of a name",
		`{"figures": [{"about": "a", "section": "1", "says": "so", "printed": "2 of many"}]}`: "no number in print",
		`{"figures": [` + good + `, ` + good + `]}`:                                           "want one of a name",
		`{"figures": [`: "unexpected EOF",
	} {
		p := &Paper{Name: "P"}
		func() {
			defer func() {
				said, _ := recover().(string)
				if said == "" != (want == "") || !strings.Contains(said, want) {
					t.Errorf("%s: %q, want %q", text, said, want)
				}
			}()
			p.read([]byte(text))
		}()
		if f := p.Figures["a"]; want == "" && (f.Says != "so" || f.Paper != "P" || Value(f.Printed) != 2) {
			t.Errorf("%s: %+v", text, f)
		}
	}
}
