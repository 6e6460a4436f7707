package soak

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check"
)

// ideal is a store without faults, but for the one that is named.
type ideal struct {
	fault string
	mu    sync.Mutex
	pairs map[string][]byte
	room  int // bytes
	calls int
	opens int
}

// now reports whether a fault happens in this call: it does in each hundredth that asks for it.
func (s *ideal) now(fault string) bool {
	if s.fault != fault {
		return false
	}
	s.calls++
	return s.calls%100 == 0
}

// callTakes is how long a call takes, in virtual time: so many of them are in a load.
const callTakes = 20 * time.Microsecond

// begin begins a call, which ends with mu's lock. It sleeps without it: virtual time stands still
// while a goroutine waits for a lock.
func (s *ideal) begin() {
	time.Sleep(callTakes)
	s.mu.Lock()
}

func (s *ideal) Get(key []byte) ([]byte, error) {
	s.begin()
	defer s.mu.Unlock()
	v, there := s.pairs[string(key)]
	switch {
	case s.now("GET fails"):
		return nil, fmt.Errorf("get: %w", rdma.ErrTimeout)
	case !there, s.now("GET misses"):
		return nil, client.ErrNotFound
	case s.now("GET is slow"):
		s.mu.Unlock()
		time.Sleep(200 * time.Millisecond)
		s.mu.Lock()
	case s.now("GET is torn"):
		v = append(v[:len(v)/2:len(v)/2], make([]byte, len(v)-len(v)/2)...)
	}
	return v, nil
}

func (s *ideal) put(key, value []byte, there bool) error {
	s.begin()
	defer s.mu.Unlock()
	old, found := s.pairs[string(key)]
	need := len(value) - len(old)
	if s.now("writes leak") {
		s.room -= 10000
	}
	switch {
	case found && !there:
		return client.ErrExists
	case !found && there:
		return client.ErrNotFound
	case need > s.room, len(s.pairs) > 10 && s.now("full early"):
		return rdma.ErrFull
	case s.now("a write is lost"):
		return nil
	}
	s.room -= need
	s.pairs[string(key)] = append([]byte(nil), value...)
	return nil
}

func (s *ideal) Insert(key, value []byte) error { return s.put(key, value, false) }
func (s *ideal) Update(key, value []byte) error { return s.put(key, value, true) }

func (s *ideal) Delete(key []byte) error {
	s.begin()
	defer s.mu.Unlock()
	v, there := s.pairs[string(key)]
	switch {
	case !there:
		return client.ErrNotFound
	case s.now("DELETE is full"):
		return rdma.ErrFull
	case s.now("DELETE does nothing"):
		return nil
	}
	s.room += len(v)
	delete(s.pairs, string(key))
	return nil
}

func (s *ideal) Close() error { return nil }

// TestCaught: each kind of fault ends a Run, and none does where there is none. In virtual time a
// load has as many calls on a machine that stands still meanwhile.
func TestCaught(t *testing.T) {
	for fault, want := range map[string]string{
		"":                    "",
		"GET fails":           "timed out",
		"GET misses":          "not found",
		"GET is slow":         "longer than 100ms",
		"GET is torn":         "which is there: true",
		"writes leak":         "pool",
		"full early":          "fewer than",
		"a write is lost":     "not found",
		"DELETE is full":      "DELETE finds the pool full",
		"DELETE does nothing": "which is there: false",
		"close fails":         "fill the pool: broken",
		"open fails":          "open again: broken",
	} {
		t.Run(fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &ideal{fault: fault, pairs: map[string][]byte{}, room: 1 << 18}
				target := Target{Largest: 1000, Open: func(string) (client.Store, func() error, error) {
					s.mu.Lock()
					defer s.mu.Unlock()
					if s.opens++; fault == "open fails" && s.opens > 20 {
						return nil, nil, errors.New("broken")
					}
					return s, func() error {
						if fault == "close fails" {
							return errors.New("broken")
						}
						return nil
					}, nil
				}}
				o := Options{Workers: 8, Length: 300 * time.Millisecond, Seed: 1}
				if fault == "GET is slow" {
					o.Longest = 100 * time.Millisecond
				}
				r, err := Run(t.Context(), target, o)
				if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("want %q: %v\n%v", want, err, &r)
				}
				early := r.FullAt > 0 && r.FullAt < 0.5
				if early != (want == "pool" || want == "fewer than") || fault == "" && (r.FullAt == 0 || r.FullAt > 1) {
					t.Errorf("full with %.2f of the bytes", r.FullAt)
				}
			})
		})
	}
}

// TestFullBucket: a bucket may be full with half of what has to be live otherwise, and not with
// less.
func TestFullBucket(t *testing.T) {
	l := newLoad(t.Context(), Target{Largest: check.MinValue}, Options{Workers: 1})
	l.alone = 8 * check.MinValue // of which half has to be live
	w := newWorker(l, 1)
	w.store = &ideal{pairs: map[string][]byte{}, room: 1 << 18}
	for pairs := range 5 {
		for _, full := range []error{rdma.ErrFull, client.ErrBucketFull} {
			err := w.timed(insert, func() error { return full })
			if may := pairs >= 4 || pairs >= 2 && full != rdma.ErrFull; errors.Is(err, rdma.ErrFull) != may {
				t.Errorf("%v with %d pairs: %v, want that it may be: %v", full, pairs, err, may)
			}
		}
		if err := w.insert(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullMeanwhile: a pool may be full for an operation during which other workers fill and empty
// it, and for one within another worker's INSERT; not for one behind all that.
func TestFullMeanwhile(t *testing.T) {
	l := newLoad(t.Context(), Target{Largest: check.MinValue}, Options{Workers: 2})
	l.alone = 10 * check.MinValue
	one, other := newWorker(l, 1), newWorker(l, 2)
	refused := func(meanwhile func()) error {
		return one.timed(insert, func() error { meanwhile(); return rdma.ErrFull })
	}
	fill := func(pairs int) {
		for range pairs {
			if err := other.insert(); err != nil {
				t.Fatal(err)
			}
		}
	}
	other.store = &ideal{pairs: map[string][]byte{}, room: 1 << 18}
	err := refused(func() {
		fill(5)
		if err := other.clear(); err != nil {
			t.Fatal(err)
		}
	})
	if !errors.Is(err, rdma.ErrFull) {
		t.Errorf("filled and emptied while it ran: %v", err)
	}
	if err := refused(func() {}); errors.Is(err, rdma.ErrFull) {
		t.Error("a pool that is empty since counts as full")
	}
	fill(4)
	other.store = &then{other.store, func() { err = refused(func() {}) }}
	if fill(1); !errors.Is(err, rdma.ErrFull) {
		t.Errorf("within an INSERT that has taken the memory: %v", err)
	}
}

// then is a store that does something between an INSERT and its answer.
type then struct {
	client.Store
	do func()
}

func (s *then) Insert(key, value []byte) error {
	defer s.do()
	return s.Store.Insert(key, value)
}
