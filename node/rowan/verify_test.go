package rowan_test

import (
	"bytes"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// TestVerify: an entry of an own log, and one of the ring, are as they were sealed as long as no
// bit flips; not at another place, nor in another use of the segment; and how long they are is
// known from the header.
func TestVerify(t *testing.T) {
	o := testLog
	o.Own, o.Credit = 4, noCredit
	f := newMem(t, o, 256)
	ep, err := f.Open("logs")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	table, err := rowan.OpenTable(ep, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := table.Receiver(ep)
	if err == nil {
		err = r.Step()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data := bytes.Repeat([]byte("data"), 10)
	const n = rowan.HeaderBytes + 40
	log := table.Log(ep, 3)
	if err := log.Reserve(len(data), 0); err != nil {
		t.Fatal(err)
	}
	b := ep.Batch()
	seg, own := log.Add(b, 1, 7, data)
	if err := rdma.Do(ep, b, patience); err != nil {
		t.Fatal(err)
	}
	b.Release()
	s, err := rowan.NewSender(ep, senderOptions(o, 1))
	if err == nil {
		err = s.Append(1, data, patience)
	}
	if err != nil {
		t.Fatal(err)
	}
	var inRing rdma.Addr
	for i := range o.Segments {
		at := table.Begin(rowan.Segment{Index: i})
		if word, err := rdma.ReadWord(ep, "look", at, patience); err == nil && word != 0 && i != seg.Index {
			inRing = at
		}
	}
	for _, at := range []rdma.Addr{own, inRing} {
		p, err := rdma.ReadBytes(ep, "read", at, n+8, patience)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := table.Verify(at, p); got != n || !ok || table.Parts(at, p) != 1 {
			t.Errorf("the entry at %s has %d bytes, %v, in %d blocks", at, got, ok, table.Parts(at, p))
		}
		if got, ok := table.Verify(at, p[:n-1]); got != n || ok {
			t.Errorf("of the beginning of the entry at %s: %d, %v", at, got, ok)
		}
		for bit := range 8 * n {
			p[bit/8] ^= 1 << (bit % 8)
			if got, ok := table.Verify(at, p); ok || got < 0 || got > o.SegmentBytes {
				t.Errorf("with bit %d of the entry at %s flipped: %d, %v", bit, at, got, ok)
			}
			p[bit/8] ^= 1 << (bit % 8)
		}
		if _, ok := table.Verify(at.Add(rdma.Stride), p); ok == (at == own) {
			t.Errorf("the entry at %s is good at another place: %v", at, ok)
		}
		other := own
		if at == own {
			other = inRing
		}
		if _, ok := table.Verify(other, p); ok {
			t.Errorf("the entry at %s is good at %s", at, other)
		}
	}
}
