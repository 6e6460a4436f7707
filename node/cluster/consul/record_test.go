package consul

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/consul/api"
)

// records checks the life of pools' records.
func records(t *testing.T, a *Agent) {
	p := poolOf(t, a, "recorded")
	if _, err := p.Record(); !errors.Is(err, ErrNoPool) {
		t.Fatalf("a pool that is not there: %v", err)
	}
	first, second := example(), example()
	write(t, p.Registry(first.ID), "view", "of the first")
	write(t, p.Registry(second.ID), "view", "of the second")
	write(t, poolOf(t, a, "recorded2").Registry("x"), "view", "of a pool with a longer name")
	if err := p.Publish(first); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(second); !errors.Is(err, ErrExists) {
		t.Fatalf("published over another: %v", err)
	}
	if err := p.Publish(first); err != nil {
		t.Errorf("published again: %v", err)
	}
	if err := p.Discard(second.ID); err != nil {
		t.Fatal(err)
	}
	read(t, p.Registry(second.ID), "view", "")
	read(t, p.Registry(first.ID), "view", "of the first")
	got, err := p.Record()
	if err != nil {
		t.Fatal(err)
	}
	version := got.version
	if got.version = 0; !reflect.DeepEqual(got, first) {
		t.Errorf("read %+v, want %+v", got, first)
	}
	got.version = version

	if err := p.Remove(got); err != nil {
		t.Fatal(err)
	}
	read(t, p.Registry(first.ID), "view", "")
	read(t, poolOf(t, a, "recorded2").Registry("x"), "view", "of a pool with a longer name")
	if err := p.Remove(got); !errors.Is(err, ErrNoPool) {
		t.Errorf("removed twice: %v", err)
	}
	if err := p.Publish(second); err != nil {
		t.Fatal(err)
	}
	if err := p.Remove(got); !errors.Is(err, ErrExists) {
		t.Errorf("removed another pool: %v", err)
	}
	if err := p.Clear(); err != nil {
		t.Fatal(err)
	}
}

func poolOf(t testing.TB, a *Agent, name string) *Pool {
	t.Helper()
	p, err := a.Pool(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func write(t testing.TB, s *Store, key, value string) {
	t.Helper()
	_, version, err := s.Load(key)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Swap(key, version, []byte(value)); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func read(t *testing.T, s *Store, key, want string) {
	t.Helper()
	if value, _, err := s.Load(key); string(value) != want || err != nil {
		t.Errorf("%s is %q, %v, want %q", s.prefix+key, value, err, want)
	}
}

// creators checks that of many creators of one pool one wins.
func creators(t *testing.T, a *Agent) {
	p := poolOf(t, a, "raced")
	const many = 8
	won := make([]bool, many)
	ids := make([]string, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			r := example()
			ids[i] = r.ID
			switch err := p.Publish(r); {
			case err == nil:
				won[i] = true
			case !errors.Is(err, ErrExists):
				t.Errorf("creator %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	r, err := p.Record()
	if err != nil {
		t.Fatal(err)
	}
	for i := range many {
		if won[i] != (ids[i] == r.ID) {
			t.Errorf("creator %d: won %v, and the record is %s", i, won[i], r.ID)
		}
	}
	if err := p.Remove(r); err != nil {
		t.Fatal(err)
	}
}

func TestFakeRecords(t *testing.T) {
	_, a := newFake(t)
	records(t, a)
	creators(t, a)
}

// TestLostPublish checks that a creator finds out what happened when its answer was lost.
func TestLostPublish(t *testing.T) {
	f, a := newFake(t)
	p := poolOf(t, a, "p")
	onPut := func(what failure) {
		f.set(func() {
			f.fail = func(r *http.Request) failure {
				if r.Method == http.MethodPut {
					return what
				}
				return none
			}
		})
	}
	first := example()
	onPut(refuse)
	if err := p.Publish(first); err == nil || errors.Is(err, ErrExists) {
		t.Errorf("nothing was written: %v", err)
	}
	onPut(lose)
	if err := p.Publish(first); err != nil {
		t.Errorf("the answer was lost: %v", err)
	}
	if err := p.Publish(example()); !errors.Is(err, ErrExists) {
		t.Errorf("a second pool: %v", err)
	}
}

func TestDamagedRecord(t *testing.T) {
	f, a := newFake(t)
	p := poolOf(t, a, "p")
	for _, text := range []string{"", "null", "{", "[]", `{"format":1}`,
		`{"format":2,"id":"x","fabric":"tcp","nodes":["a:1"]}`,
		`{"format":1,"id":"a/b","fabric":"tcp","nodes":["a:1"]}`, `{"format":1,"id":"x","fabric":"tcp","nodes":[]}`} {
		f.set(func() {
			f.index++
			f.pairs["farkv/p/record"] = api.KVPair{Key: "farkv/p/record", Value: []byte(text), ModifyIndex: f.index}
		})
		if _, err := p.Record(); !errors.Is(err, ErrFormat) ||
			!strings.Contains(fmt.Sprint(err), "consul:"+a.address+"/p") {
			t.Errorf("%q: %v", text, err)
		}
		if err := p.Publish(example()); !errors.Is(err, ErrExists) {
			t.Errorf("published over %q: %v", text, err)
		}
	}
	if err := p.Clear(); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(Record{Fabric: "tcp"}); !errors.Is(err, ErrFormat) {
		t.Errorf("published half a record: %v", err)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"format":1,"id":"x","fabric":"tcp","nodes":["a:1"],"store":"fusee","parameters":{"replicas":"2"}}`))
	f.Add([]byte(`{"format":"1"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decode(text)
		if err == nil && (r.ID == "" || r.Fabric == "" || len(r.Nodes) == 0) {
			t.Errorf("%q is %+v", text, r)
		}
		if err != nil && !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v", text, err)
		}
	})
}
