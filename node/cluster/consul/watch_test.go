package consul

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/workloads/check/wait"
)

// seen is a call of a watch's function.
type seen struct {
	membership.Record
	err error
}

// watched watches a record for the time of a test.
func watched(t *testing.T, s *Store, key string) <-chan seen {
	calls := make(chan seen, 10_000)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.Watch(ctx, key, func(r membership.Record, err error) { calls <- seen{r, err} })
	}()
	t.Cleanup(func() { cancel(); <-stopped })
	return calls
}

// next returns the next call.
func next(t *testing.T, calls <-chan seen) seen {
	t.Helper()
	select {
	case c := <-calls:
		return c
	case <-time.After(wait.Hang):
		t.Fatal("nothing was seen")
		return seen{}
	}
}

// until returns the first call that fits.
func until(t *testing.T, calls <-chan seen, fits func(seen) bool) seen {
	t.Helper()
	for end := time.Now().Add(wait.Hang); ; {
		if time.Now().After(end) {
			t.Fatal("what was seen never fits")
		}
		if c := next(t, calls); fits(c) {
			return c
		}
	}
}

// watches checks what a watch tells, and that a change after a rest is told at once: a watch that
// only looked once a pace, or once a wait, would take longer.
func watches(t *testing.T, a *Agent) {
	a.pace = 200 * time.Millisecond
	s := poolOf(t, a, "watched").Registry(NewID())
	calls := watched(t, s, "k")
	if c := next(t, calls); c.err != nil || c.Version != 0 || c.Key != "k" {
		t.Fatalf("a record that is not there is seen as %+v", c)
	}
	last := uint64(0)
	for i := range 3 {
		time.Sleep(2 * a.pace) // by then the watch waits for the agent
		value := "v" + strconv.Itoa(i)
		write(t, s, "k", value)
		began := time.Now()
		c := next(t, calls)
		if c.err != nil || string(c.Value) != value || c.Version <= last || c.Key != "k" {
			t.Fatalf("change %d is seen as %+v", i, c)
		}
		t.Logf("change %d was seen %v after the answer to its writer", i, time.Since(began))
		last = c.Version
		write(t, s, "other", value) // is no change of k
	}
	select {
	case c := <-calls:
		t.Errorf("seen without a change: %+v", c)
	case <-time.After(2 * a.pace):
	}
}

func TestFakeWatch(t *testing.T) {
	t.Parallel()
	_, a := newFake(t)
	watches(t, a)
}

// TestPace checks that a record that changes all the time costs no more queries than one a pace.
func TestPace(t *testing.T) {
	f, a := newFake(t)
	a.pace = 50 * time.Millisecond
	s := poolOf(t, a, "p").Registry("x")
	began := time.Now()
	calls := watched(t, s, "k")
	writes := 0
	for ; time.Since(began) < 10*a.pace; writes++ {
		write(t, s, "k", strconv.Itoa(writes))
	}
	last := strconv.Itoa(writes - 1)
	until(t, calls, func(c seen) bool { return string(c.Value) == last })
	var queries int
	f.set(func() { queries = f.queries - 2*writes }) // a write loads first
	if most := int(time.Since(began)/(a.pace*7/8)) + 2; queries > most {
		t.Errorf("%d queries of a watch, and %d at most are in its pace", queries, most)
	}
}

// TestRestingWatch checks that a watch of a record that rests is not told again, and goes on after
// its wait.
func TestRestingWatch(t *testing.T) {
	f, a := newFake(t)
	a.pace, a.wait = time.Millisecond, 10*time.Millisecond
	s := poolOf(t, a, "p").Registry("x")
	write(t, s, "k", "v")
	calls := watched(t, s, "k")
	next(t, calls)
	before := f.count()
	eventually(t, "a few waits", func() bool { return f.count() >= before+5 })
	write(t, s, "k", "w")
	if c := next(t, calls); string(c.Value) != "w" {
		t.Errorf("seen %+v", c)
	}
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queries
}

// TestIndexReset checks the rules of blocking queries: an index that goes back, and one that is 0,
// must not be waited for.
func TestIndexReset(t *testing.T) {
	f, a := newFake(t)
	a.pace, a.wait = 5*time.Millisecond, 50*time.Millisecond
	f.index = 1000
	s := poolOf(t, a, "p").Registry("x")
	write(t, s, "k", "v")
	indexes := make(chan string, 10_000)
	f.set(func() {
		f.fail = func(r *http.Request) failure {
			indexes <- r.URL.Query().Get("index")
			return none
		}
	})
	calls := watched(t, s, "k")
	next(t, calls)
	f.set(func() { f.past = 900 })
	waited := ""
	asked(t, indexes, func(index string) bool { // after one that finds the index below comes one that waits for nothing
		before := waited
		waited = index
		return before == "1001" && index == ""
	})
	asked(t, indexes, func(index string) bool { return index == "101" })
	f.set(func() { f.fail = func(*http.Request) failure { return unindex } })
	c := until(t, calls, func(c seen) bool { return c.err != nil })
	if !errors.Is(c.err, membership.ErrUnreachable) {
		t.Errorf("an answer without index: %v", c.err)
	}
	began, before := time.Now(), f.count()
	time.Sleep(100 * time.Millisecond)
	if n, most := f.count()-before, int(time.Since(began)/(a.pace/8))+1; n > most {
		t.Errorf("%d queries without an index, want at most %d", n, most)
	}
}

// TestWatchBackoff checks that failures are told, queries become rare meanwhile, and that it goes
// on afterwards.
func TestWatchBackoff(t *testing.T) {
	f, a := newFake(t)
	a.pace = 16 * time.Millisecond
	s := poolOf(t, a, "p").Registry("x")
	write(t, s, "k", "v")
	f.fail = refuseAll
	began := time.Now()
	calls := watched(t, s, "k")
	for range 8 {
		if c := next(t, calls); !errors.Is(c.err, membership.ErrUnreachable) {
			t.Fatalf("seen %+v", c)
		}
	}
	// 1/8 of the pace, doubled five times, and then as long once more.
	if took, least := time.Since(began), (2+4+8+16+32+64+64)*time.Millisecond; took < least {
		t.Errorf("8 failures within %v, want %v at least", took, least)
	}
	f.set(func() { f.fail = nil })
	if c := until(t, calls, func(c seen) bool { return c.err == nil }); string(c.Value) != "v" {
		t.Errorf("seen %+v", c)
	}

	// The query after a failure waits for nothing: the index may be another Consul's.
	indexes := make(chan string, 10_000)
	failed := false
	f.set(func() {
		f.fail = func(r *http.Request) failure {
			if !failed {
				failed = true
				return refuse
			}
			indexes <- r.URL.Query().Get("index")
			return none
		}
	})
	f.CloseClientConnections() // ends the query that waits
	until(t, calls, func(c seen) bool { return c.err != nil })
	first := true
	asked(t, indexes, func(index string) bool {
		if first && index != "" {
			t.Errorf("the first query after a failure waits for index %s", index)
		}
		first = false
		return index != ""
	})
}

func TestMirror(t *testing.T) {
	f, a := newFake(t)
	a.pace = 5 * time.Millisecond
	s := poolOf(t, a, "p").Registry("x")
	write(t, s, "k", "v")
	m := s.Mirror("k")
	first := m.Look()
	if string(first.Value) != "v" || first.Since.IsZero() || first.Err != nil {
		t.Fatalf("%+v", first)
	}
	before := f.count()
	for range 1000 {
		m.Look()
	}
	if n := f.count() - before; n > 10 {
		t.Errorf("%d queries for 1000 looks", n)
	}
	written := time.Now()
	write(t, s, "k", "w")
	eventually(t, "the change", func() bool { return string(m.Look().Value) == "w" })
	second := m.Look()
	if second.Version <= first.Version || second.Since.Before(written) {
		t.Errorf("%+v after %+v, written at %v", second, first, written)
	}
	f.set(func() { f.fail = refuseAll })
	f.CloseClientConnections()
	eventually(t, "the failure", func() bool { return m.Look().Err != nil })
	failed := m.Look()
	if !errors.Is(failed.Err, membership.ErrUnreachable) || string(failed.Value) != "w" ||
		failed.Since != second.Since {
		t.Errorf("%+v after %+v", failed, second)
	}
	f.set(func() { f.fail = nil })
	eventually(t, "the recovery", func() bool { return m.Look().Err == nil })
	if now := m.Look(); now.Since != second.Since {
		t.Errorf("the record is as old as before, and not %+v", now)
	}
	m.Close()
	if now := m.Look(); string(now.Value) != "w" {
		t.Errorf("after Close: %+v", now)
	}
}

// TestMirrorOfNothing checks that Look waits for no longer than a call takes.
func TestMirrorOfNothing(t *testing.T) {
	f, a := newFake(t)
	f.fail = refuseAll
	m := poolOf(t, a, "p").Registry("x").Mirror("k")
	defer m.Close()
	if r := m.Look(); !errors.Is(r.Err, membership.ErrUnreachable) || !r.Since.IsZero() {
		t.Errorf("%+v", r)
	}
}

var eventually = wait.Until

// asked waits until a query that fits has been sent with its index.
func asked(t *testing.T, indexes <-chan string, fits func(index string) bool) {
	t.Helper()
	end := time.After(wait.Hang)
	for {
		select {
		case i := <-indexes:
			if fits(i) {
				return
			}
		case <-end:
			t.Fatal("no such query")
		}
	}
}
