package tcp_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// regionOptions are those of the children that remember.
var regionOptions = pmem.Options{Memory: 1 << 20, Table: memnode.TableBytes(1 << 20)}

// remembering are memory nodes that are processes and remember.
type remembering struct {
	nodes        []*child.Process
	addrs, files []string
}

func rememberingNodes(t *testing.T, n int) *remembering {
	t.Helper()
	r := &remembering{}
	for i := range n {
		file := filepath.Join(t.TempDir(), fmt.Sprint("pm", i))
		r.nodes, r.addrs, r.files = append(r.nodes, nil), append(r.addrs, child.Address(t)), append(r.files, file)
		r.again(t, i)
	}
	return r
}

func (r *remembering) again(t *testing.T, node int) {
	t.Helper()
	r.nodes[node] = started(t, r.addrs[node], "remember", r.addrs[node], r.files[node])
}

// configured is a configuration of a round, and of a step in it.
func configured(round, step int) []byte {
	return bytes.Repeat([]byte(fmt.Sprint(round, step)), rdma.MaxConfig/10)
}

// configure replaces the configuration, and returns what replaces it once more: the nodes may die
// meanwhile.
func configure(t *testing.T, f *tcp.Fabric, ep rdma.Endpoint, round int) (again func()) {
	t.Helper()
	var role rdma.Role
	eventually(t, "a master", func() bool {
		r, ok, err := f.TryMaster(ep.Client(), 10*time.Second)
		role = r
		return ok && err == nil
	})
	c, err := f.Config()
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := f.SwapConfig(role, c.Version, configured(round, 0)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	return func() { f.SwapConfig(role, c.Version+1, configured(round, 1)) }
}

// killUnderLoad kills all nodes soon, and adds to a word of each until none answers.
func (r *remembering) killUnderLoad(t *testing.T, ep rdma.Endpoint, soon time.Duration, answered *[3]uint64) {
	t.Helper()
	killed := make(chan struct{})
	time.AfterFunc(soon, func() {
		defer close(killed)
		for _, p := range r.nodes {
			p.Kill()
		}
	})
	for down := 0; down < 3; {
		down = 0
		for node := range 3 {
			old, err := add(ep, node, 0)
			switch {
			case err == nil && old < answered[node]:
				t.Fatalf("node %d had %d, and %d were answered", node, old, answered[node])
			case err == nil:
				answered[node] = old + 1
			case errors.Is(err, rdma.ErrNodeDown):
				down++
			default:
				t.Fatalf("add: %v", err)
			}
		}
	}
	<-killed
}

// TestRememberAll kills all nodes of a pool in the midst of verbs, and starts them again: the view
// is what it was, the configuration whole, and of each word every addition that was answered is
// there. With $FARKV_LONG=1 it does so 100 times.
func TestRememberAll(t *testing.T) {
	t.Parallel()
	r := rememberingNodes(t, 3)
	f, err := tcp.Create(control.Options{Addresses: r.addrs}, geometry(3), nil)
	if err != nil {
		t.Fatal(err)
	}
	state := rdma.State{}
	rounds := 3
	if os.Getenv("FARKV_LONG") == "1" {
		rounds = 100
	}
	var answered [3]uint64
	for round := range rounds {
		for _, to := range []rdma.State{{Epoch: state.Epoch + 1, Busy: true}, {Epoch: state.Epoch + 1}} {
			if ok, err := f.Advance(state, to); !ok || err != nil {
				t.Fatalf("round %d: advance to %+v: %v, %v", round, to, ok, err)
			}
			state = to
		}
		ep, err := f.Open("client")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Fence(state.Epoch); err != nil {
			t.Fatal(err)
		}
		if _, err := ep.Join(); err != nil {
			t.Fatal(err)
		}
		again := configure(t, f, ep, round)
		swapped := make(chan struct{})
		go func() {
			defer close(swapped)
			again()
		}()
		r.killUnderLoad(t, ep, time.Duration(1+round%20)*time.Millisecond, &answered)
		<-swapped
		ep.Close() // none answers
		f.Close()
		for node := range r.nodes {
			r.again(t, node)
		}
		eventually(t, "the pool is back", func() bool {
			f, err = tcp.Open(control.Options{Addresses: r.addrs})
			return err == nil
		})
		if v := f.View(); v.Epoch != state.Epoch || v.Busy {
			t.Fatalf("round %d: the view is %+v, want %+v", round, v, state)
		}
		c, err := f.Config()
		if err != nil || !bytes.Equal(c.Data, configured(round, 0)) && !bytes.Equal(c.Data, configured(round, 1)) {
			t.Fatalf("round %d: configuration %d of %d bytes, %v, is neither the one that was answered nor the next",
				round, c.Version, len(c.Data), err)
		}
		check, err := f.Open("check")
		if err != nil {
			t.Fatal(err)
		}
		for node := range 3 {
			var n uint64
			eventually(t, "a node has its lease", func() bool { n, err = load(check, node, 0); return err == nil })
			if n < answered[node] {
				t.Fatalf("round %d: node %d has %d; %d were answered", round, node, n, answered[node])
			}
		}
		if err := check.Close(); err != nil {
			t.Fatal(err)
		}
		for _, c := range f.Clients() { // of the one that was cut off
			if err := errors.Join(f.RevokeLife(c), f.Forget(c)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestRememberExpelled starts a node again after its pool went on without it: it is a new one. One
// that was not expelled is back.
func TestRememberExpelled(t *testing.T) {
	t.Parallel()
	r := rememberingNodes(t, 3)
	f := created(t, control.Options{Addresses: r.addrs}, geometry(3))
	ep := attach(t, f, "client")
	for node := range 3 {
		if err := store(ep, node, 0, []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	inspect := func(node int) control.NodeInfo {
		infos, errs := control.Inspect(t.Context(), control.Options{Addresses: r.addrs[node : node+1]})
		if errs[0] != nil {
			return control.NodeInfo{}
		}
		return infos[0]
	}
	was := inspect(1)
	if was.Survives != "the process" || was.SurvivesBy == "" {
		t.Errorf("it survives %q: %s", was.Survives, was.SurvivesBy)
	}
	r.nodes[1].Kill()
	r.again(t, 1)
	eventually(t, "node 1 is back", func() bool { n, err := load(ep, 1, 0); return n == 1 && err == nil })
	if is := inspect(1); is.Incarnation != was.Incarnation || is.Pool == nil || is.Expelled {
		t.Errorf("it came back as %+v, was %+v", is, was)
	}
	r.nodes[1].Kill()
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := f.Expel(1, 1); err != nil {
		t.Fatal(err)
	}
	// The promises of the others outlive them: none grants node 1 a lease.
	for _, node := range []int{0, 2} {
		r.nodes[node].Kill()
		r.again(t, node)
	}
	eventually(t, "the others serve", func() bool {
		n, err := load(ep, 0, 0)
		m, err2 := load(ep, 2, 0)
		return errors.Join(err, err2) == nil && n == 1 && m == 1
	})
	r.again(t, 1)
	eventually(t, "node 1 is a new one", func() bool {
		is := inspect(1)
		return is.Address != "" && is.Pool == nil && is.Incarnation != was.Incarnation
	})
	if n, err := load(ep, 1, 0); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("READ of a node that was expelled: %d, %v", n, err)
	}
	eventually(t, "the registry is back", func() bool { _, err := f.ListClients(); return err == nil })
	// It is as good as any new one.
	alone, err := tcp.Create(control.Options{Addresses: r.addrs[1:2]}, geometry(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	own := attach(t, alone, "client")
	if n, err := load(own, 0, 0); n != 0 || err != nil {
		t.Errorf("a new node holds %d, %v", n, err)
	}
	if err := errors.Join(own.Close(), alone.Close(), ep.Close(), f.Close()); err != nil { // before the nodes end
		t.Error(err)
	}
}
