package tcp

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/transport"
)

// clientPatience bounds each wait of these tests.
const clientPatience = 20 * time.Second

// newTwo returns a pool of two nodes, and two of its workers.
func newTwo(t *testing.T) (f *Fabric, a, b *Endpoint) {
	t.Helper()
	var addrs []string
	for range 2 {
		n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		addrs = append(addrs, n.Addr())
	}
	f, err := Create(control.Options{Addresses: addrs}, control.Geometry{Nodes: 2, Memory: 1 << 20, Clients: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, worker(t, f), worker(t, f)
}

func worker(t *testing.T, f *Fabric) *Endpoint {
	t.Helper()
	ep, err := f.Open("worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close() })
	return ep.(*Endpoint)
}

func listening(t *testing.T, e *Endpoint, o rdma.BoxOptions) rdma.Mailbox {
	t.Helper()
	m, err := e.Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func post(e *Endpoint, to rdma.BoxAddr, text string) error {
	b := e.Batch()
	defer b.Release()
	b.Send(to, append(b.Alloc(len(text))[:0], text...))
	return rdma.Do(e, b, clientPatience)
}

func got(t *testing.T, m rdma.Mailbox, want string) *rdma.Message {
	t.Helper()
	for until := time.Now().Add(clientPatience); time.Now().Before(until); {
		if msg := m.Next(); msg != nil {
			if string(msg.Data) != want {
				t.Errorf("%q came, want %q", msg.Data, want)
			}
			return msg
		}
		if err := m.Await(time.Second); err != nil && !errors.Is(err, rdma.ErrTimeout) {
			t.Fatal(err)
		}
	}
	t.Fatalf("%q does not come", want)
	return nil
}

// cut breaks the connection to a node, and waits until it is made again.
func cut(t *testing.T, f *Fabric, node int) {
	t.Helper()
	l := f.Link(node)
	l.BreakOff(io.ErrUnexpectedEOF)
	for until := time.Now().Add(clientPatience); l.Up() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the connection is not made again")
		}
	}
}

// TestMailboxReconnects breaks the connection by way of which messages come, while some are held:
// the mailbox is there again, with the buffers that are free.
func TestMailboxReconnects(t *testing.T) {
	f, a, b := newTwo(t)
	box := listening(t, a, rdma.BoxOptions{Node: 0, Number: 5, Slots: 3})
	listening(t, b, rdma.BoxOptions{Node: rdma.All})
	to := box.Addr(0)
	for _, text := range []string{"one", "two"} {
		if err := post(b, to, text); err != nil {
			t.Fatal(err)
		}
	}
	one, two := got(t, box, "one"), got(t, box, "two")
	cut(t, f, 0)
	if err := post(b, to, "three"); err != nil {
		t.Error(err)
	}
	if err := post(b, to, "four"); !errors.Is(err, rdma.ErrBoxFull) {
		t.Errorf("a message more than there are buffers: %v", err)
	}
	three := got(t, box, "three")
	box.Release(one)
	box.Release(two)
	box.Release(three)
	for _, text := range []string{"five", "six"} { // word of the last buffer goes with the worker's next verb
		if err := post(b, to, text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	got(t, box, "five")
}

// TestNoEffect: a message that was not sent, and one that the node refused, had no effect for sure.
func TestNoEffect(t *testing.T) {
	f, a, b := newTwo(t)
	box := listening(t, a, rdma.BoxOptions{Node: rdma.All, Slots: 2})
	listening(t, b, rdma.BoxOptions{Node: 0})
	l := f.Link(1)
	resume := l.Suspend(rdma.ErrNodeDown)
	if err := post(b, box.Addr(1), "unsent"); !errors.Is(err, rdma.ErrNodeDown) || !errors.Is(err, rdma.ErrNoEffect) {
		t.Errorf("to a node that is out of reach: %v", err)
	}
	resume()
	if err := f.Fence(1); err != nil {
		t.Fatal(err)
	}
	if err := post(b, box.Addr(0), "refused"); !errors.Is(err, rdma.ErrStale) || !errors.Is(err, rdma.ErrNoEffect) {
		t.Errorf("in an earlier view: %v", err)
	}
	if m := box.Next(); m != nil {
		t.Errorf("%q was delivered", m.Data)
	}
}

// TestWriteLandsInPart has a page of a node's memory go while it is in use. A WRITE that meets it
// has landed up to there, so its error does not say that it had no effect; that of a READ does.
func TestWriteLandsInPart(t *testing.T) {
	t.Parallel()
	const page, front = 4096, 4096 // the file has a page in front
	c := memnode.Config{Listen: "127.0.0.1:0", Memory: 16 * page, File: filepath.Join(t.TempDir(), "memory")}
	n, err := memnode.Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	f, err := Create(control.Options{Addresses: []string{n.Addr()}},
		control.Geometry{Nodes: 1, Memory: c.Memory / 2, Clients: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ep := worker(t, f)
	if err := os.Truncate(c.File, front+page); err != nil {
		t.Skipf("this system does not truncate a file that is mapped: %v", err)
	}
	run := func(add func(b *rdma.Batch) *rdma.Op) (*rdma.Op, error) {
		b := ep.Batch()
		op := add(b)
		return op, rdma.Do(ep, b, clientPatience)
	}
	_, err = run(func(b *rdma.Batch) *rdma.Op {
		return b.Write(rdma.At(0, page-8), []byte("landed, this did"))
	})
	if !errors.Is(err, rdma.ErrFull) || errors.Is(err, rdma.ErrNoEffect) {
		t.Errorf("a WRITE of which a half has landed ends in %v", err)
	}
	if op, err := run(func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(0, page-8), 8) }); err != nil ||
		string(op.Buf) != "landed, " {
		t.Errorf("of the WRITE there is %q, %v", op.Buf, err)
	}
	_, err = run(func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(0, page-8), 16) })
	if !errors.Is(err, rdma.ErrFull) || !errors.Is(err, rdma.ErrNoEffect) {
		t.Errorf("a READ of it ends in %v", err)
	}
}

// TestMailboxAtAll has messages come by way of each node, and a node that comes into reach later.
func TestMailboxAtAll(t *testing.T) {
	f, a, b := newTwo(t)
	l := f.Link(1)
	resume := l.Suspend(rdma.ErrNodeDown)
	m, err := a.Listen(rdma.BoxOptions{Node: rdma.All, Slots: 2})
	if _, err := b.Listen(rdma.BoxOptions{Node: 1}); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("listen at a node that is out of reach: %v", err)
	}
	resume()
	if err != nil {
		t.Fatal(err)
	}
	box := m
	listening(t, b, rdma.BoxOptions{Node: 1})
	if err := post(b, box.Addr(1), "too early"); !errors.Is(err, rdma.ErrNoBox) {
		t.Errorf("a message by way of a node that was out of reach: %v", err)
	}
	cut(t, f, 1)
	for _, node := range []int{0, 1} {
		for range 2 {
			if err := post(b, box.Addr(node), "hello"); err != nil {
				t.Errorf("by way of node %d: %v", node, err)
			}
		}
	}
	for range 4 {
		if msg := got(t, box, "hello"); msg.From.Number() != rdma.OwnBoxes+int(b.Client()) {
			t.Errorf("it is from %s", msg.From)
		}
	}
}

// TestReceiverDies ends the process of a receiver, and opens a mailbox of the same number in
// another one.
func TestReceiverDies(t *testing.T) {
	f, a, _ := newTwo(t)
	listening(t, a, rdma.BoxOptions{Node: rdma.All})
	g, err := Open(control.Options{Addresses: f.Record().Addresses})
	if err != nil {
		t.Fatal(err)
	}
	ep, err := g.Open("to die")
	if err != nil {
		t.Fatal(err)
	}
	box, err := rdma.Listen(ep, rdma.BoxOptions{Node: 0, Number: 5})
	if err != nil {
		t.Fatal(err)
	}
	if err := post(a, box.Addr(0), "hello"); err != nil {
		t.Error(err)
	}
	_ = g.Close()
	for until := time.Now().Add(clientPatience); ; time.Sleep(time.Millisecond) {
		if err = post(a, box.Addr(0), "hello?"); errors.Is(err, rdma.ErrNoBox) || time.Now().After(until) {
			break
		}
	}
	if !errors.Is(err, rdma.ErrNoBox) {
		t.Errorf("a message to a process that has ended: %v", err)
	}
	other := worker(t, f)
	again := listening(t, other, rdma.BoxOptions{Node: 0, Number: 5})
	if err := post(a, again.Addr(0), "another"); err != nil {
		t.Error(err)
	}
	got(t, again, "another")
}

// TestCloseEndsAwait closes a fabric while tasks wait for messages for as long as it takes: at one
// node, which a worker reads itself, and at all.
func TestCloseEndsAwait(t *testing.T) {
	t.Parallel()
	f, a, _ := newTwo(t)
	waits := make(chan rdma.Mailbox, 2)
	for _, node := range []int{0, rdma.All} {
		err := a.Go("waits", func(ep rdma.Endpoint) {
			box := listening(t, ep.(*Endpoint), rdma.BoxOptions{Node: node})
			waits <- box
			if err := box.Await(rdma.Forever); !errors.Is(err, rdma.ErrClosed) {
				t.Errorf("wait for a message while the fabric closes: %v", err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	<-waits
	<-waits
	time.Sleep(20 * time.Millisecond) // most likely both wait
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestListenRefused asks for mailboxes where there are none.
func TestListenRefused(t *testing.T) {
	f, a, b := newTwo(t)
	peek, err := f.Anonymous("peek")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := peek.Listen(rdma.BoxOptions{Number: 5}); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("listen without an identity: %v", err)
	}
	box := listening(t, a, rdma.BoxOptions{Node: 1, Number: 5})
	if _, err := b.Listen(rdma.BoxOptions{Node: rdma.All, Number: 5}); !errors.Is(err, rdma.ErrExists) {
		t.Errorf("listen as a mailbox that another one has at one of the nodes: %v", err)
	}
	if err := box.Close(); err != nil {
		t.Error(err)
	}
	listening(t, b, rdma.BoxOptions{Node: rdma.All, Number: 5})
	batch := b.Batch()
	batch.Send(rdma.BoxAt(0, 5), nil, rdma.Span{Addr: rdma.At(1, 0), Len: 8})
	if err := rdma.Do(b, batch, clientPatience); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("gather without a mailbox at the node: %v", err)
	}
	at := listening(t, a, rdma.BoxOptions{Node: 1, Number: 6})
	for _, c := range []struct {
		to    rdma.BoxAddr
		spans []rdma.Span
		want  error
	}{
		{rdma.BoxAt(0, 5), []rdma.Span{{Addr: rdma.At(1, 0), Len: 8}}, rdma.ErrNotSupported},
		{rdma.BoxAt(1, 5), make([]rdma.Span, 0), nil},
		{at.Addr(1), repeat(rdma.Span{Addr: rdma.At(1, 0)}, transport.MaxSpans), nil},
		{at.Addr(1), repeat(rdma.Span{Addr: rdma.At(1, 0)}, transport.MaxSpans+1), rdma.ErrMessageSize},
		{at.Addr(1), []rdma.Span{{Addr: rdma.At(1, 0), Len: rdma.MaxMessage + 1}}, rdma.ErrMessageSize},
	} {
		batch := a.Batch()
		batch.Send(c.to, nil, c.spans...)
		if err := rdma.Do(a, batch, clientPatience); !errors.Is(err, c.want) {
			t.Errorf("%d pieces to %s: %v, want %v", len(c.spans), c.to, err, c.want)
		}
		batch.Release()
	}
}

func repeat(s rdma.Span, n int) (all []rdma.Span) {
	for range n {
		all = append(all, s)
	}
	return all
}

// TestMailWakeUps has pairs of workers send each other messages by way of any node, and wait for
// them and for what else they post; as in TestWakeUps nothing sets right what is not read.
func TestMailWakeUps(t *testing.T) {
	rounds := 1000
	if os.Getenv("FARKV_LONG") == "1" {
		rounds *= 30
	}
	u := newUnwatched(t)
	var group sync.WaitGroup
	for range 4 {
		a, b := worker(t, u.Fabric), worker(t, u.Fabric)
		x, y := listening(t, a, rdma.BoxOptions{Node: rdma.All}), listening(t, b, rdma.BoxOptions{Node: rdma.All})
		for _, p := range []struct {
			ep         *Endpoint
			own, other rdma.Mailbox
		}{{a, x, y}, {b, y, x}} {
			group.Go(func() {
				for i := range rounds {
					batch := p.ep.Batch()
					batch.Send(p.other.Addr(rand.IntN(unwatchedNodes)), append(batch.Alloc(1)[:0], byte(i)))
					batch.FetchAdd(rdma.At(rand.IntN(unwatchedNodes), 64), 1)
					if err := p.ep.Post(batch); err != nil {
						t.Error(err)
						return
					}
					msg := p.own.Next()
					for msg == nil || !batch.Finished() { // with a message of the next round there, too
						if err := p.own.Await(clientPatience); err != nil {
							t.Errorf("round %d: message %v, verbs %v: %v", i, msg != nil, batch.Finished(), err)
							return
						}
						if msg == nil {
							msg = p.own.Next()
						}
					}
					p.own.Release(msg)
					if err := batch.Err(); err != nil {
						t.Error(err)
					}
					batch.Release()
				}
			})
		}
	}
	group.Wait()
}

// TestAwaitVerbsBehindAMessage has a worker wait for a verb by Await while a message is left in its
// mailbox: each Await returns at once, and the verb's answer is read nevertheless.
func TestAwaitVerbsBehindAMessage(t *testing.T) {
	u := newUnwatched(t)
	a := worker(t, u.Fabric)
	box := listening(t, a, rdma.BoxOptions{Node: 0})
	if err := post(a, box.Addr(0), "to myself"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // for the SEND, and for the message
		if err := box.Await(clientPatience); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		b := a.Batch()
		b.FetchAdd(rdma.At(0, 64), 1)
		if err := a.Post(b); err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(clientPatience); !b.Finished(); {
			if err := box.Await(clientPatience); err != nil || time.Now().After(until) {
				t.Fatalf("a verb is not complete: %v", err)
			}
		}
		b.Release()
	}
}

// TestAwaitSeveral has a worker with a mailbox at all nodes wait for a verb by Await, while no
// other one reads.
func TestAwaitSeveral(t *testing.T) {
	u := newUnwatched(t)
	a := worker(t, u.Fabric)
	box := listening(t, a, rdma.BoxOptions{Node: rdma.All})
	b := a.Batch()
	defer b.Release()
	b.FetchAdd(rdma.At(1, 64), 1)
	if err := a.Post(b); err != nil {
		t.Fatal(err)
	}
	for !b.Finished() {
		if err := box.Await(clientPatience); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOnlyReceives: a process that gets messages all the time, and says nothing to their node,
// keeps its connection.
func TestOnlyReceives(t *testing.T) {
	t.Parallel()
	f, a, _ := newTwo(t)
	m := listening(t, a, rdma.BoxOptions{Slots: 1024, Bytes: 64})
	defer m.Close()
	other, err := Open(control.Options{Addresses: []string{f.Link(0).Addr, f.Link(1).Addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	b := worker(t, other)
	defer listening(t, b, rdma.BoxOptions{}).Close()
	before, _ := f.Link(0).Reach()
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err := post(b, m.Addr(0), "hello"); err != nil {
			t.Fatal(err)
		}
		m.Release(got(t, m, "hello"))
	}
	if now, err := f.Link(0).Reach(); now != before {
		t.Errorf("connection %d became connection %d, %v", before, now, err)
	}
}
