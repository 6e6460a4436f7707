package fabrics

import (
	"testing"

	"github.com/farkv/farkv/node/cluster/local"
)

// TestAdministrator: a process that operates pools says so to the nodes of a pool of this machine,
// which have a token of their own, and to all others.
func TestAdministrator(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	p, err := local.Create("pool")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.MakeToken(); err != nil {
		t.Fatal(err)
	}
	node := func(int, string) []string {
		return []string{"/bin/sh", "-c", `read recorded; echo '{"address":"127.0.0.1:7070"}'; exec sleep 60`}
	}
	if err := p.Start(t.Context(), 1, node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := p.Kill(0); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { Administer(false) })
	for _, admin := range []bool{false, true} {
		Administer(admin)
		for _, addr := range []string{p.Nodes[0].Address, "10.0.0.5:7070"} {
			s, err := securityOf([]string{addr})
			if err != nil || s.Admin != admin || (s.Token != nil) != (addr == p.Nodes[0].Address) {
				t.Errorf("%s: administrator %v, a token of %d bytes, %v", addr, s.Admin, len(s.Token), err)
			}
		}
	}
}
