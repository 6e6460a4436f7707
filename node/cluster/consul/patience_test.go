package consul

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
)

// patient makes this process wait for agents during a test, and returns what it said.
func patient(t *testing.T, wait time.Duration) *atomic.Pointer[string] {
	t.Helper()
	said := new(atomic.Pointer[string])
	BePatient(context.Background(), &Patience{Wait: wait, Say: func(agent string, why error) {
		text := agent
		if why != nil {
			text += ": " + why.Error()
		}
		if !said.CompareAndSwap(nil, &text) {
			t.Errorf("said a second time: %s", text)
		}
	}})
	t.Cleanup(BeImpatient)
	return said
}

// An agent that is about to start is waited for: nothing listens first.
func TestWaitForStart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	said := patient(t, 30*time.Second)
	a := dial(t, at)
	found := make(chan error, 1)
	go func() {
		_, err := poolOf(t, a, "p").Record()
		found <- err
	}()
	eventually(t, "word of the wait", func() bool { return said.Load() != nil })
	if !strings.Contains(*said.Load(), at+": ") || !strings.Contains(*said.Load(), "refused") {
		t.Errorf("said %q", *said.Load())
	}
	f, _ := newFake(t)
	late := httptest.NewUnstartedServer(f)
	late.Listener.Close()
	if late.Listener, err = net.Listen("tcp", at); err != nil {
		t.Fatal(err)
	}
	late.Start()
	defer late.Close()
	if err := <-found; !errors.Is(err, ErrNoPool) {
		t.Errorf("want no such pool: %v", err)
	}
}

// An agent that takes longer than Timeout for an answer is waited for: questions are asked again,
// with more time.
func TestWaitForSlow(t *testing.T) {
	f, _ := newFake(t)
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(150 * time.Millisecond):
			f.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	}))
	defer slow.Close()
	a := dial(t, slow.Listener.Addr().String())
	a.timeout = 50 * time.Millisecond
	s := poolOf(t, a, "p").Registry("x")
	if _, _, err := s.Load("k"); !errors.Is(err, membership.ErrUnreachable) {
		t.Fatalf("without patience: %v", err)
	}
	said := patient(t, 30*time.Second)
	write(t, s, "k", "again")
	read(t, s, "k", "again")
	if said.Load() == nil {
		t.Error("it does not say that it waits")
	}
}

// A write that may have landed is not sent again: its second would find another version.
func TestWaitWritesOnce(t *testing.T) {
	f, a := newFake(t)
	patient(t, 30*time.Second)
	f.set(func() { f.fail = func(*http.Request) failure { return lose } })
	ok, err := poolOf(t, a, "p").Registry("x").Swap("k", 0, []byte("v"))
	if ok || !errors.Is(err, membership.ErrUnreachable) {
		t.Errorf("a swap whose answer was lost: %v, %v", ok, err)
	}
	if n := f.count(); n != 1 {
		t.Errorf("it was sent %d times", n)
	}
}

// After one wait in vain the process waits no more, so that a command ends about when it said. The
// agent may hear of the last question of a call that waited when that call has given up: so the two
// calls ask for different pools.
func TestWaitInVain(t *testing.T) {
	f, a := newFake(t)
	asked := 0
	f.set(func() {
		f.fail = func(r *http.Request) failure {
			if strings.Contains(r.URL.Path, "next") {
				asked++
			}
			return refuse
		}
	})
	patient(t, 300*time.Millisecond)
	began := time.Now()
	_, err := poolOf(t, a, "p").Record()
	if took := time.Since(began); took < 300*time.Millisecond || !errors.Is(err, membership.ErrUnreachable) {
		t.Errorf("after %v: %v", took, err)
	}
	_, err = poolOf(t, a, "next").Record()
	f.set(func() {
		if asked != 1 || !errors.Is(err, membership.ErrUnreachable) {
			t.Errorf("the next call asked %d times: %v", asked, err)
		}
	})
}

// An interrupt ends the wait.
func TestWaitInterrupted(t *testing.T) {
	f, a := newFake(t)
	f.set(func() { f.fail = refuseAll })
	ctx, cancel := context.WithCancel(context.Background())
	BePatient(ctx, &Patience{Wait: time.Hour, Say: func(string, error) { cancel() }})
	t.Cleanup(BeImpatient)
	if _, err := poolOf(t, a, "p").Record(); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
