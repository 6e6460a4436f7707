package kv

import (
	"testing"
)

// TestSeal: a word says what was written, and none that differs from it in a bit says anything.
func TestSeal(t *testing.T) {
	for i := range uint64(5000) { // so many that some flips would go unseen without the parity
		n := i
		if i >= 2500 {
			n = 1<<48 - 5000 + i
		}
		word := Seal(n)
		if got, ok := Unseal(word); !ok || got != n {
			t.Errorf("%d is read as %d, %t", n, got, ok)
		}
		for bit := range 64 {
			if got, ok := Unseal(word ^ 1<<bit); ok || got != 0 {
				t.Errorf("%d: bit %d flips, and it is %d", n, bit, got)
			}
		}
	}
}
