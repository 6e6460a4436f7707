package memnode

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/transport"
)

// listen is the body of a listen frame that opens a mailbox.
func listenOf(r transport.Rights, number, slots, size, taken int) []byte {
	p := r.Append(nil)
	for _, x := range []int{number, 7, slots, size, taken, 0} {
		p = binary.LittleEndian.AppendUint32(p, uint32(x))
	}
	return p
}

// sends is the body of a frame with one SEND.
func sendsOf(r transport.Rights, to, from int, data string, spans ...rdma.Span) []byte {
	op := &rdma.Op{Verb: rdma.Send, Addr: rdma.At(0, uint64(to)), Buf: []byte(data), Spans: spans}
	return transport.AppendSend(r.Append(nil), op, from)
}

// heard reads the next message of a connection. Answers are skipped.
func heard(t testing.TB, c net.Conn) (h transport.Header, from, client int, data string) {
	t.Helper()
	for h.Kind != transport.KindMessage {
		var head [transport.HeaderBytes]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			t.Fatal(err)
		}
		var err error
		if h, err = transport.ParseHeader(head[:], transport.MaxAnswer); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, h.Body)
		if _, err := io.ReadFull(c, p); err != nil {
			t.Fatal(err)
		}
		if h.Kind == transport.KindMessage {
			n := binary.LittleEndian.Uint32(p[8:])
			from, client, data = int(binary.LittleEndian.Uint32(p)), int(binary.LittleEndian.Uint32(p[4:])),
				string(p[16:16+n])
		}
	}
	return h, from, client, data
}

// TestListenAtNode opens mailboxes as it may be done, and as it may not.
func TestListenAtNode(t *testing.T) {
	n := newRawNode(t, Config{})
	p := n.pool.Load()
	p.revoked[3].Store(3)
	p.fence.Store(5)
	other := n.call(t, transport.ForVerbs)
	for c, number := range map[rdma.ClientID]int{2: 9, 4: 10} {
		if h, _, err := say(other, frame(transport.KindListen, control.ListenOpen, 1,
			listenOf(n.rightsOf(c), number, 4, 64, 0))); err != nil || h.Status != transport.StatusOK {
			t.Fatalf("mailbox %d: %+v, %v", number, h, err)
		}
	}
	good := transport.Rights{Key: n.key, Client: 1, Life: 2}
	for name, c := range map[string]struct {
		r                         transport.Rights
		number, slots, size, held int
		want                      transport.Status
	}{
		"all right, and of an epoch that is over": {good, 8, 4, 64, 0, transport.StatusOK},
		"its own": {good, rdma.OwnBoxes + 1, rdma.MaxSlots, rdma.MaxMessage,
			rdma.MaxSlots, transport.StatusOK},
		"another's own":     {good, rdma.OwnBoxes + 2, 4, 64, 0, transport.StatusAccess},
		"no number":         {good, 0, 4, 64, 0, transport.StatusAccess},
		"a number beyond":   {good, rdma.MaxBox + 1, 4, 64, 0, transport.StatusAccess},
		"one that is taken": {good, 9, 4, 64, 0, transport.StatusExists},
		"its own of an earlier life": {transport.Rights{Key: n.key, Client: 4, Life: 2}, 10, 4, 64, 0,
			transport.StatusOK},
		"no buffers":                {good, 8, 0, 64, 0, transport.StatusAccess},
		"too many":                  {good, 8, rdma.MaxSlots + 1, 64, 0, transport.StatusAccess},
		"none that holds anything":  {good, 8, 4, 0, 0, transport.StatusAccess},
		"too long ones":             {good, 8, 4, rdma.MaxMessage + 1, 0, transport.StatusAccess},
		"more taken than there are": {good, 8, 4, 64, 5, transport.StatusAccess},
		"another key": {transport.Rights{Key: n.key + 1, Client: 1, Life: 2}, 8, 4, 64, 0,
			transport.StatusAccess},
		"no identity": {transport.Rights{Key: n.key, Life: 2}, 8, 4, 64, 0, transport.StatusAccess},
		"a life that is over": {transport.Rights{Key: n.key, Client: 3, Life: 3}, 8, 4, 64, 0,
			transport.StatusRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			conn := n.call(t, transport.ForVerbs)
			h, body, err := say(conn, frame(transport.KindListen, control.ListenOpen, 1,
				listenOf(c.r, c.number, c.slots, c.size, c.held)))
			if err != nil || h.Status != c.want || len(body) > 0 {
				t.Fatalf("%+v, %x, %v, want status %d", h, body, err, c.want)
			}
			if c.want != transport.StatusOK {
				return
			}
			if h, _, err = say(conn, frame(transport.KindListen, control.ListenOpen, 2,
				listenOf(c.r, 20, 4, 64, 0))); err != nil ||
				h.Status != transport.StatusExists {
				t.Errorf("a second one: %+v, %v", h, err)
			}
			if h, _, err = say(conn, frame(transport.KindListen, control.ListenClose, 3,
				c.r.Append(nil))); err != nil ||
				h.Status != transport.StatusOK {
				t.Errorf("close it: %+v, %v", h, err)
			}
			if n.boxAt(c.number) {
				t.Error("it is there yet")
			}
		})
	}
}

// boxAt reports whether the node has a mailbox of that number.
func (n *rawNode) boxAt(number int) bool {
	all := &n.pool.Load().boxes
	all.RLock()
	defer all.RUnlock()
	return all.at[number] != nil
}

// TestSendAtNode sends messages as an Endpoint does, and as none would: the node counts buffers,
// and refuses.
func TestSendAtNode(t *testing.T) {
	n := newRawNode(t, Config{})
	const size = 32 << 10 // of the pool; the node has more
	to, from := n.call(t, transport.ForVerbs), n.call(t, transport.ForVerbs)
	me, you := n.rightsOf(1), n.rightsOf(2)
	if h, _, err := say(to, frame(transport.KindListen, control.ListenOpen, 1,
		listenOf(you, 9, 3, 64, 1))); err != nil ||
		h.Status != transport.StatusOK {
		t.Fatalf("%+v, %v", h, err)
	}
	send := func(want transport.Status, body []byte) {
		t.Helper()
		if st := outcome(t, from, frame(transport.KindVerbs, 1, 1, body)); st != want {
			t.Errorf("status %d, want %d", st, want)
		}
	}
	expect := func(text string) {
		t.Helper()
		if h, box, client, data := heard(t, to); h.Tag != 7 || box != 5 || client != 1 || data != text {
			t.Errorf("%+v from mailbox %d of client %d: %q, want %q", h, box, client, data, text)
		}
	}
	send(transport.StatusNoBox, sendsOf(me, 8, 5, "no box"))
	send(transport.StatusNoBox, sendsOf(me, 1<<40, 5, "far away"))
	send(transport.StatusMessageSize, sendsOf(me, 9, 5, fmt.Sprintf("%65d", 0)))
	send(transport.StatusOK, sendsOf(me, 9, 5, "one"))
	send(transport.StatusOK, sendsOf(me, 9, 5, "two"))
	send(transport.StatusBoxFull, sendsOf(me, 9, 5, "a third one, where one buffer was taken before"))
	expect("one")
	expect("two")
	you.Released = 1
	if _, err := to.Write(frame(transport.KindListen, control.ListenTell, 0, you.Append(nil))); err != nil {
		t.Fatal(err)
	}
	say(to, frame(transport.KindPing, 0, 1, nil)) // behind it
	send(transport.StatusOK, sendsOf(me, 9, 5, "three"))
	send(transport.StatusBoxFull, sendsOf(me, 9, 5, "four"))
	expect("three")
	you.Released = 4
	say(to, frame(transport.KindVerbs, 1, 1, faaOf(you, 16))) // as with any verb
	text := "a text in the node's memory"
	outcome(t, from, frame(transport.KindVerbs, 1, 1, transport.AppendVerb(me.Append(nil),
		&rdma.Op{Verb: rdma.Write, Buf: []byte(text)},
		99, 0, len(text))))
	send(transport.StatusOK, sendsOf(me, 9, 5, "> ", rdma.Span{Addr: rdma.At(0, 101), Len: 4},
		rdma.Span{Addr: rdma.At(0, 99), Len: 2}))
	expect("> texta ")
	outsider := n.rightsOf(4)
	for _, s := range []rdma.Span{{Addr: rdma.At(0, size-3), Len: 4}, {Addr: rdma.At(0, 1<<47), Len: 8},
		{Len: 1 << 62}} {
		send(transport.StatusAccess, sendsOf(outsider, 9, 5, "", s))
		outsider.Client++ // that one is stopped
	}
	send(transport.StatusAccess, sendsOf(n.rightsOf(7), 9, rdma.OwnBoxes+6, "as another"))
	send(transport.StatusAccess, sendsOf(transport.Rights{Key: n.key, Life: 1}, 1<<16, 5, "without an identity"))
	if err := n.pool.Load().revoke(2, 1); err != nil {
		t.Fatal(err)
	}
	send(transport.StatusNoBox, sendsOf(me, 9, 5, "fenced off"))
	other := n.rightsOf(3)
	if h, _, err := say(to, frame(transport.KindListen, control.ListenOpen, 1,
		listenOf(other, 9, 3, 64, 0))); err != nil ||
		h.Status != transport.StatusOK {
		t.Fatalf("the number of one that was fenced off: %+v, %v", h, err)
	}
	send(transport.StatusOK, sendsOf(me, 9, 5, "another worker"))
	to.Close()
	for until := time.Now().Add(rawPatience); n.boxAt(9); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("a mailbox outlives its connection")
		}
	}
	send(transport.StatusNoBox, sendsOf(me, 9, 5, "gone"))
}

// TestSlowReceiver has a receiver read nothing: the node refuses messages in time, though it has
// buffers, and answers all; once the receiver reads, it gets what was accepted, whole and in order.
func TestSlowReceiver(t *testing.T) {
	for name, threads := range map[string]int32{"blocking": 0, "poller": mostThreads} {
		t.Run(name, func(t *testing.T) {
			n := newRawNode(t, Config{})
			n.threads.Add(threads)
			defer n.threads.Add(-threads)
			to, from := n.call(t, transport.ForVerbs), n.call(t, transport.ForVerbs)
			me, you := n.rightsOf(1), n.rightsOf(2)
			open := listenOf(you, 9, rdma.MaxSlots, rdma.MaxMessage, 0)
			if h, _, err := say(to, frame(transport.KindListen, control.ListenOpen, 1, open)); err != nil ||
				h.Status != transport.StatusOK {
				t.Fatalf("%+v, %v", h, err)
			}
			text := bytes.Repeat([]byte("-"), 60_000)
			accepted, refused := 0, 0
			const most = 64 << 20 // the kernels' buffers, and the mail
			for refused < 3 && accepted*len(text) < most {
				binary.LittleEndian.PutUint64(text, uint64(accepted))
				switch st := outcome(t, from, frame(transport.KindVerbs, 1, 1, sendsOf(me, 9, 5, string(text)))); st {
				case transport.StatusOK:
					accepted++
				case transport.StatusBoxFull:
					refused++
				default:
					t.Fatalf("message %d: status %d", accepted, st)
				}
			}
			if refused == 0 {
				t.Errorf("the node has taken %d messages for a client that reads nothing", accepted)
			}
			for i := range accepted {
				_, _, _, data := heard(t, to)
				if binary.LittleEndian.PutUint64(text, uint64(i)); data != string(text) {
					t.Fatalf("message %d of %d is %d bytes, %.16x", i, accepted, len(data), data)
				}
			}
		})
	}
}

// TestMailAwaitsLease has a node lose its lease between the execution of a SEND and its forwarding:
// the message, which may have gathered from memory that others have taken over, waits until the
// node may serve.
func TestMailAwaitsLease(t *testing.T) {
	n := newRawNode(t, Config{})
	to := n.call(t, transport.ForVerbs)
	if h, _, err := say(to, frame(transport.KindListen, control.ListenOpen, 1,
		listenOf(n.rightsOf(2), 9, 3, 64, 0))); err != nil ||
		h.Status != transport.StatusOK {
		t.Fatalf("%+v, %v", h, err)
	}
	p := n.pool.Load()
	p.boxes.RLock()
	b := p.boxes.at[9]
	p.boxes.RUnlock()
	p.until.Store(0)
	if st := b.to.mail.add(b, &transport.Request{From: 5, Data: []byte("late"), N: 4}, 1, 4,
		p.memory); st != transport.StatusOK {
		t.Fatalf("status %d", st)
	}
	forwarded := make(chan struct{})
	go func() {
		defer close(forwarded)
		b.to.forward()
	}()
	to.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := to.Read(make([]byte, 1)); !isTimeout(err) {
		t.Errorf("a node without a lease forwards: %v", err)
	}
	p.until.Store(int64(rdma.Forever))
	to.SetReadDeadline(time.Now().Add(rawPatience))
	if _, _, _, data := heard(t, to); data != "late" {
		t.Errorf("%q comes once the node has a lease", data)
	}
	<-forwarded
}
