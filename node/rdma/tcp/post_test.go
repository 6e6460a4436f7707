package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// listen is the body of a listen frame that opens a mailbox.
func (r rights) listen(number, slots, size, taken int) []byte {
	p := r.append(nil)
	for _, x := range []int{number, 7, slots, size, taken, 0} {
		p = binary.LittleEndian.AppendUint32(p, uint32(x))
	}
	return p
}

// sends is the body of a frame with one SEND.
func (r rights) sends(to, from int, data string, spans ...rdma.Span) []byte {
	op := &rdma.Op{Verb: rdma.Send, Addr: rdma.At(0, uint64(to)), Buf: []byte(data), Spans: spans}
	return appendSend(r.append(nil), op, from)
}

// heard reads the next message of a connection. Answers are skipped.
func heard(t testing.TB, c net.Conn) (h header, from, client int, data string) {
	t.Helper()
	for h.kind != kindMessage {
		var head [headerBytes]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			t.Fatal(err)
		}
		var err error
		if h, err = parseHeader(head[:], maxAnswer); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, h.body)
		if _, err := io.ReadFull(c, p); err != nil {
			t.Fatal(err)
		}
		if h.kind == kindMessage {
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
	other := n.call(t, forVerbs)
	for c, number := range map[rdma.ClientID]int{2: 9, 4: 10} {
		if h, _, err := say(other, frame(kindListen, listenOpen, 1,
			n.rightsOf(c).listen(number, 4, 64, 0))); err != nil || h.status != statusOK {
			t.Fatalf("mailbox %d: %+v, %v", number, h, err)
		}
	}
	good := rights{key: n.key, client: 1, life: 2}
	for name, c := range map[string]struct {
		r                         rights
		number, slots, size, held int
		want                      status
	}{
		"all right, and of an epoch that is over": {good, 8, 4, 64, 0, statusOK},
		"its own": {good, rdma.OwnBoxes + 1, rdma.MaxSlots, rdma.MaxMessage,
			rdma.MaxSlots, statusOK},
		"another's own":              {good, rdma.OwnBoxes + 2, 4, 64, 0, statusAccess},
		"no number":                  {good, 0, 4, 64, 0, statusAccess},
		"a number beyond":            {good, rdma.MaxBox + 1, 4, 64, 0, statusAccess},
		"one that is taken":          {good, 9, 4, 64, 0, statusExists},
		"its own of an earlier life": {rights{key: n.key, client: 4, life: 2}, 10, 4, 64, 0, statusOK},
		"no buffers":                 {good, 8, 0, 64, 0, statusAccess},
		"too many":                   {good, 8, rdma.MaxSlots + 1, 64, 0, statusAccess},
		"none that holds anything":   {good, 8, 4, 0, 0, statusAccess},
		"too long ones":              {good, 8, 4, rdma.MaxMessage + 1, 0, statusAccess},
		"more taken than there are":  {good, 8, 4, 64, 5, statusAccess},
		"another key":                {rights{key: n.key + 1, client: 1, life: 2}, 8, 4, 64, 0, statusAccess},
		"no identity":                {rights{key: n.key, life: 2}, 8, 4, 64, 0, statusAccess},
		"a life that is over":        {rights{key: n.key, client: 3, life: 3}, 8, 4, 64, 0, statusRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			conn := n.call(t, forVerbs)
			h, body, err := say(conn, frame(kindListen, listenOpen, 1, c.r.listen(c.number, c.slots, c.size, c.held)))
			if err != nil || h.status != c.want || len(body) > 0 {
				t.Fatalf("%+v, %x, %v, want status %d", h, body, err, c.want)
			}
			if c.want != statusOK {
				return
			}
			if h, _, err = say(conn, frame(kindListen, listenOpen, 2, c.r.listen(20, 4, 64, 0))); err != nil ||
				h.status != statusExists {
				t.Errorf("a second one: %+v, %v", h, err)
			}
			if h, _, err = say(conn, frame(kindListen, listenClose, 3, c.r.append(nil))); err != nil ||
				h.status != statusOK {
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
	to, from := n.call(t, forVerbs), n.call(t, forVerbs)
	me, you := n.rightsOf(1), n.rightsOf(2)
	if h, _, err := say(to, frame(kindListen, listenOpen, 1, you.listen(9, 3, 64, 1))); err != nil ||
		h.status != statusOK {
		t.Fatalf("%+v, %v", h, err)
	}
	send := func(want status, body []byte) {
		t.Helper()
		if st := outcome(t, from, frame(kindVerbs, 1, 1, body)); st != want {
			t.Errorf("status %d, want %d", st, want)
		}
	}
	expect := func(text string) {
		t.Helper()
		if h, box, client, data := heard(t, to); h.tag != 7 || box != 5 || client != 1 || data != text {
			t.Errorf("%+v from mailbox %d of client %d: %q, want %q", h, box, client, data, text)
		}
	}
	send(statusNoBox, me.sends(8, 5, "no box"))
	send(statusNoBox, me.sends(1<<40, 5, "far away"))
	send(statusMessageSize, me.sends(9, 5, fmt.Sprintf("%65d", 0)))
	send(statusOK, me.sends(9, 5, "one"))
	send(statusOK, me.sends(9, 5, "two"))
	send(statusBoxFull, me.sends(9, 5, "a third one, where one buffer was taken before"))
	expect("one")
	expect("two")
	you.released = 1
	if _, err := to.Write(frame(kindListen, listenTell, 0, you.append(nil))); err != nil {
		t.Fatal(err)
	}
	say(to, frame(kindPing, 0, 1, nil)) // behind it
	send(statusOK, me.sends(9, 5, "three"))
	send(statusBoxFull, me.sends(9, 5, "four"))
	expect("three")
	you.released = 4
	say(to, frame(kindVerbs, 1, 1, you.faa(16))) // as with any verb
	text := "a text in the node's memory"
	outcome(t, from, frame(kindVerbs, 1, 1, appendVerb(me.append(nil), &rdma.Op{Verb: rdma.Write, Buf: []byte(text)},
		99, 0, len(text))))
	send(statusOK, me.sends(9, 5, "> ", rdma.Span{Addr: rdma.At(0, 101), Len: 4},
		rdma.Span{Addr: rdma.At(0, 99), Len: 2}))
	expect("> texta ")
	outsider := n.rightsOf(4)
	for _, s := range []rdma.Span{{Addr: rdma.At(0, size-3), Len: 4}, {Addr: rdma.At(0, 1<<47), Len: 8},
		{Len: 1 << 62}} {
		send(statusAccess, outsider.sends(9, 5, "", s))
		outsider.client++ // that one is stopped
	}
	send(statusAccess, n.rightsOf(7).sends(9, rdma.OwnBoxes+6, "as another"))
	send(statusAccess, rights{key: n.key, life: 1}.sends(1<<16, 5, "without an identity"))
	if err := n.pool.Load().revoke(2, 1); err != nil {
		t.Fatal(err)
	}
	send(statusNoBox, me.sends(9, 5, "fenced off"))
	other := n.rightsOf(3)
	if h, _, err := say(to, frame(kindListen, listenOpen, 1, other.listen(9, 3, 64, 0))); err != nil ||
		h.status != statusOK {
		t.Fatalf("the number of one that was fenced off: %+v, %v", h, err)
	}
	send(statusOK, me.sends(9, 5, "another worker"))
	to.Close()
	for until := time.Now().Add(rawPatience); n.boxAt(9); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("a mailbox outlives its connection")
		}
	}
	send(statusNoBox, me.sends(9, 5, "gone"))
}

// TestSlowReceiver has a receiver read nothing: the node refuses messages in time, though it has
// buffers, and answers all; once the receiver reads, it gets what was accepted, whole and in order.
func TestSlowReceiver(t *testing.T) {
	for name, threads := range map[string]int32{"blocking": 0, "poller": mostThreads} {
		t.Run(name, func(t *testing.T) {
			n := newRawNode(t, Config{})
			n.threads.Add(threads)
			defer n.threads.Add(-threads)
			to, from := n.call(t, forVerbs), n.call(t, forVerbs)
			me, you := n.rightsOf(1), n.rightsOf(2)
			open := you.listen(9, rdma.MaxSlots, rdma.MaxMessage, 0)
			if h, _, err := say(to, frame(kindListen, listenOpen, 1, open)); err != nil || h.status != statusOK {
				t.Fatalf("%+v, %v", h, err)
			}
			text := bytes.Repeat([]byte("-"), 60_000)
			accepted, refused := 0, 0
			const most = 64 << 20 // the kernels' buffers, and the mail
			for refused < 3 && accepted*len(text) < most {
				binary.LittleEndian.PutUint64(text, uint64(accepted))
				switch st := outcome(t, from, frame(kindVerbs, 1, 1, me.sends(9, 5, string(text)))); st {
				case statusOK:
					accepted++
				case statusBoxFull:
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
	to := n.call(t, forVerbs)
	if h, _, err := say(to, frame(kindListen, listenOpen, 1, n.rightsOf(2).listen(9, 3, 64, 0))); err != nil ||
		h.status != statusOK {
		t.Fatalf("%+v, %v", h, err)
	}
	p := n.pool.Load()
	p.boxes.RLock()
	b := p.boxes.at[9]
	p.boxes.RUnlock()
	p.until.Store(0)
	if st := b.conn.mail.add(b, &request{from: 5, data: []byte("late"), n: 4}, 1, 4); st != statusOK {
		t.Fatalf("status %d", st)
	}
	forwarded := make(chan struct{})
	go func() {
		defer close(forwarded)
		b.conn.forward()
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
