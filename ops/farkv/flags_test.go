package main

import (
	"testing"

	"github.com/farkv/farkv/ops/command/commandtest"
)

// A default is in the help once.
func TestDefaultsOnce(t *testing.T) {
	if flags := commandtest.Defaults(t, newRoot()); flags < 100 {
		t.Errorf("only %d flags", flags)
	}
}

func TestBytesFlag(t *testing.T) {
	for text, want := range map[string]string{"1000": "1000", "1024": "1KiB", "1500KiB": "1500KiB", "8GiB": "8GiB",
		"1048576": "1MiB", "2048TiB": "2048TiB"} {
		var b, again bytesFlag
		if err := b.Set(text); err != nil || b.String() != want {
			t.Errorf("%s: %s, %v", text, b.String(), err)
		}
		if err := again.Set(b.String()); err != nil || again != b {
			t.Errorf("%s: %d again, not %d: %v", text, again, b, err)
		}
	}
	if none := bytesFlag(0); none.String() != "" {
		t.Errorf("%q", none.String())
	}
}
