package kv

import "testing"

// TestKinds: kinds have names, and are found by them.
func TestKinds(t *testing.T) {
	for _, k := range Kinds() {
		if again, err := ParseKind(k.String()); err != nil || again != k {
			t.Errorf("%s is read as %s, %v", k, again, err)
		}
	}
	if _, err := ParseKind("clover"); err == nil {
		t.Error("there is a kind clover")
	}
}
