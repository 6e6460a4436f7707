package consul

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
)

// everyCall is what may be asked of an agent, by name.
func everyCall(t *testing.T, a *Agent) map[string]func() error {
	pool, err := a.Pool("p")
	if err != nil {
		t.Fatal(err)
	}
	s := pool.Registry("x")
	return map[string]func() error{
		"load":     func() error { _, _, err := s.Load("k"); return err },
		"swap":     func() error { _, err := s.Swap("k", 1, []byte("v")); return err },
		"list":     func() error { _, _, err := s.Look("", "k"); return err },
		"record":   func() error { _, err := pool.Record(); return err },
		"publish":  func() error { return pool.Publish(example()) },
		"remove":   func() error { return pool.Remove(Record{}) },
		"clear":    func() error { return pool.Clear() },
		"discard":  func() error { return pool.Discard("x") },
		"members":  func() error { _, err := a.Members(Node, ""); return err },
		"self":     func() error { _, _, err := a.Self(); return err },
		"register": func() error { _, err := a.Register(Member{Kind: Node, ID: "n"}, alive); return err },
	}
}

func example() Record {
	return Record{ID: NewID(), Fabric: "tcp", Nodes: []string{"10.0.0.1:7070", "10.0.0.2:7070"}, Store: "fusee",
		Parameters: map[string]string{"replicas": "2"}}
}

func alive() (bool, string) { return true, "well" }

// unreachable checks that every call fails in time, and says which agent did what, and why.
func unreachable(t *testing.T, a *Agent, why string) {
	t.Helper()
	var wg sync.WaitGroup
	for name, do := range everyCall(t, a) {
		wg.Go(func() {
			began := time.Now()
			err := do()
			// Publish looks a second time; the rest is for a busy machine.
			if took := time.Since(began); took > 2*a.timeout+3*time.Second {
				t.Errorf("%s took %v", name, took)
			}
			if !errors.Is(err, membership.ErrUnreachable) {
				t.Errorf("%s: %v", name, err)
			} else if text := err.Error(); !strings.HasPrefix(text, "consul "+a.address+": ") ||
				!strings.Contains(text, why) || strings.Contains(text, "http://") {
				t.Errorf("%s: want a text with %q: %v", name, why, err)
			}
		})
	}
	wg.Wait()
}

func TestNoListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	unreachable(t, dial(t, l.Addr().String()), "connection refused")
}

// TestSilence is about an agent that takes requests and never answers, as one that was stopped.
func TestSilence(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := dial(t, l.Addr().String())
	a.timeout = 50 * time.Millisecond
	unreachable(t, a, "it does not answer")
}

func TestNoLeader(t *testing.T) {
	f, a := newFake(t)
	f.fail = refuseAll
	unreachable(t, a, "No cluster leader")
}

// TestCrowd is about an agent that has too many connections of this machine.
func TestCrowd(t *testing.T) {
	f, a := newFake(t)
	f.fail = func(*http.Request) failure { return crowd }
	if _, _, err := poolOf(t, a, "p").Registry("x").Load("k"); !errors.Is(err, membership.ErrUnreachable) ||
		!strings.Contains(err.Error(), "limits.http_max_conns_per_client") {
		t.Error(err)
	}
}

func TestForbidden(t *testing.T) {
	f, a := newFake(t)
	f.fail = func(*http.Request) failure { return forbid }
	unreachable(t, a, "CONSUL_HTTP_TOKEN")
	for name, do := range everyCall(t, a) {
		if err := do(); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEnvironment checks that Consul's usual variables count, all but the one for the address.
func TestEnvironment(t *testing.T) {
	t.Setenv("CONSUL_HTTP_TOKEN", "secret")
	t.Setenv("CONSUL_NAMESPACE", "team")
	t.Setenv("CONSUL_HTTP_ADDR", "127.0.0.1:1")
	f, a := newFake(t)
	var seen []string
	f.fail = func(r *http.Request) failure {
		q := r.URL.Query()
		seen = append(seen, r.Header.Get("X-Consul-Token"), q.Get("ns"), fmt.Sprint(q.Has("consistent")))
		return none
	}
	pool, err := a.Pool("p")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := pool.Registry("x").Load("k"); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, " "); got != "secret team true" {
		t.Errorf("token, namespace, consistent: %q", got)
	}
	t.Setenv("CONSUL_CACERT", filepath.Join(t.TempDir(), "none.pem"))
	if _, err := Dial("127.0.0.1:8500"); err == nil || !strings.Contains(err.Error(), "CONSUL_") {
		t.Errorf("a certificate that is not there: %v", err)
	}
}
