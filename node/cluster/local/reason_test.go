package local

import "testing"

func TestReason(t *testing.T) {
	for line, want := range map[string]string{
		"farkv: no such file":                                           "farkv: no such file",
		`{"version":1,"error":"no such file","status":1}`:               "no such file",
		`{"version":1,"error":"no room","hint":"make some","status":1}`: "no room (hint: make some)",
		`{"address":"127.0.0.1:7070"}`:                                  `{"address":"127.0.0.1:7070"}`,
		`{cut`:                                                          `{cut`,
	} {
		if got := reason(line); got != want {
			t.Errorf("%s: %q", line, got)
		}
	}
}
