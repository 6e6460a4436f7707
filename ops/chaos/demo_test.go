package chaos

import (
	"testing"

	"github.com/farkv/farkv/client/stores"
)

// TestDemoPool: each store takes the shape of its demo's pool.
func TestDemoPool(t *testing.T) {
	for _, name := range stores.Names() {
		k, err := stores.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		p := k.Size(demoPool(k))
		if err := p.Check(k); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
