package stores

import (
	"strconv"
	"testing"

	"github.com/farkv/farkv/client"
)

// steadyStores are those of transactions, and their originals.
var steadyStores = []string{"race-rtx", "race-dtx", "race", "sherman-rtx", "sherman-dtx", "sherman"}

const (
	steadyKeys  = 20000
	steadyBytes = 1000
)

// steady is a worker of a pool that it has filled, and an operation for each kind.
type steady struct {
	pool  *Pool
	s     client.Store
	key   []byte
	value []byte
	n     int
	names []string
	ops   map[string]func() error
}

func newSteady(t testing.TB, store string) *steady {
	t.Helper()
	p, err := Create("mem:", store, Params{Nodes: 1, Records: steadyKeys, PairBytes: steadyBytes + 24})
	must(t, err)
	s, ep, err := p.Worker("steady", Options{})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()); must(t, ep.Close()); must(t, p.Close()) })
	x := &steady{pool: p, s: s, value: make([]byte, steadyBytes), names: []string{"get", "update", "insert and delete"}}
	for i := range steadyKeys {
		must(t, s.Insert(x.at(i), x.value))
	}
	x.ops = map[string]func() error{
		"get":    func() error { _, err := x.s.Get(x.next()); return err },
		"update": func() error { return x.s.Update(x.next(), x.value) },
		"insert and delete": func() error {
			key := x.at(steadyKeys)
			if err := s.Insert(key, x.value); err != nil {
				return err
			}
			return s.Delete(key)
		},
	}
	if scanner, ok := s.(client.Scanner); ok {
		x.names = append(x.names, "scan")
		take := func(key, value []byte) bool { return true }
		x.ops["scan"] = func() error { return scanner.Scan(x.next(), 50, take) }
	}
	return x
}

func (x *steady) at(i int) []byte {
	x.key = strconv.AppendInt(append(x.key[:0], "key-"...), int64(1e8+i), 10)
	return x.key
}

// next returns keys in an order that has no neighbors.
func (x *steady) next() []byte {
	x.n++
	return x.at(x.n * 7919 % steadyKeys)
}

// TestSteady: in steady state no operation of a store of transactions, or of its original,
// allocates anything.
func TestSteady(t *testing.T) {
	for _, store := range steadyStores {
		t.Run(store, func(t *testing.T) {
			x := newSteady(t, store)
			for _, name := range x.names {
				f := x.ops[name]
				for range 3000 {
					must(t, f())
				}
				if n := testing.AllocsPerRun(2000, func() { must(t, f()) }); n > 0 {
					t.Errorf("%s allocates %v times", name, n)
				}
			}
		})
	}
}

func BenchmarkSteady(b *testing.B) {
	for _, store := range steadyStores {
		x := newSteady(b, store)
		for _, name := range x.names {
			b.Run(store+" "+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					must(b, x.ops[name]())
				}
			})
		}
	}
}
