package ibverbs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// childMain is the main of another process. It ends when its input does.
func childMain(args []string) error {
	if args[0] == "node" {
		return childNode(args[1])
	}
	f, err := Open(control.Options{Addresses: strings.Split(args[1], ",")}, Options{})
	if err != nil {
		return err
	}
	ep, err := f.Open(args[0])
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if role, ok := strings.CutPrefix(args[0], "role-"); ok {
		return errors.Join(rdmatest.Role(role)(f, ep), ep.Close(), f.Close())
	}
	fmt.Println(ep.Client())
	switch args[0] {
	case "flood":
		return flood(ep)
	case "receive":
		return receive(ep)
	case "append":
		return floodRing(ep)
	}
	for { // "add", without end
		if _, err := add(ep, rdma.At(0, 8)); err != nil {
			return err
		}
	}
}

func childNode(host string) error {
	d, err := OpenDevice(Choice{}, host+":0")
	if err != nil {
		return err
	}
	n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: 1 << 20, Handler: addByCall, Device: d})
	if err != nil {
		return errors.Join(err, d.Close())
	}
	fmt.Println(n.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, n.Close(), d.Close())
}

// addByCall raises the word at the offset in the first argument by the second.
func addByCall(m rdma.Memory, r *rdma.Request) error {
	if off := r.Arg[0]; off%8 != 0 || off >= m.Size() {
		return rdma.ErrAccess
	}
	r.Ret[0] = m.FetchAdd(r.Arg[0], r.Arg[1])
	return nil
}

// remote is a pool with nodes that are processes.
type remote struct {
	*Fabric
	nodes []*child.Process
}

func newRemote(t testing.TB, n int, memory uint64) *remote {
	t.Helper()
	r := &remote{}
	var addrs []string
	for range n + witnesses(n) {
		p := child.Start(t, "node", *host)
		r.nodes, addrs = append(r.nodes, p), append(addrs, p.Line(t))
	}
	f, err := Create(control.Options{Addresses: addrs[:n], Witnesses: addrs[n:]},
		control.Geometry{Nodes: n, Memory: memory, Clients: 64}, Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Fabric = f
	closeAtEnd(t, f)
	return r
}

func needsDevice(t testing.TB) {
	if *host == "" {
		t.Skip("needs a device that processes share: run in a guest with soft-RoCE, or with -rdma ADDRESS where " +
			"there is an RNIC")
	}
}

// TestProcesses runs what the suite has for nodes and clients that are processes: nodes die by
// SIGKILL, and their devices go on for no longer than their processes.
func TestProcesses(t *testing.T) {
	needsDevice(t)
	h := harness()
	h.New = func(t testing.TB, n int, memory uint64, _ rdma.Handler) rdma.Fabric { return newRemote(t, n, memory) }
	h.KillNode = func(t testing.TB, f rdma.Fabric, node int) { f.(*remote).nodes[node].Kill() }
	h.Spawn = func(t testing.TB, f rdma.Fabric, role string, n int) {
		var all []*child.Process
		for range n {
			all = append(all, child.Start(t, "role-"+role, f.(*remote).Record().Addresses[0]))
		}
		for _, p := range all {
			p.End(t)
		}
	}
	for _, c := range rdmatest.Cases() {
		switch c.Name {
		case "Processes", "NodeDeath", "Expel", "Access":
			t.Run(c.Name, func(t *testing.T) { c.Test(t, h) })
		}
	}
}

// TestStoppedNode stops a node's process while its device goes on. Nothing that is posted behind
// the end of its lease succeeds; it is expelled, the pool goes on, and when its process does, too,
// nothing of it is believed.
func TestStoppedNode(t *testing.T) {
	needsDevice(t)
	r := newRemote(t, 3, 1<<16)
	ep := worker(t, r.Fabric)
	mustAdd(t, ep, rdma.At(1, 8), 0)
	r.nodes[1].Stop(t)
	over := realtime.Boot() + r.Record().Lease
	some := 0
	for late := 0; late < 3; { // each takes a second, until the connection is given up
		posted := realtime.Boot()
		got, err := add(ep, rdma.At(1, 8))
		switch {
		case err == nil && posted >= over:
			t.Fatalf("a verb that was posted %v behind the end of the lease says %d", posted-over, got)
		case err == nil:
			some++
		case !errors.Is(err, rdma.ErrNodeDown):
			t.Fatal(err)
		case posted >= over:
			late++
		}
	}
	t.Logf("%d verbs succeeded while the process stood still, and had its lease", some)
	mustAdd(t, ep, rdma.At(0, 8), 0)
	if ok, err := r.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := r.Expel(1, 1); err != nil {
		t.Fatal(err)
	}
	if ok, err := r.SetMember(1, 1, rdma.Member{}, rdma.Member{Gone: true}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := r.Fence(1); err != nil {
		t.Fatal(err)
	}
	if ok, err := r.Advance(rdma.State{Epoch: 1, Busy: true}, rdma.State{Epoch: 1}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if _, err := ep.Join(); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, ep, rdma.At(0, 8), 1)
	mustAdd(t, ep, rdma.At(2, 8), 0)
	r.nodes[1].GoOn(t)
	for range 5 {
		if got, err := add(ep, rdma.At(1, 8)); !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("a node that was expelled says %d, %v", got, err)
		}
	}
}

// TestKilledClient kills a client while it raises a word. Once it is fenced off the word changes no
// more, and its identity is another's to have.
func TestKilledClient(t *testing.T) {
	needsDevice(t)
	r := newRemote(t, 1, 1<<16)
	ep := worker(t, r.Fabric)
	p := child.Start(t, "add", r.Record().Addresses[0])
	id, err := strconv.Atoi(p.Line(t))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the client is at work", func() bool { return word(t, ep, rdma.At(0, 8)) > 0 })
	p.Kill()
	if err := r.Revoke(rdma.ClientID(id)); err != nil {
		t.Fatal(err)
	}
	before := word(t, ep, rdma.At(0, 8))
	eventually(t, "the client counts as dead, and is forgotten", func() bool {
		for _, c := range r.Clients() {
			if int(c.ID) == id && r.Forget(c) != nil {
				return false
			}
		}
		return true
	})
	if now := word(t, ep, rdma.At(0, 8)); now != before {
		t.Errorf("the word was %d when its writer was fenced off, and is %d", before, now)
	}
}

// flood sends the longest messages, without end.
func flood(ep rdma.Endpoint) error {
	if _, err := rdma.Listen(ep, rdma.BoxOptions{Node: rdma.All}); err != nil {
		return err
	}
	for {
		b := ep.Batch()
		b.Send(rdma.BoxAt(0, 7), b.Alloc(rdma.MaxMessage))
		if err := rdma.Do(ep, b, testPatience); err != nil && !errors.Is(err, rdma.ErrBoxFull) {
			return err
		}
		b.Release()
	}
}

// TestKilledSender kills senders while they send messages of many packets. The mailbox loses no
// buffer by that, or has it back once senders have come and gone for a while.
func TestKilledSender(t *testing.T) {
	needsDevice(t)
	r := newRemote(t, 1, 1<<16)
	const slots = 3
	ep, box := listener(t, r.Fabric, rdma.BoxOptions{Node: 0, Number: 7, Slots: slots, Bytes: rdma.MaxMessage})
	for range 12 {
		p := child.Start(t, "flood", r.Record().Addresses[0])
		id, err := strconv.Atoi(p.Line(t))
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			m := box.Next()
			for ; m == nil; m = box.Next() {
				if err := box.Await(testPatience); err != nil {
					t.Fatal(err)
				}
			}
			box.Release(m)
		}
		p.Kill()
		if err := r.Revoke(rdma.ClientID(id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := box.Await(lostAfter + lostAfter/10); err != nil && !errors.Is(err, rdma.ErrTimeout) {
		t.Fatal(err)
	}
	for m := box.Next(); m != nil; m = box.Next() {
		box.Release(m)
	}
	box.mu.Lock()
	lost := box.lost != 0
	box.reclaim() // as when the next sender comes
	box.mu.Unlock()
	t.Logf("a buffer was lost: %t", lost)
	from, _ := listener(t, r.Fabric, rdma.BoxOptions{Node: rdma.All})
	ends(t, from, post(t, from, box.Addr(0), 1, 2, 3), nil)
	_ = ep
}

// receive takes messages, without end.
func receive(ep rdma.Endpoint) error {
	box, err := rdma.Listen(ep, rdma.BoxOptions{Node: 0, Number: 7})
	for err == nil {
		for m := box.Next(); m != nil; m = box.Next() {
			box.Release(m)
		}
		err = box.Await(rdma.Forever)
	}
	return err
}

// TestKilledReceiver kills a receiver while messages are on their way to it. These end, and once
// there is another mailbox of its number, messages arrive there.
func TestKilledReceiver(t *testing.T) {
	needsDevice(t)
	r := newRemote(t, 1, 1<<16)
	from, _ := listener(t, r.Fabric, rdma.BoxOptions{Node: rdma.All})
	to := rdma.BoxAt(0, 7)
	for range 4 {
		p := child.Start(t, "receive", r.Record().Addresses[0])
		p.Line(t)
		eventually(t, "a message arrives", func() bool { return sendWord(from, to, 0) == nil })
		for i := range uint64(20) {
			if err := sendWord(from, to, i); err != nil {
				t.Fatal(err)
			}
		}
		b := post(t, from, to, 1, 2, 3, 4, 5, 6, 7, 8)
		p.Kill()
		if err := from.Wait(b, rdma.All, testPatience); err != nil {
			t.Fatal(err)
		}
		if err := b.Err(); err != nil && !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("messages on their way end in %v", err)
		}
		b.Release()
		eventually(t, "it is known to be gone", func() bool { return errors.Is(sendWord(from, to, 0), rdma.ErrNoBox) })
	}
}

// floodRing appends entries of a place and of several blocks, without end.
func floodRing(ep rdma.Endpoint) error {
	p, err := rdma.Rings(ep)
	for err == nil {
		b := ep.Batch()
		b.Append(rdma.RingAt(0, 3), b.Alloc(rdma.Stride))
		b.Append(rdma.RingAt(0, 3), b.Alloc(3*p.MTU))
		err = rdma.Do(ep, b, testPatience)
		if b.Release(); errors.Is(err, rdma.ErrRingDry) {
			err = nil
		}
	}
	return err
}

// refilled is a ring that posts its buffers again once they are settled.
type refilled struct {
	ring   rdma.Ring
	live   map[uint64]rdma.Span // by the numbers of their posts
	posted uint64
	count  rdma.RingCount
}

func (r *refilled) post(all ...rdma.Span) error {
	for _, s := range all {
		r.live[r.posted] = s
		r.posted++
	}
	return r.ring.Post(all...)
}

func (r *refilled) refill() (err error) {
	r.count, err = r.ring.Count()
	for n, s := range r.live {
		if err == nil && r.count.IsSettled(n) {
			delete(r.live, n)
			err = r.post(s)
		}
	}
	return err
}

// TestKilledAppender kills senders while they append. The ring loses no place by that: all buffers
// that were begun come to be settled.
func TestKilledAppender(t *testing.T) {
	needsDevice(t)
	n := newRemote(t, 1, 1<<20)
	ep := worker(t, n.Fabric)
	ring, err := rdma.OpenRing(ep, rdma.RingOptions{Number: 3})
	if err != nil {
		t.Fatal(err)
	}
	r := &refilled{ring: ring, live: map[uint64]rdma.Span{}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(r.post(ringBuffers(14, 64<<10)...))
	for range 12 {
		p := child.Start(t, "append", n.Record().Addresses[0])
		id, err := strconv.Atoi(p.Line(t))
		must(err)
		begun := r.count.Begun
		eventually(t, "two buffers more are begun", func() bool { must(r.refill()); return r.count.Begun >= begun+2 })
		p.Kill()
		must(n.Revoke(rdma.ClientID(id)))
	}
	before, from := r.count.Begun, worker(t, n.Fabric)
	settled := func() bool {
		must(r.refill())
		for i := range before {
			if !r.count.IsSettled(i) {
				return false
			}
		}
		return true
	}
	for until := realtime.Now() + testPatience; !settled(); {
		b := from.Batch()
		for range 16 {
			b.Append(ring.Addr(), b.Alloc(rdma.Stride))
		}
		b.Append(ring.Addr(), b.Alloc(3*from.rings.MTU))
		if err := rdma.Do(from, b, testPatience); err != nil && !errors.Is(err, rdma.ErrRingDry) {
			t.Fatal(err)
		}
		b.Release()
		if realtime.Now() > until {
			t.Fatalf("of %d buffers that were begun, not all come to be settled: %+v", before, r.count)
		}
	}
	t.Logf("%d buffers were begun by senders that were killed", before)
}
