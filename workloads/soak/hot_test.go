package soak

import (
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
)

// hotStores are stores in which writers of one key take its lock, or make each other try again.
var hotStores = []string{"race-rtx", "race", "sherman-rtx", "sherman"}

// TestHot: of 64 workers that all write one key none fails, as nothing is dead.
func TestHot(t *testing.T) {
	length := time.Second
	if os.Getenv("FARKV_LONG") == "1" {
		length = 30 * time.Second
	}
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	for _, store := range hotStores {
		for _, addr := range []string{"mem:", "shm:hot-" + store} {
			t.Run(store+" on "+addr[:4], func(t *testing.T) {
				p, err := stores.Create(addr, store, stores.Params{Nodes: 1, Records: 10000})
				if err != nil {
					t.Fatal(err)
				}
				gets, updates, err := Hot(p, 64, length)
				if err != nil {
					t.Error(err)
				}
				t.Logf("GET %v; UPDATE %v", gets, updates)
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
