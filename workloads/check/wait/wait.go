// Package wait is how tests wait for what other goroutines and processes do.
package wait

import (
	"testing"
	"time"
)

// Hang is how long a test waits before it takes what does not come for hung: far longer than
// anything takes on a machine that is busy. Nothing else is decided by it.
const Hang = time.Minute

// Until waits until something is so, as ok reports, which it asks often at first and then every 10
// ms. The test ends when that does not come.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	pause := 100 * time.Microsecond
	for end := time.Now().Add(Hang); !ok(); pause = min(pause*5/4, 10*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Hang, what)
		}
		time.Sleep(pause)
	}
}
