package tcp

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// ring is the body of a ring frame.
func (r rights) ring(number, n int, buffers ...rdma.Span) []byte {
	le := binary.LittleEndian
	p := le.AppendUint32(le.AppendUint32(r.append(nil), uint32(number)), uint32(n))
	for _, b := range buffers {
		p = le.AppendUint64(le.AppendUint64(p, uint64(b.Addr)), uint64(b.Len))
	}
	return p
}

// appends is the body of a frame with one APPEND.
func (r rights) appends(number uint64, data string) []byte {
	return appendVerb(r.append(nil), &rdma.Op{Verb: rdma.Append, Buf: []byte(data)}, number, 0, len(data))
}

// asks sends a ring frame.
func asks(t testing.TB, c net.Conn, what int, body []byte, want status) (begun, settled uint64) {
	t.Helper()
	h, p, err := say(c, frame(kindRing, what, 1, body))
	if err != nil || h.status != want {
		t.Fatalf("ring frame for %d: %+v, %v, want status %d", what, h, err, want)
	}
	if len(p) == countBytes {
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
	other := n.call(t, forVerbs)
	asks(t, other, ringOpen, n.rightsOf(2).ring(9, 4), statusOK)
	asks(t, other, ringOpen, n.rightsOf(4).ring(10, 4), statusOK)
	good := rights{key: n.key, client: 1, life: 2}
	for name, c := range map[string]struct {
		r              rights
		number, places int
		want           status
	}{
		"all right, and of an epoch that is over": {good, 8, 4, statusOK},
		"the last one":               {good, rdma.MaxRing, rdma.MaxRingBuffers, statusOK},
		"no number":                  {good, 0, 4, statusAccess},
		"a number beyond":            {good, rdma.MaxRing + 1, 4, statusAccess},
		"too many places":            {good, 8, rdma.MaxRingBuffers + 1, statusAccess},
		"one that is taken":          {good, 9, 4, statusExists},
		"its own of an earlier life": {rights{key: n.key, client: 4, life: 2}, 10, 4, statusOK},
		"another key":                {rights{key: n.key + 1, client: 1, life: 2}, 8, 4, statusAccess},
		"no identity":                {rights{key: n.key, life: 2}, 8, 4, statusAccess},
		"a life that is over":        {rights{key: n.key, client: 3, life: 3}, 8, 4, statusRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			conn := n.call(t, forVerbs)
			asks(t, conn, ringOpen, c.r.ring(c.number, c.places), c.want)
			if c.want != statusOK {
				return
			}
			asks(t, conn, ringOpen, c.r.ring(c.number, c.places), statusExists)
			later := c.r
			later.life++
			asks(t, conn, ringClose, later.ring(c.number, 0), statusNoRing)
			asks(t, other, ringClose, c.r.ring(c.number, 0), statusNoRing) // which it was not opened over
			asks(t, conn, ringClose, c.r.ring(c.number, 0), statusOK)
			asks(t, conn, ringClose, c.r.ring(c.number, 0), statusNoRing)
		})
	}
	asks(t, other, ringCount, n.rightsOf(4).ring(10, 0), statusNoRing) // it was another life's, and closed
	p.rings.RLock()
	open := len(p.rings.at)
	p.rings.RUnlock()
	for i := open; i < mostRings; i++ {
		asks(t, other, ringOpen, good.ring(100+i, 1), statusOK)
	}
	asks(t, other, ringOpen, good.ring(8, 1), statusFull)
}

// TestAppendAtNode appends as an Endpoint does, and as none would.
func TestAppendAtNode(t *testing.T) {
	n := newRawNode(t, Config{})
	const size = 32 << 10 // of the pool; the node has more
	to, from := n.call(t, forVerbs), n.call(t, forVerbs)
	me, you := n.rightsOf(1), n.rightsOf(2)
	send := func(want status, body []byte) {
		t.Helper()
		if st := outcome(t, from, frame(kindVerbs, 1, 1, body)); st != want {
			t.Errorf("status %d, want %d", st, want)
		}
	}
	buffer := func(off uint64, n int) rdma.Span { return rdma.Span{Addr: rdma.At(0, off), Len: n} }
	asks(t, to, ringOpen, you.ring(9, 2), statusOK)
	send(statusRingDry, me.appends(9, "too early"))
	for name, b := range map[string]rdma.Span{
		"over the end": buffer(size-256, 320), "beyond": buffer(1<<40, 256), "misaligned": buffer(1024+8, 256),
		"short": buffer(1024, 192), "of less than nothing": buffer(1024, -64),
		"of another node": {Addr: rdma.At(1, 1024), Len: 256},
	} {
		if h, _, err := say(to, frame(kindRing, ringPost, 1, you.ring(9, 1, b))); err != nil ||
			h.status != statusAccess {
			t.Errorf("a buffer %s: %+v, %v", name, h, err)
		}
	}
	asks(t, to, ringPost, you.ring(9, 3, buffer(1024, 256), buffer(2048, 256), buffer(4096, 256)), statusFull)
	asks(t, to, ringPost, you.ring(9, 2, buffer(size-256, 256), buffer(1024, 320)), statusOK)
	send(statusOK, me.appends(9, fmt.Sprintf("%8d", 1)))
	send(statusOK, me.appends(9, fmt.Sprintf("%65d", 2)))
	send(statusOK, me.appends(9, fmt.Sprintf("%128d", 3))) // the rest of the first buffer is too short for it
	send(statusOK, me.appends(9, fmt.Sprintf("%192d", 4)))
	send(statusRingDry, me.appends(9, "a"))
	for off, want := range map[uint64]byte{size - 249: '1', size - 128: '2', 1024 + 127: '3', 1024 + 128 + 191: '4'} {
		if got := byte(n.word(off&^7) >> (8 * (off & 7))); got != want {
			t.Errorf("at %#x is %q, want %q", off, got, want)
		}
	}
	if begun, settled := asks(t, to, ringCount, you.ring(9, 0), statusOK); begun != 2 || settled != 1 {
		t.Errorf("%d buffers were begun, and %d settled", begun, settled)
	}
	asks(t, to, ringPost, you.ring(9, 1, buffer(1024, 320)), statusOK)
	send(statusMessageSize, me.appends(9, ""))
	send(statusMessageSize, me.appends(9, string(make([]byte, rdma.MaxMessage+1))))
	send(statusNoRing, me.appends(8, "no ring"))
	send(statusNoRing, me.appends(1<<47, "far away"))
	send(statusRingDry, me.appends(9, string(make([]byte, 700)))) // one block of it landed
	if begun, _ := asks(t, to, ringCount, you.ring(9, 0), statusOK); begun != 3 {
		t.Errorf("%d buffers were begun, and an entry did not fit", begun)
	}
	send(statusAccess, rights{key: n.key, life: 1}.appends(9, "without an identity"))
	ring := n.pool.Load().ringAt(9)
	if err := n.pool.Load().revoke(2, 1); err != nil {
		t.Fatal(err)
	}
	send(statusNoRing, me.appends(9, "fenced off"))
	if st := ring.land([]byte("of an entry that has begun")); st != statusNoRing {
		t.Errorf("a block lands behind the ring's end: status %d", st)
	}
	asks(t, to, ringPost, you.ring(9, 1, buffer(1024, 320)), statusNoRing)
	other := n.rightsOf(3)
	asks(t, to, ringOpen, other.ring(9, 2), statusOK)
	to.Close()
	for until := time.Now().Add(rawPatience); n.pool.Load().ringAt(9) != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("a ring outlives its connection")
		}
	}
	send(statusNoRing, me.appends(9, "gone"))
}

// TestBlocksLieApart has two clients of one connection append entries of several blocks: blocks of
// both come to lie between each other, those of each in order, and what fails behind its first
// block is not acknowledged.
func TestBlocksLieApart(t *testing.T) {
	n := newRawNode(t, Config{})
	const blocks, rounds, room = 4, 200, 16 << 10
	to, from := n.call(t, forVerbs), n.call(t, forVerbs)
	you := n.rightsOf(3)
	asks(t, to, ringOpen, you.ring(9, 1), statusOK)
	apart, refused := 0, 0
	for round := range rounds {
		asks(t, to, ringClose, you.ring(9, 0), statusOK)
		asks(t, to, ringOpen, you.ring(9, 1), statusOK)
		length := room
		if round%4 == 0 {
			length = (2*blocks*2 - 1) * minMTU // one block too short
		}
		asks(t, to, ringPost, you.ring(9, 1, rdma.Span{Addr: rdma.At(0, 0), Len: length}), statusOK)
		var said []byte
		for i := range 4 { // two entries of each
			client := 1 + i%2
			data := make([]byte, blocks*minMTU)
			for k := range blocks {
				binary.LittleEndian.PutUint64(data[k*minMTU:], uint64(client<<16|i/2<<8|k))
			}
			said = append(said,
				frame(kindVerbs, 1, uint32(i), n.rightsOf(rdma.ClientID(client)).appends(9, string(data)))...)
		}
		if _, err := from.Write(said); err != nil {
			t.Fatal(err)
		}
		dry := 0
		for range 4 {
			p := make([]byte, headerBytes+resultBytes)
			if _, err := io.ReadFull(from, p); err != nil {
				t.Fatal(err)
			}
			switch st := status(p[headerBytes]); st {
			case statusOK:
			case statusRingDry:
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
		for at, last := 0, uint64(0); at < min(length, 4*blocks*minMTU); at += minMTU {
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
