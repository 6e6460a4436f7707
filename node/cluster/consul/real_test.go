package consul

import (
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/consul/consultest"
	"github.com/farkv/farkv/node/membership"
)

// realAgent starts an agent that asks for no tokens.
func realAgent(t *testing.T) (r *consultest.Agent, here func(t testing.TB) *Agent) {
	t.Parallel()
	// Else the agent keeps a new output of a check to itself for minutes.
	r = consultest.Start(t, map[string]any{"check_update_interval": "0s"})
	return r, func(t testing.TB) *Agent { return dial(t, r.Address) }
}

// TestReal runs everything that an agent which goes on is needed for.
func TestReal(t *testing.T) {
	_, here := realAgent(t)
	t.Run("contract", func(t *testing.T) { contract(t, here) })
	t.Run("stalled master", func(t *testing.T) { stalledMaster(t, here) })
	t.Run("records", func(t *testing.T) { records(t, here(t)) })
	t.Run("creators", func(t *testing.T) { creators(t, here(t)) })
	t.Run("watch", func(t *testing.T) { watches(t, here(t)) })
	t.Run("members", func(t *testing.T) { members(t, here(t)) })
	t.Run("lost registration", func(t *testing.T) { lostRegistration(t, here(t)) })
	t.Run("dead member", func(t *testing.T) { deadMember(t, here(t)) })
	t.Run("long value", func(t *testing.T) {
		s := poolOf(t, here(t), "long").Registry("x")
		if ok, err := s.Swap("k", 0, make([]byte, MaxValue)); !ok || err != nil {
			t.Errorf("the longest value: %v, %v", ok, err)
		}
	})
}

// TestRealPauses runs what pauses the agent.
func TestRealPauses(t *testing.T) {
	r, here := realAgent(t)
	cutOffMaster(t, here, r.Pause, r.Resume)
}

// TestRealEnds runs what stops the agent, and starts it again.
func TestRealEnds(t *testing.T) {
	r, here := realAgent(t)
	t.Run("stopped", func(t *testing.T) { stoppedAgent(t, r, here(t)) })
	t.Run("restarted", func(t *testing.T) { restartedAgent(t, r, here(t)) })
}

// members checks which members are listed, and how.
func members(t *testing.T, a *Agent) {
	var mu sync.Mutex
	well, text := true, "lease 250ms"
	state := func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return well, text
	}
	one, err := a.Register(Member{Kind: Node, ID: "farkv-node-10.0.0.1:7070", Address: "10.0.0.1:7070",
		Meta: map[string]string{"memory": "8GiB"}}, state)
	if err != nil {
		t.Fatal(err)
	}
	two, err := a.Register(Member{Kind: Node, ID: "farkv-node-[::1]:7070", Address: "[::1]:7070", Pool: "p", Index: 1},
		alive)
	if err != nil {
		t.Fatal(err)
	}
	client, err := a.Register(Member{Kind: Client, ID: "farkv-client-1", Pool: "p"}, alive)
	if err != nil {
		t.Fatal(err)
	}
	one.expect(t, "a free node", func(h Health) bool {
		return h.Status == "passing" && h.Output == text && h.Address == "10.0.0.1:7070" && h.Pool == "" &&
			h.Meta["memory"] == "8GiB" && h.Agent == "test"
	})
	if err := one.Join("p", 2); err != nil {
		t.Fatal(err)
	}
	one.expect(t, "a node of a pool", func(h Health) bool { return h.Alive() && h.Pool == "p" && h.Index == 2 })
	eventually(t, "the pool's nodes, by node", func() bool {
		nodes, err := a.Members(Node, "p")
		return err == nil && len(nodes) == 2 && nodes[0].Address == "[::1]:7070" && nodes[0].Index == 1 &&
			nodes[1].Index == 2
	})
	client.expect(t, "a client", func(h Health) bool { return h.Alive() && h.Address == "" && h.Pool == "p" })
	mu.Lock()
	well, text = false, "no lease"
	mu.Unlock()
	one.expect(t, "a warning", func(h Health) bool {
		return h.Status == "warning" && h.Output == "no lease" && h.Alive()
	})

	for _, r := range []*Registration{one, two, client} {
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "an empty list", func() bool {
		nodes, err := a.Members(Node, "")
		clients, err2 := a.Members(Client, "")
		return err == nil && err2 == nil && len(nodes)+len(clients) == 0
	})
}

// expect waits until the member is listed so.
func (r *Registration) expect(t *testing.T, what string, fits func(Health) bool) {
	t.Helper()
	eventually(t, what, func() bool {
		all, err := r.agent.Members(r.member.Kind, "")
		for _, h := range all {
			if err == nil && h.ID == r.member.ID && fits(h) {
				return true
			}
		}
		return false
	})
}

// lostRegistration checks that a member comes back that its agent forgot.
func lostRegistration(t *testing.T, a *Agent) {
	r, err := a.Register(Member{Kind: Node, ID: "forgotten", Pool: "p", Index: 3}, alive)
	if err != nil {
		t.Fatal(err)
	}
	r.expect(t, "the member", Health.Alive)
	if err := a.client.Agent().ServiceDeregister("forgotten"); err != nil {
		t.Fatal(err)
	}
	r.expect(t, "the member again", func(h Health) bool { return h.Alive() && h.Index == 3 })
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// deadMember checks that a process that died falls critical, and one that goes on is well again.
func deadMember(t *testing.T, a *Agent) {
	r, err := a.Register(Member{Kind: Node, ID: "n", Address: "127.0.0.1:7070"}, alive)
	if err != nil {
		t.Fatal(err)
	}
	r.expect(t, "a node that is well", Health.Alive)
	r.cancel() // as if the process had died: nothing is said any more
	<-r.stopped
	began := time.Now()
	r.expect(t, "a node that is dead", func(h Health) bool { return h.Status == "critical" && !h.Alive() })
	if took := time.Since(began); took < TTL-2*beat {
		t.Errorf("critical after %v, and the check lasts %v", took, TTL)
	}
	t.Logf("critical %v after the last word", time.Since(began))
	next, err := a.Register(r.member, alive) // its successor at the same address
	if err != nil {
		t.Fatal(err)
	}
	next.expect(t, "a node that is well again", Health.Alive)
	if err := next.Close(); err != nil {
		t.Error(err)
	}
}

// stoppedAgent checks that an agent that stands still hangs no caller, and that all goes on when it
// does.
func stoppedAgent(t *testing.T, r *consultest.Agent, a *Agent) {
	a.wait = time.Second
	s := poolOf(t, a, "stopped").Registry("x")
	write(t, s, "k", "before")
	m := s.Mirror("k")
	defer m.Close()
	reg, err := a.Register(Member{Kind: Node, ID: "n"}, alive)
	if err != nil {
		t.Fatal(err)
	}
	seen := m.Look()
	r.Pause()
	unreachable(t, a, "it does not answer")
	if ok, err := s.Swap("k", seen.Version, []byte("late")); ok || !errors.Is(err, membership.ErrUnreachable) {
		t.Errorf("swapped by a stopped agent: %v, %v", ok, err)
	}
	eventually(t, "the mirror's failure", func() bool { return m.Look().Err != nil })
	eventually(t, "the registration's failure", func() bool { return errors.Is(reg.Err(), membership.ErrUnreachable) })
	if now := m.Look(); string(now.Value) != "before" || now.Since != seen.Since {
		t.Errorf("the mirror forgot: %+v", now)
	}

	r.Resume()
	eventually(t, "an answer", func() bool { _, _, err := s.Load("k"); return err == nil })
	// The write that was given up lands now, or was dropped; either way the version says so, and
	// writing goes on.
	value, version, err := s.Load("k")
	if err != nil {
		t.Fatal(err)
	}
	ok, err := s.Swap("k", version, []byte("after"))
	if err == nil && !ok && string(value) == "before" { // it landed in between, as nothing else does
		if value, version, err = s.Load("k"); string(value) == "late" {
			ok, err = s.Swap("k", version, []byte("after"))
		}
	}
	if !ok || err != nil {
		t.Fatalf("over %q at version %d: %v, %v", value, version, ok, err)
	}
	eventually(t, "the mirror's change", func() bool {
		return string(m.Look().Value) == "after" && m.Look().Err == nil
	})
	eventually(t, "the registration", func() bool { return reg.Err() == nil })
	reg.expect(t, "a node that is well", Health.Alive)
	if err := reg.Close(); err != nil {
		t.Error(err)
	}
}

// restartedAgent checks that what was written survives the agent, that versions go on growing, and
// that watches and registrations find the new one.
func restartedAgent(t *testing.T, r *consultest.Agent, a *Agent) {
	s := poolOf(t, a, "restarted").Registry("x")
	write(t, s, "k", "before")
	m := s.Mirror("k")
	defer m.Close()
	var beats atomic.Int64
	reg, err := a.Register(Member{Kind: Node, ID: "n"}, func() (bool, string) { beats.Add(1); return true, "" })
	if err != nil {
		t.Fatal(err)
	}
	before := m.Look()
	r.Kill()
	unreachable(t, a, "") // connections that were open end in other words than new ones
	r.Start()
	value, version, err := s.Load("k")
	if string(value) != "before" || version != before.Version || err != nil {
		t.Errorf("after the restart: %q at %d, %v, want version %d", value, version, err, before.Version)
	}
	write(t, s, "k", "after")
	if _, version, err = s.Load("k"); version <= before.Version || err != nil {
		t.Errorf("version %d after %d, %v", version, before.Version, err)
	}
	eventually(t, "the mirror's change", func() bool { return string(m.Look().Value) == "after" })
	// The servers still list what they were told before, and the agent that begins keeps callers
	// waiting, for longer than Timeout, until it has told them anew: see that a whole beat went
	// through.
	begun := beats.Load()
	eventually(t, "a beat", func() bool { return beats.Load() > begun+1 && reg.Err() == nil })
	reg.expect(t, "a node that is well", Health.Alive)
	if err := reg.Close(); err != nil {
		t.Error(err)
	}
}

// TestAccess checks a Consul that asks for tokens.
func TestAccess(t *testing.T) {
	token := "0b1d7a4e-2b8f-4d7c-9a53-1f6f6b1f2c11"
	t.Setenv("CONSUL_HTTP_TOKEN", token)
	r := consultest.Start(t, map[string]any{"acl": map[string]any{"enabled": true, "default_policy": "deny",
		"tokens": map[string]any{"initial_management": token, "agent": token}}})
	// A leader takes a moment to make the token.
	eventually(t, "the right to write", func() bool {
		return poolOf(t, dial(t, r.Address),
			"p").Publish(example()) == nil
	})
	t.Setenv("CONSUL_HTTP_TOKEN", "0b1d7a4e-2b8f-4d7c-9a53-000000000000")
	unreachable(t, dial(t, r.Address), "CONSUL_HTTP_TOKEN")
	t.Setenv("CONSUL_HTTP_TOKEN", "") // without one, lists are empty and keys are not there, unless they are written
	if err := poolOf(t, dial(t, r.Address), "q").Publish(example()); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("published without a token: %v", err)
	}
}
