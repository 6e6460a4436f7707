package consul

import (
	"errors"
	"net/http"
	"testing"
)

// A web server that is no agent of Consul answers 404 to everything. That is not "no such pool".
func TestForeignServer(t *testing.T) {
	f, a := newFake(t)
	f.fail = func(*http.Request) failure { return foreign }
	unreachable(t, a, "")
	for name, do := range everyCall(t, a) {
		if err := do(); errors.Is(err, ErrNoPool) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := poolOf(t, a, "p").Record(); !errors.Is(err, errNoConsul) {
		t.Errorf("a record of no Consul: %v", err)
	}
}
