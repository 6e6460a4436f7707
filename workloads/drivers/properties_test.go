package drivers

import (
	"cmp"
	"strings"
	"testing"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/client/stores"
)

// The defaults that a store's help shows are those of the pool that load makes, and can be said.
func TestDefaultsOfStores(t *testing.T) {
	for _, name := range stores.Names() {
		kind, err := stores.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		shown := map[string]string{}
		for _, q := range PropertiesOf(kind) {
			shown[q.Name] = q.Default
		}
		for _, said := range []bool{false, true} {
			p := properties.NewProperties()
			set := func(name, value string) {
				t.Helper()
				if _, _, err := p.Set(name, value); err != nil {
					t.Fatal(err)
				}
			}
			if said {
				for name, value := range shown {
					if words := strings.ContainsAny(value, " .") && value != "0.5"; value != "" &&
						value != "off" && !words {
						set(name, value)
					}
				}
			}
			set("farkv.pool", "mem:")
			set("recordcount", "200")
			set("fieldcount", "1")
			set("command", Load)
			db, err := Create(name, p)
			if err != nil {
				t.Fatalf("%s with its defaults (said: %v): %v", name, said, err)
			}
			holds, _ := About(db)
			for _, q := range []string{"farkv.nodes", "farkv.replicas"} {
				has := cmp.Or(holds[q], "1") // rcuckoo's header does not name a lone replica
				if has != shown[q] {
					t.Errorf("%s: the help says that %s is %q, the pool has %q", name, q, shown[q], has)
				}
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// What a store's help leaves out, the store does not heed.
func TestPropertiesOfStores(t *testing.T) {
	list := func(name string) (names []string) {
		kind, err := stores.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range PropertiesOf(kind) {
			names = append(names, q.Name)
			if strings.Contains(q.Doc, "rcuckoo") || strings.Contains(q.Doc, "dm-abd") {
				t.Errorf("%s: %s tells of other stores: %s", name, q.Name, q.Doc)
			}
		}
		return names
	}
	for name, c := range map[string]struct{ has, lacks string }{
		"fusee":    {"farkv.indexreplicas farkv.cachebytes farkv.cachethreshold", "farkv.levels farkv.table"},
		"fusee-nc": {"farkv.indexreplicas", "farkv.cachebytes farkv.cachethreshold farkv.table"},
		"swarm":    {"farkv.cachebytes", "farkv.indexreplicas farkv.cachethreshold farkv.levels"},
		"rcuckoo":  {"farkv.levels farkv.table farkv.cachebytes", "farkv.datareplicas farkv.cachethreshold"},
	} {
		all := strings.Join(list(name), " ") + " "
		for _, q := range strings.Fields(c.has) {
			if !strings.Contains(all, q+" ") {
				t.Errorf("%s lacks %s", name, q)
			}
		}
		for _, q := range strings.Fields(c.lacks) {
			if strings.Contains(all, q+" ") {
				t.Errorf("%s has %s", name, q)
			}
		}
	}
}
