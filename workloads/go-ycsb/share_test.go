package main

import (
	"runtime"
	"testing"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/workloads/drivers"
)

// TestShare: half of the processors are left to memory nodes of this machine, and only to those,
// unless the user sets GOMAXPROCS.
func TestShare(t *testing.T) {
	n, err := fabrics.Serve(fabrics.NodeConfig{Listen: "127.0.0.1:0", Memory: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(6))
	for _, c := range []struct {
		pool, env string
		want      int
	}{{"tcp:" + n.Addr(), "", 3}, {"tcp:" + n.Addr(), "6", 6}, {"mem:", "", 6}} {
		t.Setenv("GOMAXPROCS", c.env)
		p := properties.LoadMap(map[string]string{"command": drivers.Load, "farkv.pool": c.pool, "recordcount": "100"})
		db, err := drivers.Create("fusee", p)
		if err != nil {
			t.Fatal(err)
		}
		end := share(db)
		if got := runtime.GOMAXPROCS(0); got != c.want {
			t.Errorf("%s with GOMAXPROCS=%q: %d processors, want %d", c.pool, c.env, got, c.want)
		}
		end()
		if got := runtime.GOMAXPROCS(0); got != 6 {
			t.Errorf("%d processors at the end", got)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}
