package consul

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
)

// candidate is a process that may be its pool's master.
type candidate struct {
	*membership.Registry
	me      rdma.Client
	revoked []rdma.Client
}

// candidates opens one registry by several processes with different clocks.
func candidates(t *testing.T, n int, store func(i int) membership.Store) []*candidate {
	t.Helper()
	var all []*candidate
	for i := range n {
		c := &candidate{}
		began := time.Now().Add(-time.Duration(i) * time.Hour)
		c.Registry = membership.New(store(i), membership.Options{
			Nodes: 3, Clients: 8, Process: NewID(), Now: func() time.Duration { return time.Since(began) },
			Revoke: func(c2 rdma.Client) error { c.revoked = append(c.revoked, c2); return nil },
		})
		var err error
		if c.me, err = c.Claim("candidate"); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// stalledMaster checks what doc.go says of a master that stalls while it holds the role: another
// takes over after the lease, once it has fenced the first off, and what the first does when it
// goes on changes nothing.
func stalledMaster(t *testing.T, agent func(t testing.TB) *Agent) {
	const lease = time.Second
	id := NewID()
	first := agent(t)
	c := candidates(t, 2, func(int) membership.Store {
		return poolOf(t, dial(t, first.address), "ruled").Registry(id)
	})
	a, b := c[0], c[1]
	began := time.Now()
	role, ok, err := a.TryMaster(a.me.ID, lease)
	if !ok || err != nil {
		t.Fatal(role, ok, err)
	}
	blob := bytes.Repeat([]byte("0123456"), rdma.MaxConfig/7)
	seen := make(chan rdma.Config, 1)
	go func() {
		c, err := b.AwaitConfig(0, time.Minute)
		if err != nil {
			t.Error(err)
		}
		seen <- c
	}()
	if ok, err := a.SwapConfig(role, 0, blob); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if c := <-seen; c.Version != 1 || !bytes.Equal(c.Data, blob) {
		t.Errorf("another process sees version %d, %d bytes", c.Version, len(c.Data))
	}
	idle := rdma.State{}
	if ok, err := a.Advance(idle, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}

	var next rdma.Role // a stalls here
	eventually(t, "another master", func() bool {
		if next, ok, err = b.TryMaster(b.me.ID, lease); err != nil {
			t.Fatal(err)
		}
		return ok
	})
	if took := time.Since(began); took < lease {
		t.Errorf("another master after %v, and the lease is %v", took, lease)
	}
	if next.Epoch <= role.Epoch || len(b.revoked) == 0 || b.revoked[0].ID != a.me.ID || b.revoked[0].Life != a.me.Life {
		t.Errorf("role %+v after %+v, revoked %v", next, role, b.revoked)
	}
	if ok, err := b.Advance(rdma.State{Epoch: 1, Busy: true}, rdma.State{Epoch: 2, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}

	if ok, err := a.SwapConfig(role, 1, nil); ok || !errors.Is(err, rdma.ErrStale) { // and here it goes on
		t.Errorf("the first master replaced the configuration: %v, %v", ok, err)
	}
	if ok, err := b.SwapConfig(next, 1, []byte("next")); !ok || err != nil {
		t.Errorf("the next master's configuration: %v, %v", ok, err)
	}
	if r, ok, err := a.Renew(role, lease); ok || err != nil {
		t.Errorf("renewed: %+v, %v", r, err)
	}
	if ok, err := a.Advance(rdma.State{Epoch: 1, Busy: true}, rdma.State{Epoch: 1}); ok || err != nil {
		t.Errorf("the first master advanced: %v, %v", ok, err)
	}
	if ok, err := a.SetMember(1, 2, rdma.Member{}, rdma.Member{Gone: true}); ok || err != nil {
		t.Errorf("the first master changed a member: %v, %v", ok, err)
	}
	if v, _, err := b.View(); err != nil || v.Epoch != 2 || !v.Busy || v.Members[2].Gone {
		t.Errorf("the view is %+v, %v", v, err)
	}
}

// cutOffMaster checks that a master that cannot write changes nothing, and says so in time.
func cutOffMaster(t *testing.T, agent func(t testing.TB) *Agent, stop, goOn func()) {
	id := NewID()
	first := agent(t)
	c := candidates(t, 1, func(int) membership.Store { return poolOf(t, first, "cut").Registry(id) })[0]
	role, ok, err := c.TryMaster(c.me.ID, time.Minute)
	if !ok || err != nil {
		t.Fatal(role, ok, err)
	}
	before, _, err := c.View()
	if err != nil {
		t.Fatal(err)
	}
	stop()
	busy := rdma.State{Epoch: before.Epoch + 1, Busy: true}
	for what, do := range map[string]func() error{
		"renew":   func() error { _, _, err := c.Renew(role, time.Minute); return err },
		"advance": func() error { _, err := c.Advance(rdma.State{Epoch: before.Epoch}, busy); return err },
		"expel":   func() error { return c.SetDown(before.Epoch, 1) },
		"swap":    func() error { _, err := c.SwapConfig(role, 0, []byte("cut off")); return err },
		"config":  func() error { _, err := c.Config(); return err },
		"claim":   func() error { _, err := c.Claim("another"); return err },
	} {
		if err := do(); !errors.Is(err, membership.ErrUnreachable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	goOn()
	var after rdma.View
	eventually(t, "an answer", func() bool { after, _, err = c.View(); return err == nil })
	if after.Epoch != before.Epoch || after.Busy != before.Busy {
		t.Errorf("the view was %+v and is %+v", before, after)
	}
	if _, ok, err := c.Renew(role, time.Minute); !ok || err != nil {
		t.Errorf("renewed afterwards: %v, %v", ok, err)
	}
}

func TestFakeTenure(t *testing.T) {
	t.Parallel()
	var f *fake
	agent := func(t testing.TB) *Agent {
		var a *Agent
		f, a = newFake(t)
		return a
	}
	t.Run("stalled", func(t *testing.T) { stalledMaster(t, agent) })
	t.Run("cut off", func(t *testing.T) {
		cutOffMaster(t, agent, func() { f.set(func() { f.fail = refuseAll }) },
			func() { f.set(func() { f.fail = nil }) })
	})
}
