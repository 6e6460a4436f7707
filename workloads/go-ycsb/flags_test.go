package main

import (
	"testing"

	"github.com/farkv/farkv/ops/command/commandtest"
)

// A default is in the help once.
func TestDefaultsOnce(t *testing.T) {
	if flags := commandtest.Defaults(t, newRoot()); flags < 20 {
		t.Errorf("only %d flags", flags)
	}
}
