package stores

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
)

func TestValuesRead(t *testing.T) {
	k := kinds["rcuckoo"]
	got := Values{"levels": 2, "entries": 8}
	table := k.Option("table")
	if err := got.Read(table, "entries=4, key-bytes=32,inline-bytes=0,f=1.9,rows-per-lock=2,lock-bits=8,"+
		"lock-words=3,rows=100,shards=5"); err != nil {
		t.Fatal(err)
	}
	want := Values{"levels": 2, "entries": 4, "key-bytes": 32, "inline-bytes": 0, "f": 1.9, "rows-per-lock": 2,
		"lock-bits": 8, "lock-words": 3, "rows": 100, "shards": 5}
	if !maps.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, bad := range []string{"", "entries", "entries=", "entries=0", "entries=-1", "entries=x", "f=0.5", "f=NaN",
		"f=1e7", "inline-bytes=256",
		"inline-bytes=-1", "key-bytes=64", "lock-bits=64", "f=x", "levels=2", "entries=4,",
		"rows=9223372036854775808"} {
		if err := got.Read(table, bad); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for name, texts := range map[string][2]string{"cache-bytes": {"2KiB", "-1"}, "failure-timer": {"20ms", "0s"},
		"levels": {" 3", "17"}} {
		o := k.Option(name)
		v := Values{}
		if err := v.Read(o, texts[0]); err != nil || o.Text(v[name]) != strings.TrimSpace(texts[0]) {
			t.Errorf("%s: %v, %v", name, v, err)
		}
		if err := v.Read(o, texts[1]); err == nil {
			t.Errorf("%s is %s: %v", name, texts[1], v)
		}
	}
}

// A store refuses an option that it does not have, one of another type, and one out of its bounds.
func TestHeeds(t *testing.T) {
	for _, k := range kinds {
		p := k.Size(Params{Own: Values{"entries": 4}})
		if err := p.Check(k); (err == nil) != (k.Option("entries") != nil) || err != nil && !errors.Is(err, ErrParams) {
			t.Errorf("%s: %v", k.Name, err)
		}
	}
	k := kinds["rcuckoo"]
	for _, bad := range []Values{{"levels": 17}, {"levels": "2"}, {"levels": 2.0}, {"failure-timer": 5}, {"table": 1},
		{"cache-bytes": time.Second}} {
		if err := k.Heeds(bad); !errors.Is(err, ErrParams) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// A declaration is whole, its default is within its bounds, and options of one name have one type
// in all stores.
func TestDeclarations(t *testing.T) {
	types, names := map[string]Type{}, map[string]string{}
	for _, store := range Names() {
		for _, o := range kinds[store].settable() {
			if o.Name == "" || o.Doc == "" || o.Default == nil && o.Derived == "" {
				t.Errorf("%s: %+v", store, o)
			}
			if o.Default != nil && o.check(o.Default) != nil {
				t.Errorf("%s: %v", store, o.check(o.Default))
			}
			if known, ok := types[o.Name]; ok && known != o.Type {
				t.Errorf("%s: %s is a %v, and elsewhere a %v", store, o.Name, o.Type, known)
			}
			property := strings.ReplaceAll(o.Name, "-", "")
			if other := names[property]; other != "" && other != o.Name {
				t.Errorf("%s and %s have one property", o.Name, other)
			}
			types[o.Name], names[property] = o.Type, o.Name
		}
	}
}

// A pool has what its store declares: the default of an option, and the value that it is made with.
func TestOptionsReachThePool(t *testing.T) {
	for _, name := range Names() {
		k := kinds[name]
		for _, o := range k.settable() {
			if o.When != Made {
				continue
			}
			if got := held(t, k, o, nil); o.Default != nil && got != o.Text(o.Default) {
				t.Errorf("%s: without %s it is %s, not %v", name, o.Name, got, o.Default)
			}
			for _, v := range []any{int(o.Min) + 1, 1.5, true, 3 * time.Second} {
				if o.check(v) != nil {
					continue
				}
				if got := held(t, k, o, Values{o.Name: v}); got != o.Text(v) {
					t.Errorf("%s: with %s=%v it is %s", name, o.Name, v, got)
				}
			}
		}
	}
}

// held returns the value of an option that a pool shows.
func held(t *testing.T, k *Kind, o *Option, own Values) string {
	t.Helper()
	p := k.Size(Params{Records: 500, PairBytes: 64, Clients: 8, Own: own})
	must(t, p.Check(k))
	f, err := fabrics.Create("mem:", fabrics.Geometry{Nodes: p.Nodes, Memory: p.Memory, Clients: p.Clients},
		func(f rdma.Fabric) error { return k.Format(f, p) })
	must(t, err)
	defer f.Close()
	h, err := header(f)
	must(t, err)
	for _, s := range k.Settings(h) {
		if s.Name == o.Name {
			return fmt.Sprint(s.Value)
		}
	}
	t.Fatalf("%s does not show %s", k.Name, o.Name)
	return ""
}
