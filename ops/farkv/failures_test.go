package main

import (
	"fmt"
	"testing"

	kv "github.com/farkv/farkv/client"
)

func TestSplitHint(t *testing.T) {
	for text, want := range map[string][2]string{
		"no such pool":                           {"no such pool", ""},
		"no pool (hint: 'farkv up' makes one)":   {"no pool", "'farkv up' makes one"},
		"full (hint: more (or less) of it): end": {"full: end", "more (or less) of it"},
		"cut off (hint: without an end":          {"cut off (hint: without an end", ""},
		"(hint: alone)":                          {"(hint: alone)", ""},
	} {
		if what, hint := splitHint(text); what != want[0] || hint != want[1] {
			t.Errorf("%q: %q, %q", text, what, hint)
		}
	}
}

// A key of which it is not known whether it is there is not one that is not there.
func TestExitStatusOfKeys(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{fmt.Errorf("get: %w", kv.ErrNotFound), exitNotFound},
		{fmt.Errorf("del: %w: %w", kv.ErrUncertain, kv.ErrNotFound), exitFailed},
		{kv.ErrDamaged, exitFailed},
	} {
		if status, line := exitStatus(t.Context(), failure{keyed(c.err)}); status != c.want || line != c.err.Error() {
			t.Errorf("%v: %d, %q", c.err, status, line)
		}
	}
}
