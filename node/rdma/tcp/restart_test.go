package tcp_test

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// again starts a node's process, or starts it anew, at a child's address.
func again(t testing.TB, addr string) *child.Process {
	t.Helper()
	return started(t, addr, "node", addr)
}

// started starts a node's process by these arguments, which listens at addr.
func started(t testing.TB, addr string, args ...string) *child.Process {
	t.Helper()
	p := child.Start(t, args...)
	if line := p.Line(t); line != addr {
		t.Fatalf("no node at %s: child said %q", addr, line)
	}
	return p
}

// TestRestartedNode kills a node's process and starts it anew. Its memory is gone: verbs never read
// zeros of the new one, but go on failing, and it counts for no majority.
func TestRestartedNode(t *testing.T) {
	t.Parallel()
	nodes, addrs := nodeProcesses(t, 3)
	f := created(t, control.Options{Addresses: addrs}, geometry(3))
	ep := attach(t, f, "client")
	for node := range 3 {
		if err := store(ep, node, 0, []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	nodes[1].Kill()
	again(t, addrs[1])
	for until := time.Now().Add(2 * control.DefaultLease); time.Now().Before(until); {
		if v, err := load(ep, 1, 0); err == nil && v != 1 || err != nil && !errors.Is(err, rdma.ErrNodeDown) {
			t.Fatalf("READ of a node that was started anew: %d, %v", v, err)
		}
		if err := ep.Call(1, &rdma.Request{}, limit); !errors.Is(err, rdma.ErrNodeDown) {
			t.Fatalf("call of a node that was started anew: %v", err)
		}
	}
	for _, node := range []int{0, 2} {
		if v, err := load(ep, node, 0); v != 1 || err != nil {
			t.Errorf("node %d: %d, %v", node, v, err)
		}
	}
	other := opened(t, control.Options{Addresses: addrs}) // of which one has no pool
	late := attach(t, other, "other")
	if v, err := load(late, 1, 0); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("READ by a process that came later: %d, %v", v, err)
	}
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := f.Expel(1, 1); err != nil {
		t.Errorf("expel a node that was started anew: %v", err)
	}
	if err := f.Fence(1); err != nil {
		t.Errorf("fence without it: %v", err)
	}
	if err := errors.Join(late.Close(), ep.Close()); err != nil { // no process takes identities back afterwards
		t.Error(err)
	}
	// With another one gone, two of three have forgotten what was decided: nothing is decided any
	// more.
	nodes[2].Kill()
	again(t, addrs[2])
	if ok, err := f.Advance(rdma.State{Epoch: 1, Busy: true}, rdma.State{Epoch: 1}); ok || err == nil {
		t.Errorf("a registry of which a minority is left decides: %v, %v", ok, err)
	}
	if _, err := tcp.Open(control.Options{Addresses: addrs[:2]}); err == nil {
		t.Error("a pool of which a minority is left was opened")
	}
}

// TestKilledNode kills a node's process while a client works: its verbs end in ErrNodeDown, and
// those of others do not.
func TestKilledNode(t *testing.T) {
	nodes, addrs := nodeProcesses(t, 3)
	f := created(t, control.Options{Addresses: addrs}, geometry(3))
	ep := attach(t, f, "client")
	time.AfterFunc(20*time.Millisecond, nodes[0].Kill)
	var err error
	for until := time.Now().Add(limit); err == nil && time.Now().Before(until); {
		b := ep.Batch()
		dies, lives := b.FetchAdd(rdma.At(0, 0), 1), b.FetchAdd(rdma.At(1, 0), 1)
		rdma.Do(ep, b, limit)
		if err = dies.Err; lives.Err != nil {
			t.Fatalf("a verb of a node that lives: %v", lives.Err)
		}
		b.Release()
	}
	if !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("a verb of a node that was killed: %v", err)
	}
	eventually(t, "the fabric knows", func() bool { return f.NodeDown(0) })
}

// TestKilledClient kills a client's process: it counts as dead, and nothing of it lands once it was
// fenced off.
func TestKilledClient(t *testing.T) {
	_, addrs := nodeProcesses(t, 3)
	f := created(t, control.Options{Addresses: addrs}, geometry(3))
	ep := attach(t, f, "master")
	p := child.Start(t, "add", addrs[0])
	p.Line(t)
	eventually(t, "the client works", func() bool { n, err := load(ep, 0, 0); return n > 0 && err == nil })
	var victim rdma.Client
	for _, c := range f.Clients() {
		if c.ID != ep.Client() {
			victim = c
		}
	}
	if !victim.Alive || !victim.Held || victim.PID != p.Process.Pid {
		t.Fatalf("the client is listed as %+v", victim)
	}
	if err := f.Forget(victim); !errors.Is(err, rdma.ErrHeld) {
		t.Errorf("a live client was forgotten: %v", err)
	}
	p.Kill()
	eventually(t, "the client counts as dead", func() bool {
		for _, c := range f.Clients() {
			if c.ID == victim.ID {
				return !c.Alive && !c.Held
			}
		}
		return false
	})
	if err := f.RevokeLife(victim); err != nil {
		t.Error(err)
	}
	n, err := load(ep, 0, 0)
	time.Sleep(10 * time.Millisecond)
	if now, err2 := load(ep, 0, 0); now != n || err != nil || err2 != nil {
		t.Errorf("the word was %d (%v) and is %d (%v): a verb landed behind Revoke", n, err, now, err2)
	}
	if err := f.Forget(victim); err != nil {
		t.Error(err)
	}
}
