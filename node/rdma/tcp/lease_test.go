package tcp_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// short is a lease that tests can wait for.
const short = 300 * time.Millisecond

// cutOff cuts a node off from its peers, in either direction, or brings it back; clients reach it.
func cutOff(proxies []*proxy, node int, off bool) {
	for i, p := range proxies {
		if !off {
			p.rule(nil)
			continue
		}
		p.rule(func(c caller) fate {
			if c.Purpose == "peer" && (i == node || c.Peer == node) {
				return lost
			}
			return through
		})
	}
}

// leaseOf asks a node for how long it may serve yet.
func leaseOf(t testing.TB, n *memnode.Node) time.Duration {
	t.Helper()
	return n.Info().Lease
}

// TestNodeCutOffFromPeers cuts a node off from its peers while clients reach it: it holds verbs
// back, and executes them when its peers are back, since it was not expelled.
func TestNodeCutOffFromPeers(t *testing.T) {
	f, proxies := behind(t, 3, short, addByCall)
	ep := attach(t, f.Fabric, "client")
	if _, err := add(ep, 0, 0); err != nil {
		t.Fatal(err)
	}
	cutOff(proxies, 0, true)
	eventually(t, "the lease is over", func() bool { return leaseOf(t, f.nodes[0]) == 0 })
	b := ep.Batch()
	held, free := b.FetchAdd(rdma.At(0, 0), 1), b.FetchAdd(rdma.At(1, 0), 1)
	b.Chain()
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	if err := ep.Wait(b, rdma.All, short); !errors.Is(err, rdma.ErrTimeout) || held.Result != 0 {
		t.Errorf("a node without a lease has answered: %v, %v, %v", err, held.Err, held.Result)
	}
	if f.nodes[0].Stats().Atomics != 1 {
		t.Error("a node without a lease has executed a verb")
	}
	cutOff(proxies, 0, false)
	if err := ep.Wait(b, rdma.All, limit); err != nil || held.Err != nil || free.Err != nil || held.Result != 1 {
		t.Errorf("the node is back: %v, %v, %v, word before %d", err, held.Err, free.Err, held.Result)
	}
	b.Release()
}

// TestExpelledBehindAPartition expels a node that its peers and the master do not reach, while it
// is in the midst of a call: a client that does reach it gets no answer, neither to that nor to
// anything else.
func TestExpelledBehindAPartition(t *testing.T) {
	t.Parallel()
	var begun atomic.Bool
	goOn := make(chan struct{})
	defer close(goOn)
	proceed := make(chan struct{}, 1)
	f, proxies := behind(t, 3, short, func(m rdma.Memory, r *rdma.Request) error {
		if m.Node() == 0 {
			begun.Store(true)
			select {
			case <-proceed:
			case <-goOn:
			}
		}
		m.FetchAdd(0, 1)
		return nil
	})
	master, mine := f.Fabric, attach(t, f.Fabric, "master")
	other := opened(t, control.Options{Addresses: f.Record().Addresses})
	ep := attach(t, other, "client")
	answered := make(chan error, 1)
	go func() { answered <- ep.Call(0, &rdma.Request{}, limit) }()
	eventually(t, "the call has begun", begun.Load)
	for i, p := range proxies {
		p.rule(func(c caller) fate {
			if c.Purpose == "peer" && (i == 0 || c.Peer == 0) || i == 0 && c.Process == master.Process() {
				return lost
			}
			return through
		})
	}
	if ok, err := master.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := master.Expel(1, 0); err != nil {
		t.Fatal(err)
	}
	if f.nodes[0].Info().Expelled {
		t.Fatal("the node knows: this test shows nothing")
	}
	if err := master.Fence(1); err != nil {
		t.Errorf("fence without the node that was expelled: %v", err)
	}
	served := f.nodes[0].Stats()
	proceed <- struct{}{} // now it would answer
	eventually(t, "what it had begun is over", func() bool { return f.nodes[0].Stats().Calls > served.Calls })
	if err := <-answered; !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("an expelled node has answered what it had begun: %v", err)
	}
	served = f.nodes[0].Stats()
	if _, err := add(ep, 0, 8); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("an expelled node has answered: %v", err)
	}
	if now := f.nodes[0].Stats(); now.Atomics != served.Atomics {
		t.Error("an expelled node has executed a verb")
	}
	if _, err := mine.Join(); err != nil {
		t.Error(err)
	}
	for _, node := range []int{1, 2} {
		if _, err := add(mine, node, 0); err != nil {
			t.Errorf("node %d: %v", node, err)
		}
	}
	// Back in touch with its peers, it is told: it gets no lease, ever.
	for _, p := range proxies {
		p.rule(nil)
	}
	time.Sleep(2 * short)
	if left := leaseOf(t, f.nodes[0]); left > 0 {
		t.Errorf("an expelled node has a lease of %v", left)
	}
}

// TestStoppedNodeIsExpelled stops a node's process in the midst of its work, expels it, and lets it
// go on: it answers no client.
func TestStoppedNodeIsExpelled(t *testing.T) {
	t.Parallel()
	nodes, addrs := nodeProcesses(t, 3)
	var proxies []*proxy
	for i, addr := range addrs {
		proxies = append(proxies, newProxy(t, addr))
		addrs[i] = proxies[i].addr()
	}
	f := created(t, control.Options{Addresses: addrs, Lease: short}, geometry(3))
	other := opened(t, control.Options{Addresses: addrs})
	ep := attach(t, other, "client")
	if _, err := add(ep, 0, 0); err != nil {
		t.Fatal(err)
	}
	nodes[0].Stop(t)
	// What it is sent now waits in its socket: it must not be executed when it goes on.
	b := ep.Batch()
	late := b.FetchAdd(rdma.At(0, 0), 1)
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	proxies[0].rule(func(c caller) fate { // the node is not told, not even later
		if c.Process == f.Process() {
			return lost
		}
		return through
	})
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := f.Expel(1, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Fence(1); err != nil {
		t.Error(err)
	}
	nodes[0].GoOn(t)
	if err := ep.Wait(b, rdma.All, limit); err != nil || !errors.Is(late.Err, rdma.ErrNodeDown) {
		t.Errorf("an expelled node has answered: %v, %v", err, late.Err)
	}
	b.Release()
	time.Sleep(short)
	if _, err := load(ep, 0, 0); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("READ of an expelled node: %v", err)
	}
}

// TestExpelledCallsNoPeer: a node that knows that it was expelled calls its peers no more.
func TestExpelledCallsNoPeer(t *testing.T) {
	t.Parallel()
	f, proxies := behind(t, 3, short, nil)
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := f.Expel(1, 2); err != nil {
		t.Fatal(err)
	}
	ofExpelled := func(c caller) bool { return c.Purpose == "peer" && c.Peer == 2 }
	eventually(t, "it has ended its conversations", func() bool {
		return proxies[0].count(ofExpelled)+proxies[1].count(ofExpelled) == 0
	})
	var calls atomic.Int64
	for _, p := range proxies[:2] {
		p.limit(func(c caller) (int, int) {
			if ofExpelled(c) {
				calls.Add(1)
			}
			return -1, -1
		})
	}
	time.Sleep(short)
	if n := calls.Load(); n > 2 { // one call each may have been about to be made
		t.Errorf("it goes on calling its peers: %d times", n)
	}
	if _, err := load(attach(t, f.Fabric, "reader"), 2, 0); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("READ of an expelled node: %v", err)
	}
}

// TestLongestLease: the master of a pool with the longest lease has a tenure that its registry
// grants, and no pool has a longer one.
func TestLongestLease(t *testing.T) {
	_, addrs := start(t, 1, 1<<20, nil)
	if f, err := tcp.Create(control.Options{Addresses: addrs, Lease: control.MaxLease + 1}, geometry(1),
		nil); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("a pool with too long a lease: %v", err)
		if err == nil {
			f.Close()
		}
	}
	f := created(t, control.Options{Addresses: addrs, Lease: control.MaxLease}, geometry(1))
	if _, ok, err := f.TryMaster(attach(t, f, "keeper").Client(), f.Tenure()); !ok || err != nil {
		t.Errorf("master for %v: %v, %v", f.Tenure(), ok, err)
	}
}
