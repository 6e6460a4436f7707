package rdmatest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// serverBox is the mailbox of the suite's server, at node 0.
var serverBox = rdma.BoxAt(0, 7)

// correspond runs a server with a mailbox beside node 0 and clients with mailboxes of their own.
// The server may return when *over says that all clients have. Without messages it checks that
// Listen says so, and returns nil.
func correspond(t testing.TB, h Harness, o rdma.BoxOptions, handler rdma.Handler,
	server func(ep rdma.Endpoint, box rdma.Mailbox, over *atomic.Bool), clients ...func(rdma.Endpoint, rdma.Mailbox),
) rdma.Fabric {
	f := h.New(t, 2, poolBytes, handler)
	if h.Beside == nil {
		one(t, h, f, func(ep rdma.Endpoint) {
			if _, err := rdma.Listen(ep, rdma.BoxOptions{Node: rdma.All}); !errors.Is(err, rdma.ErrNotSupported) {
				t.Errorf("listen on a fabric without messages: %v", err)
			}
		})
		return nil
	}
	var over atomic.Bool
	var left atomic.Int32
	left.Store(int32(len(clients)))
	with := func(o rdma.BoxOptions, f func(rdma.Endpoint, rdma.Mailbox)) func(rdma.Endpoint) {
		return func(ep rdma.Endpoint) {
			box, err := rdma.Listen(ep, o)
			if err != nil {
				t.Error(err)
				return
			}
			f(ep, box)
			if err := box.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	o.Node, o.Number = 0, serverBox.Number()
	var fs []func(rdma.Endpoint)
	for _, c := range clients {
		run := with(rdma.BoxOptions{Node: rdma.All, Slots: 16, Bytes: rdma.MaxMessage}, c)
		fs = append(fs, func(ep rdma.Endpoint) {
			defer func() { over.Store(left.Add(-1) == 0) }()
			run(ep)
		})
	}
	h.Beside(t, f, 0, with(o, func(ep rdma.Endpoint, box rdma.Mailbox) { server(ep, box, &over) }), fs...)
	return f
}

// send sends a message and waits until it was delivered. It tries again as long as there is no such
// mailbox yet.
func send(ep rdma.Endpoint, to rdma.BoxAddr, head []byte, spans ...rdma.Span) error {
	for until := ep.Now() + patience; ; {
		err := sendOnce(ep, to, head, spans...)
		if !errors.Is(err, rdma.ErrNoBox) || ep.Now() > until {
			return err
		}
		ep.Sleep(20 * time.Microsecond)
	}
}

func sendOnce(ep rdma.Endpoint, to rdma.BoxAddr, head []byte, spans ...rdma.Span) error {
	b := ep.Batch()
	defer b.Release()
	p := b.Alloc(len(head))
	copy(p, head)
	b.Send(to, p, spans...)
	return rdma.Do(ep, b, patience)
}

// receive returns the next message.
func receive(ep rdma.Endpoint, box rdma.Mailbox) (*rdma.Message, error) {
	for until := ep.Now() + patience; ; {
		if m := box.Next(); m != nil {
			return m, nil
		}
		if err := box.Await(until - ep.Now()); err != nil {
			return nil, err
		}
	}
}

// echo answers each message with its content, behind a verb of its own.
func echoMessages(t testing.TB) func(rdma.Endpoint, rdma.Mailbox, *atomic.Bool) {
	return func(ep rdma.Endpoint, box rdma.Mailbox, over *atomic.Bool) {
		for !over.Load() {
			m := box.Next()
			if m == nil {
				if err := box.Await(time.Millisecond); err != nil && !errors.Is(err, rdma.ErrTimeout) {
					t.Error(err)
					return
				}
				continue
			}
			if _, err := fetchAdd(ep, rdma.At(1, 64), 1); err != nil {
				t.Error(err)
			}
			if err := sendOnce(ep, m.From, m.Data); err != nil && !over.Load() {
				t.Errorf("answer client %d: %v", m.Client, err)
			}
			box.Release(m)
		}
	}
}

// content is the i-th message of a client: number, client, and bytes of both.
func content(c rdma.ClientID, i, n int) []byte {
	p := make([]byte, max(n, 16))
	for k := range p {
		p[k] = byte(i*31 + k + int(c))
	}
	binary.LittleEndian.PutUint64(p, uint64(i))
	binary.LittleEndian.PutUint64(p[8:], uint64(c))
	return p
}

// testMessages has clients with many messages in flight, and checks that each arrives once, whole
// and in order, and that so do the answers of a server that posts verbs meanwhile.
func testMessages(t testing.TB, h Harness) {
	const messages, window = 200, 12
	client := func(ep rdma.Endpoint, box rdma.Mailbox) {
		sizes := [...]int{16, 17, 64, 250, 1000, 4096}
		if err := send(ep, serverBox, content(ep.Client(), 0, 16)); err != nil {
			t.Error(err)
			return
		}
		for next, sent := 0, 1; next < messages; {
			for ; sent < messages && sent < next+window; sent++ {
				b := ep.Batch()
				p := content(ep.Client(), sent, sizes[sent%len(sizes)])
				head := b.Alloc(len(p))
				copy(head, p)
				b.Send(serverBox, head)
				if err := ep.Post(b.As("send")); err != nil {
					t.Error(err)
					return
				}
				b.Release()
			}
			m, err := receive(ep, box)
			if err != nil {
				t.Errorf("client %d waits for answer %d: %v", ep.Client(), next, err)
				return
			}
			if want := content(ep.Client(), next, sizes[next%len(sizes)]); next > 0 && !bytes.Equal(m.Data, want) {
				t.Errorf("answer %d of client %d: %d bytes, %.20x, want %d, %.20x", next, ep.Client(), len(m.Data),
					m.Data, len(want), want)
				return
			}
			if m.From != serverBox {
				t.Errorf("the answer is from %s", m.From)
			}
			box.Release(m)
			next++
		}
	}
	server := echoMessages(t)
	last := map[rdma.ClientID]int{}
	f := correspond(t, h, rdma.BoxOptions{Slots: 4 * window}, nil,
		func(ep rdma.Endpoint, box rdma.Mailbox, over *atomic.Bool) {
			server(ep, &watched{box, func(m *rdma.Message) {
				i, c := int(binary.LittleEndian.Uint64(m.Data)), rdma.ClientID(binary.LittleEndian.Uint64(m.Data[8:]))
				if m.Client != c || i != last[c] {
					t.Errorf("message %d of client %d came as %d of client %d", i, c, last[c], m.Client)
				}
				last[c] = i + 1
			}}, over)
		}, client, client, client)
	if f != nil {
		expect(t, h, f, rdma.At(1, 64), 3*messages)
	}
}

// watched is a mailbox that calls a function with each message.
type watched struct {
	rdma.Mailbox
	look func(m *rdma.Message)
}

func (w *watched) Next() *rdma.Message {
	m := w.Mailbox.Next()
	if m != nil {
		w.look(m)
	}
	return m
}

// testMessageSizes sends messages of all sizes, and one that is too long: it is refused, and the
// next one is not.
func testMessageSizes(t testing.TB, h Harness) {
	correspond(t, h, rdma.BoxOptions{Bytes: rdma.MaxMessage - 8}, nil, echoMessages(t),
		func(ep rdma.Endpoint, box rdma.Mailbox) {
			for i, n := range []int{0, 1, 7, 8, 9, 63, 64, 65, 1023, 4096, 4097, 40_000, rdma.MaxMessage,
				rdma.MaxMessage - 8, 3} {
				p := content(1, i, n)[:n]
				err := send(ep, serverBox, p)
				if n == rdma.MaxMessage {
					if !errors.Is(err, rdma.ErrMessageSize) {
						t.Errorf("a message of %d bytes: %v", n, err)
					}
					continue
				}
				m, rerr := receive(ep, box)
				if err != nil || rerr != nil || !bytes.Equal(m.Data, p) {
					t.Errorf("a message of %d bytes: %v, %v", n, err, rerr)
					return
				}
				box.Release(m)
			}
		})
}

// testGather has a server answer with pieces of its node's memory, and tries another's, and what
// lies outside.
func testGather(t testing.TB, h Harness) {
	server := func(ep rdma.Endpoint, box rdma.Mailbox, over *atomic.Bool) {
		if err := errors.Join(write(ep, rdma.At(0, 4096), content(2, 5, 300)),
			write(ep, rdma.At(0, 8192), []byte("value"))); err != nil {
			t.Error(err)
		}
		m, err := receive(ep, box)
		if err != nil {
			t.Error(err)
			return
		}
		to := m.From
		box.Release(m)
		err = send(ep, to, []byte("head"), rdma.Span{Addr: rdma.At(0, 4099), Len: 200},
			rdma.Span{Addr: rdma.At(0, 8192), Len: 5})
		if err != nil {
			t.Error(err)
		}
		if err := send(ep, to, nil, rdma.Span{Addr: rdma.At(1, 4096), Len: 8}); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("gather from another node: %v", err)
		}
		if err := send(ep, to, nil); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("a message behind one that was refused: %v", err)
		}
	}
	correspond(t, h, rdma.BoxOptions{}, nil, server, func(ep rdma.Endpoint, box rdma.Mailbox) {
		if err := send(ep, serverBox, []byte("ask")); err != nil {
			t.Error(err)
			return
		}
		m, err := receive(ep, box)
		if want := append(append([]byte("head"), content(2, 5, 300)[3:203]...), "value"...); err != nil ||
			!bytes.Equal(m.Data, want) {
			t.Errorf("gathered %x, want %x: %v", m.Data, want, err)
		}
	})
}

// testFullMailbox fills a mailbox while its owner does not look at it: the next message is refused,
// without harm to those that are there or come when there is room.
func testFullMailbox(t testing.TB, h Harness) {
	const slots = 4
	var full, room atomic.Bool
	server := func(ep rdma.Endpoint, box rdma.Mailbox, over *atomic.Bool) {
		for !full.Load() && !over.Load() {
			ep.Sleep(50 * time.Microsecond)
		}
		var held [slots]*rdma.Message
		for i := range held {
			m, err := receive(ep, box)
			if err != nil || len(m.Data) != 1 || m.Data[0] != byte(i) {
				t.Errorf("message %d of a full mailbox: %v", i, err)
				return
			}
			held[i] = m
		}
		box.Release(held[2])
		room.Store(true)
		m, err := receive(ep, box)
		if err != nil || len(m.Data) != 1 || m.Data[0] != slots {
			t.Errorf("a message for which there was room again: %v", err)
			return
		}
		if held[1].Data[0] != 1 {
			t.Error("a message that was not released has changed")
		}
	}
	correspond(t, h, rdma.BoxOptions{Slots: slots, Bytes: 8}, nil, server, func(ep rdma.Endpoint, box rdma.Mailbox) {
		for i := range byte(slots) {
			if err := send(ep, serverBox, []byte{i}); err != nil {
				t.Error(err)
			}
		}
		if err := send(ep, serverBox, []byte{9}); !errors.Is(err, rdma.ErrBoxFull) {
			t.Errorf("a message to a full mailbox: %v", err)
		}
		full.Store(true)
		for until := ep.Now() + patience; !room.Load() && ep.Now() < until; {
			ep.Sleep(50 * time.Microsecond)
		}
		if err := sendUntilRoom(ep, serverBox, []byte{slots}); err != nil {
			t.Error(err)
		}
	})
}

// sendUntilRoom is send for a mailbox that was full: word of a buffer that was released may be on
// its way.
func sendUntilRoom(ep rdma.Endpoint, to rdma.BoxAddr, p []byte) error {
	for until := ep.Now() + patience; ; ep.Sleep(50 * time.Microsecond) {
		if err := send(ep, to, p); !errors.Is(err, rdma.ErrBoxFull) || ep.Now() > until {
			return err
		}
	}
}

// testNoMailbox sends to where no mailbox is, or is any more, and opens mailboxes that may not be.
func testNoMailbox(t testing.TB, h Harness) {
	var closed atomic.Bool
	server := func(ep rdma.Endpoint, box rdma.Mailbox, over *atomic.Bool) {
		if _, err := rdma.Listen(ep, rdma.BoxOptions{Node: 1, Number: 8}); !errors.Is(err, rdma.ErrExists) {
			t.Errorf("a second mailbox: %v", err)
		}
		m, err := receive(ep, box)
		if err != nil {
			t.Error(err)
			return
		}
		box.Release(m)
		if err := box.Close(); err != nil {
			t.Error(err)
		}
		closed.Store(true)
		if err := box.Await(patience); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("await a message of a mailbox that is closed: %v", err)
		}
	}
	correspond(t, h, rdma.BoxOptions{}, nil, server, func(ep rdma.Endpoint, box rdma.Mailbox) {
		if err := send(ep, serverBox, nil); err != nil {
			t.Error(err)
		}
		for _, to := range []rdma.BoxAddr{rdma.BoxAt(0, 6), rdma.BoxAt(1, serverBox.Number())} {
			if err := sendOnce(ep, to, nil); !errors.Is(err, rdma.ErrNoBox) {
				t.Errorf("a message to %s: %v", to, err)
			}
		}
		for until := ep.Now() + patience; !closed.Load() && ep.Now() < until; {
			ep.Sleep(50 * time.Microsecond)
		}
		if err := sendOnce(ep, serverBox, nil); !errors.Is(err, rdma.ErrNoBox) {
			t.Errorf("a message to a mailbox that is closed: %v", err)
		}
		if err := sendOnce(ep, rdma.BoxAt(2, 7), nil); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("a message to a node that the pool does not have: %v", err)
		}
		if err := box.Close(); err != nil {
			t.Error(err)
		}
		if err := sendOnce(ep, serverBox, nil); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("a message from a mailbox that is closed: %v", err)
		}
		for _, o := range []rdma.BoxOptions{
			{Node: 2}, {Number: rdma.OwnBoxes}, {Slots: rdma.MaxSlots + 1}, {Bytes: rdma.MaxMessage + 1}, {Slots: -1},
		} {
			if _, err := rdma.Listen(ep, o); !errors.Is(err, rdma.ErrAccess) {
				t.Errorf("a mailbox of %+v: %v", o, err)
			}
		}
	})
}

// testAwait waits for a completion, for a message, and for nothing.
func testAwait(t testing.TB, h Harness) {
	correspond(t, h, rdma.BoxOptions{}, nil, echoMessages(t), func(ep rdma.Endpoint, box rdma.Mailbox) {
		start := ep.Now()
		if err := box.Await(100 * time.Microsecond); !errors.Is(err, rdma.ErrTimeout) ||
			ep.Now() < start+90*time.Microsecond {
			t.Errorf("await without anything to come, for %v: %v", ep.Now()-start, err)
		}
		b := ep.Batch()
		b.FetchAdd(rdma.At(1, 128), 1)
		b.FetchAdd(rdma.At(0, 128), 1)
		if err := ep.Post(b); err != nil {
			t.Error(err)
		}
		for until := ep.Now() + patience; !b.Finished(); {
			if err := box.Await(until - ep.Now()); err != nil {
				t.Errorf("await two completions: %v", err)
				return
			}
		}
		if err := ep.Wait(b, rdma.All, patience); err != nil || b.Err() != nil {
			t.Errorf("what was awaited: %v, %v", err, b.Err())
		}
		b.Release()
		if err := send(ep, serverBox, []byte("a message")); err != nil {
			t.Error(err)
		}
		m, err := receive(ep, box)
		if err != nil {
			t.Errorf("await a message: %v", err)
			return
		}
		box.Release(m)
		for range 2 { // the first may be for a completion that receive did not wait for
			if err = box.Await(100 * time.Microsecond); err != nil {
				break
			}
		}
		if !errors.Is(err, rdma.ErrTimeout) {
			t.Errorf("await with nothing left: %v", err)
		}
	})
}

// testDeadReceiver kills the node by way of which a server is reached: messages to it end in
// ErrNodeDown, and no wait lasts longer than it was told to.
func testDeadReceiver(t testing.TB, h Harness) {
	if h.KillNode == nil {
		t.Skip("nodes of this fabric cannot die")
	}
	var f rdma.Fabric
	make := h.New
	h.New = func(t testing.TB, nodes int, memory uint64, hd rdma.Handler) rdma.Fabric {
		f = make(t, nodes, memory, hd)
		return f
	}
	server := func(ep rdma.Endpoint, box rdma.Mailbox, over *atomic.Bool) {
		for !over.Load() {
			if m := box.Next(); m != nil {
				sendOnce(ep, m.From, m.Data)
				box.Release(m)
			} else if err := box.Await(time.Millisecond); err != nil && !errors.Is(err, rdma.ErrTimeout) {
				return // beside a node that is gone
			}
		}
	}
	correspond(t, h, rdma.BoxOptions{}, nil, server, func(ep rdma.Endpoint, box rdma.Mailbox) {
		if err := send(ep, serverBox, []byte("hello")); err != nil {
			t.Error(err)
		}
		m, err := receive(ep, box)
		if err != nil {
			t.Error(err)
			return
		}
		box.Release(m)
		h.KillNode(t, f, 0)
		err = sendOnce(ep, serverBox, []byte("hello?"))
		for until := ep.Now() + patience; h.PastNodes && err == nil && ep.Now() < until; {
			ep.Sleep(50 * time.Microsecond)
			err = sendOnce(ep, serverBox, []byte("hello?"))
		}
		if !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("a message to a dead node: %v", err)
		}
		for err = nil; err == nil; {
			if m := box.Next(); m != nil {
				t.Errorf("a message from a dead node: %.20q", m.Data)
				return
			}
			err = box.Await(time.Millisecond)
		}
		if !errors.Is(err, rdma.ErrTimeout) {
			t.Errorf("await a message from a dead node: %v", err)
		}
		if _, err := fetchAdd(ep, rdma.At(1, 64), 1); err != nil {
			t.Errorf("a verb to a node that lives: %v", err)
		}
	})
}

// testFencedMessages fences senders off: a message of one that is gone, or of an epoch that is
// over, is refused as verbs are.
func testFencedMessages(t testing.TB, h Harness) {
	var f rdma.Fabric
	make := h.New
	h.New = func(t testing.TB, nodes int, memory uint64, hd rdma.Handler) rdma.Fabric {
		f = make(t, nodes, memory, hd)
		return f
	}
	came := map[string]bool{}
	server := func(ep rdma.Endpoint, box rdma.Mailbox, over *atomic.Bool) {
		for {
			last := over.Load()
			if m := box.Next(); m != nil {
				came[string(m.Data)] = true
				box.Release(m)
			} else if last {
				return
			} else if err := box.Await(time.Millisecond); err != nil && !errors.Is(err, rdma.ErrTimeout) {
				t.Error(err)
				return
			}
		}
	}
	correspond(t, h, rdma.BoxOptions{}, nil, server, func(ep rdma.Endpoint, box rdma.Mailbox) {
		say := func(text string, want error) {
			if err := send(ep, serverBox, []byte(text)); want == nil && err != nil ||
				want != nil && !errors.Is(err, want) {
				t.Errorf("send %q: %v, want %v", text, err, want)
			}
		}
		say("first", nil)
		ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true})
		if err := errors.Join(err, f.Fence(1)); err != nil || !ok {
			t.Errorf("begin an epoch: %v, %v", ok, err)
			return
		}
		say("stale", rdma.ErrStale)
		if _, err := ep.Join(); err != nil {
			t.Error(err)
		}
		say("joined", nil)
		if err := f.Revoke(ep.Client()); err != nil {
			t.Error(err)
		}
		say("revoked", rdma.ErrRevoked)
	})
	if h.Beside != nil && (len(came) != 2 || !came["first"] || !came["joined"]) {
		t.Errorf("messages came: %v", came)
	}
}

// testMessageAllocations measures a message and its answer in steady state.
func testMessageAllocations(t testing.TB, h Harness) {
	if !h.AllocFree {
		t.Skip("not claimed")
	}
	p := bytes.Repeat([]byte("m"), 200)
	answer := func(ep rdma.Endpoint, box rdma.Mailbox, to rdma.BoxAddr) error {
		b := ep.Batch()
		defer b.Release()
		head := b.Alloc(len(p))
		copy(head, p)
		b.Send(to, head)
		return rdma.Do(ep, b, patience)
	}
	server := func(ep rdma.Endpoint, box rdma.Mailbox, over *atomic.Bool) {
		for {
			m, err := receive(ep, box)
			if err != nil || len(m.Data) == 0 {
				return // the client has ended
			}
			if err := answer(ep, box, m.From); err != nil {
				t.Error(err)
			}
			box.Release(m)
		}
	}
	correspond(t, h, rdma.BoxOptions{}, nil, server, func(ep rdma.Endpoint, box rdma.Mailbox) {
		if err := send(ep, serverBox, p); err != nil {
			t.Error(err)
			return
		}
		if m, err := receive(ep, box); err == nil {
			box.Release(m)
		}
		round := func() {
			if err := answer(ep, box, serverBox); err != nil {
				t.Error(err)
				return
			}
			m, err := receive(ep, box)
			if err != nil {
				t.Error(err)
				return
			}
			box.Release(m)
		}
		least := math.Inf(1)
		for range 5 { // see testAllocations
			least = min(least, testing.AllocsPerRun(100, round))
		}
		if least != 0 {
			t.Errorf("a message and its answer allocate %v times", least)
		}
		if err := send(ep, serverBox, nil); err != nil {
			t.Error(err)
		}
	})
}
