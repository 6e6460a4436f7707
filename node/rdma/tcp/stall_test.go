package tcp_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// TestNodeReadsNothing posts to a node that reads nothing: no Post waits for it, what waits to be
// sent is bounded, and in the end the node counts as down. The other node's verbs go on.
func TestNodeReadsNothing(t *testing.T) {
	t.Parallel()
	f, proxies := behind(t, 2, lease, nil)
	first, second := attach(t, f.Fabric, "first"), attach(t, f.Fabric, "second")
	proxies[0].rule(func(c caller) fate {
		if c.verbs() {
			return stuck
		}
		return through
	})
	var group sync.WaitGroup
	for _, ep := range []rdma.Endpoint{first, second} {
		group.Go(func() {
			for range 16 { // more than sockets hold; many more take a busy machine too long
				b := ep.Batch()
				b.Write(rdma.At(0, 0), b.Alloc(200<<10))
				err := ep.Post(b)
				b.Release()
				if err != nil {
					t.Errorf("a Post to a node that reads nothing: %v", err)
				}
				if f.NodeDown(0) {
					t.Error("a Post has waited until the node counted as down")
					return
				}
			}
			if _, err := add(ep, 1, 0); err != nil {
				t.Errorf("a verb of the other node: %v", err)
			}
		})
	}
	group.Wait()
	_, err := add(first, 0, 0)
	if !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("a verb of a node that reads nothing: %v", err)
	}
	proxies[0].rule(nil)
	eventually(t, "the node is back", func() bool { _, err := add(second, 0, 0); return err == nil })
	if n, err := load(first, 0, 0); n != 1 || err != nil {
		t.Errorf("after it was back the word is %d (%v): what counted as lost landed later", n, err)
	}
}

// TestQueuedIsLost leaves a verb in the queue of a node that reads nothing until the node counts as
// down: it has failed, and does not land once the node is back.
func TestQueuedIsLost(t *testing.T) {
	t.Parallel()
	f, proxies := behind(t, 1, lease, nil)
	ep := attach(t, f.Fabric, "client")
	proxies[0].rule(func(c caller) fate {
		if c.verbs() {
			return stuck
		}
		return through
	})
	b := ep.Batch()
	for range 256 { // more than sockets take, all written at once
		b.Write(rdma.At(0, 1<<19), b.Alloc(64<<10))
	}
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	if _, err := add(ep, 0, 0); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("a verb of a node that reads nothing: %v", err)
	}
	proxies[0].rule(nil)
	eventually(t, "the node is back", func() bool { _, err := add(ep, 0, 8); return err == nil })
	if n, err := load(ep, 0, 0); n != 0 || err != nil {
		t.Errorf("the word is %d (%v): a verb that had failed was sent again", n, err)
	}
}

// TestSilentNodes has a node that stops in the midst of its work (half-open: what is sent to it
// vanishes), and one that is slow. Verbs to the first end in ErrNodeDown, and in time; to the
// second they succeed.
func TestSilentNodes(t *testing.T) {
	t.Parallel()
	f, proxies := behind(t, 2, lease, addByCall)
	ep := attach(t, f.Fabric, "client")
	for node := range 2 { // has its lease
		if _, err := load(ep, node, 0); err != nil {
			t.Fatal(err)
		}
	}
	proxies[1].rule(func(caller) fate { return trickle })
	proxies[0].rule(func(caller) fate { return lost })
	b := ep.Batch()
	silent, slow := b.FetchAdd(rdma.At(0, 0), 1), b.Write(rdma.At(1, 0), b.Alloc(512))
	rdma.Do(ep, b, limit)
	if !errors.Is(silent.Err, rdma.ErrNodeDown) || slow.Err != nil {
		t.Errorf("a verb of a silent node: %v; of a slow one: %v", silent.Err, slow.Err)
	}
	b.Release()
	if err := ep.Call(0, &rdma.Request{}, limit); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("a call of a silent node: %v", err)
	}
	if err := ep.Call(1, &rdma.Request{Arg: [6]uint64{8}}, limit); err != nil {
		t.Errorf("a call of a slow node: %v", err)
	}
	for _, p := range proxies { // a client that leaves asks both
		p.rule(nil)
	}
	eventually(t, "the node is back", func() bool { _, err := add(ep, 0, 0); return err == nil })
	eventually(t, "the registry is back", f.HasMajority) // its connections may be dialled later than those for verbs
	if n, err := load(ep, 0, 0); n != 1 || err != nil {
		t.Errorf("the word is %d (%v): a verb that had vanished has landed", n, err)
	}
}

// TestStoppedNode stops a node's process. Verbs to it end in ErrNodeDown, those of others go on,
// and once it goes on it executes nothing of what counted as lost.
func TestStoppedNode(t *testing.T) {
	t.Parallel()
	nodes, addrs := nodeProcesses(t, 3)
	f := created(t, control.Options{Addresses: addrs}, control.Geometry{Nodes: 3, Memory: 1 << 20, Clients: 8})
	ep := attach(t, f, "client")
	var succeeded, tried uint64
	for range 3 {
		nodes[1].Stop(t)
		var down error
		for until := time.Now().Add(limit); down == nil && time.Now().Before(until); tried++ {
			if _, down = add(ep, 1, 0); down == nil {
				succeeded++
			}
		}
		if !errors.Is(down, rdma.ErrNodeDown) {
			t.Fatalf("a verb of a node that stands still: %v", down)
		}
		for _, node := range []int{0, 2} {
			if _, err := add(ep, node, 0); err != nil {
				t.Errorf("node %d: %v", node, err)
			}
		}
		nodes[1].GoOn(t)
		eventually(t, "the node is back", func() bool { _, err := load(ep, 1, 0); return err == nil })
		n, err := load(ep, 1, 0)
		if n < succeeded || n > tried || err != nil {
			t.Errorf("the word is %d (%v): %d succeeded of %d", n, err, succeeded, tried)
		}
		time.Sleep(10 * time.Millisecond)
		if again, err := load(ep, 1, 0); again != n || err != nil {
			t.Errorf("the word was %d and became %d (%v) though no worker adds to it", n, again, err)
		}
		succeeded, tried = n, n
	}
}

// TestClientReadsNothing has a client that reads no answers. The node takes no more memory for it
// than for a frame or two, and works for the others.
func TestClientReadsNothing(t *testing.T) {
	f, proxies := behind(t, 1, lease, nil)
	other := opened(t, control.Options{Addresses: f.Record().Addresses})
	reads, works := attach(t, other, "reads"), attach(t, f.Fabric, "works")
	proxies[0].rule(func(c caller) fate {
		if c.verbs() && c.Process == other.Process() {
			return stuck
		}
		return through
	})
	before := heap()
	for range 40 {
		b := reads.Batch()
		for range 4 {
			b.Read(rdma.At(0, 0), 256<<10)
		}
		reads.Post(b)
	}
	for range 100 {
		if _, err := add(works, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if now := heap(); now > before+80<<20 { // 40 MB are the client's own
		t.Errorf("%d MB were taken", (now-before)>>20)
	}
}
