// Package membershiptest is the suite that every membership.Store must pass:
//
//	func TestStore(t *testing.T) {
//		membershiptest.Run(t, func(t testing.TB) []membership.Store { ... })
//	}
package membershiptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/membership/history"
)

// Run runs the suite. Each time it is called, open returns ways to one store, as different
// processes have them: at least one, to a store that is empty. It closes them by t.Cleanup.
func Run(t *testing.T, open func(t testing.TB) []membership.Store) {
	t.Run("Records", func(t *testing.T) { testRecords(t, open(t)) })
	t.Run("Buffers", func(t *testing.T) { testBuffers(t, open(t)[0]) })
	t.Run("List", func(t *testing.T) { testList(t, open(t)) })
	t.Run("Await", func(t *testing.T) { testAwait(t, open(t)) })
	t.Run("Linearizable", func(t *testing.T) { testLinearizable(t, open(t)) })
}

func load(t testing.TB, s membership.Store, key, want string) uint64 {
	t.Helper()
	value, version, err := s.Load(key)
	if err != nil || string(value) != want {
		t.Fatalf("%s is %q at version %d (%v), want %q", key, value, version, err, want)
	}
	return version
}

func swap(t testing.TB, s membership.Store, key string, version uint64, value string, want bool) {
	t.Helper()
	if ok, err := s.Swap(key, version, []byte(value)); ok != want || err != nil {
		t.Fatalf("%s at version %d becomes %q: %v, %v; want %v", key, version, value, ok, err, want)
	}
}

// testRecords replaces a record by its versions.
func testRecords(t *testing.T, stores []membership.Store) {
	a, b := stores[0], stores[len(stores)-1]
	if v := load(t, a, "key", ""); v != 0 {
		t.Fatalf("a record that was never written has version %d", v)
	}
	swap(t, a, "key", 7, "early", false)
	if v := load(t, b, "key", ""); v != 0 {
		t.Fatalf("a record that was never written has version %d", v)
	}
	swap(t, b, "key", 0, "one", true)
	swap(t, a, "key", 0, "other", false)
	one := load(t, a, "key", "one")
	swap(t, a, "key", one, "two", true)
	two := load(t, b, "key", "two")
	swap(t, b, "key", one, "three", false)
	if one == 0 || two <= one {
		t.Errorf("versions %d and %d of one record", one, two)
	}
	swap(t, b, "key", two, "one", true) // the value comes back, the version does not
	swap(t, a, "key", one, "four", false)
	if v := load(t, a, "key", "one"); v <= two {
		t.Errorf("versions %d and %d of one record", two, v)
	}
	load(t, a, "ke", "")
	load(t, a, "key/", "")
}

// testBuffers changes what Swap was given, and what Load has returned. What Look returns is shared,
// with questions that are still being sent among others.
func testBuffers(t *testing.T, s membership.Store) {
	value := []byte("value")
	if ok, err := s.Swap("key", 0, value); !ok || err != nil {
		t.Fatal(ok, err)
	}
	copy(value, "XXXXX")
	got, _, err := s.Load("key")
	if err != nil || string(got) != "value" {
		t.Fatalf("%q, %v", got, err)
	}
	copy(got, "YYYYY")
	load(t, s, "key", "value")
	_, all, err := s.Look("", "key")
	if err != nil || len(all) != 1 || string(all[0].Value) != "value" {
		t.Fatalf("%v, %v", all, err)
	}
}

// testList lists records, more than one answer may hold.
func testList(t *testing.T, stores []membership.Store) {
	a, b := stores[0], stores[len(stores)-1]
	if _, all, err := b.Look("", ""); err != nil || len(all) != 0 {
		t.Fatalf("an empty store has %v, %v", all, err)
	}
	const n = 40
	for i := range n {
		swap(t, a, fmt.Sprintf("client/%05d", (i*7)%n), 0, fmt.Sprint(i), true)
	}
	swap(t, b, "clients", 0, "no", true)
	swap(t, b, "view", 0, "no", true)
	_, all, err := b.Look("", "client/")
	if err != nil || len(all) != n {
		t.Fatalf("%d records, %v; want %d", len(all), err, n)
	}
	for i, r := range all {
		if r.Key != fmt.Sprintf("client/%05d", i) || r.Version != load(t, a, r.Key, string(r.Value)) {
			t.Errorf("record %d is %+v", i, r)
		}
	}
	if _, all, err := a.Look("", "client/00007x"); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	if _, all, err := a.Look("", "view"); err != nil || len(all) != 1 || !bytes.Equal(all[0].Value, []byte("no")) {
		t.Errorf("%v, %v", all, err)
	}
}

// testAwait follows a record that others replace.
func testAwait(t *testing.T, stores []membership.Store) {
	a, b := stores[0], stores[len(stores)-1]
	const last = 5
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for version, value := uint64(0), ""; value != fmt.Sprint(last); {
				if err := a.Await(t.Context(), "key", version); err != nil {
					t.Errorf("wait for another version than %d: %v", version, err)
					return
				}
				p, now, err := a.Load("key")
				if err != nil || now < version {
					t.Errorf("version %d is %q, %v", now, p, err)
					return
				}
				version, value = now, string(p)
			}
		})
	}
	version := uint64(0)
	for i := range last + 1 {
		swap(t, b, "key", version, fmt.Sprint(i), true)
		version = load(t, b, "key", fmt.Sprint(i))
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := b.Await(ctx, "key", version); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a record that is not replaced: %v", err)
	}
}

// testLinearizable lets users of all the ways replace the same records as fast as they can.
func testLinearizable(t *testing.T, stores []membership.Store) {
	const users, turns = 6, 25
	log := history.New()
	var wg sync.WaitGroup
	for u := range users {
		wg.Go(func() {
			s := stores[u%len(stores)]
			for i := range turns {
				key := fmt.Sprintf("key%d", (u+i)%3)
				if err := use(s, log, u, key, fmt.Sprintf("%d.%d", u, i)); err != nil {
					t.Errorf("user %d: %v", u, err)
					return
				}
			}
			_, all, err := s.Look("", "key")
			if err != nil || len(all) == 0 {
				t.Errorf("user %d lists %d records: %v", u, len(all), err)
			}
		})
	}
	wg.Wait()
	if err := log.Check(); err != nil {
		t.Error(err)
	}
	if log.Len() < users*turns {
		t.Errorf("%d operations in the history", log.Len())
	}
}

// use loads a record and replaces it. That a store was too busy is no error of a Swap: it may have
// happened.
func use(s membership.Store, log *history.Log, user int, key, to string) error {
	began := log.Begin()
	value, version, err := s.Load(key)
	if err != nil {
		return err
	}
	if err := log.Loaded(user, key, began, string(value), version); err != nil {
		return err
	}
	began = log.Begin()
	ok, err := s.Swap(key, version, []byte(to))
	log.Swapped(user, key, began, string(value), to, ok, err == nil)
	return nil
}
