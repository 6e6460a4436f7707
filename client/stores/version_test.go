package stores

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/fabrics"
)

// All programs that read a pool refuse one with another version of its store's format, and the
// error names both versions.
func TestOtherVersionsAreRefused(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	for _, name := range Names() {
		addr := "shm:" + name
		if kinds[name].Serve != nil { // which that has none of
			addr = "mem:"
		}
		p, err := Create(addr, name, Params{Records: 500, Clients: 4})
		if err != nil {
			t.Fatal(err)
		}
		k := p.Kind
		if k.Serve != nil { // its servers have read the header once they all answer
			s, ep, err := p.Worker("first", Options{})
			must(t, err)
			for i := range 50 {
				must(t, s.Insert(fmt.Appendf(nil, "key%d", i), nil))
			}
			must(t, errors.Join(s.Close(), ep.Close()))
		}
		if k.Version == 0 || p.Header.Version != k.Version {
			t.Errorf("%s: the table has version %d, a pool %d", name, k.Version, p.Header.Version)
		}
		for version, age := range map[uint32]string{k.Version + 1: "newer", cmp.Or(k.Oldest, k.Version) - 1: "older"} {
			ep, err := p.Fabric.Open("rewrite")
			if err != nil {
				t.Fatal(err)
			}
			h := p.Header
			h.Version = version
			if err := errors.Join(node.WriteHeader(p.Fabric, ep, h), ep.Close()); err != nil {
				t.Fatal(err)
			}
			refused := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, node.ErrOtherVersion) || !strings.Contains(err.Error(), age) {
					t.Errorf("%s of version %d: %s: %v", name, version, what, err)
				}
			}
			_, err = Of(addr, p.Fabric)
			refused("open", err)
			_, _, err = p.Worker("worker", Options{})
			refused("worker", err)
			_, err = k.Check(p.Fabric)
			refused("check", err)
			_, err = k.Usage(p.Fabric)
			refused("usage", err)
			if k.Recoverer != nil {
				ep, err := p.Fabric.Open("recoverer")
				if err != nil {
					t.Fatal(err)
				}
				_, err = k.Recoverer(p.Fabric)(ep)
				refused("recoverer", err)
				if err := ep.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		err = p.Close()
		if !fabrics.Private(addr) {
			err = errors.Join(err, fabrics.Remove(addr, false))
		}
		if err != nil {
			t.Error(err)
		}
	}
}
