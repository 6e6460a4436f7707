package consul

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/farkv/farkv/node/rdma/board"
)

// contract checks what board.Store promises. open returns an empty store, seen by another process at each call.
func contract(t *testing.T, open func(t *testing.T) board.Store) {
	t.Run("versions", func(t *testing.T) { versions(t, open(t)) })
	t.Run("lists", func(t *testing.T) { lists(t, open(t)) })
	t.Run("concurrent", func(t *testing.T) { judge(t, swaps([]board.Store{open(t), open(t)}, 40)) })
}

func versions(t *testing.T, s board.Store) {
	if value, version, err := s.Load("versions"); value != nil || version != 0 || err != nil {
		t.Fatalf("a record that was never written: %q at %d, %v", value, version, err)
	}
	if ok, err := s.Swap("versions", 7, []byte("x")); ok || err != nil {
		t.Fatalf("a swap at a version of a record that was never written: %v, %v", ok, err)
	}
	last := uint64(0)
	for i, text := range []string{"a", "b", "b", "b", "", "c"} { // the same value again is another version, too
		if ok, err := s.Swap("versions", last, []byte(text)); !ok || err != nil {
			t.Fatalf("swap %d: %v, %v", i, ok, err)
		}
		value, version, err := s.Load("versions")
		if err != nil || string(value) != text || version <= last {
			t.Fatalf("after swap %d: %q at %d, %v; the version before was %d", i, value, version, err, last)
		}
		if ok, err := s.Swap("versions", last, []byte("stale")); ok || err != nil {
			t.Fatalf("a swap at the version before swap %d: %v, %v", i, ok, err)
		}
		last = version
	}
}

func lists(t *testing.T, s board.Store) {
	if records, err := s.List("list/"); len(records) != 0 || err != nil {
		t.Fatalf("nothing is listed as %v, %v", records, err)
	}
	for _, key := range []string{"list/00010", "list/00002", "listed", "list/00001", "kist/1"} {
		if ok, err := s.Swap(key, 0, []byte("value of "+key)); !ok || err != nil {
			t.Fatal(key, ok, err)
		}
	}
	records, err := s.List("list/")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, r := range records {
		keys = append(keys, r.Key)
		value, version, err := s.Load(r.Key)
		if err != nil || !bytes.Equal(r.Value, value) || r.Version != version {
			t.Errorf("%s is listed as %q at %d and loaded as %q at %d, %v", r.Key, r.Value, r.Version, value, version, err)
		}
	}
	if want := []string{"list/00001", "list/00002", "list/00010"}; !reflect.DeepEqual(keys, want) {
		t.Errorf("listed %v, want %v", keys, want)
	}
}

// call and result are an operation of a history; a call with a value is a Swap.
type call struct {
	key     string
	version uint64
	value   string
}

type result struct {
	unknown bool // what became of it
	swapped bool
	value   string
	version uint64
}

// swaps has a few workers load and swap a few records through several stores, and returns the history.
func swaps(stores []board.Store, rounds int) []porcupine.Operation {
	const workers, keys = 6, 2
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	begin := time.Now()
	for w := range workers {
		wg.Go(func() {
			s, r := stores[w%len(stores)], rand.New(rand.NewPCG(1, uint64(w)))
			record := func(c call, do func() (result, error)) result {
				at := time.Since(begin)
				out, err := do()
				op := porcupine.Operation{ClientId: w, Input: c, Output: out, Call: int64(at), Return: int64(time.Since(begin))}
				if err != nil {
					op.Output, op.Return = result{unknown: true}, 1<<62
				}
				mu.Lock()
				defer mu.Unlock()
				history = append(history, op)
				return out
			}
			for i := range rounds {
				key := fmt.Sprintf("key%d", r.IntN(keys))
				seen := record(call{key: key}, func() (result, error) {
					value, version, err := s.Load(key)
					return result{value: string(value), version: version}, err
				})
				c := call{key, seen.version, fmt.Sprintf("%d.%d", w, i)}
				record(c, func() (result, error) {
					ok, err := s.Swap(key, c.version, []byte(c.value))
					return result{swapped: ok}, err
				})
			}
		})
	}
	wg.Wait()
	return history
}

// register is the state of one record: its version is known only once somebody loaded it, and is above the one before.
type register struct {
	value  string
	known  bool
	lowest uint64 // the version if it is known; else it is above
}

// model is a record under Load and Swap. A call of which nobody knows what became may have happened or not.
var model = porcupine.NondeterministicModel{
	Init: func() []any { return []any{register{known: true}} },
	Step: func(state, input, output any) []any {
		s, in, out := state.(register), input.(call), output.(result)
		after := register{value: in.value, lowest: in.version}
		fits := s.known && s.lowest == in.version
		switch {
		case in.value == "" && out.unknown:
			return []any{s}
		case in.value == "":
			if out.value != s.value || s.known && out.version != s.lowest || !s.known && out.version <= s.lowest {
				return nil
			}
			return []any{register{s.value, true, out.version}}
		case !s.known && in.version > s.lowest && (out.unknown || out.swapped):
			// Nobody has loaded this version yet, and the caller knows one: not in this order.
			return keep(s, out.unknown)
		case out.unknown && fits:
			return []any{s, after}
		case out.unknown:
			return []any{s}
		case out.swapped != fits:
			return nil
		case fits:
			return []any{after}
		}
		return []any{s}
	},
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(call).key
			by[key] = append(by[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range by {
			parts = append(parts, part)
		}
		return parts
	},
	Equal: func(a, b any) bool { return a == b },
}

func keep(s register, ok bool) []any {
	if ok {
		return []any{s}
	}
	return nil
}

func judge(t *testing.T, history []porcupine.Operation) {
	t.Helper()
	swapped := 0
	for _, op := range history {
		if op.Output.(result).swapped {
			swapped++
		}
	}
	if swapped == 0 {
		t.Error("nothing was swapped")
	}
	m := model.ToModel()
	if got := porcupine.CheckOperationsTimeout(m, history, time.Minute); got != porcupine.Ok {
		t.Errorf("%d operations, %d of them swaps: linearizable: %v", len(history), swapped, got)
	}
}

func TestFakeContract(t *testing.T) {
	contract(t, opener(func(t *testing.T) *Agent { _, a := newFake(t); return a }))
}

// opener opens an empty store of one agent a test, through a new connection each time.
func opener(agent func(t *testing.T) *Agent) func(t *testing.T) board.Store {
	type place struct{ address, id string }
	places := map[string]place{}
	return func(t *testing.T) board.Store {
		p, ok := places[t.Name()]
		if !ok {
			p = place{agent(t).address, NewID()}
			places[t.Name()] = p
		}
		pool, err := dial(t, p.address).Pool("contract")
		if err != nil {
			t.Fatal(err)
		}
		return pool.Board(p.id)
	}
}

// TestLostAnswers checks that the histories stay linearizable when answers are lost and writes land late.
func TestLostAnswers(t *testing.T) {
	f, a := newFake(t)
	a.timeout = 20 * time.Millisecond
	r := rand.New(rand.NewPCG(3, 4))
	f.fail = func(*http.Request) failure {
		if r.IntN(10) > 0 {
			return none
		}
		return []failure{refuse, lose, late}[r.IntN(3)]
	}
	pool, err := a.Pool("lossy")
	if err != nil {
		t.Fatal(err)
	}
	history := swaps([]board.Store{pool.Board("x")}, 15)
	unknown := 0
	for _, op := range history {
		if op.Output.(result).unknown {
			unknown++
		}
	}
	if unknown == 0 {
		t.Error("nothing was lost")
	}
	judge(t, history)
}

// forgetful swaps whatever the version is, and stale loads what was there at first: the model has to notice.
type forgetful struct{ board.Store }

func (f forgetful) Swap(key string, _ uint64, value []byte) (bool, error) {
	_, version, err := f.Load(key)
	if err != nil {
		return false, err
	}
	_, err = f.Store.Swap(key, version, value)
	return true, err
}

type stale struct {
	board.Store
	mu    *sync.Mutex
	first map[string]result
}

func (s stale) Load(key string) ([]byte, uint64, error) {
	value, version, err := s.Store.Load(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.first[key]; ok {
		return []byte(r.value), r.version, err
	}
	if version > 0 {
		s.first[key] = result{value: string(value), version: version}
	}
	return value, version, err
}

func TestContractTeeth(t *testing.T) {
	for name, broken := range map[string]func(board.Store) board.Store{
		"swaps at any version": func(s board.Store) board.Store { return forgetful{s} },
		"stale loads": func(s board.Store) board.Store {
			return stale{s, new(sync.Mutex), map[string]result{}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, a := newFake(t)
			pool, err := a.Pool("broken")
			if err != nil {
				t.Fatal(err)
			}
			s := broken(pool.Board("x"))
			m := model.ToModel()
			if got := porcupine.CheckOperationsTimeout(m, swaps([]board.Store{s}, 20), time.Minute); got != porcupine.Illegal {
				t.Errorf("judged %v", got)
			}
		})
	}
}

// TestSameValue checks that of two who write the same over the same version one wins.
func TestSameValue(t *testing.T) {
	_, a := newFake(t)
	pool, err := a.Pool("same")
	if err != nil {
		t.Fatal(err)
	}
	s := pool.Board("x")
	if ok, err := s.Swap("k", 0, []byte("v")); !ok || err != nil {
		t.Fatal(ok, err)
	}
	_, version, err := s.Load("k")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false} {
		if ok, err := s.Swap("k", version, []byte("v")); ok != want || err != nil {
			t.Errorf("swap %d: %v, %v", i, ok, err)
		}
	}
}

func TestLongValue(t *testing.T) {
	f, a := newFake(t)
	pool, err := a.Pool("long")
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := pool.Board("x").Swap("k", 0, make([]byte, MaxValue+1)); ok || err == nil || errors.Is(err, board.ErrUnreachable) {
		t.Errorf("%v, %v", ok, err)
	}
	if f.queries > 0 {
		t.Error("it was sent")
	}
}
