package workloads

import (
	"errors"
	"fmt"
	"testing"
)

func TestExplain(t *testing.T) {
	one, two, three := errors.New("one"), errors.New("two"), errors.New("three")
	hints := []Hint{
		{Of: []error{one}, Unless: true, Say: "of no use"},
		{Of: []error{two, one}, Say: "do this"},
		{Of: []error{one}, Say: "too late"},
		{Of: []error{three}, Misuse: true, Say: "do that"},
		{Of: []error{errAgain}, Instead: "again", Say: "later"},
	}
	for _, c := range []struct {
		err    error
		want   string
		misuse bool
	}{
		{fmt.Errorf("try: %w", one), "try: one (hint: do this)", false},
		{three, "three (hint: do that)", true},
		{errAgain, "again (hint: later)", false},
		{errors.New("other"), "other", false},
	} {
		err := Explain(c.err, hints)
		if err.Error() != c.want || errors.As(err, new(*UsageError)) != c.misuse {
			t.Errorf("%q, a misuse %v", err, errors.As(err, new(*UsageError)))
		}
	}
	if err := Explain(fmt.Errorf("try: %w", one), hints); !errors.Is(err, one) {
		t.Error("an explained error wraps its cause no more")
	}
	if err := Explain(nil, hints); err != nil {
		t.Error(err)
	}
}

var errAgain = errors.New("a long story")
