package consul

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/membership/history"
	"github.com/farkv/farkv/node/membership/membershiptest"
)

// contract checks what membership.Store promises, of registries of one agent, each used through two
// connections.
func contract(t *testing.T, agent func(t testing.TB) *Agent) {
	membershiptest.Run(t, func(t testing.TB) []membership.Store {
		first := agent(t)
		id := NewID()
		return []membership.Store{registryOf(t, first, id), registryOf(t, dial(t, first.address), id)}
	})
	t.Run("SameValue", func(t *testing.T) { sameValue(t, registryOf(t, agent(t), NewID())) })
	t.Run("Isolated", func(t *testing.T) {
		a := agent(t)
		one, other := registryOf(t, a, NewID()), registryOf(t, a, NewID())
		write(t, one, "k", "v")
		if _, all, err := other.Look("", ""); len(all) != 0 || err != nil {
			t.Errorf("another pool's registry has %v, %v", all, err)
		}
	})
}

func registryOf(t testing.TB, a *Agent, id string) *Store {
	return poolOf(t, a, "contract").Registry(id)
}

// sameValue checks that of two writers of the same value over the same version one wins, and that
// versions grow also then.
func sameValue(t *testing.T, s membership.Store) {
	last := uint64(0)
	for range 4 {
		for i, want := range []bool{true, false} {
			if ok, err := s.Swap("k", last, []byte("v")); ok != want || err != nil {
				t.Errorf("swap %d at version %d: %v, %v", i, last, ok, err)
			}
		}
		_, version, err := s.Load("k")
		if err != nil || version <= last {
			t.Fatalf("version %d after %d, %v", version, last, err)
		}
		last = version
	}
}

func TestFakeContract(t *testing.T) {
	t.Parallel()
	contract(t, func(t testing.TB) *Agent { _, a := newFake(t); return a })
}

// TestLostAnswers checks that records stay linearizable when answers are lost and writes land late.
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
	s := poolOf(t, a, "lossy").Registry("x")
	log := history.New()
	var wg sync.WaitGroup
	var mu sync.Mutex
	swapped, unknown := 0, 0
	for user := range 4 {
		wg.Go(func() {
			for i := range 25 {
				key := fmt.Sprintf("key%d", (user+i)%2)
				began := log.Begin()
				value, version, err := s.Load(key)
				if err != nil {
					continue
				}
				if err := log.Loaded(user, key, began, string(value), version); err != nil {
					t.Error(err)
				}
				to := fmt.Sprintf("%d.%d", user, i)
				began = log.Begin()
				ok, err := s.Swap(key, version, []byte(to))
				log.Swapped(user, key, began, string(value), to, ok, err == nil)
				mu.Lock()
				if ok {
					swapped++
				}
				if err != nil {
					unknown++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if swapped == 0 || unknown == 0 {
		t.Errorf("%d swaps were done, and the outcome of %d is unknown", swapped, unknown)
	}
	if err := log.Check(); err != nil {
		t.Error(err)
	}
}

func TestLongValue(t *testing.T) {
	f, a := newFake(t)
	s := poolOf(t, a, "long").Registry("x")
	ok, err := s.Swap("k", 0, make([]byte, MaxValue+1))
	if ok || err == nil || errors.Is(err, membership.ErrUnreachable) {
		t.Errorf("%v, %v", ok, err)
	}
	if n := f.count(); n > 0 {
		t.Error("it was sent")
	}
}
