package memnode

import (
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

// ring is the body of a ring frame.
func ringOf(r transport.Rights, number, n int, buffers ...rdma.Span) []byte {
	le := binary.LittleEndian
	p := le.AppendUint32(le.AppendUint32(r.Append(nil), uint32(number)), uint32(n))
	for _, b := range buffers {
		p = le.AppendUint64(le.AppendUint64(p, uint64(b.Addr)), uint64(b.Len))
	}
	return p
}

// appends is the body of a frame with one APPEND.
func appendsOf(r transport.Rights, number uint64, data string) []byte {
	return transport.AppendVerb(r.Append(nil), &rdma.Op{Verb: rdma.Append, Buf: []byte(data)}, number, 0, len(data))
}

// asks sends a ring frame.
func asks(t testing.TB, c net.Conn, what int, body []byte, want transport.Status) (begun, settled uint64) {
	t.Helper()
	h, p, err := say(c, frame(transport.KindRing, what, 1, body))
	if err != nil || h.Status != want {
		t.Fatalf("ring frame for %d: %+v, %v, want status %d", what, h, err, want)
	}
	if len(p) == control.CountBytes {
		begun, settled = binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
	}
	return begun, settled
}

// TestRingAtNode opens rings as it may be done, and as it may not.
func TestRingAtNode(t *testing.T) {
	n := newRawNode(t, Config{})
	p := n.pool.Load()
	p.revoked[3].Store(3)
	p.fence.Store(5)
	other := n.call(t, transport.ForVerbs)
	asks(t, other, control.RingOpen, ringOf(n.rightsOf(2), 9, 4), transport.StatusOK)
	asks(t, other, control.RingOpen, ringOf(n.rightsOf(4), 10, 4), transport.StatusOK)
	good := transport.Rights{Key: n.key, Client: 1, Life: 2}
	for name, c := range map[string]struct {
		r              transport.Rights
		number, places int
		want           transport.Status
	}{
		"all right, and of an epoch that is over": {good, 8, 4, transport.StatusOK},
		"the last one":               {good, rdma.MaxRing, rdma.MaxRingBuffers, transport.StatusOK},
		"no number":                  {good, 0, 4, transport.StatusAccess},
		"a number beyond":            {good, rdma.MaxRing + 1, 4, transport.StatusAccess},
		"too many places":            {good, 8, rdma.MaxRingBuffers + 1, transport.StatusAccess},
		"one that is taken":          {good, 9, 4, transport.StatusExists},
		"its own of an earlier life": {transport.Rights{Key: n.key, Client: 4, Life: 2}, 10, 4, transport.StatusOK},
		"another key": {transport.Rights{Key: n.key + 1, Client: 1, Life: 2}, 8, 4,
			transport.StatusAccess},
		"no identity":         {transport.Rights{Key: n.key, Life: 2}, 8, 4, transport.StatusAccess},
		"a life that is over": {transport.Rights{Key: n.key, Client: 3, Life: 3}, 8, 4, transport.StatusRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			conn := n.call(t, transport.ForVerbs)
			asks(t, conn, control.RingOpen, ringOf(c.r, c.number, c.places), c.want)
			if c.want != transport.StatusOK {
				return
			}
			asks(t, conn, control.RingOpen, ringOf(c.r, c.number, c.places), transport.StatusExists)
			later := c.r
			later.Life++
			asks(t, conn, control.RingClose, ringOf(later, c.number, 0), transport.StatusNoRing)
			// which it was not opened over
			asks(t, other, control.RingClose, ringOf(c.r, c.number, 0), transport.StatusNoRing)
			asks(t, conn, control.RingClose, ringOf(c.r, c.number, 0), transport.StatusOK)
			asks(t, conn, control.RingClose, ringOf(c.r, c.number, 0), transport.StatusNoRing)
		})
	}
	// it was another life's, and closed
	asks(t, other, control.RingCount, ringOf(n.rightsOf(4), 10, 0), transport.StatusNoRing)
	p.rings.RLock()
	open := len(p.rings.at)
	p.rings.RUnlock()
	for i := open; i < mostRings; i++ {
		asks(t, other, control.RingOpen, ringOf(good, 100+i, 1), transport.StatusOK)
	}
	asks(t, other, control.RingOpen, ringOf(good, 8, 1), transport.StatusFull)
}

// TestAppendAtNode appends as an Endpoint does, and as none would.
func TestAppendAtNode(t *testing.T) {
	n := newRawNode(t, Config{})
	const size = 32 << 10 // of the pool; the node has more
	to, from := n.call(t, transport.ForVerbs), n.call(t, transport.ForVerbs)
	me, you := n.rightsOf(1), n.rightsOf(2)
	send := func(want transport.Status, body []byte) {
		t.Helper()
		if st := outcome(t, from, frame(transport.KindVerbs, 1, 1, body)); st != want {
			t.Errorf("status %d, want %d", st, want)
		}
	}
	buffer := func(off uint64, n int) rdma.Span { return rdma.Span{Addr: rdma.At(0, off), Len: n} }
	asks(t, to, control.RingOpen, ringOf(you, 9, 2), transport.StatusOK)
	send(transport.StatusRingDry, appendsOf(me, 9, "too early"))
	for name, b := range map[string]rdma.Span{
		"over the end": buffer(size-256, 320), "beyond": buffer(1<<40, 256), "misaligned": buffer(1024+8, 256),
		"short": buffer(1024, 192), "of less than nothing": buffer(1024, -64),
		"of another node": {Addr: rdma.At(1, 1024), Len: 256},
	} {
		if h, _, err := say(to, frame(transport.KindRing, control.RingPost, 1, ringOf(you, 9, 1, b))); err != nil ||
			h.Status != transport.StatusAccess {
			t.Errorf("a buffer %s: %+v, %v", name, h, err)
		}
	}
	asks(t, to, control.RingPost, ringOf(you, 9, 3, buffer(1024, 256), buffer(2048, 256), buffer(4096, 256)),
		transport.StatusFull)
	asks(t, to, control.RingPost, ringOf(you, 9, 2, buffer(size-256, 256), buffer(1024, 320)), transport.StatusOK)
	send(transport.StatusOK, appendsOf(me, 9, fmt.Sprintf("%8d", 1)))
	send(transport.StatusOK, appendsOf(me, 9, fmt.Sprintf("%65d", 2)))
	// the rest of the first buffer is too short for it
	send(transport.StatusOK, appendsOf(me, 9, fmt.Sprintf("%128d", 3)))
	send(transport.StatusOK, appendsOf(me, 9, fmt.Sprintf("%192d", 4)))
	send(transport.StatusRingDry, appendsOf(me, 9, "a"))
	for off, want := range map[uint64]byte{size - 249: '1', size - 128: '2', 1024 + 127: '3', 1024 + 128 + 191: '4'} {
		if got := byte(n.word(off&^7) >> (8 * (off & 7))); got != want {
			t.Errorf("at %#x is %q, want %q", off, got, want)
		}
	}
	if begun, settled := asks(t, to, control.RingCount, ringOf(you, 9, 0), transport.StatusOK); begun != 2 ||
		settled != 1 {
		t.Errorf("%d buffers were begun, and %d settled", begun, settled)
	}
	asks(t, to, control.RingPost, ringOf(you, 9, 1, buffer(1024, 320)), transport.StatusOK)
	send(transport.StatusMessageSize, appendsOf(me, 9, ""))
	send(transport.StatusMessageSize, appendsOf(me, 9, string(make([]byte, rdma.MaxMessage+1))))
	send(transport.StatusNoRing, appendsOf(me, 8, "no ring"))
	send(transport.StatusNoRing, appendsOf(me, 1<<47, "far away"))
	send(transport.StatusRingDry, appendsOf(me, 9, string(make([]byte, 700)))) // one block of it landed
	if begun, _ := asks(t, to, control.RingCount, ringOf(you, 9, 0), transport.StatusOK); begun != 3 {
		t.Errorf("%d buffers were begun, and an entry did not fit", begun)
	}
	send(transport.StatusAccess, appendsOf(transport.Rights{Key: n.key, Life: 1}, 9, "without an identity"))
	ring := n.pool.Load().ringAt(9)
	if err := n.pool.Load().revoke(2, 1); err != nil {
		t.Fatal(err)
	}
	send(transport.StatusNoRing, appendsOf(me, 9, "fenced off"))
	if st := ring.land([]byte("of an entry that has begun")); st != transport.StatusNoRing {
		t.Errorf("a block lands behind the ring's end: status %d", st)
	}
	asks(t, to, control.RingPost, ringOf(you, 9, 1, buffer(1024, 320)), transport.StatusNoRing)
	other := n.rightsOf(3)
	asks(t, to, control.RingOpen, ringOf(other, 9, 2), transport.StatusOK)
	to.Close()
	for until := time.Now().Add(rawPatience); n.pool.Load().ringAt(9) != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("a ring outlives its connection")
		}
	}
	send(transport.StatusNoRing, appendsOf(me, 9, "gone"))
}

// TestBlocksLieApart has two clients of one connection append entries of several blocks: blocks of
// both come to lie between each other, those of each in order, and what fails behind its first
// block is not acknowledged.
func TestBlocksLieApart(t *testing.T) {
	n := newRawNode(t, Config{})
	const blocks, rounds, room = 4, 200, 16 << 10
	to, from := n.call(t, transport.ForVerbs), n.call(t, transport.ForVerbs)
	you := n.rightsOf(3)
	asks(t, to, control.RingOpen, ringOf(you, 9, 1), transport.StatusOK)
	apart, refused := 0, 0
	for round := range rounds {
		asks(t, to, control.RingClose, ringOf(you, 9, 0), transport.StatusOK)
		asks(t, to, control.RingOpen, ringOf(you, 9, 1), transport.StatusOK)
		length := room
		if round%4 == 0 {
			length = (2*blocks*2 - 1) * control.MinMTU // one block too short
		}
		asks(t, to, control.RingPost, ringOf(you, 9, 1, rdma.Span{Addr: rdma.At(0, 0), Len: length}),
			transport.StatusOK)
		var said []byte
		for i := range 4 { // two entries of each
			client := 1 + i%2
			data := make([]byte, blocks*control.MinMTU)
			for k := range blocks {
				binary.LittleEndian.PutUint64(data[k*control.MinMTU:], uint64(client<<16|i/2<<8|k))
			}
			said = append(said,
				frame(transport.KindVerbs, 1, uint32(i), appendsOf(n.rightsOf(rdma.ClientID(client)), 9,
					string(data)))...)
		}
		if _, err := from.Write(said); err != nil {
			t.Fatal(err)
		}
		dry := 0
		for range 4 {
			p := make([]byte, transport.HeaderBytes+transport.ResultBytes)
			if _, err := io.ReadFull(from, p); err != nil {
				t.Fatal(err)
			}
			switch st := transport.Status(p[transport.HeaderBytes]); st {
			case transport.StatusOK:
			case transport.StatusRingDry:
				dry++
			default:
				t.Fatalf("status %d", st)
			}
		}
		if want := 1 - min(1, round%4); dry != want {
			t.Fatalf("%d entries are refused, want %d", dry, want)
		}
		refused += dry
		var next [3]uint64
		for at, last := 0, uint64(0); at < min(length, 4*blocks*control.MinMTU); at += control.MinMTU {
			word := n.word(uint64(at))
			client, number := word>>16, word>>8&0xff*blocks+word&0xff
			if client < 1 || client > 2 || number != next[client] {
				t.Fatalf("round %d: block %#x at %d, where %v come next", round, word, at, next)
			}
			next[client]++
			if client != last && number%blocks > 0 {
				apart++
			}
			last = client
		}
	}
	if apart < rounds || refused != rounds/4 {
		t.Errorf("%d blocks lie apart from their entries; %d entries are refused", apart, refused)
	}
}
