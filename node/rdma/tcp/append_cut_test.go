package tcp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// TestAppendsCutAtEveryByte cuts a sender's connection after each number of bytes, in either
// direction: of what is acknowledged all blocks are in the ring, in order and whole; of the rest
// there may be some, and none comes later than what was posted behind the reconnect.
func TestAppendsCutAtEveryByte(t *testing.T) {
	t.Parallel()
	for _, way := range []int{up, down} {
		t.Run([...]string{"up", "down"}[way], func(t *testing.T) {
			t.Parallel()
			step := 41
			if long {
				step = 7
			}
			cutAppends(t, way, step)
		})
	}
}

func cutAppends(t *testing.T, way, step int) {
	const mtu, blocks, room = 256, 3, 4 << 20
	_, addrs := start(t, 1, room, nil)
	p := newProxy(t, addrs[0])
	o := control.Options{Addresses: []string{p.addr()}, Lease: lease, MTU: mtu}
	receiver := attach(t, created(t, o, control.Geometry{Nodes: 1, Memory: room, Clients: 16}), "receiver")
	f := opened(t, o)
	sender := attach(t, f, "sender")
	sends := func(c caller) bool { return c.verbs() && c.Process == f.Process() }
	ring, err := rdma.OpenRing(receiver, rdma.RingOptions{Node: 0, Number: 1})
	if err == nil {
		err = ring.Post(rdma.Span{Addr: rdma.At(0, 0), Len: room})
	}
	if err != nil {
		t.Fatal(err)
	}
	var acked []uint64
	number := uint64(0)
	try := func() error {
		number++
		b := sender.Batch()
		defer b.Release()
		data := b.Alloc(blocks * mtu)
		for k := range blocks {
			copy(data[k*mtu:], bytes.Repeat(binary.LittleEndian.AppendUint64(nil, number<<8|uint64(k)), mtu/8))
		}
		b.Append(ring.Addr(), data)
		err := rdma.Do(sender, b, limit)
		if err == nil {
			acked = append(acked, number)
		}
		return err
	}
	for n := 0; ; n += step {
		spent := p.spent()
		limited := p.limitNext(sends, way, n)
		eventually(t, "a new connection", func() bool { return limited() && !f.NodeDown(0) })
		err := try()
		if !downOrNil(err) {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
		eventually(t, "the connection after that", func() bool { return !f.NodeDown(0) })
		for err = try(); errors.Is(err, rdma.ErrNodeDown); err = try() { // it was about to be cut
			eventually(t, "the connection after that", func() bool { return !f.NodeDown(0) })
		}
		if err != nil {
			t.Fatalf("behind the cut after %d bytes: %v", n, err)
		}
		if p.spent() == spent { // the connection was not cut any more
			if n < 100 {
				t.Fatalf("an entry was through after %d bytes", n)
			}
			break
		}
	}
	memory := make([]byte, 0, room)
	for len(memory) < int(number)*blocks*mtu {
		p, err := readAt(receiver, uint64(len(memory)), 64<<10)
		if err != nil {
			t.Fatal(err)
		}
		memory = append(memory, p...)
	}
	if err := inOrder(memory, mtu, blocks, acked); err != nil {
		t.Error(err)
	}
	t.Logf("%d entries, %d of them acknowledged", number, len(acked))
}

// inOrder returns why blocks are not those of entries that were acknowledged, and beginnings of
// others, in order.
func inOrder(memory []byte, mtu, blocks int, acked []uint64) error {
	last, next := uint64(0), 0
	for at := 0; at+mtu <= len(memory); at += mtu {
		block := memory[at : at+mtu]
		word := binary.LittleEndian.Uint64(block)
		if word == 0 {
			break
		}
		number, k := word>>8, int(word&0xff)
		if !bytes.Equal(block, bytes.Repeat(block[:8], mtu/8)) {
			return fmt.Errorf("block %d of entry %d is torn", k, number)
		}
		if number == last && k != next || number != last && k != 0 || number < last {
			return fmt.Errorf("block %d of entry %d comes where block %d of entry %d is due", k, number, next, last)
		}
		last, next = number, k+1
		if next == blocks && len(acked) > 0 && acked[0] == number {
			acked = acked[1:]
		}
	}
	if len(acked) > 0 {
		return fmt.Errorf("entries from %d on are acknowledged, and are not there", acked[0])
	}
	return nil
}

func readAt(ep rdma.Endpoint, off uint64, n int) ([]byte, error) {
	return rdma.ReadBytes(ep, "", rdma.At(0, off), n, limit)
}
